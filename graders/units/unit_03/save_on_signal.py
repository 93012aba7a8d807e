"""The grader of `save_on_signal`: trainings to which signals come, on simulated ranks."""

import re
from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_03.drivers import signals as drivers
from graders.units.unit_03.drivers.signals import GRADIENT_BYTES
from graders.units.unit_03.replies import StopReply

RANKS = 3
NUMBER_BYTES = 8
"""Those of the largest number."""

Plan = tuple[tuple[str, int, int, str], ...]
"""The signals that come: moment, step, rank, signal; see `drivers.signals.Signal`."""


def in_words(plan: Plan) -> str:
    """The signals of a plan."""
    words = {"told": "after step {} and the collective that follows it", "saving": "in save"}
    told = (
        f"{name} on rank {rank} {words.get(moment, 'in step {}').format(step)}"
        for moment, step, rank, name in plan
    )
    return " and ".join(told) or "no signal"


@dataclass(frozen=True, slots=True)
class Telling:
    """again: the same processes have had a training before, which was stopped."""

    steps: int = feature(7, "{} steps")
    plan: Plan = feature((), in_words)
    again: bool = feature(False, lambda again: "after a training that was stopped" if again else "")

    @property
    def allowed(self) -> tuple[int, int]:
        """The smallest and the largest number of steps after which the ranks may stop.

        A signal that comes after the step's collective may be noticed in the next one only.
        """
        told = [(step, step + (moment == "told")) for moment, step, *_ in self.plan if moment != "saving"]
        least = min((step + 1 for step, _ in told), default=self.steps)
        most = min((step + 2 for _, step in told), default=self.steps)
        return min(least, self.steps), min(most, self.steps)


FIRST = ("before", 2, 1, "SIGTERM")
PLANS: tuple[Plan, ...] = (
    (("before", 2, 1, "SIGUSR1"),),
    (("after", 3, 0, "SIGTERM"),),
    (("before", 2, 0, "SIGUSR1"), ("before", 2, 2, "SIGUSR1")),
)
ANY_MOMENT: tuple[Plan, ...] = (
    (("told", 2, 1, "SIGTERM"),),
    (("before", 6, 2, "SIGUSR1"),),
    (FIRST, ("before", 2, 1, "SIGUSR1"), ("saving", 0, 0, "SIGUSR1")),
    (FIRST, ("before", 3, 2, "SIGTERM"), ("after", 3, 1, "SIGUSR1")),
)


def both_handled(tried: Tried[Telling]) -> Finding:
    """Passes if all ranks have handlers for both signals."""
    unset = sorted({name for reply in tried.seen.results for name in reply.unset})
    return Finding(not unset, f"Without a handler: {' and '.join(unset) or 'neither'}.")


def saved_once(tried: Tried[Telling]) -> Finding:
    """Passes if one rank saves, once, when it has made all its steps, and says how many."""
    replies = tried.seen.results
    done = len(replies[0].made)
    saved = [(rank, *each) for rank, reply in enumerate(replies) for each in reply.saved]
    right = [(told, made) for _, told, made in saved] == [(done, done)]
    shown = ", ".join(f"rank {rank} in step {made} by save({told})" for rank, told, made in saved)
    return Finding(right, f"saved by {shown or 'nobody'}; expected once, by save({done}) at the end.")


def one_number(tried: Tried[Telling]) -> Finding | None:
    """Passes if each rank makes one collective per step, beside the step's own, and one at the end. Gloo adds
    truth values up as bytes.
    """
    if tried.case.features.again:
        return None
    for rank, reply in enumerate(tried.seen.results):
        # Who asks before each step has asked for one that is not made.
        allowed = min(len(reply.made) + 1, tried.case.features.steps) + 1
        own = [event for event in tried.seen.communication(rank) if event.nbytes != GRADIENT_BYTES]
        bytes_summed = [each.detail for each in own if re.match(r"(u?int8|bool)\b.*\bSUM", each.detail)]
        if bytes_summed:
            text = f"rank {rank} adds up {bytes_summed[0]}"
            return Finding(False, f"{text}; where 256 ranks each note 1, a sum of one byte is 0.")
        largest = max((event.nbytes for event in own), default=0)
        if len(own) > allowed or largest > NUMBER_BYTES:
            calls = compare.counted(len(own), "call")
            text = f"rank {rank} makes {calls} of up to {largest} bytes in {len(reply.made)} steps"
            return Finding(False, f"{text}; one of a single number per step is enough.")
    return Finding(True, "at most one number per step.")


@one_by_one(
    base=Telling(),
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "trains to the end",
            1,
            "Without a signal every rank makes every step, and returns their number.",
            vary=vary(steps=(1,)),
        ),
        Criterion(
            "both signals",
            1,
            "SIGTERM and SIGUSR1 both need the handler: without one they end the process.",
            how=both_handled,
        ),
        Criterion(
            "all stop after the same step",
            2,
            "A rank that stops alone leaves the others waiting in the next step's collective. All decide "
            "whether to stop: after each step, by what all of them know.",
            vary=vary(plan=PLANS),
        ),
        Criterion(
            "one writes",
            2,
            "A handler does not save: it only notes that a signal came. When all have stopped, or made the "
            "last step, one rank saves, once.",
            how=saved_once,
            needs=("all stop after the same step",),
        ),
        Criterion(
            "whenever it comes",
            2,
            "A signal may come between any two lines, during the save, and twice. After the collective "
            "decide by what came out of it alone: a signal may have come to this rank since. The handler "
            "only sets a variable of save_on_signal: a global one keeps what an earlier call has set.",
            vary=vary(again=(True,), plan=ANY_MOMENT),
            needs=("all stop after the same step", "one writes"),
        ),
        Criterion(
            "one number per step",
            2,
            "Every step of every training pays for this: one collective, of a single number. If each of 256 "
            "ranks notes 1 as uint8 or bool, a sum of bytes is 0: use MAX, or floats.",
            how=one_number,
            needs=("all stop after the same step",),
        ),
    ),
    hints=(
        "What does the rank know that has the signal, and what do the others? Which collective tells all of "
        "them, and costs one number?",
        "What may a handler do that can run in the middle of anything, even of a collective? Very little.",
        "Which of two values should decide: what this rank knows now, or what came out of the collective?",
    ),
    # Trainings with signals are long enough, and each meets nothing else.
    possible=lambda telling: sum((telling.steps == 1, bool(telling.plan), telling.again)) <= 1,
)
def save_on_signal(answer: Answer, telling: Telling, rng: Rng) -> tuple[Finding, Observed[StopReply]]:
    """All ranks make the same steps, one after the other, not too many, and say how many."""
    plan = [list(each) for each in telling.plan]
    run = answer.launch(drivers.told_to_stop, telling.steps, plan, telling.again, ranks=RANKS)
    least, most = telling.allowed
    done = len(run.results[0].made)
    for rank, reply in enumerate(run.results):
        if reply.made != list(range(done)):
            return Finding(False, f"rank {rank} makes the steps {reply.made}, rank 0 {done} steps."), run
        if not compare.same(reply.returned, done):
            said = compare.shown(reply.returned)
            return Finding(False, f"rank {rank} makes {done} steps, and returns {said}."), run
    expected = f"{least}" if least == most else f"{least} to {most}"
    seen = f"all stop after {compare.counted(done, 'step')}; expected {expected}."
    return Finding(least <= done <= most, seen), run
