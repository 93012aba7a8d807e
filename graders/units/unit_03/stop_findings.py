"""What is found of a training to which signals come."""

import math
import re

from graders.grading.kit import Finding, Observed, communication, compare
from graders.units.unit_03.replies import StopReply
from graders.units.unit_03.signals import GRADIENT_BYTES
from graders.units.unit_03.tellings import SIGNALS, Telling

NUMBER_BYTES = 8
"""Those of the largest number."""


def stops(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if all ranks make the same steps, one after the other, not too many, and say how many."""
    least, most = case.allowed
    done = len(run.results[0].made)
    for rank, reply in enumerate(run.results):
        if reply.made != list(range(done)):
            return Finding(False, f"{case}: rank {rank} makes the steps {reply.made}, rank 0 {done} steps.")
        if not compare.same(reply.returned, done):
            said = compare.shown(reply.returned)
            return Finding(False, f"{case}: rank {rank} makes {done} steps, and returns {said}.")
    expected = f"{least}" if least == most else f"{least} to {most}"
    seen = f"{case}: all stop after {compare.counted(done, 'step')}; expected {expected}."
    return Finding(least <= done <= most, seen)


def hears_both(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if every rank has set a handler for each of the two signals."""
    for rank, reply in enumerate(run.results):
        if reply.unset:
            return Finding(False, f"{case}: rank {rank} sets no handler for {' and '.join(reply.unset)}.")
    return Finding(True, f"{case}: every rank has a handler for {' and '.join(SIGNALS)}.")


def sums_fit(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if no notes of one byte are added up: of 256 ranks that have each noted 1 the sum is 0. So it is
    with truth values, which Gloo takes for bytes.
    """
    told = [event.detail for rank in range(case.ranks) for event in run.communication(rank)]
    bytes_summed = [each for each in told if re.match(r"(u?int8|bool)\b.*\bSUM", each)]
    said = f"{case}: {bytes_summed[0]} is added up" if bytes_summed else f"{case}: no bytes are added up"
    return Finding(not bytes_summed, f"{said}; where 256 ranks each note 1, a sum of one byte is 0.")


def kept_inside(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if no rank notes a signal in a variable of the module: ranks that are threads share it."""
    for rank, reply in enumerate(run.results):
        if reply.outside:
            text = f"{case}: on the signal rank {rank} changes {reply.outside[0]}, a variable of the module"
            return Finding(False, f"{text}.", hint=_INSIDE)
    return Finding(True, f"{case}: signals are noted in the function.")


_INSIDE = (
    "Keep it in a variable of save_on_signal, which the handler sets (`nonlocal`): other ranks and later "
    "calls share the module's."
)


def still_listens(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if the handlers are set when the training has returned: until then a signal may come."""
    for rank, reply in enumerate(run.results):
        deaf = [name for name in reply.deaf if name in case.heard]
        if deaf:
            said = f"{case}: rank {rank} returns without a handler of {' and '.join(deaf)}"
            return Finding(False, f"{said}; expected it to stay set.")
    return Finding(True, f"{case}: the handlers stay set.")


def saved_once(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if one rank saves, once, when it has made all its steps, and says how many."""
    saved = {rank: reply.saved for rank, reply in enumerate(run.results) if reply.saved}
    done = len(run.results[0].made)
    right = list(saved.values()) == [[[done, done]]]
    shown = ", ".join(
        f"rank {rank} after {compare.counted(made, 'step')} as {told}"
        for rank, all_ in saved.items()
        for told, made in all_
    )
    return Finding(
        right, f"{case}: saved by {shown or 'nobody'}; expected once, after {compare.counted(done, 'step')}."
    )


def one_number(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if each rank makes one collective per step, beside the step's own, and one at the end."""
    for rank, reply in enumerate(run.results):
        # Who asks before each step has asked for one that is not made.
        allowed = min(len(reply.made) + 1, case.steps) + 1
        own = [event for event in run.communication(rank) if event.nbytes != GRADIENT_BYTES]
        largest = max((event.nbytes for event in own), default=0)
        most = max((_numbers(event.detail) for event in own), default=0)
        if len(own) > allowed or largest > NUMBER_BYTES or most > 1:
            calls = communication.in_words(sorted({event.op for event in own}))
            made, most_told = compare.counted(len(reply.made), "step"), compare.counted(most, "number")
            text = f"{case}: rank {rank} makes {len(own)} calls in {made} ({calls}) of up to {most_told}"
            return Finding(False, f"{text}, {largest} bytes; one of a single number is enough.")
    return Finding(True, f"{case}: at most one number per step.")


def _numbers(detail: str) -> int:
    """How many numbers a call was given, of whose tensor an event says "float32[2, 3]"; none without one."""
    found = re.match(r"\w+\[([\d, ]*)\]", detail)
    return math.prod(int(length) for length in re.findall(r"\d+", found[1])) if found else 0
