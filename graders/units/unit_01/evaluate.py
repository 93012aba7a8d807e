"""The grader of `evaluate`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_01 import drivers
from graders.units.unit_01.problems import Problem, each, joined
from graders.units.unit_01.replies import EvaluationReply
from graders.units.unit_01.watched import in_words


@dataclass(frozen=True, slots=True)
class Data:
    """left_over: samples in the last batch; 0: it is full."""

    left_over: int = feature(0, lambda left: f"{left} in the last batch" if left else "full batches")
    training: bool = feature(True, lambda training: "" if training else "the model in evaluation mode")
    gpu: bool = feature(False, lambda gpu: "a GPU" if gpu else "")


def evaluation_mode(_: Data, seen: EvaluationReply) -> Finding:
    """Passes if no forward pass found the model in training mode."""
    trained = [mode for mode in seen.modes if mode is not False]
    text = (
        f"of {len(seen.modes)} forward passes {len(trained)} ran in training mode, or in parts of the model"
    )
    return Finding(not trained, f"{text}; expected none.")


def mode_restored(how: Data, seen: EvaluationReply) -> Finding:
    """Passes if the model is left in the mode in which it came."""
    text = f"the model came {in_words(how.training)} and was left {in_words(seen.left)}."
    return Finding(seen.left is how.training, text)


def no_graph(_: Data, seen: EvaluationReply) -> Finding:
    """Passes if no forward pass could record a graph, and gradients are on again afterwards."""
    if any(seen.graphs):
        text = f"{sum(seen.graphs)} of {len(seen.graphs)} forward passes recorded a graph for backward"
        return Finding(False, f"{text}.")
    if not seen.records:
        return Finding(False, "after evaluate gradients are off, or some parameter does not require any.")
    return Finding(True, "no forward pass recorded a graph, and gradients are on again afterwards.")


@one_by_one(
    base=Data(),
    minutes=12,
    difficulty=2,
    rubric=(
        Criterion(
            "loss and accuracy",
            2,
            "A pair of floats: the mean cross-entropy over all samples (functional.cross_entropy takes "
            "logits), and the share of samples whose largest logit is at their label. Sums are numbers, or "
            "tensors on the model's device.",
            vary=vary(gpu=(True,)),
        ),
        Criterion(
            "uneven last batch",
            1,
            "The mean over batches counts a sample of a short batch for more than the others. Add up over "
            "samples, and divide once, by how many there were.",
            vary=vary(left_over=(1, 2)),
        ),
        Criterion(
            "evaluation mode",
            1,
            "model.eval() turns dropout off and makes batch norm use what it has learnt; no copy of the "
            "model is needed for it.",
            how=each(evaluation_mode),
        ),
        Criterion(
            "mode restored",
            1,
            "Keep model.training in a variable first, and end with model.train(kept).",
            vary=vary(training=(False,)),
            how=each(mode_restored),
        ),
        Criterion(
            "no graph",
            1,
            "Under torch.no_grad() (or inference_mode) nothing is kept for backward; as a `with` block or a "
            "decorator it ends by itself.",
            how=each(no_graph),
        ),
    ),
    hints=(
        "Which numbers of batches of unlike sizes can be added up, their means or their sums? "
        "cross_entropy(..., reduction='sum') gives the latter.",
        "(logits.argmax(1) == targets).sum() counts the hits of a batch.",
        "Count the samples as you go: the last batch may be short.",
    ),
    # The simulated GPU takes the processor long: it meets nothing else.
    possible=lambda how: not how.gpu or how == Data(gpu=True),
)
def evaluate(answer: Answer, how: Data, rng: Rng) -> tuple[Finding, Any]:
    """A pair of floats over all samples, from the model itself."""
    problem, size = Problem.draw(rng), rng.integer(6, 9)
    batches = problem.batches(rng, [size] * 3 + [how.left_over] * (how.left_over > 0))
    inputs, targets = joined(batches)
    with torch.no_grad():
        logits = problem.model()(inputs)
    loss = float(functional.cross_entropy(logits, targets))
    accuracy = float((logits.argmax(1) == targets).double().mean())
    seen = answer.call(drivers.evaluation, problem.values, batches, how.training, how.gpu)
    if type(seen.result) is not tuple or len(seen.result) != 2:
        text = f"evaluate returned {seen.result!r:.80}; expected a pair (loss, accuracy), two floats."
        return Finding(False, text), (how, seen)
    what = f"over {len(targets)} samples in batches of {size}"
    found = [
        compare.near(seen.result[0], loss, f"the loss {what}", 1e-5),
        compare.near(seen.result[1], accuracy, f"the accuracy {what}", 1e-5),
        Finding(bool(seen.modes), "evaluate did not call the model; expected model(inputs)."),
    ]
    return compare.first_failure(found), (how, seen)
