"""Unit 01, one step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.models import copies_of
from graders.units.raised import on_a_gpu
from graders.units.unit_01 import drivers
from graders.units.unit_01.drivers import StepReply
from graders.units.unit_01.problems import STEEP, Problem
from graders.units.unit_01.watched import NOT_CALLED, Batch, in_words


@exercise(
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "one update",
            1,
            "One forward, one backward, one optimizer.step(), and nothing between backward and step. "
            "functional.cross_entropy takes logits (no softmax before it) and gives the mean.",
        ),
        Criterion(
            "gradients start at zero",
            1,
            "backward() adds to the gradients that are there. Clear them before it, in every step.",
        ),
        Criterion(
            "loss",
            1,
            "Return the loss before the update as a tensor, by loss.detach(): with its history it would keep "
            "its whole graph in memory. `.item()`, `print` and `if` would wait for the device.",
        ),
        Criterion(
            "the model's mode",
            1,
            "The caller chooses training or evaluation mode: no model.train() and no model.eval() here, and "
            "an update in both.",
        ),
    ),
    hints=(
        "What is in .grad when your function is called, and in which of the steps 6 to 10 does that do "
        "harm? Write one line for each of the five.",
        "The model's call gives logits [B, classes]; functional.cross_entropy(logits, targets) the loss.",
        "optimizer.zero_grad() clears; optimizer.step() updates.",
    ),
)
def train_step(answer: Answer, rng: Rng) -> Findings:
    """Steps from clean gradients, one of them on a single sample, one with NaN; several steps after gradients
    that do not belong to them.
    """
    first = Training.draw(rng, [rng.integer(4, 9)], steep=True)
    mild = Training.draw(rng, [rng.integer(2, 4), rng.integer(4, 9), 1])
    both = [(each, each.seen(answer)) for each in (first, mild)]
    seen = both[0][1]
    losses = compare.first_failure(losses_as_expected(*each) for each in both)
    diverging = Training.draw(rng, [3])
    diverging.batches[0][0][0] = torch.nan
    diverged = diverging.seen(answer)
    updated = compare.first_failure(
        [
            *(parameters_as_expected(*each) for each in both),
            *(one_pass_each_way(*each) for each in both),
            *(nan_in_all(diverging.problem, step.parameters) for step in diverged),
        ]
    )
    if not updated.passed and not losses.passed:
        updated = Finding(False, f"{updated.seen} And {losses.seen}")
    yield "one update", updated

    several = Training.draw(rng, [rng.integer(4, 9) for _ in range(3)], with_stale_gradients=True)
    yield "gradients start at zero", along_these_alone(several, several.seen(answer))
    told = [nan_told(step.loss) for step in diverged]
    there = on_a_gpu(lambda: loss_there(first, answer))
    yield "loss", compare.first_failure([losses, *told, there, no_history(seen)])
    fixed = replace(mild, training=False)
    in_evaluation = fixed.seen(answer)
    modes = (mode_kept(*each) for each in (*both, (fixed, in_evaluation)))
    yield "the model's mode", compare.first_failure([*modes, updated_all_the_same(fixed, in_evaluation)])


@dataclass(frozen=True, slots=True)
class Training:
    """Some steps of gradient descent, and what they lead to."""

    problem: Problem
    batches: list[Batch]
    stale: list[Tensor] | None
    rates: dict[str, float]
    training: bool = True

    @classmethod
    def draw(
        cls, rng: Rng, sizes: Sequence[int], *, with_stale_gradients: bool = False, steep: bool = False
    ) -> "Training":
        """A step for each size of a batch. steep: gradients are longer than any that one would clip to, and
        logits larger than `exp` takes.
        """
        problem = Problem.draw(rng)
        batches = problem.draw_batches(rng, sizes)
        if steep:
            problem.values[2].mul_(STEEP)
            batches = [(inputs, problem.draw_mistaken(rng, inputs)) for inputs, _ in batches]
        stale = [rng.normal(*value.shape) for value in problem.values] if with_stale_gradients else None
        return cls(problem, batches, stale, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})

    def seen(self, answer: Answer, on_gpu: bool = False) -> list[StepReply]:
        """What the answer's steps returned and left; see the driver."""
        arguments = self.problem.values, self.stale, self.batches, self.rates, self.training, on_gpu
        return answer.call(drivers.steps, *arguments)

    def expected(self, clears: bool = True) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Each step's loss before its update, a scalar, and the parameters after it, of their shapes.

        clears: if not, what is in .grad before is taken along.
        """
        model = self.problem.model()
        for parameter, gradient in zip(model.parameters(), self.stale or (), strict=False):
            parameter.grad = gradient.clone()
        optimizer = torch.optim.SGD(model.parameters(), **self.rates)  # type: ignore[arg-type]
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


def losses_as_expected(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if every step returned its loss before the update, a scalar tensor."""
    losses, _ = training.expected()
    what = "the loss that step {} returned"
    return compare.first_failure(
        compare.close(in_single(step.loss), loss, what.format(number), rtol=1e-4)
        for number, (step, loss) in enumerate(compare.side_by_side(seen, losses), start=1)
    )


def loss_there(training: Training, answer: Answer) -> Finding:
    """Passes if on a GPU, too, every step returned its loss, and none waited for it."""
    seen = training.seen(answer, on_gpu=True)
    asks = asks_for_no_number("The step", sum(step.waits for step in seen))
    return compare.first_failure([losses_as_expected(training, seen), asks])


def in_single(loss: PlainData) -> PlainData:
    """The loss in single precision, where somebody has computed it in double."""
    return loss.float() if isinstance(loss, Tensor) and loss.dtype is torch.float64 else loss


def parameters_as_expected(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if the parameters after every step are those that torch's own SGD leads to."""
    _, expected = training.expected()
    names = [name for name, _ in training.problem.model().named_parameters()]
    finding = compare.first_failure(
        compare.close(got, wanted, f"{name} after step {number}", rtol=1e-4, atol=1e-5)
        for number, (step, parameters) in enumerate(compare.side_by_side(seen, expected), start=1)
        for name, (got, wanted) in zip(names, compare.side_by_side(step.parameters, parameters), strict=True)
    )
    mistake = "" if finding.passed else _mistake_in(training, seen[0].parameters, expected[0])
    return Finding(False, f"In the first step {mistake}.", finding.kind) if mistake else finding


def _mistake_in(training: Training, seen: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """What went wrong in the first step, from the parameters after it; empty if that cannot be told."""
    before = training.problem.values
    if any(got.shape != old.shape or got.dtype != old.dtype for got, old in zip(seen, before, strict=True)):
        return ""
    if all(torch.equal(got, old) for got, old in zip(seen, before, strict=True)):
        return "no parameter has changed; expected one update of all"
    got, wanted = (
        torch.cat(
            [
                ((old - new) / training.rates["lr"] - training.rates["weight_decay"] * old).flatten()
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


def along_these_alone(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if no step went along the gradients that were there before."""
    finding = parameters_as_expected(training, seen)
    _, [after_one, *_] = training.expected(clears=False)
    first = compare.side_by_side(seen[:1], [after_one])
    pairs = (pair for step, wanted in first for pair in compare.side_by_side(step.parameters, wanted))
    if not finding.passed and all(compare.close(*pair, "", rtol=1e-4, atol=1e-5).passed for pair in pairs):
        text = (
            "The first step went along the sum of this batch's gradient and the one that was in .grad before"
        )
        return Finding(False, f"{text}; expected this batch's alone.")
    return finding


def one_pass_each_way(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if every step went forward once and backward once."""
    for number, (step, (inputs, _)) in enumerate(compare.side_by_side(seen, training.batches), start=1):
        expected = [f"forward {len(inputs)}", f"backward {len(inputs)}"]
        if step.log != expected:
            made = f"made the passes {', '.join(step.log)} (with samples)" if step.log else NOT_CALLED
            return Finding(False, f"step {number} {made}; expected {', '.join(expected)}.")
    return Finding(True, "Every step goes forward once and backward once.")


def updated_all_the_same(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if a model that came in evaluation mode has got its updates, too."""
    finding = parameters_as_expected(training, seen)
    return finding if finding.passed else Finding(False, f"With a model in evaluation mode: {finding.seen}")


def mode_kept(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if every step went forward in the mode in which the model came, and left it in this mode.

    It may come in evaluation mode, as with frozen batch norms.
    """
    came = training.training
    for number, step in enumerate(seen, start=1):
        ways = [("went forward", mode) for mode in step.modes] + [("left the model", step.left)]
        for did, mode in ways:
            if mode is not came:
                text = f"step {number} {did} {in_words(mode)}; the model came {in_words(came)}."
                return Finding(False, text)
    return Finding(True, "Every step goes forward in the mode in which the model comes, and leaves it.")


def nan_in_all(problem: Problem, parameters: Sequence[Tensor]) -> Finding:
    """Passes if there is a NaN in each of these parameters of the problem's model, trained on one."""
    names = [name for name, _ in problem.model().named_parameters()]
    hidden = [name for got, name in compare.side_by_side(parameters, names) if not got.isnan().any()]
    text = f"A sample is NaN, so the gradient is; afterwards there is no NaN in {', '.join(hidden)}"
    return Finding(not hidden, f"{text}; expected it to show." if hidden else "NaN stays to be seen.")


def nan_told(loss: PlainData) -> Finding:
    """Passes if a loss of samples of which one is NaN is NaN."""
    hidden = not isinstance(loss, Tensor) or not loss.isnan().all()
    text = f"A sample is NaN, and the loss that was returned is {compare.shown(loss)}"
    return Finding(not hidden, f"{text}; expected NaN." if hidden else "NaN stays to be seen.")


def asks_for_no_number(who: str, waits: int) -> Finding:
    """Passes if nobody waited for a number of the device's. waits: how often somebody did."""
    text = f"{who} needed the number in a tensor {compare.counted(waits, 'time')}"
    told = f"{text} (.item(), .cpu(), print, if, ...), and waited for the device; expected never."
    return Finding(not waits, told if waits else f"{who} waited for nothing.")


def no_history(seen: list[StepReply]) -> Finding:
    """Passes if no loss that a step returned holds on to a graph."""
    kept = any(step.history for step in seen)
    text = "requires grad: it keeps its graph in memory" if kept else "has no graph behind it"
    return Finding(not kept, f"The loss that was returned {text}.")
