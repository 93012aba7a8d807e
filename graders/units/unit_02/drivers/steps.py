"""Drivers of unit 02: steps of training in which an answer averages gradients while backward computes."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import gradients_of
from graders.units.unit_02.drivers.replicas import in_turn
from graders.units.unit_02.models import Layers, inputs_of, names_of

Wrapped = tuple[Callable[..., Tensor], Sequence[Any], Callable[[], Any]]
"""What goes forward, what has to finish, and what keeps a block from communicating."""


def in_buckets(answer: AnswerFunction, cases: list[list[PlainData]], *how: Any) -> list[Called]:
    """What the steps of each case leave of the gradients, where the answer is a `Bucket`.

    cases: the seeds of a `Layers` and of what this rank is given; the steps, each a list of passes by the
    ways that they go, all but the last of which must be silent; the numbers of frozen layers; and of each
    bucket the numbers of its parameters. how: what else `graders.units.ranks.drivers.calls` is told.
    """

    def wrap(model: Layers, buckets: list[list[int]]) -> Wrapped:
        parameters = list(model.parameters())
        return model, [answer([parameters[number] for number in each]) for each in buckets], nullcontext

    return [_trained(wrap, *case) for case, *_ in in_turn(cases, *how)]


def wrapped(answer: AnswerFunction, cases: list[list[PlainData]], *how: Any) -> list[Called]:
    """The same of a `BucketedDDP`; in the place of buckets each case has the bound on their bytes."""

    def wrap(model: Layers, bucket_bytes: int) -> Wrapped:
        made = answer(model, bucket_bytes)
        return made, [made], made.no_sync

    return [_trained(wrap, *case) for case, *_ in in_turn(cases, *how)]


def _trained(
    wrap: Callable[[Layers, Any], Wrapped],
    seeds: tuple[int, int],
    steps: list[list[list[int]]],
    frozen: list[int],
    given: PlainData,
) -> Called:
    """Of each step the gradients after it, by names."""
    model = Layers(seeds[0], frozen)
    forward, averaging, no_sync = wrap(model, given)
    told: dict[str, PlainData] = {}
    for number, passes in enumerate(steps):
        model.zero_grad()
        mark("step begins")
        for turn, way in enumerate(passes, 1):
            with no_sync() if turn < len(passes) else nullcontext():
                mark("pass begins")
                outputs = forward(inputs_of(seeds[1], number, turn - 1), way=way)
                outputs.square().mean().backward()  # type: ignore[no-untyped-call]
                mark("backward ends")
        for one in averaging:
            one.finish()
        told[after(number)] = dict(zip(names_of(model), gradients_of(model), strict=True))
    return Called(told, None, [])


def after(step: int) -> str:
    """Under this name it tells the gradients after a step."""
    return f"the gradients after step {step}"
