"""The grader of `train_step`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.models import copies_of
from graders.units.unit_01 import drivers
from graders.units.unit_01.cases import each, watched
from graders.units.unit_01.drivers import StepReply
from graders.units.unit_01.losses import asks_for_no_number, close_to_all, nan_in_all, no_history, scalar_near
from graders.units.unit_01.problems import Problem
from graders.units.unit_01.watched import NOT_CALLED, Batch, in_words

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


def losses_returned(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if every step returned its loss before the update."""
    losses, _ = training.right
    return compare.first_failure(
        scalar_near(step.loss, loss, f"the loss that step {number} returned")
        for number, (step, loss) in enumerate(compare.side_by_side(seen, losses), start=1)
    )


def no_graph_kept(_: Training, seen: list[StepReply]) -> Finding:
    """Passes if no loss that a step returned holds on to a graph."""
    return no_history(any(step.history for step in seen))


def waits_for_nothing(_: Training, seen: list[StepReply]) -> Finding:
    """Passes if no step needed a number of the device's."""
    return asks_for_no_number("The step", [wait for step in seen for wait in step.waits])


def mode_kept(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if every step went forward in the mode in which the model came, and left it in this mode.

    It may come in evaluation mode, as with frozen batch norms.
    """
    came = training.how.training
    for number, step in enumerate(seen, start=1):
        ways = [("went forward", mode) for mode in step.modes] + [("left the model", step.left)]
        for did, mode in ways:
            if mode is not came:
                text = f"step {number} {did} {in_words(mode)}; the model came {in_words(came)}."
                return Finding(False, text)
    return Finding(True, "Every step goes forward in the mode in which the model comes, and leaves it.")


@watched(
    base=Steps(),
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "one update",
            1,
            "One forward, one backward, one optimizer.step(), and nothing between backward and step. "
            "functional.cross_entropy takes logits (no softmax before it) and gives the mean.",
            vary=both(sizes=(3, 8, 1), steep=False) + vary(nan=(True,)),
        ),
        Criterion(
            "gradients start at zero",
            1,
            "backward() adds to the gradients that are there. Clear them before it, in every step.",
            vary=both(sizes=(5, 7, 4), steep=False, stale=True),
        ),
        Criterion(
            "loss",
            1,
            "Return the loss before the update as a tensor, by loss.detach(): with its history it would keep "
            "its whole graph in memory. `.item()`, `print` and `if` would wait for the device.",
            vary=vary(gpu=(True,)),
            how=each(losses_returned, no_graph_kept, waits_for_nothing),
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
    draw=some_steps,
    # The simulated GPU takes the processor long: it meets nothing else.
    possible=lambda how: not how.gpu or how == Steps(gpu=True),
)
def train_step(training: Training, seen: list[StepReply]) -> Finding:
    """One pass each way a step, and the parameters after it are those that torch's own SGD leads to."""
    _, expected = training.right
    if training.how.nan:
        updates = [nan_in_all(training.problem, step.parameters, "afterwards") for step in seen]
    else:
        updates = [
            close_to_all(training.problem, step.parameters, parameters, f"{{}} after step {number}")
            for number, (step, parameters) in enumerate(compare.side_by_side(seen, expected), start=1)
        ]
    updated = compare.first_failure(updates)
    mistake = (
        "" if updated.passed or training.how.nan else _mistake_in(training, seen[0].parameters, expected[0])
    )
    if mistake:
        updated = Finding(False, f"in the first step {mistake}.", updated.kind)
    return compare.first_failure([updated, _one_pass_each_way(training, seen)])


def _mistake_in(training: Training, seen: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
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


def _one_pass_each_way(training: Training, seen: list[StepReply]) -> Finding:
    for number, (step, (inputs, _)) in enumerate(compare.side_by_side(seen, training.batches), start=1):
        expected = [f"forward {len(inputs)}", f"backward {len(inputs)}"]
        if step.log != expected:
            made = f"made the passes {', '.join(step.log)} (with samples)" if step.log else NOT_CALLED
            return Finding(False, f"step {number} {made}; expected {', '.join(expected)}.")
    return Finding(True, "Every step goes forward once and backward once.")
