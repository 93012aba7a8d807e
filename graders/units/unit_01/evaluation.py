"""Unit 01, is it any good: loss and accuracy."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

import torch
from torch.nn import functional

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.gpu import gpu
from graders.units.raised import on_a_gpu
from graders.units.unit_01 import drivers
from graders.units.unit_01.drivers import EvaluationReply
from graders.units.unit_01.problems import STEEP, Problem
from graders.units.unit_01.watched import NOT_CALLED, Batch


@exercise(
    minutes=12,
    difficulty=2,
    rubric=(
        Criterion(
            "accuracy",
            1,
            "The second value: the share of samples whose largest logit is at their label, a float from 0 to "
            "1.",
        ),
        Criterion(
            "loss",
            1,
            "The first value: the mean cross-entropy over all samples, not its sum, a float. "
            "functional.cross_entropy takes logits. Sums are numbers, or tensors on the model's device.",
        ),
        Criterion(
            "uneven last batch",
            1,
            "The mean over batches counts a sample of a short batch for more than the others. Add up over "
            "samples, and divide once, by how many there were.",
            needs=("accuracy", "loss"),
        ),
        Criterion(
            "evaluation mode",
            1,
            "model.eval() turns dropout off and makes batch norm use what it has learnt; no copy of the "
            "model is needed for it.",
        ),
        Criterion(
            "mode restored",
            1,
            "Keep model.training in a variable first, and end with model.train(kept).",
        ),
        Criterion(
            "no graph",
            1,
            "Under torch.no_grad() (or inference_mode) nothing is kept for backward; as a `with` block or a "
            "decorator it ends by itself.",
        ),
    ),
    hints=(
        "Which numbers of batches of unlike sizes can be added up, their means or their sums? "
        "cross_entropy(..., reduction='sum') gives the latter.",
        "(logits.argmax(1) == targets).sum() counts the hits of a batch.",
        "Count the samples as you go: the last batch may be short.",
    ),
)
def evaluate(answer: Answer, rng: Rng) -> Findings:
    """Full batches first, then a short one at the end, then how the model was used."""
    even = Evaluation.draw(rng, left_over=0)
    seen = even.seen(answer)
    unsure = Evaluation.draw(rng, left_over=0, steepness=1 / STEEP)
    both = ((even, seen.result), (unsure, unsure.seen(answer).result))
    yield "accuracy", compare.first_failure(accuracy_as_expected(*each) for each in both)
    broken = Evaluation.draw(rng, left_over=0)
    broken.samples[0][-1] = torch.nan
    left = {training: broken.seen(answer, training) for training in (True, False)}
    told = (nan_told(reply.result) for reply in left.values())
    there = on_a_gpu(lambda: loss_there(even, answer))
    losses = (loss_as_expected(*each) for each in both)
    yield "loss", compare.first_failure([*losses, there, *told])

    uneven = Evaluation.draw(rng, left_over=1)
    result = uneven.seen(answer, spare=3).result
    checks = (accuracy_as_expected, loss_as_expected)
    yield "uneven last batch", compare.first_failure(check(uneven, result) for check in checks)

    yield "evaluation mode", evaluation_mode(seen)
    yield "mode restored", mode_restored(left)
    yield "no graph", compare.first_failure(map(no_graph, (seen, *left.values())))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Samples of which a known part is classified rightly, cut into batches."""

    problem: Problem
    samples: Batch
    batch_size: int

    @classmethod
    def draw(cls, rng: Rng, left_over: int, steepness: float = STEEP) -> "Evaluation":
        """left_over: samples in the last batch, all of them classified rightly; 0: the last batch is full.
        steepness: how sure of itself the model is; what is wrong then has probabilities near 0, or all have
        nearly the same.

        Of the full batches every third sample is classified wrongly, so that the mean of the batches'
        accuracies is another number than the accuracy, and so is the share of what is wrong.
        """
        problem = Problem.draw(rng)
        for value in problem.values[2:]:
            value.mul_(steepness)
        # Of the last class there is no sample: labels do not say how many there are.
        classes = problem.classes - 1
        problem.values[3][classes] = -1e4
        # No number of samples, with one left over too, is 25: over it means have few digits.
        batch_size, batches = rng.choice([6, 7, 9]), rng.integer(2, 3)
        full = batch_size * batches
        inputs = problem.draw_inputs(rng, full + left_over)
        predicted = problem.model()(inputs).argmax(1)
        wrong = (torch.arange(full + left_over) % 3 == 0) & (torch.arange(full + left_over) < full)
        shift = rng.integers(1, classes - 1, full + left_over) * wrong
        return cls(problem, (inputs, (predicted + shift) % classes), batch_size)

    def seen(
        self, answer: Answer, training: bool = True, on_gpu: bool = False, spare: int = 0
    ) -> EvaluationReply:
        """What the answer returned and how it used the model; see the driver."""
        arguments = self.problem.values, self.samples, self.batch_size, training, on_gpu, spare
        return answer.call(drivers.evaluation, *arguments)

    @property
    def size(self) -> str:
        """`26 samples in batches of 8`."""
        return f"{compare.counted(len(self.samples[0]), 'sample')} in batches of {self.batch_size}"

    def expected(self) -> tuple[float, float]:
        """Loss and accuracy over all samples."""
        inputs, targets = self.samples
        with torch.no_grad():
            logits = self.problem.model()(inputs)
        loss = functional.cross_entropy(logits, targets)
        return float(loss), float((logits.argmax(1) == targets).double().mean())


def accuracy_as_expected(evaluation: Evaluation, result: PlainData) -> Finding:
    """Passes if the second of the pair is the accuracy over all samples."""
    if not _is_pair(result):
        return Finding(False, _no_pair(result))
    return accuracy_near(result[1], evaluation.expected()[1], f"the accuracy over {evaluation.size}")


def loss_as_expected(evaluation: Evaluation, result: PlainData) -> Finding:
    """Passes if the first of the pair is the mean loss over all samples."""
    if not _is_pair(result):
        return Finding(False, _no_pair(result))
    return loss_near(result[0], evaluation.expected()[0], f"the loss over {evaluation.size}")


def nan_told(result: PlainData) -> Finding:
    """Passes if the loss over samples of which one is NaN is NaN."""
    if not _is_pair(result):
        return Finding(False, _no_pair(result))
    hidden = type(result[0]) is not float or not isnan(result[0])
    text = f"A sample is NaN, and the loss is {compare.shown(result[0])}"
    return Finding(not hidden, f"{text}; expected NaN." if hidden else "NaN stays to be seen.")


def loss_near(seen: PlainData, expected: float, what: str) -> Finding:
    """Passes if `seen` is the loss expected, with all its digits."""
    return _with_all_digits(compare.near(seen, expected, what, rtol=1e-4), seen, expected, what)


def accuracy_near(seen: PlainData, expected: float, what: str) -> Finding:
    """Passes if `seen` is the accuracy expected, with all its digits."""
    return _with_all_digits(compare.near(seen, expected, what), seen, expected, what)


def _with_all_digits(finding: Finding, seen: Any, expected: float, what: str) -> Finding:
    # Single precision has no numbers of so few digits but multiples of 1/256.
    if finding.passed and seen == round(seen, 8) != expected and not (256 * seen).is_integer():
        text = f"{what} has been rounded to {compare.shown(seen)}; expected what the division gives"
        return Finding(False, f"{text}.")
    return finding


def _is_pair(result: PlainData) -> bool:
    return type(result) is tuple and len(result) == 2


def _no_pair(result: PlainData) -> str:
    return f"evaluate returned {result!r:.80}; expected a pair (loss, accuracy), two floats in a tuple."


def loss_there(evaluation: Evaluation, answer: Answer) -> Finding:
    """Passes if the loss is right on a GPU, too, and the model has stayed there."""
    seen = evaluation.seen(answer, on_gpu=True)
    elsewhere = sum(device != gpu().type for device in seen.devices)
    text = f"The model came on the GPU, and {elsewhere} of {len(seen.devices)} forward passes ran elsewhere"
    stayed = Finding(not elsewhere, f"{text}; expected none.")
    return compare.first_failure([loss_as_expected(evaluation, seen.result), stayed])


def evaluation_mode(seen: EvaluationReply) -> Finding:
    """Passes if no forward pass found the model in training mode."""
    if not seen.modes:
        return Finding(False, f"evaluate {NOT_CALLED}; expected model(inputs).")
    trained = [mode for mode in seen.modes if mode is not False]
    if None in trained:
        text = "A forward pass found some of the model's modules in training mode, and others not"
        return Finding(False, f"{text}; expected evaluation mode in all of them.")
    return Finding(not trained, f"of {len(seen.modes)} forward passes {len(trained)} ran in training mode.")


def mode_restored(seen: Mapping[bool, EvaluationReply]) -> Finding:
    """Passes if a model in training mode is left in it, and one in evaluation mode likewise.

    seen: by whether the model came in training mode.
    """
    names = {True: "training", False: "evaluation"}
    for found, reply in seen.items():
        left = reply.training
        if any(mode is not found for mode in left):
            which = "was" if left[:1] != [found] else "is, but not all of its modules,"
            text = f"The model came in {names[found]} mode and {which} left in"
            return Finding(False, f"{text} {names[not found if which == 'was' else found]} mode.")
    return Finding(True, "The model is left in the mode in which it came, either one.")


def no_graph(seen: EvaluationReply) -> Finding:
    """Passes if no forward pass could record a graph, and gradients are on again afterwards."""
    if any(seen.graphs):
        text = f"{sum(seen.graphs)} of {len(seen.graphs)} forward passes recorded a graph for backward"
        return Finding(False, f"{text}.")
    if not seen.trainable:
        return Finding(False, "After evaluate some parameter does not require grad any more.")
    if not seen.grad_enabled:
        return Finding(False, "Gradients are still off after evaluate has returned.")
    return Finding(True, "No forward pass recorded a graph, and gradients are on again afterwards.")
