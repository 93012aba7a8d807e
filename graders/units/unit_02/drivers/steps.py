"""Drivers of unit 02: steps of training in which an answer averages gradients while backward computes."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of, gradients_of, state_of, transposed
from graders.units.unit_02.drivers.replicas import in_turn
from graders.units.unit_02.models import Layers, inputs_of, names_of, older_gradients

Wrapped = tuple[Callable[..., Tensor], Sequence[Any], Callable[[], Any]]
"""What goes forward, what has to finish, and what keeps a block from communicating."""


def in_buckets(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[dict[str, PlainData]],
    layouts: list[str],
    members: list[None],
    meet: list[bool],
) -> list[Called]:
    """What the steps of each case leave of the gradients, where the answer is a `Bucket`.

    cases: how a `Layers` is made; the seed of its state, and that of what this rank is given; the steps, each
    a list of passes by the ways that they go, all but the last of which must be silent; whether .grad holds
    something before; whether the last silent block ends with an error; and of each bucket the numbers of its
    parameters. layouts: of weights. options, meet: see `graders.units.ranks.drivers.calls`. There are no
    groups.
    """

    def wrap(model: Layers, buckets: list[list[int]]) -> Wrapped:
        parameters = list(model.parameters())
        return model, [answer([parameters[number] for number in each]) for each in buckets], nullcontext

    return [_trained(wrap, layout, *case) for case, _, layout in in_turn(cases, options, layouts, meet)]


def wrapped(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[dict[str, PlainData]],
    layouts: list[str],
    members: list[None],
    meet: list[bool],
) -> list[Called]:
    """The same of a `BucketedDDP`; in the place of buckets each case has the bound on their bytes."""

    def wrap(model: Layers, bucket_bytes: int) -> Wrapped:
        made = answer(model, bucket_bytes)
        return made, [made], made.no_sync

    return [_trained(wrap, layout, *case) for case, _, layout in in_turn(cases, options, layouts, meet)]


def _trained(
    wrap: Callable[[Layers, Any], Wrapped],
    layout: str,
    made: dict[str, Any],
    seeds: tuple[int, int],
    steps: list[list[list[int]]],
    older: bool,
    raises: bool,
    given: PlainData,
) -> Called:
    """Of each step the gradients after it, by names; and the model's state when it is wrapped."""
    model = Layers(seeds[0], **made)
    for weight, _ in model.layers if layout == "transposed" else ():
        weight.data = transposed(weight.data)
    forward, averaging, no_sync = wrap(model, given)
    names = names_of(model)
    told: dict[str, PlainData] = {
        BEGINNING: dict(zip([*names, "shift"], copies_of(state_of(model)), strict=True))
    }
    for number, passes in enumerate(steps):
        model.zero_grad()
        if older and number == 0:
            for parameter, gradient in zip(model.parameters(), older_gradients(model, seeds[1]), strict=True):
                parameter.grad = gradient
        mark("step begins")
        *silent, last = [(inputs_of(model, seeds[1], number, turn), way) for turn, way in enumerate(passes)]
        for turn, each in enumerate(silent, 1):
            _silently(no_sync, forward, each, raises and turn == len(silent))
        _backward(forward, *last)
        for one in averaging:
            one.finish()
        told[after(number)] = dict(zip(names, gradients_of(model), strict=True))
    return Called(told, None, [])


BEGINNING = "the model that was wrapped"
"""Under this name the driver tells the model's state."""


def after(step: int) -> str:
    """Under this name it tells the gradients after a step."""
    return f"the gradients after step {step}"


def _silently(no_sync: Callable[[], Any], forward: Callable[..., Tensor], each: Any, raises: bool) -> None:
    """A pass that must not communicate, and after which its block may raise an error."""
    try:
        with no_sync():
            _backward(forward, *each)
            if raises:
                raise KeyError("no more samples")
    except KeyError:
        return
    if raises:
        raise RuntimeError("A block of no_sync() has raised a KeyError, which did not come out of it.")


def _backward(forward: Callable[..., Tensor], inputs: Tensor, way: list[int]) -> None:
    mark("pass begins")
    forward(inputs, way=way).square().mean().backward()  # type: ignore[no-untyped-call]
    mark("backward ends")
