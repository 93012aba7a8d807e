"""How both passes of an answer are tried: several cases in one launch, each pass between two marks."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from graders.grading.exercise import Exercise
from graders.grading.expected import of_another
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare, per_rank
from graders.units.unit_06.cases import GRADIENTS, PARAMETERS, Case, Place
from graders.units.unit_06.drivers import passing
from graders.units.unit_06.passes import Seen, calls_by_pass

Setting = TypeVar("Setting", bound=Case)


@dataclass(frozen=True)
class BothPasses(Stage[Setting]):
    """made: what each place is given, and what must come of it. kind: one of the driver's MAKERS."""

    made: Callable[[Rng, Setting], list[Place]]
    kind: str

    def together(self, case: Setting) -> Hashable:
        return case.launched

    def run(self, answer: Answer, cases: Sequence[tuple[Setting, Rng]]) -> Sequence[tuple[Finding, Seen]]:
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
            calls = calls_by_pass(observed, rank, [(number, made[number][0]) for number in mine])
            for number, told in compare.side_by_side(mine, observed.results[rank]):
                seen[number].told.append(told)
                seen[number].calls.append(calls[number])
        return [
            (compare.first_failure(_found(case, each)), each)
            for (case, _), each in zip(made, seen, strict=True)
        ]


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
        "backward": case.asked == GRADIENTS,
    }


def _found(case: Case, seen: Seen) -> Iterator[Finding]:
    results = [told.result for told in seen.told]
    for number, (result, place) in enumerate(zip(results, seen.places, strict=True)):
        yield _returned(case, result, number, seen.places)
        if place.alike:
            what = f"what place {number} returned, which all places have to have to the last bit,"
            yield compare.close(result, results[0], what, 0, 0)
    for number, (told, place) in enumerate(zip(seen.told, seen.places, strict=True)):
        if case.asked == PARAMETERS:
            yield compare.equal(sorted(told.held), sorted(place.held), f"Names at place {number}")
            for name, wanted in place.held.items():
                yield compare.close(told.held.get(name), wanted, f"{name} of place {number}", 0, 0)
        elif case.asked == GRADIENTS:
            for name, of_one_step in place.gradients.items():
                what = f"the gradient of {name} at place {number}, summed over two steps,"
                found = told.gradients.get(name)
                yield compare.close(found, 2 * of_one_step, what, case.tolerance, case.tolerance)


def _returned(case: Case, result: Any, place: int, places: Sequence[Place]) -> Finding:
    """Passes if this is the place's result; if it is what another place must return, that is said."""

    def found_at(other: int) -> Finding:
        what = f"what place {place} returned"
        return compare.close(result, places[other].result, what, case.tolerance, case.tolerance)

    finding = found_at(place)
    if finding.passed or not isinstance(result, Tensor):
        return finding
    return of_another(finding, place, len(places), lambda other: found_at(other).passed) or finding


def both_passes(
    *,
    base: Setting,
    kind: str,
    minutes: int,
    difficulty: int,
    rubric: tuple[Criterion, ...],
    hints: tuple[str, ...],
    name: str = "",
    possible: Callable[[Setting], bool] = lambda case: True,
) -> Callable[[Callable[[Rng, Setting], list[Place]]], Exercise]:
    """Register an exercise whose places must have what the function below says. See `BothPasses`."""

    def register(made: Callable[[Rng, Setting], list[Place]]) -> Exercise:
        judged = ByCases(base, BothPasses(made, kind), rubric, possible)
        return by_cases(judged, minutes=minutes, difficulty=difficulty, hints=hints, name=name)(made)

    return register
