"""Training with an optimizer that averages."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.drivers import between_marks
from graders.units.models import copies_of, gradients_of, load_values
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import Paths
from graders.units.unit_04.replies import OwnReply, StepReply


def train(answer: AnswerFunction, trainings: list[list[Any]]) -> list[list[StepReply]]:
    """What each step of each training left, between marks; see `_trained`."""
    return between_marks(partial(_trained, answer), trainings)


def _trained(
    answer: AnswerFunction,
    model_options: dict[str, PlainData],
    values: list[Tensor],
    inputs: list[list[Tensor]],
    orders: list[list[list[int]]],
    options: dict[str, PlainData],
) -> list[StepReply]:
    """Steps of a `Paths` with the answer's optimizer.

    values: of the parameters. inputs, orders: by step and micro-batch, [B, width], and through which layers.
    options: "passes", "threshold" and "lr".
    """
    model = Paths(**model_options)
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), options["lr"])
    names = model.named_parameters(remove_duplicate=False)
    optimizer = answer(plain, names, options["passes"], threshold=options["threshold"])
    replies = []
    for batches, paths in zip(inputs, orders, strict=True):
        mark("step begins")
        optimizer.zero_grad()
        for number, (batch, path) in enumerate(zip(batches, paths, strict=True)):
            model(batch, path, number).square().mean().backward()
            mark(f"backward {number} ends")
        optimizer.step()
        mark("stepped")
        replies.append(StepReply(gradients_of(model), copies_of(model.parameters())))
    return replies


def own(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> OwnReply:
    """One layer and three steps: with a closure, at another rate, and with gradients halved after
    synchronize(). Then zero_grad() after a backward. inputs: [B, width].
    """
    model = Paths(inputs.shape[1], [2], ["float32"], [], [])
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), 0.1)
    optimizer = answer(plain, model.named_parameters())
    found = []

    def backward() -> None:
        model(inputs, [0]).square().mean().backward()

    def step(*closure: Callable[[], float]) -> PlainData:
        returned: PlainData = optimizer.step(*closure)
        found.append(copies_of(model.parameters()))
        optimizer.zero_grad()
        return returned

    backward()
    returned = step(lambda: 4.5)
    optimizer.param_groups[0]["lr"] = 0.01
    backward()
    step()
    backward()
    before = [id(parameter.grad) for parameter in model.parameters()]
    optimizer.synchronize()
    in_place = before == [id(parameter.grad) for parameter in model.parameters()]
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    step()
    backward()
    refused = ""
    try:
        optimizer.zero_grad()
    except Exception as error:
        refused = "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__
    with suppress(Exception):  # what is under way is to be waited for, whatever state that left
        optimizer.synchronize()
    return OwnReply(returned, found, in_place, refused)
