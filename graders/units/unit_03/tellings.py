"""Trainings to which signals come: what is planned, and after which steps the ranks may stop."""

from dataclasses import dataclass

from graders.grading.kit import Answer, Observed, compare
from graders.units.unit_03.drivers import training as drivers
from graders.units.unit_03.replies import StopReply

RANKS = 3
SIGNALS = ("SIGTERM", "SIGUSR1")
IN_A_STEP = ("before", "after")
"""Moments of `signals.Signal` that lie within a step."""


@dataclass(frozen=True)
class Telling:
    """A training of so many steps, and the signals that come: moment, step, rank, signal.

    again: the same processes have had a training before, which was stopped. heard: the signals that have a
    handler: they come in place of the others.
    """

    steps: int
    plan: tuple[tuple[str, int, int, str], ...] = ()
    ranks: int = RANKS
    again: bool = False
    heard: tuple[str, ...] = SIGNALS

    def run(self, answer: Answer, timeout: float = 10.0) -> Observed[StopReply]:
        """Let the answer train on simulated ranks, if `again` for the second time in their processes."""
        before = [["before", 0, 0, self.sent("SIGTERM")]] if self.again else None
        plan = [[*place, self.sent(name)] for *place, name in self.plan]
        return answer.launch(
            drivers.told_to_stop, self.steps, plan, before, ranks=self.ranks, timeout=timeout
        )

    def sent(self, name: str) -> str:
        """The signal that comes in place of this one."""
        return name if name in self.heard or not self.heard else self.heard[0]

    @property
    def allowed(self) -> tuple[int, int]:
        """The smallest and the largest number of steps after which the ranks may stop.

        A signal that comes between two steps counts as one of the next.
        """
        told = [
            (step, step + (moment not in IN_A_STEP)) for moment, step, *_ in self.plan if moment != "saving"
        ]
        least = min((step + 1 for step, _ in told), default=self.steps)
        most = min((within + 2 for _, within in told), default=self.steps)
        return min(least, self.steps), min(most, self.steps)

    def __str__(self) -> str:
        words = {
            "listening": "before step 0",
            "told": "after step {} and the collective that follows it",
            "saving": "in save",
            "line": "before line {} of those that it runs",
        }
        told = [
            f"{self.sent(name)} on rank {rank} {words.get(moment, 'in step {}').format(step)}"
            for moment, step, rank, name in self.plan
        ]
        after = ", after a training that was stopped" if self.again else ""
        steps = compare.counted(self.steps, "step")
        ranks = compare.counted(self.ranks, "rank")
        return f"{ranks}, {steps}, {' and '.join(told) or 'no signal'}{after}"
