"""The grader of `save_on_signal`."""

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
    compare,
    exercise,
)
from graders.units.unit_03.replies import StopReply
from graders.units.unit_03.stop_findings import (
    hears_both,
    kept_inside,
    one_number,
    saved_once,
    still_listens,
    stops,
    sums_fit,
)
from graders.units.unit_03.tellings import RANKS, SIGNALS, Telling


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
