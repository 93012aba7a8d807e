"""How calls that ranks make are tried: several in one launch, between which all ranks meet."""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.called import ON_META, Called
from graders.grading.exercise import Exercise
from graders.grading.expected import Expected, of_another
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kinds import Kind
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Observed,
    Rng,
    compare,
    per_rank,
)
from graders.grading.traffic import Allowed, Traffic, in_time, within
from graders.units.ranks import drivers
from graders.units.ranks.features import Ranks
from graders.units.ranks.meetings import between_meetings, by_place, traffic_of

Arguments = list[Any]
"""Positional arguments of one rank: tensors, lists of tensors, None, numbers."""

Setting = TypeVar("Setting", bound=Ranks)


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
            result = compare.first_failure([each for each, _ in of_case] + [_only(self.calls, case.events)])
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
            _result(setting, expected, called, place, self.what.format(place))
            for place, (called, _) in places
        )
        kept = compare.first_failure(
            _on_its_device(setting, wanted).kept_in(called, f"place {place}", setting.tolerance)
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


def _only(allowed: Collection[str] | None, events: Sequence[Event]) -> Finding:
    """Passes if no other calls were made. allowed: None for any."""
    if allowed is None:
        return Finding(True, "Any call is allowed.")
    others = sorted({event.op for event in events} - {*allowed, "new_group"})
    text = f"the values are right, but it calls {', '.join(others)}; allowed are {', '.join(allowed)}."
    return Finding(not others, text)


def _on_its_device(setting: Setting, expected: Expected) -> Expected:
    """The same, of tensors without numbers where the setting has these."""
    if setting.layout != "meta":
        return expected
    held = {name: _to_meta(value) for name, value in expected.arguments.items()}
    return replace(expected, result=_to_meta(expected.result), arguments=held)


def _to_meta(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_meta(item) for item in value]
    return value.to(ON_META) if isinstance(value, Tensor) else value


def _result(setting: Setting, expected: Sequence[Expected], called: Called, place: int, what: str) -> Finding:
    """Passes if this place returned what it must; if it is what another must return, that is said."""
    value = called.value
    of_place = _on_its_device(setting, expected[place])
    finding = of_place.result_in(called, what, setting.tolerance)
    if finding.passed or not isinstance(value, Tensor) or not isinstance(of_place.result, Tensor):
        return finding

    def matches(other: int) -> bool:
        return expected[other].result_in(called, what, setting.tolerance).passed

    told = of_another(finding, place, len(expected), matches)
    return told or setting.explained(finding, value, of_place.result)


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


# ---------------------------------------------------------------------- rows that ask how, of right cases


def kept(tried: Tried[Any]) -> Finding:
    """Passes if arguments hold what they must, and the right object was returned."""
    found: Finding = tried.seen.kept
    return found


def frugal(tried: Tried[Any]) -> Finding | None:
    """Passes if no more messages and bytes were sent than are needed."""
    seen: Seen = tried.seen
    return within(seen.traffic, seen.allowed) if seen.allowed else None


def one_call(tried: Tried[Any]) -> Finding:
    """Passes if no rank has made more than one call."""
    most = max(map(len, tried.seen.by_rank))
    return compare.at_most(most, 1, "Calls of a rank", kind=Kind.TOO_MUCH)


def quick(tried: Tried[Any]) -> Finding | None:
    """Passes if it took no more rounds than are needed."""
    seen: Seen = tried.seen
    return in_time(seen.traffic, seen.allowed) if seen.allowed else None
