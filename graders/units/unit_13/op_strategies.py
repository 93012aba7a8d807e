"""The grader of `op_strategies`."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_13.drivers import layouts as drivers

SPECS = ("bqhe,bkhe->bhqk", "ab,b->a", "i,j->ij")
OTHER_SPECS = ("ab->ba", "abc,bd,ce->ade", "ab,ab->")


@dataclass(frozen=True, slots=True)
class Operator:
    """An einsum on a mesh. lengths: of its letters in alphabetical order; none: multiples of all ranks."""

    spec: str = feature("bd,df->bf", "{}")
    mesh: tuple[int, ...] = feature((4,), lambda mesh: f"a mesh of {' x '.join(map(str, mesh)) or 'no axis'}")
    lengths: tuple[int, ...] = feature((), lambda lengths: f"lengths {lengths}" if lengths else "")

    @property
    def letters(self) -> list[str]:
        return sorted(set(self.spec) - set(",->"))


def an_operator(rng: Rng, case: Operator) -> Arguments:
    """The spec, the length of each letter, and the mesh."""
    lengths = case.lengths or [prod(case.mesh) * rng.integer(1, 5) for _ in case.letters]
    return [case.spec, dict(zip(case.letters, lengths, strict=True)), case.mesh]


@of_function(
    base=Operator(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "along one axis",
            3,
            "For each letter: which operands have it, and at which place? What if the result lacks it?",
            vary=vary(mesh=((2,), (3,)), spec=SPECS),
        ),
        Criterion(
            "any einsum",
            1,
            "There may be one operand, or three, and a result without letters. (DTensor's own, "
            "gen_einsum_strategies, takes two at most.)",
            vary=vary(spec=OTHER_SPECS),
        ),
        Criterion(
            "along several axes",
            2,
            "Any choice along one axis goes with any along another.",
            vary=vary(mesh=((2, 3), (3, 3), (2, 3, 2))),
        ),
        Criterion(
            "what divides",
            1,
            "Into equal parts only. If two axes cut the same letter, into how many parts is it cut? "
            "(gen_einsum_strategies leaves this for later.)",
            vary=both(lengths=(6, 8, 9))
            + both(mesh=(2, 2), lengths=(6, 8, 4))
            + both(mesh=(2, 3), lengths=(6, 10, 30)),
        ),
        Criterion(
            "axes with nothing to cut",
            1,
            "Along an axis of length 1 there is one way only; on a mesh without axes, there is one in all. "
            "(gen_einsum_strategies cuts there too, into one part.)",
            vary=vary(mesh=((), (1,), (2, 1, 2))),
        ),
    ),
    hints=(
        "What can be cut along one axis? Write down the strategies of bd,df->bf on two ranks by hand.",
        "Name a strategy by the letter that is cut along each axis. itertools.product lists these choices.",
        "If two axes cut the same letter, by which product does its length have to be divisible?",
    ),
    arguments=an_operator,
    possible=lambda case: (
        case.spec == Operator().spec or (not case.lengths and len(case.letters) ** len(case.mesh) < 100)
    ),
    driver=drivers.strategies,
    written=lambda given: f"Einsum({given[0]!r}, {given[1]}), {given[2]}",
)
def op_strategies(case: Operator, given: Arguments) -> Expected:
    """Cut by cut, in any order."""
    spec, sizes, mesh = given
    found = Checked(partial(all_of_them, wanted=set(_strategies(spec, sizes, mesh))))
    return Expected(found, {"op.spec": spec, "op.sizes": sizes, "mesh": mesh}, returned=None)


def _strategies(spec: str, sizes: dict[str, int], mesh: tuple[int, ...]) -> Iterator[str]:
    """One for each choice of a letter, or "" for none, along each axis; as `str` of a Strategy."""
    operands, result = spec.split("->")
    for cut in itertools.product(*(["", *sizes] if length > 1 else [""] for length in mesh)):
        parts = [prod(n for n, each in zip(mesh, cut, strict=True) if each == letter) for letter in sizes]
        if not any(length % count for length, count in zip(sizes.values(), parts, strict=True)):
            layouts = ", ".join(_layout(each, cut, "R") for each in operands.split(","))
            yield f"{layouts} -> {_layout(result, cut, 'P')}"


def _layout(tensor: str, cut: tuple[str, ...], without: str) -> str:
    return "".join(
        "R" if not letter else f"S({tensor.index(letter)})" if letter in tensor else without for letter in cut
    )


def all_of_them(found: Any, what: str, wanted: set[str]) -> Finding:
    """Passes if all strategies were found, each once, and nothing else."""
    if type(found) is not list or not all(type(each) is str for each in found):
        return Finding(False, f"{what} is {compare.shown(found)}; expected a list of Strategy.")
    for those, fault in (
        (set(found) - wanted, "This is none"),
        (wanted - set(found), "This is missing"),
        ({each for each in found if found.count(each) > 1}, "This is there more than once"),
    ):
        if those:
            said = f"{what}: {len(found)} strategies; expected {len(wanted)}. {fault}: {min(those)}."
            return Finding(False, said)
    return Finding(True, f"{what}: {len(found)} strategies, all of them right.")
