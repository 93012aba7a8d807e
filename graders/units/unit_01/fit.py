"""The grader of `fit`."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.kit import Criterion, Finding, compare
from graders.units.gpu import HOST, WAITS, gpu
from graders.units.unit_01.cases import each, watched
from graders.units.unit_01.courses import Course, Epochs, draw_course
from graders.units.unit_01.histories import history_right
from graders.units.unit_01.losses import close_to_all, first_wait, nan_in_all
from graders.units.unit_01.replies import FitReply
from graders.units.unit_01.seeds import untouched
from graders.units.unit_01.watched import NOT_CALLED

PATIENCE = 13
"""Epochs: more than people, or a scheduler, usually wait for a validation to get better."""


def modes_right(_: Course, seen: FitReply) -> Finding:
    """Passes if whatever goes backward went forward in training mode, and all else in evaluation mode and
    without a graph.
    """
    passes = [*(entry for entry in seen.log if not entry.startswith(WAITS)), ""]
    trains = [
        following.startswith("backward")
        for entry, following in pairwise(passes)
        if entry.startswith("forward")
    ]
    if [*seen.modes] == trains:
        if [*seen.graphs] != trains:
            return Finding(False, "forward passes of the validation recorded a graph for backward.")
        return Finding(True, "every step was in training mode, every validation in evaluation mode.")
    names = {True: "training", False: "evaluation", None: "both"}
    if len({*seen.modes}) == 1:
        text = f"all forward passes, of training and validation, ran in {names[seen.modes[0]]} mode"
        return Finding(False, f"{text} ({len(seen.modes)}).")
    told = ", ".join(names[mode] for mode in seen.modes)
    return Finding(False, f"the forward passes ran in these modes: {told:.200}.")


def waits_at_the_end(course: Course, seen: FitReply) -> Finding | None:
    """Passes if nobody asked for numbers between the first and the last step of an epoch."""
    if course.how.device != "gpu":
        return None
    steps, done = 0, 0
    inside: list[str] = []
    passes = [*(entry for entry in seen.log if not entry.startswith(WAITS)), ""]
    for entry in seen.log:
        if not entry.startswith(WAITS):
            done += 1
            steps += entry.startswith("backward")
        elif steps % len(course.train) > 0 or passes[done].startswith("backward"):
            inside.append(entry)
    text = f"within the epochs' steps fit, or train_step, {first_wait(inside)}"
    return Finding(not inside, f"{text}; expected no wait before the epoch's last step is done.")


@watched(
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
            vary=vary(epochs=(3, 0))
            + both(epochs=PATIENCE, kind="validates best at first")
            + both(epochs=PATIENCE, kind="gets worse")
            + both(epochs=PATIENCE, kind="has NaN in a sample"),
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
            vary=vary(device=("gpu", "host, from a GPU")),
        ),
        Criterion(
            "waits once an epoch",
            1,
            "loss.item() in every step makes the program wait for the device in every step. Add the losses "
            "up as tensors, and make a number of the sum when the epoch is over.",
            needs=("one epoch", "on the device"),
            vary=both(kind="has 101 steps", device="gpu", epochs=1),
            how=each(waits_at_the_end),
        ),
    ),
    hints=(
        "Which of the fifteen steps are in train_step, and which in evaluate? Two loops go round the rest.",
        "The sum of loss * len(targets) over the batches, divided by the number of samples, is the mean.",
        "evaluate takes any iterable: a generator expression can move each batch as it comes. It can be gone "
        "through only once, so every epoch needs a new one.",
    ),
    draw=draw_course,
    # The simulated GPU takes the processor long: one epoch there.
    possible=lambda how: (how.device == "host" or how.epochs == 1) and (how.training or not how.kind),
)
def fit(course: Course, seen: FitReply) -> Finding:
    """One pass over each loader an epoch, and at the end the weights that torch's own SGD leads to, on the
    device that was given.
    """
    epochs = course.how.epochs
    train, validation = (compare.counted(passes, "time") for passes in seen.passes)
    text = f"in {compare.counted(epochs, 'epoch')} fit went through train_loader {train}"
    once = Finding(
        seen.passes == (epochs, epochs), f"{text}, through validation_loader {validation}; expected {epochs}."
    )
    return compare.first_failure(
        [once, _weights_right(course, seen), *_left_alone(course, seen), *_on_the_device(course, seen)]
    )


def _weights_right(course: Course, seen: FitReply) -> Finding:
    """Passes if the weights are the last ones; tells those of an earlier epoch."""
    if course.how.nan:
        return nan_in_all(course.problem, seen.parameters, "afterwards")
    epochs = course.how.epochs
    _, expected = course.right
    found = _weights_after(course, seen, epochs, expected)
    for earlier in range(1, epochs) if not found.passed else ():
        if _weights_after(course, seen, earlier, course.expected(earlier)[1]).passed:
            text = f"the weights after {epochs} epochs are those after {compare.counted(earlier, 'epoch')}"
            return Finding(False, f"{text}; expected the last ones.")
    return found


def _weights_after(course: Course, seen: FitReply, epochs: int, expected: Sequence[Tensor]) -> Finding:
    what = f"{{}} after {compare.counted(epochs, 'epoch')}"
    return close_to_all(course.problem, seen.parameters, expected, what)


def _left_alone(course: Course, seen: FitReply) -> list[Finding]:
    text = "fit has changed the optimizer's settings; its learning rate is the caller's."
    drawn = Finding(
        seen.drawn == untouched(len(seen.drawn)),
        "fit has set a random seed, put a random state back, or drawn: shuffling would repeat itself.",
    )
    return [Finding(seen.settings, text), drawn]


def _on_the_device(course: Course, seen: FitReply) -> list[Finding]:
    given = gpu() if course.how.device == "gpu" else HOST
    elsewhere = sum(device != given.type for device in seen.devices)
    text = f"{elsewhere} of {len(seen.devices)} forward passes ran on another device than the one given"
    left = f"fit has left the model on {' and '.join(seen.left)}; expected it on the device given, {given}."
    return [
        Finding(
            bool(seen.modes) or not course.how.epochs, f"fit {NOT_CALLED}; expected train_step and evaluate."
        ),
        Finding(not elsewhere, f"{text}; expected none."),
        Finding(seen.left == [given.type], left),
    ]
