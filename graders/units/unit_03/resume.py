"""The grader of `resume`."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_03.courses import Course
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import ProcessReply
from graders.units.unit_03.resume_findings import (
    data_position,
    draws_anew,
    goes_on,
    same_weights,
    saves_regularly,
    shuffles,
    trains,
)


@exercise(
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "trains",
            1,
            "An epoch has ceil(N / batch_size) steps, and each sample once; the last batch may be short.",
        ),
        Criterion(
            "shuffles each epoch", 1, "Draw another permutation for each epoch, from the epoch's own number."
        ),
        Criterion(
            "saves",
            1,
            "Count the steps that are done, through all epochs; save when save_every divides that number, "
            "and after the last, as step-N.pt with N steps done.",
        ),
        Criterion(
            "goes on",
            1,
            "Begin with load_latest. The number of steps done belongs in the checkpoint: go on from there, "
            "not from the beginning of the training or of the epoch.",
            needs=("saves",),
        ),
        Criterion(
            "data position",
            2,
            "The order of an epoch has to be the same after a restart in its middle: draw it from a "
            "generator seeded with the epoch, or save it. And skip what was seen already.",
            needs=("goes on",),
        ),
        Criterion(
            "model and optimizer",
            2,
            "Momentum is as much a part of the training as the weights: save and load both state_dicts.",
            needs=("data position",),
        ),
        Criterion(
            "random state",
            2,
            "Dropout draws from torch's global generator: torch.get_rng_state() belongs in the checkpoint, "
            "and torch.set_rng_state() comes after everything that draws. Do not seed it yourself: an order "
            "can have a generator of its own.",
            needs=("model and optimizer",),
        ),
        Criterion(
            "killed anywhere",
            2,
            "The newest file may be damaged: take the number of steps from what load_latest returned. A "
            "process that has gone on saves as the first one did, and counts from the beginning of the "
            "training, and of the epoch. A training that has ended makes no more steps.",
            needs=("random state",),
        ),
    ),
    hints=(
        "On what does the next step depend, and which of it would a new process not know?",
        "One number says where you are: step. epoch, position = divmod(step, steps_an_epoch).",
        "torch.randperm(N, generator=torch.Generator().manual_seed(epoch)) is the same after every restart.",
        "Save the state as it is after the step, with the number of steps done.",
    ),
)
def resume(answer: Answer, rng: Rng) -> Findings:
    """A training without kills, and the same training with them."""
    course, long = Course.drawn(rng), Course.long(rng)
    (of_many_epochs,), whole = long.train(answer), course.uninterrupted(answer)
    yield "trains", compare.first_failure([trains(course, whole), trains(long, of_many_epochs)])
    yield "shuffles each epoch", shuffles(long, of_many_epochs)
    yield (
        "saves",
        compare.first_failure(saves_regularly(*each) for each in ((course, whole), (long, of_many_epochs))),
    )

    # In the second epoch, two steps after a checkpoint.
    step = course.an_epoch // course.save_every * course.save_every + course.save_every
    kill = ("step", step + rng.integer(1, 2))
    first, second = course.train(answer, kill)
    yield "goes on", goes_on(course, first, second)
    yield "data position", data_position(course, whole, first, second)
    yield "model and optimizer", same_weights(whole, second, f"{course}, killed after step {kill[1]}")

    noisy = course.uninterrupted(answer, noisy=True)
    first, second = course.train(answer, kill, noisy=True)
    equal = same_weights(noisy, second, f"{course}, with dropout, killed after step {kill[1]}")
    yield "random state", compare.first_failure([draws_anew(noisy), equal])
    found = killed_anywhere(course, answer, noisy, rng)
    yield "killed anywhere", compare.first_failure(chain([found], killed_often(course, answer)))


def killed_anywhere(course: Course, answer: Answer, whole: ProcessReply, rng: Rng) -> Finding:
    """Passes if a kill before the first save, a last checkpoint that is damaged, and a start after the end
    change nothing.

    The save before the damaged one is that of a whole number of epochs.
    """
    early, late = rng.integer(1, course.save_every - 1), 3
    kills = [("step", early), ("save", late), ("nothing", 0)]
    *_, last, again = course.train(answer, *kills, noisy=True)
    how = f"{course}, killed after step {early}, and then to its end, of which save {late} is damaged"
    finding = same_weights(whole, last, f"{how}: started again from the one before")
    if not finding.passed:
        return finding
    if again.batches:
        made = compare.counted(len(again.batches), "step")
        return Finding(False, f"{course}: started again after its end it makes {made} more.")
    return same_weights(whole, again, f"{course}, started again after its end")


def killed_often(course: Course, answer: Answer) -> Iterator[Finding]:
    """Whether a process goes on from what another one has saved that had gone on itself: in the same epoch or
    an earlier one, within an epoch or at its end, of full batches. The first save of all is torn.
    """
    often = replace(course, batch_size=course.batch_size - 1, save_every=1)
    whole = often.uninterrupted(answer, noisy=True)
    begins = [0, often.an_epoch + 1, often.an_epoch + 2, 2 * often.an_epoch]
    made = [end - begin + 1 for begin, end in pairwise(begins)]
    _, *starts = often.train(answer, ("torn", 1), *(("step", steps) for steps in made), noisy=True)
    killed = " and ".join(f"{begin + 1}" for begin in begins[1:])
    how = f"{often}, killed in its first save, and later in the steps {killed}"
    for begin, steps, process in zip(begins, [*made, often.steps], starts, strict=True):
        where = (
            f"{how}: started again after step {begin}'s checkpoint" if begin else f"{how}: after the first"
        )
        yield Finding(process.ended in (RETURNED, "SIGKILL"), f"{where} it ends with {process.ended}.")
        wanted = whole.batches[begin : begin + steps]
        text = f"{where} it makes the steps {process.batches}; expected {wanted}"
        yield Finding(process.batches == wanted, f"{text:.500}.")
    names = [f"step-{step}.pt" for step in range(begins[-1] + 1, often.steps + 1)]
    # The last one may be saved as one of these, and then as the last.
    saved = list(dict.fromkeys(starts[-1].saved))
    yield compare.equal(saved, names, f"{how}: the checkpoints of the last process")
    yield same_weights(whole, starts[-1], how)
