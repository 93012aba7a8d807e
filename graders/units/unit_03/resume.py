"""The grader of `resume`: a training without kills, and the same training with them."""

from itertools import chain

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.shuffles import drawn_anew
from graders.units.unit_03.courses import Course
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import ProcessReply


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
            "A process that has gone on saves as the first one did, and counts from the beginning of the "
            "training. A training that has ended makes no more steps.",
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
    """Equality with an uninterrupted training, bit by bit."""
    course, long = Course.short(rng), Course.long(rng)
    (of_many_epochs,), (whole,) = long.train(answer), course.train(answer, 0)
    trained = (long, of_many_epochs), (course, whole)
    yield "trains", compare.first_failure(_trains(*each) for each in trained)
    orders = [[[*chain(*batches)]] for batches in long.epochs_of(of_many_epochs)]
    yield "shuffles each epoch", drawn_anew(orders, len(long.samples))
    yield "saves", compare.first_failure(_saves_regularly(*each) for each in trained)

    # In the second epoch, one or two steps after a checkpoint.
    kill = course.save_every + rng.integer(1, 2)
    _, second = course.train(answer, kill, 0)
    how = f"{course}: killed after step {kill} and started again"
    yield "goes on", _goes_on(course, second, how)
    yield "data position", _data_position(course, whole, second, how)
    yield "model and optimizer", _same_weights(whole, second, how)

    (noisy,) = course.train(answer, 0, noisy=True)
    _, second = course.train(answer, kill, 0, noisy=True)
    equal = _same_weights(
        noisy, second, f"{course}, with dropout: killed after step {kill} and started again"
    )
    yield "random state", compare.first_failure([_draws_anew(noisy), equal])
    yield "killed anywhere", _killed_anywhere(course, answer, noisy, rng)


def _trains(course: Course, process: ProcessReply) -> Finding:
    if process.ended != RETURNED:
        return Finding(False, f"{course}: it ends with {process.ended}.")
    if len(process.batches) != course.steps:
        return Finding(False, f"{course}: {len(process.batches)} steps; expected {course.steps}.")
    for epoch, batches in enumerate(course.epochs_of(process)):
        if [len(batch) for batch in batches[:-1]] != [course.batch_size] * (course.an_epoch - 1):
            sizes = [len(batch) for batch in batches]
            return Finding(False, f"{course}: epoch {epoch} has batches of {sizes} samples.")
        order = list(chain(*batches))
        if sorted(order) != list(range(len(course.samples))):
            return Finding(False, f"{course}: epoch {epoch} has the samples {order}; expected each once.")
    return Finding(True, f"{course.steps} steps; each of {course.epochs} epochs has every sample once.")


def _saves_regularly(course: Course, process: ProcessReply) -> Finding:
    steps = range(1, course.steps + 1)
    wanted = [f"step-{step}.pt" for step in steps if step % course.save_every == 0 or step == course.steps]
    # The last one may be saved as one of these, and then as the last.
    saved = list(dict.fromkeys(process.saved))
    return compare.equal(saved, wanted, f"{course}: checkpoints of {course.steps} steps")


def _goes_on(course: Course, second: ProcessReply, how: str) -> Finding:
    if second.ended != RETURNED:
        return Finding(False, f"{how} it ends with {second.ended}.")
    made = compare.counted(len(second.batches), "step")
    missing = course.steps - course.save_every
    text = f"{how}, with a checkpoint of step {course.save_every}, it makes {made}; expected {missing}."
    return Finding(len(second.batches) == missing, text)


def _data_position(course: Course, whole: ProcessReply, second: ProcessReply, how: str) -> Finding:
    wanted = whole.batches[course.save_every :]
    for step, (seen, expected) in enumerate(zip(second.batches, wanted, strict=False), course.save_every + 1):
        if seen != expected:
            return Finding(False, f"{how}: step {step} has the samples {seen}; uninterrupted {expected}.")
    return Finding(True, f"{how}: the batches are those of the uninterrupted training.")


def _same_weights(whole: ProcessReply, last: ProcessReply, how: str) -> Finding:
    if last.ended != RETURNED:
        return Finding(False, f"{how} it ends with {last.ended}.")
    if compare.same(last.weights, whole.weights):
        return Finding(True, f"{how} it ends with the weights of an uninterrupted training.")
    wanted = whole.weights if type(whole.weights) is Tensor else torch.empty(0)
    differ = compare.close(last.weights, wanted, "the weights at the end", rtol=0, atol=0)
    return Finding(False, f"{how}: {differ.seen}")


def _draws_anew(process: ProcessReply) -> Finding:
    for step, drawn in enumerate(process.draws):
        if drawn in process.draws[:step]:
            before = process.draws.index(drawn) + 1
            text = f"Step {step + 1} draws the same random numbers as step {before}"
            return Finding(False, f"{text}: somebody sets torch's seed, and their dropouts are alike.")
    return Finding(True, "Each step draws random numbers of its own.")


def _killed_anywhere(course: Course, answer: Answer, whole: ProcessReply, rng: Rng) -> Finding:
    """Before the first save; on the way; in a process that has gone on; and a start after the end."""
    kills = rng.integer(1, course.save_every - 1), course.save_every + 2, course.save_every + 1
    *_, last, again = course.train(answer, *kills, 0, 0, noisy=True)
    how = f"{course}: killed after {', '.join(map(str, kills))} steps of three starts"
    finding = _same_weights(whole, last, f"{how}, started once more")
    if finding.passed and again.batches:
        made = compare.counted(len(again.batches), "step")
        return Finding(False, f"{course}: started again after its end it makes {made} more.")
    return (
        _same_weights(whole, again, f"{course}: started again after its end") if finding.passed else finding
    )
