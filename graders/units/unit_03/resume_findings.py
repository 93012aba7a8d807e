"""What is found of a training that goes on after a kill."""

from itertools import chain

import torch
from torch import Tensor

from graders.grading.kit import Finding, compare
from graders.units.shuffles import drawn_anew
from graders.units.unit_03.courses import Course
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import ProcessReply


def trains(course: Course, process: ProcessReply) -> Finding:
    """Passes if every epoch has every sample once, in batches of the right size."""
    if len(process.batches) != course.steps:
        return Finding(False, f"{course}: {len(process.batches)} steps; expected {course.steps}.")
    for epoch, batches in enumerate(_epochs(course, process)):
        if [len(batch) for batch in batches[:-1]] != [course.batch_size] * (course.an_epoch - 1):
            return Finding(
                False, f"{course}: epoch {epoch} has batches of {[len(b) for b in batches]} samples."
            )
        order = list(chain(*batches))
        if sorted(order) != list(range(len(course.samples))):
            return Finding(False, f"{course}: epoch {epoch} has the samples {order}; expected each once.")
    return Finding(True, f"{course.steps} steps; each of {course.epochs} epochs has every sample once.")


def shuffles(course: Course, process: ProcessReply) -> Finding:
    """Passes if every epoch has the samples in an order of its own, which was drawn."""
    return drawn_anew([[[*chain(*batches)]] for batches in _epochs(course, process)], len(course.samples))


def _epochs(course: Course, process: ProcessReply) -> list[list[list[int]]]:
    return [
        process.batches[begin : begin + course.an_epoch] for begin in range(0, course.steps, course.an_epoch)
    ]


def saves_regularly(course: Course, process: ProcessReply) -> Finding:
    """Passes if the checkpoints are those of every save_every-th step and of the last."""
    steps = [
        step for step in range(1, course.steps + 1) if step % course.save_every == 0 or step == course.steps
    ]
    wanted = [f"step-{step}.pt" for step in steps]
    # The last one may be saved as one of these, and then as the last.
    saved = list(dict.fromkeys(process.saved))
    return compare.equal(saved, wanted, f"{course}: checkpoints of {course.steps} steps")


def goes_on(course: Course, first: ProcessReply, second: ProcessReply) -> Finding:
    """Passes if the second process begins where the last checkpoint of the first ends."""
    if second.ended != RETURNED:
        return Finding(False, f"{course}: started again after a kill it ends with {second.ended}.")
    newest = _newest(course, first)
    text = (
        f"{course}: killed after step {len(first.batches)} with a checkpoint of step {newest}, it then makes "
    )
    text += f"{len(second.batches)} steps"
    wanted = course.steps - newest
    return Finding(len(second.batches) == wanted, f"{text}; {wanted} are missing.")


def _newest(course: Course, process: ProcessReply) -> int:
    return len(process.batches) // course.save_every * course.save_every


def data_position(course: Course, whole: ProcessReply, first: ProcessReply, second: ProcessReply) -> Finding:
    """Passes if the second process takes the batches that the uninterrupted training takes from there on."""
    newest = _newest(course, first)
    for step, (seen, wanted) in enumerate(
        zip(second.batches, whole.batches[newest:], strict=False), newest + 1
    ):
        if seen != wanted:
            text = f"{course}, killed after step {len(first.batches)}: after the restart"
            return Finding(False, f"{text} step {step} has the samples {seen}; uninterrupted {wanted}.")
    return Finding(True, f"From step {newest + 1} on the batches are those of the uninterrupted training.")


def same_weights(whole: ProcessReply, last: ProcessReply, how: str) -> Finding:
    """Passes if two processes end with weights that are equal in every bit."""
    if last.ended != RETURNED:
        return Finding(False, f"{how}, it ends with {last.ended}.")
    if compare.same(last.weights, whole.weights):
        return Finding(True, f"{how}, it ends with the weights of an uninterrupted training.")
    wanted = whole.weights if type(whole.weights) is Tensor else torch.empty(0)
    differ = compare.close(last.weights, wanted, "what it ends with", rtol=0, atol=0)
    return Finding(False, f"{how}: {differ.seen}")


def draws_anew(process: ProcessReply) -> Finding:
    """Passes if no step draws the random numbers of an earlier one."""
    for step, drawn in enumerate(process.draws):
        if drawn in process.draws[:step]:
            before = process.draws.index(drawn) + 1
            text = f"Step {step + 1} draws the same random numbers as step {before}"
            return Finding(False, f"{text}: somebody sets torch's seed, and their dropouts are alike.")
    return Finding(True, "Each step draws random numbers of its own.")
