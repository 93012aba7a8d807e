"""How cases are tried that as many ranks do one after the other, each between two marks of the driver."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.traffic import COMMUNICATION
from graders.grading.exercise import Exercise
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Observed,
    PlainData,
    Rng,
    compare,
    per_rank,
)
from graders.units.drivers import CASE
from graders.units.one_by_one import Looks


class Launched(Protocol):
    """Features of such cases. alone: whether a case has a launch of its own, in which memory is counted."""

    @property
    def ranks(self) -> int: ...

    @property
    def alone(self) -> bool: ...


Setting = TypeVar("Setting", bound=Launched)


class Trial(ABC):
    """A case with its inputs."""

    @abstractmethod
    def given(self, rank: int) -> list[PlainData]:
        """What the driver is given of this case on a rank."""

    @abstractmethod
    def found(self, run: Observed[Any]) -> tuple[Finding, Looks]:
        """What is found of the results of all ranks, and what rows that ask how may look at."""


@dataclass(frozen=True)
class InOneLaunch(Stage[Any]):
    """driver: takes a list of what each case is given, and returns a list of what became of each, as
    `graders.units.drivers.between_marks` does.
    """

    driver: Callable[..., Sequence[Any]]
    trial: Callable[[Rng, Any], Trial]
    cluster: Callable[[int], Cluster | None]

    def together(self, features: Any) -> Hashable:
        return None if features.alone else features.ranks

    def run(self, answer: Answer, cases: Sequence[tuple[Any, Rng]]) -> Sequence[tuple[Finding, Looks]]:
        trials = [self.trial(rng, features) for features, rng in cases]
        ranks, memory = cases[0][0].ranks, cases[0][0].alone
        given = [[trial.given(rank) for trial in trials] for rank in range(ranks)]
        run = answer.launch(
            self.driver, per_rank(given), ranks=ranks, cluster=self.cluster(ranks), memory=memory
        )
        return [trial.found(each) for trial, each in zip(trials, by_case(run, len(trials)), strict=True)]


def by_case(run: Observed[Any], cases: int) -> list[Observed[Any]]:
    """What each case showed, of calls and marks. Raises AnswerFailed if the marks are not the driver's."""
    events: list[list[Event]] = [[] for _ in range(cases + 2)]
    for rank in range(len(run.results)):
        own = [event for event in run.events if event.rank == rank]
        # A mark has the number that the next call has, so marks are told apart by their order.
        begins: list[int] = []
        marks = [event for event in own if event.kind is Kind.SPAN]
        for mark in marks:
            begins += [mark.sequence] * (mark.op == CASE)
            events[min(len(begins), cases + 1)].append(mark)
        if len(begins) != cases + 1:
            raise AnswerFailed(FailureKind.UNREADABLE, f"Rank {rank} has not marked {cases} cases.")
        for event in own:
            if event.kind in COMMUNICATION:
                events[bisect_right(begins, event.sequence)].append(event)
    columns = [compare.column(run.results, number, cases) for number in range(cases)]
    if cases == 1:
        return [Observed(columns[0], run.outputs, run.events)]
    return [
        Observed(results, run.outputs, tuple(each))
        for results, each in zip(columns, events[1:-1], strict=True)
    ]


def in_one_launch(
    *,
    base: Setting,
    driver: Callable[..., Sequence[Any]],
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    name: str = "",
    cluster: Callable[[int], Cluster | None] = lambda ranks: None,
    possible: Callable[[Setting], bool] = lambda features: True,
) -> Callable[[Callable[[Rng, Setting], Trial]], Exercise]:
    """Register an exercise of whose cases the function below draws the inputs. See `InOneLaunch`."""

    def register(trial: Callable[[Rng, Setting], Trial]) -> Exercise:
        judged = ByCases(base, InOneLaunch(driver, trial, cluster), rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints, name=name)(trial)

    return register
