"""The grader of `save_on_signal`: trainings to which signals come at drawn steps, on simulated ranks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from graders.units.unit_03.drivers import signals as drivers
from graders.units.unit_03.drivers.signals import GRADIENT_BYTES
from graders.units.unit_03.replies import StopReply

RANKS = 3
NUMBER_BYTES = 8
"""Those of the largest number."""


@dataclass(frozen=True)
class Telling:
    """A training of so many steps, and the signals that come: moment, step, rank, signal; see
    `signals.Signal`. again: the same processes have had a training before, which was stopped.
    """

    steps: int
    plan: tuple[tuple[str, int, int, str], ...] = ()
    again: bool = False

    def run(self, answer: Answer) -> Observed[StopReply]:
        plan = [list(each) for each in self.plan]
        return answer.launch(drivers.told_to_stop, self.steps, plan, self.again, ranks=RANKS)

    @property
    def allowed(self) -> tuple[int, int]:
        """The smallest and the largest number of steps after which the ranks may stop.

        A signal that comes after the step's collective may be noticed in the next one only.
        """
        told = [(step, step + (moment == "told")) for moment, step, *_ in self.plan if moment != "saving"]
        least = min((step + 1 for step, _ in told), default=self.steps)
        most = min((step + 2 for _, step in told), default=self.steps)
        return min(least, self.steps), min(most, self.steps)

    def __str__(self) -> str:
        words = {"told": "after step {} and the collective that follows it", "saving": "in save"}
        told = [
            f"{name} on rank {rank} {words.get(moment, 'in step {}').format(step)}"
            for moment, step, rank, name in self.plan
        ]
        after = ", after a training that was stopped" if self.again else ""
        return f"{compare.counted(self.steps, 'step')}, {' and '.join(told) or 'no signal'}{after}"


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
            "only sets a variable of save_on_signal: a global one keeps what an earlier call has set.",
            needs=("all stop after the same step", "one writes"),
        ),
        Criterion(
            "one number per step",
            2,
            "Every step of every training pays for this: one collective, of a single number. If each of 256 "
            "ranks notes 1 as uint8 or bool, a sum of bytes is 0: use MAX, or floats.",
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
    """First without signals, then with one or two, then at the moments at which they disturb."""
    steps, step = rng.integer(6, 9), rng.integer(1, 3)
    ended = [(case, case.run(answer)) for case in (Telling(steps), Telling(1))]
    yield "trains to the end", compare.first_failure(_stops(*each) for each in ended)
    unset = sorted({name for reply in ended[0][1].results for name in reply.unset})
    yield "both signals", Finding(not unset, f"Without a handler: {' and '.join(unset) or 'neither'}.")
    plans = (
        (("before", step, 1, "SIGUSR1"),),
        (("after", step + 1, 0, "SIGTERM"),),
        (("before", step, 0, "SIGUSR1"), ("before", step, 2, "SIGUSR1")),
    )
    runs: list[tuple[Telling, Observed[StopReply]]] = []
    told = _each(answer, [Telling(steps, plan) for plan in plans], runs)
    yield "all stop after the same step", compare.first_failure(told)
    yield "one writes", compare.first_failure(_saved_once(*each) for each in ended + runs)
    yield "whenever it comes", compare.first_failure(_any_moment(answer, steps, step))
    yield "one number per step", compare.first_failure(_one_number(*each) for each in ended + runs)


def _each(
    answer: Answer, cases: Sequence[Telling], runs: list[tuple[Telling, Observed[StopReply]]]
) -> Iterator[Finding]:
    for case in cases:
        runs.append((case, case.run(answer)))
        yield _stops(*runs[-1])


def _any_moment(answer: Answer, steps: int, step: int) -> Iterator[Finding]:
    first = ("before", step, 1, "SIGTERM")
    plans = (
        (("told", step, 1, "SIGTERM"),),
        (("before", steps - 1, 2, "SIGUSR1"),),
        (first, ("before", step, 1, "SIGUSR1"), ("saving", 0, 0, "SIGUSR1")),
        (first, ("before", step + 1, 2, "SIGTERM"), ("after", step + 1, 1, "SIGUSR1")),
    )
    for case in (Telling(steps, again=True), *(Telling(steps, plan) for plan in plans)):
        try:
            run = case.run(answer)
        except AnswerFailed as failure:
            kind = Kind.DEADLOCK if failure.kind is FailureKind.DEADLOCK else Kind.OTHER
            yield Finding(False, f"{case}: {failure.report}", kind)
            return
        yield _stops(case, run)
        yield _saved_once(case, run)


def _stops(case: Telling, run: Observed[StopReply]) -> Finding:
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


def _saved_once(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if one rank saves, once, when it has made all its steps, and says how many."""
    done = len(run.results[0].made)
    saved = [(rank, *each) for rank, reply in enumerate(run.results) for each in reply.saved]
    right = [(told, made) for _, told, made in saved] == [(done, done)]
    shown = ", ".join(f"rank {rank} in step {made} by save({told})" for rank, told, made in saved)
    return Finding(right, f"{case}: saved by {shown or 'nobody'}; expected once, by save({done}) at the end.")


def _one_number(case: Telling, run: Observed[StopReply]) -> Finding:
    """Passes if each rank makes one collective per step, beside the step's own, and one at the end. Gloo adds
    truth values up as bytes.
    """
    for rank, reply in enumerate(run.results):
        # Who asks before each step has asked for one that is not made.
        allowed = min(len(reply.made) + 1, case.steps) + 1
        own = [event for event in run.communication(rank) if event.nbytes != GRADIENT_BYTES]
        bytes_summed = [each.detail for each in own if re.match(r"(u?int8|bool)\b.*\bSUM", each.detail)]
        if bytes_summed:
            text = f"{case}: rank {rank} adds up {bytes_summed[0]}"
            return Finding(False, f"{text}; where 256 ranks each note 1, a sum of one byte is 0.")
        largest = max((event.nbytes for event in own), default=0)
        if len(own) > allowed or largest > NUMBER_BYTES:
            calls = compare.counted(len(own), "call")
            text = f"{case}: rank {rank} makes {calls} of up to {largest} bytes in {len(reply.made)} steps"
            return Finding(False, f"{text}; one of a single number per step is enough.")
    return Finding(True, f"{case}: at most one number per step.")
