"""Unit 01, all fifteen: the training loop."""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from math import isnan

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.gpu import HOST, WAITS, gpu
from graders.units.raised import tried_in
from graders.units.unit_01.courses import Course
from graders.units.unit_01.drivers import FitReply
from graders.units.unit_01.evaluation import accuracy_near, loss_near
from graders.units.unit_01.steps import nan_in_all
from graders.units.unit_01.watched import NOT_CALLED


@exercise(
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
        ),
        Criterion(
            "history",
            2,
            "Three floats: `.item()` makes one of a tensor, when the epoch is over. An epoch's training loss "
            "is the mean over its samples, and the last batch may be short. Validate when all of the epoch's "
            "steps are done.",
            needs=("one epoch",),
        ),
        Criterion(
            "modes",
            1,
            "model.train() at the beginning of every epoch: the model may come in evaluation mode. evaluate "
            "does the rest: it validates in evaluation mode, and under torch.no_grad().",
        ),
        Criterion(
            "on the device",
            1,
            "Move the model before the first step, and every batch before it is used, also for validation.",
        ),
        Criterion(
            "waits once an epoch",
            1,
            "loss.item() in every step makes the program wait for the device in every step. Add the losses "
            "up as tensors, and make a number of the sum when the epoch is over.",
        ),
    ),
    hints=(
        "Which of the fifteen steps are in train_step, and which in evaluate? Two loops go round the rest.",
        "The sum of loss * len(targets) over the batches, divided by the number of samples, is the mean.",
        "evaluate takes any iterable: a generator expression can move each batch as it comes. It can be gone "
        "through only once, so every epoch needs a new one.",
    ),
)
def fit(answer: Answer, rng: Rng) -> Findings:
    """One epoch, then several, then how the model, the loaders and the device were used."""
    case = Course.draw(rng)
    one = case.seen(answer, 1)
    yield "one epoch", parameters_as_expected(case, one, 1)
    several, none = case.seen(answer, 3), case.seen(answer, 0)
    diverging = Course.draw_diverging(rng)
    diverged = diverging.seen(answer, EPOCHS)
    all_run = chain(anew(case, one, several, none), to_the_end(answer, rng), [to_nan(diverging, diverged)])
    every_epoch = compare.first_failure(all_run)
    yield "every epoch anew", every_epoch
    # Of an answer whose later epochs are wrong the first one is judged.
    epochs, trained = (2, several) if every_epoch.passed else (1, one)
    histories = ((one, 1), (several, 3)) if every_epoch.passed else ((one, 1),)
    history = compare.first_failure(history_right(case, *each) for each in histories)
    yield "history", nan_told(diverged) if every_epoch.passed and history.passed else history
    found = case.seen(answer, epochs, training=False)
    yield "modes", compare.first_failure(modes_right(each, history.passed) for each in (trained, found))
    moving = case.moving()
    moved = moving.seen(answer, epochs, on_gpu=True)
    there = compare.first_failure([parameters_as_expected(moving, moved, epochs), on_the_device(moved)])
    yield "on the device", to_the_host(moving, answer) if there.passed else there
    long = Course.draw_long(rng)
    cases = ((moving, moved), (long, long.seen(answer, 1, on_gpu=True)))
    yield "waits once an epoch", compare.first_failure(waits_at_the_end(*each) for each in cases)


def parameters_as_expected(case: Course, seen: FitReply, epochs: int) -> Finding:
    """Passes if the parameters are those that torch's own SGD leads to."""
    finding = _weights_after(case, seen, epochs)
    for earlier in range(1, epochs) if not finding.passed else ():
        if _weights_after(case, seen, earlier).passed:
            text = f"The weights after {epochs} epochs are those after {compare.counted(earlier, 'epoch')}"
            return Finding(False, f"{text}; expected the last ones.")
    return finding


def _weights_after(case: Course, seen: FitReply, epochs: int) -> Finding:
    _, expected = case.expected(epochs)
    names = [name for name, _ in case.problem.model().named_parameters()]
    after = f"after {compare.counted(epochs, 'epoch')}"
    return compare.first_failure(
        compare.close(got, wanted, f"{name} {after}", rtol=1e-4, atol=1e-5)
        for name, (got, wanted) in zip(names, compare.side_by_side(seen.parameters, expected), strict=True)
    )


def anew(case: Course, one: FitReply, several: FitReply, none: FitReply) -> list[Finding]:
    """Pass if each epoch goes through each loader once, and several, and none, lead where they must."""
    passes = [once_an_epoch(seen, epochs) for epochs, seen in ((1, one), (3, several), (0, none))]
    return [
        *passes,
        parameters_as_expected(case, several, 3),
        parameters_as_expected(case, none, 0),
        Finding(
            # Of what is no list for one epoch either, the history's own row tells.
            type(one.history) is not list or compare.same(none.history, []),
            f"For 0 epochs fit returned {none.history!r:.80}; expected [].",
        ),
        Finding(
            several.seed_kept,
            "A random seed was set, or a random state put back: a shuffling loader would repeat its order.",
        ),
        *seeds_kept(one, several),
        settings_kept(several),
    ]


def settings_kept(seen: FitReply) -> Finding:
    """Passes if learning rates are those that the caller has set."""
    return Finding(
        seen.settings, "fit has changed the optimizer's settings; its learning rate is the caller's."
    )


def seeds_kept(one: FitReply, other: FitReply) -> Iterator[Finding]:
    """Pass if in two runs nobody has set the seeds of Python's and of NumPy's module, or put a state back."""
    for number, library in enumerate(("Python's", "NumPy's")):
        drawn = [numbers[number] for run in (one, other) for numbers in run.drawn]
        text = f"fit has set a random seed of {library}, or put a random state back"
        yield Finding(len({*drawn}) == len(drawn), f"{text}: augmentation would repeat its numbers.")


def once_an_epoch(seen: FitReply, epochs: int, told: str = "") -> Finding:
    """Passes if the answer went through each loader once an epoch. told: of which kind the epochs are."""
    train, validation = (compare.counted(passes, "time") for passes in seen.passes)
    text = f"In {compare.counted(epochs, 'epoch')}{told} fit went through train_loader {train}"
    return Finding(
        seen.passes == (epochs, epochs), f"{text}, through validation_loader {validation}; expected {epochs}."
    )


EPOCHS = 13
"""More than people, or a scheduler, usually wait for a validation to get better."""
PATIENCE = 22
"""More than the longest that they do."""


def to_the_end(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Pass if trainings of which only the validation gets worse, or all, and one that stands still, run all
    their epochs, and the last weights stay.
    """
    for case, epochs, told in (
        (Course.draw_worsening(rng), PATIENCE, "of which the first validates best"),
        (Course.draw_climbing(rng), EPOCHS, "of which the first is the best in all"),
    ):
        seen = case.seen(answer, epochs)
        yield once_an_epoch(seen, epochs, f", {told},")
        yield settings_kept(seen)
        finding = parameters_as_expected(case, seen, epochs)
        yield finding if finding.passed else Finding(False, f"{finding.seen} ({epochs} epochs, {told})")
    for right, losses in ((True, "no loss"), (False, "losses of millions")):
        seen = Course.draw_standing(rng, right).seen(answer, EPOCHS)
        yield once_an_epoch(seen, EPOCHS, f" with a learning rate of 0 and {losses}")


def to_nan(case: Course, seen: FitReply) -> Finding:
    """Passes if a training whose losses are NaN runs all its epochs, and leaves NaN in the weights."""
    run = once_an_epoch(seen, EPOCHS, " whose losses are NaN")
    return nan_in_all(case.problem, seen.parameters) if run.passed else run


def history_right(case: Course, seen: FitReply, epochs: int) -> Finding:
    """Passes if there are three floats for each epoch, and the right ones."""
    expected, _ = case.expected(epochs)
    if type(seen.history) is not list or len(seen.history) != epochs:
        return Finding(False, f"fit returned {seen.history!r:.80}; expected a list with a tuple an epoch.")
    return compare.first_failure(
        _epoch_right(each, wanted, epoch)
        for epoch, (each, wanted) in enumerate(zip(seen.history, expected, strict=True))
    )


def nan_told(seen: FitReply) -> Finding:
    """Passes if both losses of every epoch are NaN, as those of the samples are."""
    for epoch in seen.history if type(seen.history) is list else [seen.history]:
        losses = epoch[:2] if type(epoch) is tuple else ()
        if [type(each) is float and isnan(each) for each in losses] != [True, True]:
            return Finding(
                False, f"An epoch with NaN in a sample is {epoch!r:.80}; expected NaN for both losses."
            )
    return Finding(True, "The losses of every epoch are as expected, NaN where a sample is.")


_NAMES = ("training loss", "validation loss", "validation accuracy")


def _epoch_right(seen: object, expected: Sequence[float], epoch: int) -> Finding:
    if type(seen) is not tuple or len(seen) != len(_NAMES):
        return Finding(False, f"Epoch {epoch} is {seen!r:.80}; expected a tuple of three floats.")
    return compare.first_failure(
        (accuracy_near if name == _NAMES[-1] else loss_near)(got, wanted, f"the {name} of epoch {epoch}")
        for name, got, wanted in zip(_NAMES, seen, expected, strict=True)
    )


def modes_right(seen: FitReply, all_passes: bool) -> Finding:
    """Passes if whatever goes backward went forward in training mode, and all else in evaluation mode and
    without a graph. all_passes: whether it counts that nothing else went forward in training mode, as for a
    loss after the update.
    """
    passes = [*(entry for entry in seen.log if entry != WAITS), ""]
    trains = [
        following.startswith("backward")
        for entry, following in pairwise(passes)
        if entry.startswith("forward")
    ]
    both = [*compare.side_by_side(seen.modes, seen.graphs)]
    each_pass = [(train, mode, graph) for train, (mode, graph) in compare.side_by_side(trains, both)]
    if not seen.modes:
        return Finding(False, f"fit {NOT_CALLED}; expected train_step and evaluate.")
    looked_at = [each for each in each_pass if all_passes or each[:2] != (False, True)]
    if all(mode is train for train, mode, _ in looked_at):
        if any(graph is not train for train, _, graph in looked_at):
            return Finding(False, "Forward passes of the validation recorded a graph for backward.")
        return Finding(True, "Every epoch trains in training mode and validates in evaluation mode.")
    names = {True: "training", False: "evaluation", None: "both"}
    if len({*seen.modes}) == 1:
        text = f"All forward passes, of training and validation, ran in {names[seen.modes[0]]} mode"
        return Finding(False, f"{text} ({len(seen.modes)}).")
    told = ", ".join(names[mode] for mode in seen.modes)
    return Finding(False, f"The forward passes ran in these modes: {told or 'none'}.")


def to_the_host(case: Course, answer: Answer) -> Finding:
    """Passes if a model that comes on the GPU is trained on the host, where that is the device given."""
    told = "With a model that comes on the GPU, for the host"

    def look() -> Finding:
        seen = case.seen(answer, 1, from_gpu=True)
        found = compare.first_failure([parameters_as_expected(case, seen, 1), on_the_device(seen, HOST)])
        return found if found.passed else Finding(False, f"{told}: {found.seen}")

    return tried_in(told, look)


def on_the_device(seen: FitReply, device: torch.device | None = None) -> Finding:
    """Passes if all forward passes ran on the device that was given, and the model is left there.

    device: that one; if None, the GPU.
    """
    given = device or gpu()
    elsewhere = sum(each != given.type for each in seen.devices)
    text = f"{elsewhere} of {len(seen.devices)} forward passes ran on another device than the one given"
    if not elsewhere and seen.left != [given.type]:
        left = " and ".join(seen.left)
        return Finding(False, f"fit has left the model on {left}; expected it on the device given, {given}.")
    return Finding(not elsewhere, f"{text}; expected none.")


def waits_at_the_end(case: Course, seen: FitReply) -> Finding:
    """Passes if nobody asked for numbers between the first and the last step of an epoch."""
    steps, inside = 0, 0
    passes = [*(entry for entry in seen.log if entry != WAITS), ""]
    done = 0
    for entry in seen.log:
        if entry == WAITS:
            inside += steps % len(case.train) > 0 or passes[done].startswith("backward")
        else:
            done += 1
            steps += entry.startswith("backward")
    text = (
        f"Within the epochs' steps fit, or train_step, waited for a number {compare.counted(inside, 'time')}"
    )
    return Finding(not inside, f"{text}; expected none before the epoch's last step is done.")
