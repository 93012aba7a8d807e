"""Training with an optimizer that averages, and what that optimizer refuses."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import torch
from torch import Tensor

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.drivers import between_marks
from graders.units.models import copies_of, gradients_of, load_values
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import Paths
from graders.units.unit_04.optimizers import cleared, hands_on_state, raised_by, refused
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
    options: "passes", "threshold", "lr", and "to_none", of zero_grad.
    """
    model = Paths(**model_options)
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), options["lr"])
    names = model.named_parameters(remove_duplicate=False)
    optimizer = answer(plain, names, options["passes"], threshold=options["threshold"])
    replies = []
    for batches, paths in zip(inputs, orders, strict=True):
        mark("step begins")
        optimizer.zero_grad(set_to_none=options["to_none"])
        for number, (batch, path) in enumerate(zip(batches, paths, strict=True)):
            model(batch, path, number).square().mean().backward()
            mark(f"backward {number} ends")
        optimizer.step()
        mark("stepped")
        replies.append(StepReply(gradients_of(model), copies_of(model.parameters())))
    return replies


OWN = ("param_groups", "state", "defaults")


class _Phases:
    """Steps of an optimizer around `plain`, numbered; what each leaves behind."""

    def __init__(self, model: Paths, plain: PlainSGD, optimizer: Any) -> None:
        self._model, self._plain, self._optimizer = model, plain, optimizer
        self.taken: list[int] = []
        self.parameters: list[list[Tensor]] = []

    def step(self, *closure: Callable[[], float]) -> PlainData:
        """A step, which ends the phase; what it returned."""
        returned: PlainData = self._optimizer.step(*closure)
        mark(f"phase {len(self.taken)} ends")
        self.taken.append(self._plain.taken)
        self.parameters.append(copies_of(self._model.parameters()))
        self._optimizer.zero_grad()
        return returned


def own(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> OwnReply:
    """One layer, in six phases, each marked: a step before any backward; one with a closure; one at another
    rate; one with gradients halved after synchronize(); one whose backward came after synchronize(); and one
    without a backward. Then comes a backward whose gradients are NaN. inputs: [B, width].
    """
    width = inputs.shape[1]
    model = Paths(width, [2], ["float32"], [], [])
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), 0.1)
    optimizer = answer(plain, model.named_parameters())
    shared = [name for name in OWN if getattr(optimizer, name, None) is getattr(plain, name)]
    phases = _Phases(model, plain, optimizer)
    closure = Mock(return_value=4.5)

    def backward(inputs: Tensor = inputs) -> None:
        model(inputs, [0]).square().mean().backward()

    phases.step()
    backward()
    returned = phases.step(closure)
    optimizer.param_groups[0]["lr"] = 0.01
    backward()
    phases.step()
    backward()
    optimizer.synchronize()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    phases.step()
    backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    backward()
    phases.step()
    phases.step()
    backward(inputs * torch.nan)
    before = [id(parameter.grad) for parameter in model.parameters()]
    optimizer.synchronize()
    in_place = before == [id(parameter.grad) for parameter in model.parameters()]
    lost = sum(each is None or not each.isnan().all() for each in gradients_of(model))
    told = (returned, closure.call_count, phases.taken, phases.parameters, lost, in_place)
    return OwnReply(shared, hands_on_state(optimizer, plain), *told, cleared(model, optimizer))


def refusals(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> list[str]:
    """What is raised, see `refused`, in turn: by zero_grad() after a backward; after step(); after
    synchronize(); after the first of two passes; by the second of two passes; by a third. inputs: [B, width].
    One of two layers has no gradient, so the only message is not complete before synchronize().
    """
    width = inputs.shape[1]
    found: list[str] = []
    for passes in (1, 2):
        model = Paths(width, [2, 2], ["float64"] * 2, [], [])
        load_values(model.parameters(), values)
        optimizer = answer(PlainSGD(model.parameters(), 0.1), model.named_parameters(), passes)

        def backward(model: Paths = model) -> None:
            model(inputs, [0]).square().mean().backward()

        backward()
        found.append(refused(model, optimizer))
        if passes == 1:
            optimizer.step()
            found.append(refused(model, optimizer))
            backward()
            optimizer.synchronize()
            found.append(refused(model, optimizer))
        else:
            found.append(raised_by(backward, RuntimeError))
            found.append(raised_by(backward, RuntimeError))
            with suppress(Exception):  # what is under way is to be waited for, whatever state that left
                optimizer.synchronize()
    return found
