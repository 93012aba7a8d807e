"""Trainings that are drawn for `fit`, and what must come out of each."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.judging import feature
from graders.grading.kit import Answer, Rng
from graders.units.models import copies_of
from graders.units.unit_01 import drivers
from graders.units.unit_01.optimizers import used_before
from graders.units.unit_01.problems import STEEP, Problem, joined
from graders.units.unit_01.replies import FitReply
from graders.units.unit_01.watched import Batch, Watched

RATES = {
    # Where gradients are long: larger steps would make much of how somebody rounds.
    "": {"lr": 0.005, "momentum": 0.9},
    "validates best at first": {"lr": 0.1, "momentum": 0.9},
    "gets worse": {"lr": 0.25, "maximize": True},
    "has NaN in a sample": {"lr": 0.1, "momentum": 0.9},
    "has 101 steps": {"lr": 0.005, "momentum": 0.9},
}
"""Kinds of trainings, and what their optimizer is given."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """kind: one of RATES. device: which one is given, and where the model comes from."""

    epochs: int = feature(1, "{} epochs")
    kind: str = feature("", lambda kind: kind and f"a training that {kind}")
    training: bool = feature(True, lambda training: "" if training else "the model in evaluation mode")
    device: str = feature("host", lambda device: "" if device == "host" else f"the device {device}")

    @property
    def rates(self) -> dict[str, float]:
        """An optimizer of a model that moves keeps nothing: what it kept would stay where it was."""
        rates = RATES[self.kind]
        return rates if self.device == "host" else {name: rates[name] for name in rates if name != "momentum"}

    @property
    def nan(self) -> bool:
        return "NaN" in self.kind


@dataclass(frozen=True)
class Course:
    """A training that is drawn: batches of different sizes for training, and others for validation."""

    how: Epochs
    problem: Problem
    train: list[Batch]
    validation: list[Batch]

    def seen(self, answer: Answer) -> FitReply:
        how, batches = self.how, (self.train, self.validation)
        on_gpu, from_gpu = how.device == "gpu", "from" in how.device
        return answer.call(
            drivers.fitting,
            self.problem.values,
            batches,
            how.rates,
            how.epochs,
            how.training,
            on_gpu,
            from_gpu,
        )

    @cached_property
    def right(self) -> tuple[list[tuple[float, float, float]], list[Tensor]]:
        """What is expected in the end."""
        return self.expected(self.how.epochs)

    def expected(self, epochs: int) -> tuple[list[tuple[float, float, float]], list[Tensor]]:
        """The history, and the parameters after so many epochs, of their shapes."""
        model = self.problem.model()
        optimizer = used_before(model, self.how.rates)
        history = []
        for epoch in range(epochs):
            total, samples = 0.0, 0
            turned = epoch % len(self.train)
            for inputs, targets in self.train[turned:] + self.train[:turned]:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total, samples = total + float(loss.detach()) * len(targets), samples + len(targets)
            history.append((total / samples, *self._validated(model)))
        return history, copies_of(model.parameters())

    def _validated(self, model: torch.nn.Module) -> tuple[float, float]:
        """Loss and accuracy over all samples of the validation set."""
        inputs, targets = joined(self.validation)
        with torch.no_grad():
            logits = model(inputs)
        hits = (logits.argmax(1) == targets).double().mean()
        return float(functional.cross_entropy(logits, targets)), float(hits)


def draw_course(rng: Rng, how: Epochs) -> Course:
    """In the ordinary case four batches, of which the last has one sample, and two for validation, of another
    size; gradients are longer than any that one would clip to.
    """
    problem = Problem.draw(rng)
    if how.kind == "has 101 steps":
        # More than there are between two lines of a log.
        return Course(how, problem, problem.draw_batches(rng, [2] * 101), problem.draw_batches(rng, [3]))
    if how.kind == "has NaN in a sample":
        batch = problem.draw_batch(rng, 4)
        batch[0][0] = torch.nan
        return Course(how, problem, [batch], [batch])
    if how.kind:
        return _worsening(rng, how, problem)
    size = rng.integer(6, 7)  # Over 15 or 25 samples means may have few digits.
    train = problem.draw_batches(rng, [size, size, size, 1])
    validation = problem.draw_batches(rng, [size + 5, 1])
    problem.values[2].mul_(STEEP / 10)
    return Course(how, problem, train, validation)


def _worsening(rng: Rng, how: Epochs, problem: Problem) -> Course:
    """One whose validation, or all of it, is best at first: labels are those that its model then gives."""
    train = problem.draw_batches(rng, [6, 6])
    inputs, _ = joined(train)
    uphill = how.kind == "gets worse"
    _, values = Course(how, problem, train, train).expected(0 if uphill else 1)
    with torch.no_grad():
        labels = Watched(values)(inputs).argmax(1)
    return Course(how, problem, [(inputs, labels)] if uphill else train, [(inputs, labels)])
