"""How calls that ranks make are tried: several in one launch, between which all ranks meet."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.runtime.communication.events import Event
from graders.grading.called import Called
from graders.grading.exercise import Exercise
from graders.grading.expected import Expected
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare, per_rank
from graders.grading.traffic import Allowed, Traffic
from graders.units.ranks import drivers
from graders.units.ranks.meetings import between_meetings, by_place, traffic_of
from graders.units.ranks.places import Setting, on_its_device, only, result_of

Arguments = list[Any]
"""Positional arguments of one rank: tensors, lists of tensors, None, numbers."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What rows that ask how may see of a right case.

    kept: about arguments, and which object was returned. by_rank: the calls that each place made.
    allowed: what it may cost, if that is looked at. results: of each call, what the places returned. given:
    of each call, the places' arguments as they were drawn. marks: those of each place.
    """

    kept: Finding
    by_rank: list[list[Event]]
    traffic: Traffic
    allowed: Allowed | None
    results: list[list[Any]]
    given: list[list[Arguments]]
    marks: list[list[Event]]


@dataclass(frozen=True)
class OnRanks(Stage[Setting]):
    """arguments: of each rank, by place. expected: what each must have afterwards. allowed: what it may cost.

    options: keyword arguments, the same on all ranks. written: a rank's arguments as a student types them.
    calls: of torch.distributed that the answer may make; None: any. driver: with the arguments and results of
    `drivers.calls`. what: it hands over as the result of a place.
    """

    arguments: Callable[[Rng, Setting], list[Arguments]]
    expected: Callable[[Setting, list[Arguments]], list[Expected]]
    allowed: Callable[[Setting], Allowed | None]
    written: Callable[[Setting], str]
    name: str
    options: Callable[[Setting], dict[str, int]]
    calls: tuple[str, ...] | None
    driver: Callable[..., list[Called]] = drivers.calls
    what: str = "what place {} returned"

    def together(self, setting: Setting) -> Hashable:
        return None if setting.alone else (setting.launched, setting.devices_per_node)

    def run(self, answer: Answer, cases: Sequence[tuple[Setting, Rng]]) -> Sequence[tuple[Finding, Seen]]:
        calls = [each for setting, _ in cases for each in setting.calls]
        inputs = [self.arguments(rng, each) for setting, rng in cases for each in setting.calls]
        launched = calls[0].launched
        # Before a case all ranks meet, so that each has its own time and messages.
        meet = [
            bool(number) and call == 0
            for number, (case, _) in enumerate(cases)
            for call in range(len(case.calls))
        ]
        observed = answer.launch(
            self.driver,
            per_rank([_of_rank(rank, calls, inputs) for rank in range(launched)]),
            list(map(self.options, calls)),
            [each.layout for each in calls],
            [list(each.places) if each.group else None for each in calls],
            meet,
            ranks=launched,
            cluster=calls[0].cluster,
        )
        told = _by_call(observed, calls)
        judged = [self._judged(*each) for each in zip(calls, inputs, told, strict=True)]
        slices = between_meetings(observed, sum(meet))
        found, first = [], 0
        for (setting, _), case in zip(cases, slices, strict=True):
            own = slice(first, first + len(setting.calls))
            first, of_case = own.stop, judged[own]
            came = [[called.value for called in call] for call in told[own]]
            result = compare.first_failure([each for each, _ in of_case] + [only(self.calls, case.events)])
            kept = compare.first_failure(each for _, each in of_case)
            costs = None if setting.alone else self.allowed(setting)
            made, marks = by_place(setting, case.events), by_place(setting, case.marks)
            seen = Seen(kept, made, traffic_of(setting, case), costs, came, inputs[own], marks)
            found.append((result, seen))
        return found

    def _judged(
        self, setting: Setting, given: list[Arguments], told: Sequence[Called]
    ) -> tuple[Finding, Finding]:
        """Of one call: what is found of the results, and of the arguments."""
        expected = self.expected(setting, given)
        places = list(enumerate(compare.side_by_side(told, expected)))
        results = compare.first_failure(
            result_of(setting, expected, called, place, self.what.format(place))
            for place, (called, _) in places
        )
        kept = compare.first_failure(
            on_its_device(setting, wanted).kept_in(called, f"place {place}", setting.tolerance)
            for place, (called, wanted) in places
        )
        return results, kept

    def typed(self, setting: Setting) -> str:
        if setting.alone or not self.written(setting):
            return ""
        given = ", ".join([self.written(setting), *(f"{k}={v}" for k, v in self.options(setting).items())])
        if not setting.group:
            return f"launch(lambda: {self.name}({given}), ranks={setting.launched})"
        members = list(setting.places)
        return (
            f"launch(lambda: [{self.name}({given}, group=group) for group in [dist.new_group({members})] "
            f"if dist.get_rank() in {members}], ranks={setting.launched})"
        )


def _of_rank(rank: int, calls: Sequence[Setting], inputs: Sequence[list[Arguments]]) -> list[Arguments]:
    """The arguments of each call that this rank takes part in."""
    return [
        given[call.places.index(rank)]
        for call, given in zip(calls, inputs, strict=True)
        if rank in call.places
    ]


def _by_call(observed: Observed[list[Called]], calls: Sequence[Setting]) -> list[list[Called]]:
    """What each place told of each call."""
    told: list[list[Called]] = [[] for _ in calls]
    for rank, of_rank in enumerate(observed.results):
        mine = [number for number, call in enumerate(calls) if rank in call.places]
        for called, number in compare.side_by_side(of_rank, mine):
            told[number].append(called)
    return told


def on_ranks(
    *,
    base: Setting,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    arguments: Callable[[Rng, Setting], list[Arguments]],
    allowed: Callable[[Setting], Allowed | None] = lambda setting: None,
    written: Callable[[Setting], str] = lambda setting: "",
    root: str = "",
    calls: tuple[str, ...] | None = ("send", "recv"),
    possible: Callable[[Setting], bool] = lambda setting: True,
    driver: Callable[..., list[Called]] = drivers.calls,
    what: str = "what place {} returned",
    kind: type[OnRanks[Any]] = OnRanks,
    name: str = "",
) -> Callable[[Callable[[Setting, list[Arguments]], list[Expected]]], Exercise]:
    """Register an exercise whose every rank must have, after a call, what the function below says.

    base: the ordinary case. root: the name of the keyword that is the root's global rank, if it has one.
    possible: which features do not exclude one another. kind: of stage, for results of which several are
    right. name: of the answer, if it is not the function's. See `OnRanks`.
    """

    def options(setting: Setting) -> dict[str, int]:
        return {root: setting.places[setting.root]} if root else {}

    def register(expected: Callable[[Setting, list[Arguments]], list[Expected]]) -> Exercise:
        how = allowed, written, expected.__name__, options, calls, driver, what
        stage = kind(arguments, expected, *how)
        judged = ByCases(base, stage, rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints, name=name)(expected)

    return register
