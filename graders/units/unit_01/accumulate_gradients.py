"""The grader of `accumulate_gradients`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_01 import drivers
from graders.units.unit_01.problems import Problem, close_to_all, each, joined, loss_near, no_waits
from graders.units.unit_01.replies import AccumulationReply
from graders.units.unit_01.watched import in_words


@dataclass(frozen=True, slots=True)
class Pieces:
    """sizes: of the micro-batches."""

    sizes: tuple[int, ...] = feature((5, 5, 5), lambda sizes: f"micro-batches of {[*sizes]} samples")
    training: bool = feature(False, lambda training: "the model in training mode" if training else "")
    gpu: bool = feature(False, lambda gpu: "a GPU" if gpu else "")


Given = tuple[Pieces, Tensor]
"""With the loss that is expected."""


def full_batch_loss(given: Given, seen: AccumulationReply) -> Finding:
    """Passes if the answer returned the mean over all samples, without a graph, and did not wait for it."""
    loss = loss_near(seen.loss, seen.history, given[1], "the loss over all samples")
    return compare.first_failure([loss, no_waits("accumulate_gradients", seen.waits)])


def one_graph_at_a_time(given: Given, seen: AccumulationReply) -> Finding:
    """Passes if each micro-batch goes forward and then backward before the next one, in any order of them."""
    forwards = [entry for entry in seen.log if entry.startswith("forward")]
    in_turn = [entry for forward in forwards for entry in (forward, forward.replace("forward", "backward"))]
    sizes = given[0].sizes
    right = seen.log == in_turn and sorted(forwards) == sorted(f"forward {size}" for size in sizes)
    wanted = ", ".join(f"{way} {size}" for size in sizes for way in ("forward", "backward"))
    return Finding(
        right, f"the passes, by their number of samples: {', '.join(seen.log)}; expected {wanted}."
    )


def nothing_changed(given: Given, seen: AccumulationReply) -> Finding:
    """Passes if micro-batches, parameters and the model's mode are what they were, in the passes too."""
    came = given[0].training
    other = [mode for mode in (*seen.modes, seen.left) if mode is not came]
    if other:
        return Finding(False, f"the model came {in_words(came)}, and was {in_words(other[0])} then.")
    if not seen.kept:
        return Finding(False, "a micro-batch, their list or a parameter has changed; expected it as it was.")
    return Finding(True, "micro-batches, parameters and the model's mode are what they were.")


@one_by_one(
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
            "A micro-batch of m samples weighs m / n in the mean over all n: scale its loss before backward.",
            vary=vary(sizes=((4, 8, 1),)),
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
            "Call backward() on each micro-batch before the next goes forward: it frees that graph, and "
            "saving memory is what all this is for.",
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
    # The simulated GPU takes the processor long: it meets nothing else.
    possible=lambda how: not how.gpu or how == Pieces(gpu=True),
)
def accumulate_gradients(answer: Answer, how: Pieces, rng: Rng) -> tuple[Finding, Any]:
    """Every parameter's gradient is the full batch's."""
    problem = Problem.draw(rng)
    batches, model = problem.batches(rng, how.sizes), problem.model()
    inputs, targets = joined(batches)
    loss = functional.cross_entropy(model(inputs), targets)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    seen = answer.call(drivers.accumulation, problem.values, batches, how.training, how.gpu)
    return close_to_all(seen.gradients, expected, "the gradient of {}"), ((how, loss.detach()), seen)
