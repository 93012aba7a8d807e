"""The grader of `evaluate`."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.gpu import gpu
from graders.units.unit_01 import drivers
from graders.units.unit_01.cases import each, watched
from graders.units.unit_01.losses import float_near
from graders.units.unit_01.problems import STEEP, Problem
from graders.units.unit_01.replies import EvaluationReply
from graders.units.unit_01.watched import NOT_CALLED, Batch, in_words


@dataclass(frozen=True, slots=True)
class Data:
    """left_over: samples in the last batch, all of them classified rightly; 0: the last batch is full.

    steepness: how sure of itself the model is; what is wrong then has probabilities near 0, or all have
    nearly the same. spare: samples that the data set has besides, and that the loader leaves out.
    """

    left_over: int = feature(0, lambda left: f"{left} in the last batch" if left else "full batches")
    steepness: float = STEEP
    training: bool = feature(True, lambda training: "" if training else "the model in evaluation mode")
    nan: bool = feature(False, lambda nan: "NaN in a sample" if nan else "")
    gpu: bool = feature(False, lambda gpu: "a GPU" if gpu else "")
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Samples of which a known part is classified rightly, cut into batches."""

    how: Data
    problem: Problem
    samples: Batch
    batch_size: int

    def seen(self, answer: Answer) -> EvaluationReply:
        how = self.how.training, self.how.gpu, self.how.spare
        return answer.call(drivers.evaluation, self.problem.values, self.samples, self.batch_size, *how)

    def expected(self) -> tuple[float, float]:
        """Loss and accuracy over all samples."""
        inputs, targets = self.samples
        with torch.no_grad():
            logits = self.problem.model()(inputs)
        loss = functional.cross_entropy(logits, targets)
        return float(loss), float((logits.argmax(1) == targets).double().mean())


def some_samples(rng: Rng, how: Data) -> Evaluation:
    """Of the full batches every third sample is classified wrongly, so that the mean of the batches'
    accuracies is another number than the accuracy, and so is the share of what is wrong.
    """
    problem = Problem.draw(rng)
    for value in problem.values[2:]:
        value.mul_(how.steepness)
    # Of the last class there is no sample: labels do not say how many there are.
    classes = problem.classes - 1
    problem.values[3][classes] = -1e4
    # No number of samples, with one left over too, is 25: over it means have few digits.
    batch_size = rng.choice([6, 7, 9])
    full = batch_size * rng.integer(2, 3)
    inputs = problem.draw_inputs(rng, full + how.left_over)
    predicted = problem.model()(inputs).argmax(1)
    wrong = (torch.arange(full + how.left_over) % 3 == 0) & (torch.arange(full + how.left_over) < full)
    shift = rng.integers(1, classes - 1, full + how.left_over) * wrong
    if how.nan:
        inputs[-1] = torch.nan
    return Evaluation(how, problem, (inputs, (predicted + shift) % classes), batch_size)


def evaluation_mode(_: Evaluation, seen: EvaluationReply) -> Finding:
    """Passes if no forward pass found the model in training mode."""
    trained = [mode for mode in seen.modes if mode is not False]
    if None in trained:
        text = "a forward pass found some of the model's modules in training mode, and others not"
        return Finding(False, f"{text}; expected evaluation mode in all of them.")
    return Finding(not trained, f"of {len(seen.modes)} forward passes {len(trained)} ran in training mode.")


def mode_restored(evaluation: Evaluation, seen: EvaluationReply) -> Finding:
    """Passes if the model is left in the mode in which it came."""
    came, left = evaluation.how.training, set(seen.training)
    text = f"the model came {in_words(came)} and was left {in_words(left.pop() if len(left) == 1 else None)}."
    return Finding({*seen.training} == {came}, text)


def no_graph(_: Evaluation, seen: EvaluationReply) -> Finding:
    """Passes if no forward pass could record a graph, and gradients are on again afterwards."""
    if any(seen.graphs):
        text = f"{sum(seen.graphs)} of {len(seen.graphs)} forward passes recorded a graph for backward"
        return Finding(False, f"{text}.")
    if not seen.trainable:
        return Finding(False, "after evaluate some parameter does not require grad any more.")
    if not seen.grad_enabled:
        return Finding(False, "gradients are still off after evaluate has returned.")
    return Finding(True, "No forward pass recorded a graph, and gradients are on again afterwards.")


@watched(
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
            vary=vary(steepness=(1 / STEEP,), nan=(True,), gpu=(True,)),
        ),
        Criterion(
            "uneven last batch",
            1,
            "The mean over batches counts a sample of a short batch for more than the others. Add up over "
            "samples, and divide once, by how many there were.",
            vary=({"left_over": 1, "spare": 3}, {"left_over": 1}),
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
    draw=some_samples,
    # The simulated GPU takes the processor long: it meets nothing else.
    possible=lambda how: not how.gpu or how == Data(gpu=True),
)
def evaluate(evaluation: Evaluation, seen: EvaluationReply) -> Finding:
    """A pair of floats over all samples, from the model itself, on its device."""
    result = seen.result
    if type(result) is not tuple or len(result) != 2:
        text = f"evaluate returned {result!r:.80}; expected a pair (loss, accuracy), two floats in a tuple."
        return Finding(False, text)
    samples = compare.counted(len(evaluation.samples[0]), "sample")
    what = f"over {samples} in batches of {evaluation.batch_size}"
    loss, accuracy = evaluation.expected()
    elsewhere = {*seen.devices} - {gpu().type} if evaluation.how.gpu else set()
    return compare.first_failure(
        [
            Finding(bool(seen.modes), f"evaluate {NOT_CALLED}; expected model(inputs)."),
            float_near(result[0], loss, f"the loss {what}"),
            float_near(result[1], accuracy, f"the accuracy {what}"),
            Finding(not elsewhere, "the model came on the GPU, and a forward pass ran elsewhere."),
        ]
    )
