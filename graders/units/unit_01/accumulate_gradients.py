"""The grader of `accumulate_gradients`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.unit_01 import drivers
from graders.units.unit_01.cases import each, watched
from graders.units.unit_01.drivers import LOSSES
from graders.units.unit_01.losses import asks_for_no_number, close_to_all, nan_in_all, no_history, scalar_near
from graders.units.unit_01.problems import STEEP, Problem, joined
from graders.units.unit_01.replies import AccumulationReply
from graders.units.unit_01.watched import NOT_CALLED, Batch, in_words


@dataclass(frozen=True, slots=True)
class Pieces:
    """sizes: of the micro-batches. loss: one of the drivers' LOSSES. steep: the gradient is longer than those
    that one would clip to.
    """

    sizes: tuple[int, ...] = feature((5, 5, 5), lambda sizes: f"micro-batches of {[*sizes]} samples")
    loss: str = feature("cross_entropy", "{}")
    steep: bool = True
    training: bool = feature(False, lambda training: "the model in training mode" if training else "")
    nan: bool = feature(False, lambda nan: "NaN in a sample" if nan else "")
    gpu: bool = feature(False, lambda gpu: "a GPU" if gpu else "")


@dataclass(frozen=True)
class Accumulation:
    """Micro-batches, and what the full batch that they make up would give."""

    how: Pieces
    problem: Problem
    micro_batches: list[Batch]

    def seen(self, answer: Answer) -> AccumulationReply:
        how = self.how.loss, self.how.training, self.how.gpu
        return answer.call(drivers.accumulation, self.problem.values, self.micro_batches, *how)

    @cached_property
    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """Loss, a scalar, and gradients of the full batch, of the parameters' shapes."""
        model: nn.Module = self.problem.model()
        inputs, targets = joined(self.micro_batches)
        loss = LOSSES[self.how.loss](model(inputs), targets)
        return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


def micro_batches(rng: Rng, how: Pieces) -> Accumulation:
    """The numbers of these."""
    problem = Problem.draw(rng)
    if how.steep:
        batches = problem.draw_steep(rng, how.sizes, STEEP / 10)
    else:
        batches = problem.draw_batches(rng, how.sizes)
    if how.nan:
        batches[0][0][0] = torch.nan
    return Accumulation(how, problem, batches)


def full_batch_loss(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Passes if the answer returned the mean over all samples, without a graph, and did not wait for it."""
    return compare.first_failure(
        [
            no_history(seen.history),
            scalar_near(seen.loss, accumulation.expected[0], "the loss over all samples"),
            asks_for_no_number("accumulate_gradients", seen.waits),
        ]
    )


def one_graph_at_a_time(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Passes if each micro-batch goes forward and then backward before the next one goes forward, and if what
    its forward pass kept is gone by then. In which order the micro-batches come is no matter.
    """
    passes = ", ".join(seen.log)
    forwards = [text for text in seen.log if text.startswith("forward")]
    in_turn = [text for forward in forwards for text in (forward, forward.replace("forward", "backward"))]
    sizes = accumulation.how.sizes
    if seen.log != in_turn or sorted(forwards) != sorted(f"forward {size}" for size in sizes):
        wanted = ", ".join(f"{way} {size}" for size in sizes for way in ("forward", "backward"))
        return Finding(False, f"the passes, by their number of samples: {passes}; expected {wanted}.")
    if any(seen.kept):
        text = f"{max(seen.kept)} tensors of an earlier graph are still kept when the next pass goes forward"
        return Finding(False, f"{text}; expected none.")
    return Finding(True, f"The passes, by their number of samples: {passes}; nothing is kept between them.")


def nothing_changed(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Passes if micro-batches, parameters and the model's mode are what they were, in the passes too."""
    came = accumulation.how.training
    other = [mode for mode in (*seen.modes, seen.left) if mode is not came]
    if other:
        return Finding(False, f"the model came {in_words(came)}, and was {in_words(other[0])} then.")
    if seen.changed:
        return Finding(False, f"{seen.changed[0]} has changed; expected it as it was.")
    return Finding(True, "micro-batches, parameters and the model's mode are what they were.")


@watched(
    base=Pieces(),
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
            "A micro-batch of m samples weighs m / n in the mean over all n: scale its loss before backward. "
            "Use the loss that you are given.",
            vary=both(sizes=(4, 8, 1), loss="mse", steep=False) + both(sizes=(2, 1), nan=True),
        ),
        Criterion(
            "loss of the full batch",
            1,
            "Return the mean over all samples, weighted in the same way, as a detached tensor: `.item()` "
            "would wait for the device, and a sum that you begin with torch.zeros(()) is not on it.",
            needs=("uneven micro-batches",),
            vary=vary(gpu=(True,)),
            how=each(full_batch_loss),
        ),
        Criterion(
            "one graph at a time",
            1,
            "Call backward() on each micro-batch before the next goes forward: it frees that graph (unless "
            "retain_graph=True keeps it), and saving memory is what all this is for.",
            how=each(one_graph_at_a_time),
        ),
        Criterion(
            "nothing else changes",
            1,
            "The caller may need them again: leave the model's mode, its parameters and the list of "
            "micro-batches as they are.",
            vary=vary(training=(True,)),
            how=each(nothing_changed),
        ),
    ),
    hints=(
        "By what has the loss of a micro-batch of m samples to be multiplied, and is it known before the "
        "first forward pass?",
        "Scale the loss, not the gradients, before backward. n is sum(len(inputs) for inputs, _ in "
        "micro_batches).",
        "Add the scaled losses up, detached, and return the sum.",
    ),
    draw=micro_batches,
    # The simulated GPU takes the processor long: it meets nothing else.
    possible=lambda how: not how.gpu or how == Pieces(gpu=True),
)
def accumulate_gradients(accumulation: Accumulation, seen: AccumulationReply) -> Finding:
    """Every parameter's gradient is the full batch's, from passes of the model itself."""
    if not seen.log:
        return Finding(False, f"accumulate_gradients {NOT_CALLED}; expected model(inputs).")
    if accumulation.how.nan:
        return nan_in_all(accumulation.problem, seen.gradients, "the gradient of")
    _, expected = accumulation.expected
    found = close_to_all(accumulation.problem, seen.gradients, expected, "the gradient of {}")
    mistake = "" if found.passed else _mistake_in(accumulation, seen)
    text = f".grad is {mistake}; expected the gradient of the mean over all samples."
    return Finding(False, text, found.kind) if mistake else found


def _mistake_in(accumulation: Accumulation, seen: AccumulationReply) -> str:
    """What the wrong gradients are; empty if that cannot be told."""
    if any(not isinstance(got, Tensor) or got.dtype != torch.float32 for got in seen.gradients):
        return ""
    got = _one_vector(seen.gradients)
    parts = [
        _one_vector(replace(accumulation, micro_batches=[each]).expected[1])
        for each in accumulation.micro_batches
    ]
    if got.shape != parts[0].shape:
        return ""
    factor = float(got @ parts[-1] / (parts[-1] @ parts[-1]))
    if factor and torch.allclose(got, factor * parts[-1], rtol=1e-3, atol=1e-5):
        return "the last micro-batch's gradient alone"
    uneven, mean = len({*accumulation.how.sizes}) > 1, sum(parts, torch.zeros(())) / len(parts)
    if uneven and torch.allclose(got, mean, rtol=1e-3, atol=1e-5):
        return f"the sum of the micro-batches' gradients, each weighted by 1/{len(parts)}"
    return ""


def _one_vector(gradients: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
