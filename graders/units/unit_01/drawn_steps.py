"""Steps of gradient descent as drawn for `train_step`, and what went wrong in the first of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.judging import feature
from graders.grading.kit import Answer, Rng
from graders.units.models import copies_of
from graders.units.unit_01 import drivers
from graders.units.unit_01.losses import close_to_all
from graders.units.unit_01.problems import Problem
from graders.units.unit_01.replies import StepReply
from graders.units.unit_01.watched import Batch

RATES = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of gradient descent: one for each size of a batch.

    stale: gradients that are there before the first. steep: gradients are longer than any that one would clip
    to, and logits larger than `exp` takes.
    """

    sizes: tuple[int, ...] = feature((6,), lambda sizes: f"batches of {[*sizes]} samples")
    stale: bool = feature(False, lambda stale: "old gradients in .grad" if stale else "")
    steep: bool = True
    training: bool = feature(True, lambda training: "" if training else "the model in evaluation mode")
    nan: bool = feature(False, lambda nan: "NaN in a sample" if nan else "")
    gpu: bool = feature(False, lambda gpu: "a GPU" if gpu else "")


@dataclass(frozen=True)
class Training:
    """Such steps, drawn. stale: None if there are no gradients before."""

    how: Steps
    problem: Problem
    batches: list[Batch]
    stale: list[Tensor] | None

    def seen(self, answer: Answer) -> list[StepReply]:
        arguments = self.problem.values, self.stale, self.batches, RATES, self.how.training, self.how.gpu
        return answer.call(drivers.steps, *arguments)

    @cached_property
    def right(self) -> tuple[list[Tensor], list[list[Tensor]]]:
        """What is expected of this exercise."""
        return self.expected()

    def expected(self, clears: bool = True) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Each step's loss before its update, a scalar, and the parameters after it, of their shapes.

        clears: if not, what is in .grad before is taken along.
        """
        model = self.problem.model()
        for parameter, gradient in zip(model.parameters(), self.stale or (), strict=False):
            parameter.grad = gradient.clone()
        optimizer = torch.optim.SGD(model.parameters(), **RATES)  # type: ignore[arg-type]
        losses, parameters = [], []
        for inputs, targets in self.batches:
            if clears:
                optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
            parameters.append(copies_of(model.parameters()))
        return losses, parameters


def some_steps(rng: Rng, how: Steps) -> Training:
    """The numbers of these steps."""
    problem = Problem.draw(rng)
    batches = problem.draw_steep(rng, how.sizes) if how.steep else problem.draw_batches(rng, how.sizes)
    if how.nan:
        batches[0][0][0] = torch.nan
    stale = [rng.normal(*value.shape) for value in problem.values] if how.stale else None
    return Training(how, problem, batches, stale)


def mistake_in(training: Training, seen: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """What went wrong in the first step, from the parameters after it; empty if that cannot be told."""
    before = training.problem.values
    if any(got.shape != old.shape or got.dtype != old.dtype for got, old in zip(seen, before, strict=True)):
        return ""
    if all(torch.equal(got, old) for got, old in zip(seen, before, strict=True)):
        return "no parameter has changed; expected one update of all"
    _, [after_one, *_] = training.expected(clears=False)
    if training.stale and close_to_all(training.problem, seen, after_one, "{}").passed:
        return (
            "the update went along the sum of this batch's gradient and the one that was in .grad before; "
            "expected this batch's alone"
        )
    got, wanted = (
        torch.cat(
            [
                ((old - new) / RATES["lr"] - RATES["weight_decay"] * old).flatten()
                for old, new in zip(before, after, strict=True)
            ]
        )
        for after in (seen, expected)
    )
    factor = float(got @ wanted / (wanted @ wanted))
    if not got.isfinite().all() or abs(factor - 1) < 0.01:
        return ""
    if not torch.allclose(got, factor * wanted, rtol=1e-3, atol=1e-3 * abs(factor)):
        return ""
    return f"the update went along {factor:.3g} times the gradient of the batch's mean cross-entropy"
