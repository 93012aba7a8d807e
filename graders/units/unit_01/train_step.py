"""The grader of `train_step`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.models import copies_of
from graders.units.one_by_one import one_by_one
from graders.units.unit_01 import drivers
from graders.units.unit_01.problems import Problem, close_to_all, each, loss_near, no_waits
from graders.units.unit_01.replies import StepReply
from graders.units.unit_01.watched import Batch, in_words


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of gradient descent: one for each size of a batch. stale: gradients that are there before the
    first.
    """

    sizes: tuple[int, ...] = feature((6,), lambda sizes: f"batches of {[*sizes]} samples")
    stale: bool = feature(False, lambda stale: "old gradients in .grad" if stale else "")
    training: bool = feature(True, lambda training: "" if training else "the model in evaluation mode")
    gpu: bool = feature(False, lambda gpu: "a GPU" if gpu else "")


@dataclass(frozen=True, slots=True)
class Given:
    """losses: of each step before its update, scalars. parameters: after it, of their shapes."""

    how: Steps
    batches: list[Batch]
    losses: list[Tensor]
    parameters: list[list[Tensor]]


def given(how: Steps, problem: Problem, batches: list[Batch]) -> Given:
    """What is expected of these steps."""
    model, losses, after = problem.model(), [], []
    optimizer = torch.optim.SGD(model.parameters(), **drivers.RATES)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
        after.append(copies_of(model.parameters()))
    return Given(how, batches, losses, after)


def losses_returned(given: Given, seen: list[StepReply]) -> Finding:
    """Passes if every step returned its loss before the update, without a graph, and waited for nothing."""
    pairs = enumerate(compare.side_by_side(seen, given.losses), start=1)
    waits = [wait for step in seen for wait in step.waits]
    losses = (
        loss_near(step.loss, step.history, loss, f"the loss that step {number} returned")
        for number, (step, loss) in pairs
    )
    return compare.first_failure([*losses, no_waits("the step", waits)])


def mode_kept(given: Given, seen: list[StepReply]) -> Finding:
    """Passes if every step went forward in the mode in which the model came, and left it in this mode."""
    came = given.how.training
    for number, step in enumerate(seen, start=1):
        for did, mode in [*(("goes forward", mode) for mode in step.modes), ("leaves the model", step.left)]:
            if mode is not came:
                text = f"step {number} {did} {in_words(mode)}; the model came {in_words(came)}."
                return Finding(False, text)
    return Finding(True, "every step goes forward in the mode in which the model comes, and leaves it.")


@one_by_one(
    base=Steps(),
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "one update",
            1,
            "One forward, one backward, one optimizer.step(), and nothing between backward and step. "
            "functional.cross_entropy takes logits (no softmax before it) and gives the mean.",
            vary=vary(sizes=((3, 8, 1),)),
        ),
        Criterion(
            "gradients start at zero",
            1,
            "backward() adds to the gradients that are there. Clear them before it, in every step.",
            vary=vary(stale=(True,)),
        ),
        Criterion(
            "loss",
            1,
            "Return the loss before the update as a tensor, by loss.detach(): with its history it would keep "
            "its whole graph in memory. `.item()`, `print` and `if` would wait for the device.",
            vary=vary(gpu=(True,)),
            how=each(losses_returned),
        ),
        Criterion(
            "the model's mode",
            1,
            "The caller chooses training or evaluation mode: no model.train() and no model.eval() here, and "
            "an update in both.",
            vary=vary(training=(False,)),
            how=each(mode_kept),
        ),
    ),
    hints=(
        "What is in .grad when your function is called, and in which of the steps 6 to 10 does that do "
        "harm? Write one line for each of the five.",
        "The model's call gives logits [B, classes]; functional.cross_entropy(logits, targets) the loss.",
        "optimizer.zero_grad() clears; optimizer.step() updates.",
    ),
    # The simulated GPU takes the processor long: it meets nothing else.
    possible=lambda how: not how.gpu or how == Steps(gpu=True),
)
def train_step(answer: Answer, how: Steps, rng: Rng) -> tuple[Finding, Any]:
    """One pass each way a step, and the parameters after it are those that torch's own SGD leads to."""
    problem = Problem.draw(rng)
    expected = given(how, problem, problem.batches(rng, how.sizes))
    stale = [rng.normal(*value.shape) for value in problem.values] if how.stale else None
    seen = answer.call(drivers.steps, problem.values, stale, expected.batches, how.training, how.gpu)
    found = [
        close_to_all(step.parameters, parameters, f"{{}} after step {number}")
        for number, (step, parameters) in enumerate(compare.side_by_side(seen, expected.parameters), start=1)
    ]
    for number, (step, (inputs, _)) in enumerate(zip(seen, expected.batches, strict=True), start=1):
        passes = [f"forward {len(inputs)}", f"backward {len(inputs)}"]
        text = f"step {number} makes the passes {step.log} (with samples); expected {passes}."
        found.append(Finding(step.log == passes, text))
    return compare.first_failure(found), (expected, seen)
