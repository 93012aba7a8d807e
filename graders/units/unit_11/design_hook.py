"""The grader of `design_hook`, the open task: a hook that comes to a loss with few bytes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Kind
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_11 import drivers
from graders.units.unit_11.compressors import loss
from graders.units.unit_11.replies import TrainedReply

STEPS, RATE = 100, 0.5
INSIDE = 16
"""Numbers of the hidden layer."""
REACHES = "reaches the loss"
TIERS = ((5, "a fifth of the bytes"), (12, "a twelfth of the bytes"), (25, "a twenty-fifth of the bytes"))


@exercise(
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(REACHES, 2, "All ranks have the same weights, and come to the loss within the steps."),
        Criterion(TIERS[0][1], 2, "What does each of your compressors send of 600 numbers?"),
        Criterion(
            TIERS[1][1],
            2,
            "What is missing may come later: how little in each step is still enough?",
            needs=(REACHES, TIERS[0][1]),
        ),
        Criterion(
            TIERS[2][1],
            2,
            "How many bits do a value and a place need, where there are 600 places?",
            needs=(REACHES, TIERS[1][1]),
        ),
    ),
    hints=(
        "Which of your compressors sends least, and which loses least of what matters?",
        "There are more than twice as many steps as the mean gradients need. What is that good for?",
        "A place below 32,768 and a value in half precision: how many bytes is that together?",
    ),
)
def design_hook(answer: Answer, rng: Rng) -> Findings:
    """A training on drawn samples, beside the grader's own with mean gradients."""
    task = Task.draw(rng)
    run = answer.launch(
        drivers.trained, per_rank(task.data), task.weights, STEPS, RATE, ranks=len(task.data), timeout=30.0
    )
    step, found = task.reached(run)
    yield REACHES, found
    limit = task.dense_bytes()
    sent = 0 if step is None else sent_until(run, step)
    for part, name in TIERS:
        yield name, compare.at_most(sent, int(limit / part), f"Sent by all ranks in {step} steps", " bytes")


@dataclass(frozen=True, slots=True)
class Task:
    """data: x and y of each rank. weights: to begin with, the same on all ranks."""

    data: list[list[Tensor]]
    weights: list[Tensor]

    @classmethod
    def draw(cls, rng: Rng) -> "Task":
        """Four ranks; what is to be learnt is mostly a matrix of rank 3."""
        inputs, outputs = rng.integer(23, 25), rng.integer(11, 13)
        teacher = rng.normal(inputs, 3) @ rng.normal(3, outputs) / inputs**0.5
        teacher += 0.1 * rng.normal(inputs, outputs)
        data = []
        for _ in range(4):
            x = rng.normal(64, inputs)
            data.append([x, torch.tanh(x @ teacher) + 0.1 * rng.normal(64, outputs)])
        inner, outer = rng.normal(INSIDE, inputs) / inputs**0.5, rng.normal(outputs, INSIDE) / INSIDE**0.5
        return cls(data, [inner, torch.zeros(INSIDE), outer, torch.zeros(outputs)])

    def loss(self, weights: list[Tensor]) -> Tensor:
        """Of all ranks' samples."""
        x, y = (torch.cat(each) for each in zip(*self.data, strict=True))
        return loss(weights, x, y)

    def target(self) -> float:
        """1.1 times what the mean gradients reach in two fifths of the steps."""
        weights = [weight.clone().requires_grad_() for weight in self.weights]
        for _ in range(2 * STEPS // 5):
            gradients = torch.autograd.grad(self.loss(weights), weights)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.data.sub_(gradient, alpha=RATE)
        return 1.1 * self.loss(weights).item()

    def dense_bytes(self) -> float:
        """What all ranks send in these steps, round a ring."""
        return 2 * STEPS // 5 * 2 * (len(self.data) - 1) * sum(weight.nbytes for weight in self.weights)

    def reached(self, run: Observed[TrainedReply]) -> tuple[int | None, Finding]:
        """After how many steps the loss is reached, and whether it is, with equal weights on all ranks."""
        first, *others = [reply.weights for reply in run.results]
        numbers = [weight.numel() for weight in self.weights]
        if first.shape != (STEPS, sum(numbers)) or any(other.shape != first.shape for other in others):
            return None, Finding(False, "What came back has not the shape of the weights.")
        if not first.isfinite().all():
            lost = int((~first.isfinite().all(1)).nonzero()[0]) + 1
            return None, Finding(False, f"Rank 0's weights are no finite numbers after step {lost}.")
        if not all(torch.allclose(first, other, rtol=1e-4, atol=1e-4) for other in others):
            return None, Finding(False, "The ranks do not have the same weights after the same steps.")
        target = self.target()
        for step, numbers_of_step in enumerate(first, 1):
            parts = zip(numbers_of_step.split(numbers), self.weights, strict=True)
            reached = self.loss([part.view(weight.shape) for part, weight in parts]).item()
            if reached <= target:
                return step, Finding(True, f"The loss is {target:.4f} or less after {step} steps.")
        return None, Finding(False, f"After {STEPS} steps the loss is {reached:.4f}; expected {target:.4f}.")


def sent_until(run: Observed[TrainedReply], step: int) -> int:
    """Bytes that all ranks send, from the beginning up to the end of this step, counted from 1."""
    sent = 0
    for rank in range(len(run.results)):
        done = 0
        own = sorted((event for event in run.events if event.rank == rank), key=lambda each: each.sequence)
        for event in own:
            sent += event.sent if done < step else 0
            done += event.kind is Kind.SPAN and event.op == "step done"
    return sent
