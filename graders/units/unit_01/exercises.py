"""Graders of unit 01, training on a single device: the rubrics, and in which order what is judged."""

from collections.abc import Iterator

from graders.grading.answer import Answer
from graders.grading.exercise import Criterion, Finding, exercise
from graders.grading.rng import Rng
from graders.units.unit_01.single_gpu import (
    Accumulation,
    Evaluation,
    Measurement,
    Training,
    accuracy_as_expected,
    evaluation_mode,
    first_wrong,
    full_batch_loss,
    gradients_as_expected,
    loss_as_expected,
    losses_as_expected,
    memory_as_expected,
    mode_restored,
    no_graph,
    no_history,
    one_graph_at_a_time,
    one_pass_each_way,
    parameters_as_expected,
    rate_as_measured,
    right_number_of_steps,
    unknown_names_rejected,
    waits_before_start,
    waits_before_stop,
    waits_nowhere_else,
)

UNIT = "01_single_gpu"


@exercise(
    unit=UNIT,
    name="train_step",
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "loss",
            1,
            "Return the mean cross-entropy of this batch as the model was before the update. "
            "functional.cross_entropy takes logits: no softmax before it.",
        ),
        Criterion(
            "one update",
            1,
            "One forward and one backward pass, in the mode that the model is in, then one optimizer.step(). "
            "What lies between them must not undo either.",
        ),
        Criterion(
            "gradients start at zero",
            1,
            "backward() adds to the gradients that are there. Clear them before it, in every step.",
        ),
        Criterion(
            "no history kept",
            1,
            "The loss holds on to its whole graph as long as somebody keeps it: return loss.detach().",
        ),
    ),
    hints=(
        "Five lines: clear the gradients, forward, loss, backward, update.",
        "The model's call gives logits [B, classes]; functional.cross_entropy(logits, targets) the loss.",
        "optimizer.zero_grad() clears; optimizer.step() updates.",
    ),
)
def train_step(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """One step from clean gradients; several steps after gradients that do not belong to them."""
    first = Training.draw(rng, steps=1, with_stale_gradients=False)
    seen = first.seen(answer)
    yield losses_as_expected("loss", first, seen)
    yield first_wrong([parameters_as_expected("one update", first, seen), one_pass_each_way(first, seen)])

    several = Training.draw(rng, steps=3, with_stale_gradients=True)
    yield parameters_as_expected("gradients start at zero", several, several.seen(answer))
    yield no_history(seen)


@exercise(
    unit=UNIT,
    name="evaluate",
    minutes=12,
    difficulty=2,
    rubric=(
        Criterion(
            "accuracy",
            1,
            "The share of samples whose largest logit is at their label, from 0 to 1, as a float.",
        ),
        Criterion("loss", 1, "The mean cross-entropy over all samples, not its sum, as a float."),
        Criterion(
            "uneven last batch",
            1,
            "The mean over batches counts a sample of a short batch for more than the others. Add up over "
            "samples, and divide once, by how many there were.",
        ),
        Criterion(
            "evaluation mode",
            1,
            "model.eval() turns dropout off and makes batch norm use what it has learnt.",
        ),
        Criterion(
            "mode restored",
            1,
            "Keep model.training before you change it, and put the model back into that mode.",
        ),
        Criterion(
            "no graph",
            1,
            "Under torch.no_grad() (or inference_mode) nothing is kept for backward; as a `with` block or a "
            "decorator it ends by itself.",
        ),
    ),
    hints=(
        "cross_entropy(..., reduction='sum') gives what can be added up over batches.",
        "(logits.argmax(1) == targets).sum() counts the hits of a batch.",
        "Count the samples as you go: the last batch may be short.",
    ),
)
def evaluate(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Full batches first, then a short one at the end, then how the model was used."""
    even = Evaluation.draw(rng, left_over=0)
    seen = even.seen(answer)
    yield accuracy_as_expected("accuracy", even, seen["result"])
    yield loss_as_expected("loss", even, seen["result"])

    uneven = Evaluation.draw(rng, left_over=rng.integer(1, 3))
    result = uneven.seen(answer)["result"]
    judges = (accuracy_as_expected, loss_as_expected)
    yield first_wrong(judge("uneven last batch", uneven, result) for judge in judges)

    yield evaluation_mode(seen)
    yield mode_restored(answer, even)
    yield no_graph(seen)


@exercise(
    unit=UNIT,
    name="accumulate_gradients",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "equal micro-batches",
            1,
            "backward() adds up gradients of means over micro-batches; the mean over all is their mean.",
        ),
        Criterion(
            "uneven micro-batches",
            1,
            "A micro-batch of m samples weighs m / n in the mean over all n: scale its loss before backward.",
        ),
        Criterion(
            "loss of the full batch",
            1,
            "Return the mean over all samples, weighted in the same way, as a tensor without history.",
        ),
        Criterion(
            "one graph at a time",
            2,
            "Call backward() on each micro-batch before the next goes forward: it frees that graph (unless "
            "retain_graph=True keeps it), and saving memory is what all this is for.",
        ),
    ),
    hints=(
        "n is the number of samples of all micro-batches: sum(len(inputs) for inputs, _ in micro_batches).",
        "Scale the loss, not the gradients: (loss * len(inputs) / n).backward().",
        "Add the scaled losses up, detached, and return the sum.",
    ),
)
def accumulate_gradients(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Equal micro-batches, uneven ones, and that only one of them is in memory at a time."""
    size = rng.integer(3, 6)
    equal = Accumulation.draw(rng, [size] * rng.integer(2, 4), "cross_entropy")
    seen = equal.seen(answer)
    yield gradients_as_expected("equal micro-batches", equal, seen)

    # Another loss, so that an answer that does not use the one it is given shows.
    uneven = Accumulation.draw(rng, [rng.integer(6, 9), rng.integer(3, 5), rng.integer(1, 2)], "mse")
    seen = uneven.seen(answer)
    yield gradients_as_expected("uneven micro-batches", uneven, seen)
    yield full_batch_loss(uneven, seen)
    yield one_graph_at_a_time(uneven, seen)


@exercise(
    unit=UNIT,
    name="measure_throughput",
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(
            "warm-up and timed steps", 1, "Call step() `warmup` times, then `steps` times, and no more."
        ),
        Criterion(
            "waits before the clock starts",
            1,
            "When step() returns, the device may still be at work on the warm-up: call synchronize() first.",
        ),
        Criterion(
            "waits before the clock stops",
            1,
            "The last steps have only been queued when step() returns: call synchronize() before you read "
            "the clock again.",
        ),
        Criterion(
            "waits nowhere else",
            1,
            "Waiting after every step keeps the device idle while the next is prepared, which is not what "
            "training does.",
        ),
        Criterion(
            "samples a second",
            2,
            "batch_size * steps samples, divided by the seconds between the two moments at which the device "
            "was at rest, warm-up not included. time.perf_counter() is the clock for it.",
        ),
    ),
    hints=(
        "Two loops, and each is followed by synchronize().",
        "Read time.perf_counter() directly after each of the two calls of synchronize().",
    ),
)
def measure_throughput(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A device that is slow at first and works off a queue; once with a warm-up, once without."""
    measurements = [Measurement.of(answer, rng, warmup) for warmup in (rng.integer(2, 3), 0)]
    for judge in (
        right_number_of_steps,
        waits_before_start,
        waits_before_stop,
        waits_nowhere_else,
        rate_as_measured,
    ):
        yield first_wrong(judge(measurement) for measurement in measurements)


@exercise(
    unit=UNIT,
    name="training_memory_bytes",
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "full precision",
            1,
            "4 bytes each for the weight, its gradient, and every number that the optimizer keeps: none for "
            "sgd, one for momentum, two for adam.",
        ),
        Criterion("half precision", 1, "As in full precision, with 2 bytes for everything."),
        Criterion(
            "mixed precision",
            1,
            "Weights and gradients take 2 bytes each; the optimizer has a copy of the weights of its own and "
            "all its numbers in 4 bytes.",
        ),
        Criterion("unknown names", 1, "Raise ValueError for an optimizer or a precision that is not listed."),
    ),
    hints=(
        "Bytes per parameter = weight + gradient + optimizer states. Count the optimizer's numbers first.",
        "Mixed precision with adam is 2 + 2 + 12 = 16 bytes. Which three numbers make up the 12?",
    ),
)
def training_memory_bytes(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """All nine combinations, by precision, and names that are not among them."""
    yield memory_as_expected("full precision", answer, rng, "fp32")
    yield memory_as_expected("half precision", answer, rng, "bf16")
    yield memory_as_expected("mixed precision", answer, rng, "mixed")
    yield unknown_names_rejected(answer)
