"""The grader of `save_on_signal`."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    communication,
    compare,
    exercise,
)
from graders.units.unit_03.replies import StopReply
from graders.units.unit_03.signals import GRADIENT_BYTES
from graders.units.unit_03.tellings import RANKS, SIGNALS, Telling

NUMBER_BYTES = 8
"""Those of the largest number."""


@exercise(
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "trains to the end", 1, "Without a signal every rank makes every step, and returns their number."
        ),
        Criterion(
            "both signals", 1, "SIGTERM and SIGUSR1 both need the handler: without one they end the process."
        ),
        Criterion(
            "all stop after the same step",
            2,
            "A rank that stops alone leaves the others waiting in the next step's collective. All decide "
            "whether to stop: after each step, by what all of them know.",
        ),
        Criterion(
            "one writes",
            2,
            "A handler does not save: it only notes that a signal came. When all have stopped, or made the "
            "last step, one rank saves, once.",
            needs=("all stop after the same step",),
        ),
        Criterion(
            "whenever it comes",
            2,
            "A signal may come between any two lines, during the save, and twice. After the collective "
            "decide by what came out of it alone: a signal may have come to this rank since. The handler "
            "only sets a variable of save_on_signal, and waits for no lock.",
            needs=("all stop after the same step", "one writes"),
        ),
        Criterion(
            "hundreds of ranks",
            1,
            "If each of 256 ranks notes 1 and the notes are added up as uint8, the sum is 0; so it is with "
            "bool, which Gloo adds up as bytes. MAX cannot overflow, nor can a sum of floats.",
            needs=("all stop after the same step",),
        ),
        Criterion(
            "one number per step",
            1,
            "Every step of every training pays for this: one collective, of a single number.",
            needs=("all stop after the same step",),
        ),
    ),
    hints=(
        "What does the rank know that has the signal, and what do the others? Which collective tells all of "
        "them, and costs one number?",
        "What may a handler do that can run in the middle of anything, even of a collective? Very little.",
        "Which of two values should decide: what this rank knows now, or what came out of the collective?",
    ),
)
def save_on_signal(answer: Answer, rng: Rng) -> Findings:
    """Trainings to which signals come at drawn steps, on simulated ranks."""
    steps, step = rng.integer(6, 9), rng.integer(1, 3)
    rank, other = 1, RANKS - 1
    whole = [Telling(steps), Telling(1)]
    ended = [(case, case.run(answer)) for case in whole]
    yield "trains to the end", compare.first_failure(stops(*each) for each in ended)
    hearing = compare.first_failure(hears_both(*each) for each in ended)
    yield "both signals", hearing
    deaf = {name for _, run in ended for reply in run.results for name in reply.unset}
    heard = tuple(name for name in SIGNALS if name not in deaf)
    one = [
        Telling(steps, (("before", step, rank, "SIGUSR1"),)),
        Telling(steps, (("after", step + 1, rank, "SIGTERM"),)),
        Telling(steps, (("before", step + 2, 0, "SIGTERM"),)),
        Telling(steps, tuple(("before", step, each, "SIGUSR1") for each in (0, other))),
        Telling(steps, (("after", step, 0, "SIGUSR1"),), ranks=1),
    ]
    runs: list[tuple[Telling, Observed[StopReply]]] = []
    told = _each(answer, [replace(case, heard=heard) for case in one], runs)
    yield "all stop after the same step", compare.first_failure(told)
    yield "one writes", compare.first_failure(saved_once(*each) for each in ended + runs)
    kept = (kept_inside(*each) for each in runs)
    moments = _any_moment(answer, steps, step, rank, other, heard)
    yield "whenever it comes", compare.first_failure(chain(kept, moments, _any_line(answer, heard)))
    yield "hundreds of ranks", compare.first_failure(sums_fit(*each) for each in runs)
    yield "one number per step", compare.first_failure(one_number(*each) for each in ended + runs)


def _each(
    answer: Answer, cases: Sequence[Telling], runs: list[tuple[Telling, Observed[StopReply]]]
) -> Iterator[Finding]:
    """Whether the ranks stop as they should, case by case; the runs are kept."""
    for case in cases:
        runs.append((case, case.run(answer)))
        yield stops(*runs[-1])


def _any_moment(
    answer: Answer, steps: int, step: int, rank: int, other: int, heard: tuple[str, ...]
) -> Iterator[Finding]:
    """Whether all goes well, wherever the answer is when a signal comes."""
    first, last = ("before", step, rank, "SIGTERM"), steps - 1
    cases = [Telling(1, (("before", 0, rank, "SIGUSR1"),)), Telling(steps, again=True)]
    for plan in (
        (("listening", -1, rank, "SIGUSR1"),),
        (("listening", -1, other, "SIGTERM"),),
        (("told", step, rank, "SIGTERM"),),
        (("before", last, other, "SIGUSR1"),),
        (("saving", 0, 0, "SIGTERM"),),
        (first, ("before", step, rank, "SIGUSR1"), ("saving", 0, 0, "SIGUSR1")),
        (first, ("before", step + 1, other, "SIGTERM"), ("after", step + 1, rank, "SIGUSR1")),
    ):
        cases.append(Telling(steps, plan))
    for case in (replace(case, heard=heard) for case in cases):
        try:
            run = case.run(answer)
        except AnswerFailed as failure:
            kind = Kind.DEADLOCK if failure.kind is FailureKind.DEADLOCK else Kind.OTHER
            yield Finding(False, f"{case}: {failure.report}", kind)
            return
        yield stops(case, run)
        yield saved_once(case, run)
        yield still_listens(case, run)


def _any_line(answer: Answer, heard: tuple[str, ...]) -> Iterator[Finding]:
    """Whether all goes well if a signal comes to rank 1 before a line of the answer, whichever it is up to
    the second step's last: all of these lie between two steps.
    """
    for number in range(1, MOST_LINES):
        case = Telling(4, (("line", number, 1, "SIGUSR1"),), ranks=2, heard=heard)
        try:
            run = case.run(answer, timeout=SECONDS)
        except AnswerFailed as failure:
            yield Finding(False, f"{case}: {failure.kind}: {failure.report}")
            return
        reply = run.results[1]
        if not reply.line or reply.after > 1:
            return
        made = compare.counted(reply.after, "step")
        where = f"2 ranks, 4 steps, {case.sent('SIGUSR1')} on rank 1 after {made}"
        where += f", before line {reply.line} of the answer"
        told = replace(case, plan=(("told", reply.after - 1, 1, "SIGUSR1"),))
        for finding in (stops(told, run), saved_once(told, run)):
            yield replace(finding, seen=finding.seen.replace(str(told), where))


MOST_LINES = 60
SECONDS = 5.0
"""A training does not end whose handler waits for what is held where the signal comes, such as a lock."""


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
