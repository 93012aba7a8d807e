"""Unit 01, a batch that does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.raised import on_a_gpu
from graders.units.unit_01 import drivers
from graders.units.unit_01.drivers import LOSSES, AccumulationReply
from graders.units.unit_01.problems import STEEP, Problem, joined
from graders.units.unit_01.steps import asks_for_no_number, in_single, nan_told
from graders.units.unit_01.watched import NOT_CALLED, Batch, in_words


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "equal micro-batches",
            1,
            "backward() adds each micro-batch's gradient to what is there. With k equal micro-batches the "
            "sum is k times too large, unless each loss is scaled first. Nothing may be cleared in between.",
        ),
        Criterion(
            "uneven micro-batches",
            1,
            "A micro-batch of m samples weighs m / n in the mean over all n: scale its loss before backward.",
        ),
        Criterion(
            "loss of the full batch",
            1,
            "Return the mean over all samples, weighted in the same way, as a detached tensor: `.item()` "
            "would wait for the device, and a sum that you begin with torch.zeros(()) is not on it.",
            needs=("uneven micro-batches",),
        ),
        Criterion(
            "one graph at a time",
            1,
            "Call backward() on each micro-batch before the next goes forward: it frees that graph (unless "
            "retain_graph=True keeps it), and saving memory is what all this is for.",
        ),
        Criterion(
            "nothing else changes",
            1,
            "The caller may need them again: leave the model's mode, its parameters and the list of "
            "micro-batches as they are.",
        ),
    ),
    hints=(
        "By what has the loss of a micro-batch of m samples to be multiplied, and is it known before the "
        "first forward pass?",
        "Scale the loss, not the gradients, before backward. n is sum(len(inputs) for inputs, _ in "
        "micro_batches).",
        "Add the scaled losses up, detached, and return the sum.",
    ),
)
def accumulate_gradients(answer: Answer, rng: Rng) -> Findings:
    """Equal micro-batches, uneven ones, and that only one of them is in memory at a time."""
    size = rng.integer(3, 6)
    equal = Accumulation.draw_steep(rng, [size] * rng.integer(2, 4))
    in_evaluation = equal.seen(answer, training=False)
    yield "equal micro-batches", gradients_as_expected(equal, in_evaluation)

    # Another loss, so that an answer that does not use the one it is given shows.
    uneven = Accumulation.draw(rng, [rng.integer(3, 5), rng.integer(6, 9), 1], "mse")
    seen = uneven.seen(answer, training=True)
    diverged = Accumulation.draw(rng, [2, 1], "cross_entropy").diverging()
    hidden = diverged.seen(answer, training=True)
    weighted = compare.first_failure([gradients_as_expected(uneven, seen), nan_kept(diverged, hidden)])
    yield "uneven micro-batches", weighted
    there = on_a_gpu(lambda: loss_there(uneven, answer))
    told = [full_batch_loss(uneven, seen), nan_told(hidden.loss), there]
    yield "loss of the full batch", compare.first_failure(told)
    # Who goes wrong with uneven ones may have left some out.
    judged = (uneven, seen) if weighted.passed else (equal, in_evaluation)
    yield "one graph at a time", one_graph_at_a_time(*judged)
    kept = [nothing_changed(seen), mode_kept(in_evaluation, False), mode_kept(seen, True)]
    yield "nothing else changes", compare.first_failure(kept)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Micro-batches, and what the full batch that they make up would give."""

    problem: Problem
    micro_batches: list[Batch]
    loss: str

    @classmethod
    def draw(cls, rng: Rng, sizes: Sequence[int], loss: str) -> "Accumulation":
        """loss: one of the driver's `LOSSES`."""
        problem = Problem.draw(rng)
        return cls(problem, problem.draw_batches(rng, sizes), loss)

    @classmethod
    def draw_steep(cls, rng: Rng, sizes: Sequence[int]) -> "Accumulation":
        """One of cross-entropy whose gradient is longer than those that one would clip to."""
        problem = Problem.draw(rng)
        problem.values[2].mul_(STEEP / 10)
        inputs = [problem.draw_inputs(rng, size) for size in sizes]
        batches = [(each, problem.draw_mistaken(rng, each)) for each in inputs]
        return cls(problem, batches, "cross_entropy")

    def diverging(self) -> "Accumulation":
        """The same with NaN in a sample of the first micro-batch."""
        (inputs, targets), *others = self.micro_batches
        inputs = inputs.clone()
        inputs[0] = torch.nan
        return replace(self, micro_batches=[(inputs, targets), *others])

    @property
    def sizes(self) -> list[int]:
        return [len(inputs) for inputs, _ in self.micro_batches]

    def seen(self, answer: Answer, training: bool, on_gpu: bool = False) -> AccumulationReply:
        """What the answer returned and left. training, on_gpu: as in the driver."""
        arguments = self.problem.values, self.micro_batches, self.loss, training, on_gpu
        return answer.call(drivers.accumulation, *arguments)

    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """Loss, a scalar, and gradients of the full batch, of the parameters' shapes."""
        model: nn.Module = self.problem.model()
        inputs, targets = joined(self.micro_batches)
        loss = LOSSES[self.loss](model(inputs), targets)
        return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


def gradients_as_expected(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Passes if every parameter's gradient is the full batch's."""
    _, expected = accumulation.expected()
    names = [name for name, _ in accumulation.problem.model().named_parameters()]
    sizes = f"micro-batches of {accumulation.sizes} samples, {accumulation.loss}"
    finding = compare.first_failure(
        compare.close(got, wanted, f"the gradient of {name} ({sizes})", rtol=1e-4, atol=1e-5)
        for name, (got, wanted) in zip(names, compare.side_by_side(seen.gradients, expected), strict=True)
    )
    mistake = "" if finding.passed else _mistake_in(accumulation, seen)
    if not mistake:
        return finding
    text = f"After {sizes}, .grad is {mistake}; expected the gradient of the mean over all samples"
    return Finding(False, f"{text}.", finding.kind)


def _mistake_in(accumulation: Accumulation, seen: AccumulationReply) -> str:
    """What the wrong gradients are; empty if that cannot be told."""
    if any(not isinstance(got, Tensor) or got.dtype != torch.float32 for got in seen.gradients):
        return ""
    got = _one_vector(seen.gradients)
    parts = [
        _one_vector(replace(accumulation, micro_batches=[each]).expected()[1])
        for each in accumulation.micro_batches
    ]
    if got.shape != parts[0].shape:
        return ""
    count = len(parts)
    factor = float(got @ parts[-1] / (parts[-1] @ parts[-1]))
    if factor and torch.allclose(got, factor * parts[-1], rtol=1e-3, atol=1e-5):
        return "the last micro-batch's gradient alone"
    uneven = len(set(accumulation.sizes)) > 1
    if uneven and torch.allclose(got, sum(parts, torch.zeros(())) / count, rtol=1e-3, atol=1e-5):
        return f"the sum of the micro-batches' gradients, each weighted by 1/{count}"
    return ""


def _one_vector(gradients: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def nan_kept(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Passes if the NaN of a sample is in every parameter's gradient."""
    names = [name for name, _ in accumulation.problem.model().named_parameters()]
    pairs = compare.side_by_side(names, seen.gradients)
    hidden = [name for name, got in pairs if got is None or not got.isnan().any()]
    text = f"A sample is NaN, and there is no NaN in the gradient of {', '.join(hidden)}"
    return Finding(not hidden, f"{text}; expected it to show." if hidden else "NaN stays to be seen.")


def full_batch_loss(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Passes if the answer returned the mean over all samples, without a graph behind it."""
    if seen.history:
        return Finding(False, "The loss that was returned requires grad: it keeps its graph in memory.")
    what = f"the loss over micro-batches of {accumulation.sizes} samples"
    return compare.close(in_single(seen.loss), accumulation.expected()[0], what, rtol=1e-4)


def loss_there(accumulation: Accumulation, answer: Answer) -> Finding:
    """Passes if on a GPU, too, the answer returned the mean over all samples, and did not wait for it."""
    seen = accumulation.seen(answer, training=True, on_gpu=True)
    asks = asks_for_no_number("accumulate_gradients", seen.waits)
    return compare.first_failure([full_batch_loss(accumulation, seen), asks])


def nothing_changed(seen: AccumulationReply) -> Finding:
    """Passes if micro-batches and parameters are what they were."""
    text = (
        f"{seen.changed[0]} has changed; expected it as it was." if seen.changed else "Nothing has changed."
    )
    return Finding(not seen.changed, text)


def mode_kept(seen: AccumulationReply, training: bool) -> Finding:
    """Passes if every forward pass ran in the mode in which the model came, and the model is left in it."""
    text = f"The model came {in_words(training)}"
    for mode in seen.modes:
        if mode is not training:
            return Finding(False, f"{text} and went forward {in_words(mode)}.")
    if seen.left is not training:
        return Finding(False, f"{text} and was left {in_words(seen.left)}.")
    return Finding(True, f"{text}, went forward in it and is left in it.")


def one_graph_at_a_time(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Passes if each micro-batch goes forward and then backward before the next one goes forward, and if what
    its forward pass kept is gone by then. In which order the micro-batches come is no matter.
    """
    if not seen.log:
        return Finding(False, f"accumulate_gradients {NOT_CALLED}; expected model(inputs).")
    passes = ", ".join(seen.log)
    forwards = [text for text in seen.log if text.startswith("forward")]
    in_turn = [text for forward in forwards for text in (forward, forward.replace("forward", "backward"))]
    if seen.log != in_turn or sorted(forwards) != sorted(f"forward {size}" for size in accumulation.sizes):
        wanted = ", ".join(f"{way} {size}" for size in accumulation.sizes for way in ("forward", "backward"))
        return Finding(False, f"The passes, by their number of samples: {passes}; expected {wanted}.")
    if any(seen.kept):
        text = f"{max(seen.kept)} tensors of an earlier graph are still kept when the next pass goes forward"
        return Finding(False, f"{text}; expected none.")
    return Finding(True, f"The passes, by their number of samples: {passes}; nothing is kept between them.")
