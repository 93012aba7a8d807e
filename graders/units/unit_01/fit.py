"""The grader of `fit`."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.gpu import HOST, WAITS, gpu
from graders.units.models import copies_of
from graders.units.one_by_one import one_by_one
from graders.units.unit_01 import drivers
from graders.units.unit_01.problems import Problem, close_to_all, each, joined, no_waits
from graders.units.unit_01.replies import FitReply
from graders.units.unit_01.watched import Batch, in_words

Epoch = tuple[float, float, float]
NAMES = ("training loss", "validation loss", "validation accuracy")


@dataclass(frozen=True, slots=True)
class Epochs:
    """gpu: which device is given; if not a GPU, the host."""

    epochs: int = feature(1, "{} epochs")
    training: bool = feature(True, lambda training: "" if training else "the model in evaluation mode")
    gpu: bool = feature(False, lambda gpu: "a GPU" if gpu else "")


@dataclass(frozen=True, slots=True)
class Given:
    """history: of each epoch what NAMES say. parameters: the last ones, of their shapes."""

    how: Epochs
    train: list[Batch]
    history: list[Epoch]
    parameters: list[Tensor]


def given(how: Epochs, problem: Problem, train: list[Batch], validation: list[Batch]) -> Given:
    """What is expected of this training."""
    model, history = problem.model(), []
    optimizer = drivers.used_before(model, how.gpu)
    inputs, labels = joined(validation)
    for epoch in range(how.epochs):
        total = 0.0
        for samples, targets in drivers.turned(train, epoch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(samples), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(targets)
        with torch.no_grad():
            logits = model(inputs)
        hits = float((logits.argmax(1) == labels).double().mean())
        lost = float(functional.cross_entropy(logits, labels))
        history.append((total / sum(len(targets) for _, targets in train), lost, hits))
    return Given(how, train, history, copies_of(model.parameters()))


def history_right(given: Given, seen: FitReply) -> Finding:
    """Passes if there are three floats for each epoch, and the right ones."""
    if type(seen.history) is not list or len(seen.history) != len(given.history):
        return Finding(False, f"fit returned {seen.history!r:.80}; expected a list with a tuple an epoch.")
    for number, (told, expected) in enumerate(zip(seen.history, given.history, strict=True)):
        if type(told) is not tuple or len(told) != len(NAMES):
            return Finding(False, f"epoch {number} is {told!r:.80}; expected a tuple of three floats.")
        for name, got, wanted in zip(NAMES, told, expected, strict=True):
            found = compare.near(got, wanted, f"the {name} of epoch {number}", 1e-5)
            if not found.passed:
                return found
    return Finding(True, "all losses and accuracies are right.")


def modes_right(_: Given, seen: FitReply) -> Finding:
    """Passes if whatever goes backward went forward in training mode, and all else in evaluation mode and
    without a graph.
    """
    passes = [*(entry for entry in seen.log if not entry.startswith(WAITS)), ""]
    trains = [
        following.startswith("backward")
        for entry, following in pairwise(passes)
        if entry.startswith("forward")
    ]
    if seen.modes != trains:
        told = ", ".join(in_words(mode) for mode in seen.modes)
        return Finding(
            False, f"the forward passes ran {told:.200}; expected training mode in every step only."
        )
    text = "every step was in training mode, every validation in evaluation mode"
    return Finding(seen.graphs == trains, f"{text}; expected no graph for backward there.")


def waits_at_the_end(given: Given, seen: FitReply) -> Finding | None:
    """Passes if nobody asked for numbers between the first and the last step of an epoch."""
    if not given.how.gpu:
        return None
    steps, inside = 0, []
    for entry in seen.log:
        steps += entry.startswith("backward")
        if entry.startswith(WAITS) and steps % len(given.train):
            inside.append(entry)
    return no_waits("within the epochs' steps fit, or train_step,", inside)


@one_by_one(
    base=Epochs(),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "one epoch",
            2,
            "One pass over train_loader, one train_step a batch, and nothing else that changes the model. "
            "The loaders can only be gone through: count the samples as they come. A new optimizer would "
            "have lost its states.",
        ),
        Criterion(
            "every epoch anew",
            1,
            "Go through both loaders once in every epoch; a list made once repeats the first epoch's order. "
            "All epochs are run, and the weights of the last one stay.",
            vary=vary(epochs=(3, 0)),
        ),
        Criterion(
            "history",
            2,
            "Three floats: `.item()` makes one of a tensor, when the epoch is over. An epoch's training loss "
            "is the mean over its samples, and the last batch may be short. Validate when all of the epoch's "
            "steps are done.",
            needs=("one epoch",),
            how=each(history_right),
        ),
        Criterion(
            "modes",
            1,
            "model.train() at the beginning of every epoch: the model may come in evaluation mode. evaluate "
            "does the rest: it validates in evaluation mode, and under torch.no_grad().",
            vary=vary(training=(False,)),
            how=each(modes_right),
        ),
        Criterion(
            "on the device",
            1,
            "Move the model before the first step, and every batch before it is used, also for validation.",
            vary=vary(gpu=(True,)),
        ),
        Criterion(
            "waits once an epoch",
            1,
            "loss.item() in every step makes the program wait for the device in every step. Add the losses "
            "up as tensors, and make a number of the sum when the epoch is over.",
            needs=("one epoch", "on the device"),
            how=each(waits_at_the_end),
        ),
    ),
    hints=(
        "Which of the fifteen steps are in train_step, and which in evaluate? Two loops go round the rest.",
        "The sum of loss * len(targets) over the batches, divided by the number of samples, is the mean.",
        "evaluate takes any iterable: a generator expression can move each batch as it comes. It can be gone "
        "through only once, so every epoch needs a new one.",
    ),
    # The simulated GPU takes the processor long: one epoch there.
    possible=lambda how: not how.gpu or how == Epochs(gpu=True),
)
def fit(answer: Answer, how: Epochs, rng: Rng) -> tuple[Finding, Any]:
    """One pass over each loader an epoch, and at the end the weights that torch's own SGD leads to, on the
    device that was given.
    """
    problem, size = Problem.draw(rng), rng.integer(6, 7)
    train, validation = problem.batches(rng, [size, size, size, 1]), problem.batches(rng, [size + 5, 1])
    expected = given(how, problem, train, validation)
    epochs = how.epochs
    seen = answer.call(drivers.fitting, problem.values, (train, validation), epochs, how.training, how.gpu)
    device = gpu() if how.gpu else HOST
    passes = "fit goes {} times through train_loader and {} times through validation_loader".format(
        *seen.passes
    )
    found = [
        Finding(seen.passes == (epochs, epochs), f"{passes}; expected {epochs} each."),
        close_to_all(seen.parameters, expected.parameters, f"{{}} after {compare.counted(epochs, 'epoch')}"),
        Finding(seen.kept, "fit has set a random seed, or drawn; expected random states as they were."),
        Finding(seen.left == [device.type], f"fit has left the model on {seen.left}; expected {device}."),
    ]
    return compare.first_failure(found), (expected, seen)
