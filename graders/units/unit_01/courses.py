"""Trainings that are drawn for `fit`, and what must come out of each."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.kit import Answer, Rng
from graders.units.models import copies_of
from graders.units.unit_01 import drivers
from graders.units.unit_01.drivers import FitReply
from graders.units.unit_01.optimizers import used_before
from graders.units.unit_01.problems import STEEP, Problem, joined
from graders.units.unit_01.watched import Batch, Watched

RATES = {"lr": 0.1, "momentum": 0.9}
SLOW = {"lr": 0.005, "momentum": 0.9}
"""Where gradients are long: larger steps would make much of how somebody rounds."""
PLAIN = {"lr": 0.005}
"""Of an optimizer that keeps nothing: what one keeps would stay on the host when its model moves."""
CLIMBS = {"lr": 0.25, "maximize": True}


@dataclass(frozen=True, slots=True)
class Course:
    """A training that is drawn: batches of different sizes for training, and others for validation."""

    problem: Problem
    train: list[Batch]
    validation: list[Batch]
    rates: dict[str, float]

    @classmethod
    def draw(cls, rng: Rng) -> "Course":
        """Four batches, of which the last has one sample, and two for validation, of another size. Gradients
        are longer than any that one would clip to.
        """
        problem = Problem.draw(rng)
        size = rng.integer(6, 7)  # Over 15 or 25 samples means may have few digits.
        train = problem.draw_batches(rng, [size, size, size, 1])
        validation = problem.draw_batches(rng, [size + 5, 1])
        problem.values[2].mul_(STEEP / 10)
        return cls(problem, train, validation, SLOW)

    @classmethod
    def draw_worsening(cls, rng: Rng) -> "Course":
        """One that validates best after its first epoch: with the labels that its model then gives itself."""
        problem = Problem.draw(rng)
        train = problem.draw_batches(rng, [6, 6])
        inputs, _ = joined(train)
        _, values = cls(problem, train, train, RATES).expected(1)
        with torch.no_grad():
            labels = Watched(values)(inputs).argmax(1)
        return cls(problem, train, [(inputs, labels)], RATES)

    @classmethod
    def draw_climbing(cls, rng: Rng) -> "Course":
        """One whose optimizer goes uphill: every loss grows from epoch to epoch, and what was right at first
        gets wrong.
        """
        problem = Problem.draw(rng)
        inputs = problem.draw_inputs(rng, 8)
        model = problem.model()
        used_before(model, CLIMBS)
        with torch.no_grad():
            batch = inputs, model(inputs).argmax(1)
        return cls(problem, [batch], [batch], CLIMBS)

    @classmethod
    def draw_diverging(cls, rng: Rng) -> "Course":
        """One whose losses are NaN."""
        problem = Problem.draw(rng)
        batch = problem.draw_batch(rng, 4)
        batch[0][0] = torch.nan
        return cls(problem, [batch], [batch], RATES)

    @classmethod
    def draw_standing(cls, rng: Rng, right: bool) -> "Course":
        """One in which nothing moves, with a learning rate of 0. right: whether its model is sure of all
        labels, with a loss of 0; if not, it is sure of others, and losses are some millions.
        """
        problem = Problem.draw(rng)
        problem.values[2].mul_(STEEP**3)
        inputs = problem.draw_inputs(rng, 4)
        with torch.no_grad():
            labels = problem.model()(inputs).argmax(1) if right else problem.draw_mistaken(rng, inputs)
        return cls(problem, [(inputs, labels)], [(inputs, labels)], RATES | {"lr": 0.0})

    @classmethod
    def draw_long(cls, rng: Rng) -> "Course":
        """One with more steps an epoch than there are between two lines of a log."""
        problem = Problem.draw(rng)
        return cls(problem, problem.draw_batches(rng, [2] * 101), problem.draw_batches(rng, [3]), PLAIN)

    def moving(self) -> "Course":
        """The same for a model that moves to the device after its optimizer has been used."""
        return replace(self, rates=PLAIN)

    def seen(
        self,
        answer: Answer,
        epochs: int,
        training: bool = True,
        on_gpu: bool = False,
        from_gpu: bool = False,
    ) -> FitReply:
        """What the answer did; see the driver."""
        batches = self.train, self.validation
        arguments = self.problem.values, batches, self.rates, epochs, training, on_gpu, from_gpu
        return answer.call(drivers.fitting, *arguments)

    def expected(self, epochs: int) -> tuple[list[tuple[float, float, float]], list[Tensor]]:
        """The history, and the parameters after so many epochs, of their shapes."""
        model = self.problem.model()
        optimizer = used_before(model, self.rates)
        history = []
        for epoch in range(epochs):
            total, samples = 0.0, 0
            for inputs, targets in self.train[epoch:] + self.train[:epoch]:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total, samples = total + float(loss.detach()) * len(targets), samples + len(targets)
            history.append((total / samples, *self._validated(model)))
        return history, copies_of(model.parameters())

    def _validated(self, model: torch.nn.Module) -> tuple[float, float]:
        """Loss and accuracy over all samples of the validation set."""
        inputs, targets = (torch.cat(parts) for parts in zip(*self.validation, strict=True))
        with torch.no_grad():
            logits = model(inputs)
        hits = (logits.argmax(1) == targets).double().mean()
        return float(functional.cross_entropy(logits, targets)), float(hits)
