"""How both passes of an answer are tried: several cases in one launch, each pass between two marks."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.events import Kind as EventKind
from graders.grading.communication import in_words
from graders.grading.exercise import Exercise
from graders.grading.expected import of_another
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Kind,
    Observed,
    Rng,
    compare,
    per_rank,
)
from graders.units.unit_06.cases import GRADIENTS, OUTPUTS, PARAMETERS, Case, Place
from graders.units.unit_06.drivers import passing
from graders.units.unit_06.drivers.passing import PassedReply

Calls = list[tuple[str, list[Event]]]
"""The passes of a rank in a case, by name, each with the calls that it made there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What rows that ask how may see of a right case: its places, what they told, and what they called."""

    places: list[Place]
    told: list[PassedReply]
    calls: list[Calls]


@dataclass(frozen=True)
class BothPasses(Stage[Case]):
    """made: what each place is given, and what must come of it. kind: one of the driver's MAKERS."""

    made: Callable[[Rng, Case], list[Place]]
    kind: str

    def together(self, case: Case) -> Hashable:
        return case.launched

    def run(self, answer: Answer, cases: Sequence[tuple[Case, Rng]]) -> Sequence[tuple[Finding, Seen]]:
        made = [(case, self.made(rng, case)) for case, rng in cases]
        launched = made[0][0].launched
        observed = answer.launch(
            passing.both_passes,
            self.kind,
            per_rank([[_given(rank, *each) for each in made] for rank in range(launched)]),
            [list(case.places) if case.group else None for case, _ in made],
            ranks=launched,
        )
        seen = [Seen(places, [], []) for _, places in made]
        for rank in range(launched):
            mine = [number for number, (case, _) in enumerate(made) if rank in case.places]
            calls = _calls(observed, rank, [(number, made[number][0]) for number in mine])
            for number, told in compare.side_by_side(mine, observed.results[rank]):
                seen[number].told.append(told)
                seen[number].calls.append(calls[number])
        return [
            (compare.first_failure(self._found(case, each)), each)
            for (case, _), each in zip(made, seen, strict=True)
        ]

    def _found(self, case: Case, seen: Seen) -> Iterator[Finding]:
        yield from _results(case, seen)
        for number, (told, place) in enumerate(zip(seen.told, seen.places, strict=True)):
            if case.asked == PARAMETERS:
                yield _names(told.held, place.held, number)
                for name, wanted in place.held.items():
                    yield compare.close(told.held.get(name), wanted, f"{name} of place {number}", 0, 0)
            elif case.asked != OUTPUTS:
                for name, of_one_step in place.gradients.items():
                    wanted = 2 * of_one_step
                    what = f"the gradient of {name} at place {number}, summed over two steps,"
                    tolerance = case.tolerance
                    yield compare.close(told.gradients.get(name), wanted, what, tolerance, tolerance)


def _given(rank: int, case: Case, places: list[Place]) -> dict[str, Any] | None:
    if rank not in case.places:
        return None
    place = places[case.places.index(rank)]
    return {
        "x": place.x,
        "arriving": place.arriving,
        "rest": place.rest,
        "parameters": place.parameters,
        "layout": case.layout,
        "beside": case.beside,
        "backward": _backward(case),
    }


def _backward(case: Case) -> bool:
    return case.asked == GRADIENTS


def _results(case: Case, seen: Seen) -> Iterator[Finding]:
    """Of each place, with gradients and without; then whether all are alike, where they have to be."""
    for what, given in (
        ("what place {} returned", [told.result for told in seen.told]),
        ("what place {} returned under torch.no_grad()", _again(seen, 0)),
        ("what place {} returned for an x without gradient", _again(seen, 1)),
    ):
        for number, (result, place) in enumerate(zip(given, seen.places, strict=True)):
            yield _with_owner(
                compare.close(result, place.result, what.format(number), case.tolerance, case.tolerance),
                result,
                number,
                seen.places,
                case.tolerance,
            )
            if place.alike:
                same = f"{what.format(number)}, which all places have to have to the last bit,"
                yield compare.close(result, given[0], same, 0, 0)


def _again(seen: Seen, number: int) -> list[Any]:
    return [compare.column([told.again], number, 2)[0] for told in seen.told]


def _with_owner(
    finding: Finding, result: Any, place: int, places: Sequence[Place], tolerance: float
) -> Finding:
    """If it is what another place must return, that is said."""
    if finding.passed or not isinstance(result, Tensor):
        return finding

    def matches(other: int) -> bool:
        return compare.close(result, places[other].result, "", tolerance, tolerance).passed

    return of_another(finding, place, len(places), matches) or finding


def _names(seen: dict[str, Any], wanted: dict[str, Any], place: int) -> Finding:
    return compare.equal(sorted(seen), sorted(wanted), f"The names of place {place}'s parameters")


def _calls(observed: Observed[Any], rank: int, cases: list[tuple[int, Case]]) -> dict[int, Calls]:
    """By case what this rank called in each pass. Raises AnswerFailed if the marks are not the driver's."""
    expected = [f"{number} {label}" for number, case in cases for label in _labels(case)]
    mine = [event for event in observed.events if event.rank == rank]
    marks = [event for event in mine if event.kind is EventKind.SPAN]
    if [mark.op for mark in marks] != expected:
        raise AnswerFailed(FailureKind.UNREADABLE, f"The passes of rank {rank} are not the grader's.")
    last = max((event.sequence for event in observed.events), default=0) + 1
    told: dict[int, Calls] = {number: [] for number, _ in cases}
    calls = observed.communication(rank)
    bounds = [*(mark.sequence for mark in marks), last]
    for label, (first, end) in zip(expected, pairwise(bounds), strict=True):
        number, _, name = label.partition(" ")
        told[int(number)].append((name, [call for call in calls if first <= call.sequence < end]))
    return told


def _labels(case: Case) -> Iterator[str]:
    yield "making"
    for step in ("first", "second") if _backward(case) else ("first",):
        yield from (f"{step} forward", f"{step} backward")
        yield from (f"{step} backward begins",) * _backward(case)
    yield from ("without gradients", "x without gradient")


def both_passes(
    *,
    base: Case,
    kind: str,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    name: str = "",
    possible: Callable[[Case], bool] = lambda case: True,
) -> Callable[[Callable[[Rng, Case], list[Place]]], Exercise]:
    """Register an exercise whose places must have what the function below says. See `BothPasses`."""

    def register(made: Callable[[Rng, Case], list[Place]]) -> Exercise:
        judged = ByCases(base, BothPasses(made, kind), rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints, name=name)(made)

    return register


# ---------------------------------------------------------------------- rows that ask how, of right cases


def kept(tried: Tried[Case]) -> Finding:
    """Passes if what was given is as it was."""
    seen: Seen = tried.seen
    found = []
    for number, (told, place) in enumerate(zip(seen.told, seen.places, strict=True)):
        given = {"x": place.x, "the gradient that arrived": place.arriving}
        found += [
            compare.close(told.arguments.get(name), wanted, f"{name} at place {number}, afterwards,", 0, 0)
            for name, wanted in given.items()
        ]
    return compare.first_failure(found)


def small(tried: Tried[Case]) -> Finding:
    """Passes if no module keeps more bytes than its own numbers take."""
    seen: Seen = tried.seen
    return compare.first_failure(
        compare.at_most(told.kept, place.nbytes, f"Bytes in memory by place {number}'s module")
        for number, (told, place) in enumerate(zip(seen.told, seen.places, strict=True))
    )


def calls_of(
    allowed: Callable[[Case, Place, str], tuple[Sequence[str], int]],
) -> Callable[[Tried[Case]], Finding]:
    """A check that every place makes these calls in each forward and each backward pass, in any order, and
    gives them no more bytes than that. The beginnings of names suffice.
    """

    def check(tried: Tried[Case]) -> Finding:
        seen: Seen = tried.seen
        for number, (place, passes) in enumerate(zip(seen.places, seen.calls, strict=True)):
            for label, calls in passes:
                if label.endswith("backward"):
                    # Between the passes the driver may ask for another forward.
                    continue
                phase = "backward" if "backward" in label else "forward"
                wanted, nbytes = allowed(tried.case.features, place, phase)
                if label == "making":
                    wanted, nbytes = (), 0
                finding = _as_wanted(calls, wanted, nbytes, f"place {number} {{}} in the {label} pass")
                if not finding.passed:
                    return finding
        return Finding(True, "Every place calls what is needed, and no more.")

    return check


def _as_wanted(calls: Sequence[Event], wanted: Sequence[str], nbytes: int, where: str) -> Finding:
    seen = sorted(call.op for call in calls)
    given = sum(call.nbytes for call in calls)
    right = len(seen) == len(wanted) and all(map(str.startswith, seen, sorted(wanted)))
    kind = Kind.TOO_MUCH if len(seen) > len(wanted) else Kind.OTHER
    if not right:
        called = where.format(f"calls {in_words(seen)}")
        return Finding(False, f"{called}; expected {in_words(wanted)}.", kind)
    text = f"{where.format(f'communicates {given:,} bytes')}; {nbytes:,} are allowed."
    return Finding(given <= nbytes, text, Kind.TOO_MUCH)
