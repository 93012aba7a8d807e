"""Unit 13, all ways to compute an operator."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import layouts as drivers

PRODUCTS = (
    "bd,df->bf", "bqhe,bkhe->bhqk", "ab->ba", "ab,b->a", "i,j->ij", "abc,bd,ce->ade",
    "aB,Bc->ac", "Aa,ab->Ab", "ab,ab->", "a->", "ab,bc,db->acd", "b,ab,cb->bc",
)  # fmt: skip
"""Capital letters are others than small ones; a result may be a number; three operands may share a letter."""

Spelled = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]
"""A strategy: the layouts of its operands, and that of its result."""


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "along one axis",
            3,
            "For each letter: which operands have it, and at which place? What is the result where it has "
            "it, and what is it where it has not?",
        ),
        Criterion(
            "what divides",
            2,
            "A letter whose length is no multiple of the number of ranks cannot be cut into equal parts.",
        ),
        Criterion(
            "along several axes",
            2,
            "Any choice along one axis goes with any along another. If two axes cut the same letter, into "
            "how many parts is it cut?",
            needs=("along one axis", "what divides"),
        ),
        Criterion(
            "axes with nothing to cut",
            1,
            "Along an axis of length 1 there is one way only; on a mesh without axes, there is one in all.",
            needs=("along one axis", "what divides", "along several axes"),
        ),
    ),
    hints=(
        "What can be cut along one axis? Write down the strategies of bd,df->bf on two ranks by hand.",
        "Name a strategy by the letter that is cut along each axis. itertools.product lists these choices.",
        "If two axes cut the same letter, by which product does its length have to be divisible?",
    ),
)
def op_strategies(answer: Answer, rng: Rng) -> Findings:
    """Drawn operators on meshes of one axis, where some letters divide, and of several."""
    rows = {
        "along one axis": [Case.drawn(rng, spec, (rng.integer(2, 5),)) for spec in PRODUCTS],
        "what divides": [
            Case("bd,df->bf", {"b": 6, "d": 8, "f": 9, "z": 12}, (length,)) for length in (2, 3, 4, 7)
        ]
        + [Case("ab->a", {"a": 2, "b": 1}, (4,))],
        "along several axes": [
            Case.drawn(rng, "bd,df->bf", (2, 3)),
            Case.drawn(rng, "bqe,bke->bqk", (3, 3)),
            Case("bd,df->bf", {"b": 6, "d": 12, "f": 4}, (2, 3)),
            Case("bd,df->bf", {"b": 6, "d": 8, "f": 4}, (2, 2)),
            Case("ab,b->a", {"a": 12, "b": 8}, (2, 3, 2)),
        ],
        "axes with nothing to cut": [
            Case("bd,df->bf", {"b": 6, "d": 8, "f": 4}, mesh) for mesh in ((), (1,), (1, 2), (2, 1, 2))
        ],
    }
    for name, cases in rows.items():
        replies = answer.call(drivers.strategies, [(case.spec, case.sizes, case.mesh) for case in cases])
        yield (
            name,
            compare.first_failure(
                finding
                for reply, case in compare.side_by_side(replies, cases)
                for finding in case.judge(reply.found, reply.sizes)
            ),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """An operator and a mesh."""

    spec: str
    sizes: dict[str, int]
    mesh: tuple[int, ...]

    @classmethod
    def drawn(cls, rng: Rng, spec: str, mesh: tuple[int, ...]) -> "Case":
        """Every letter's length is a multiple of the ranks."""
        letters = sorted(set(spec) - set(",->"))
        return cls(spec, {letter: prod(mesh) * rng.integer(1, 5) for letter in letters}, mesh)

    def judge(self, found: Any, sizes: dict[str, int]) -> Iterator[Finding]:
        """Passes if all strategies were found, each once, and nothing else."""
        setting = f"{self.spec} with {self.sizes} on a mesh {self.mesh}"
        if type(found) is not list or any(not _is_strategy(each) for each in found):
            yield Finding(False, f"{setting}: {compare.shown(found)}; expected a list of Strategy.")
            return
        seen = [(tuple(map(tuple, operands)), tuple(result)) for operands, result in found]
        expected = set(self.expected())
        twice = [each for each in seen if seen.count(each) > 1]
        missing, false = sorted(expected - set(seen)), [each for each in seen if each not in expected]
        said = f"{setting}: {len(seen)} strategies; expected {len(expected)}"
        if false:
            yield Finding(False, f"{said}. This is none: {_in_words(false[0])}.")
        elif missing:
            yield Finding(False, f"{said}. This is missing: {_in_words(missing[0])}.")
        elif twice:
            yield Finding(False, f"{said}. This is there more than once: {_in_words(twice[0])}.")
        else:
            yield Finding(True, f"{said}, and those they are.")
        yield compare.equal(sizes, self.sizes, f"the operator's sizes afterwards, {self.spec}")

    def expected(self) -> Iterator[Spelled]:
        """Cut by cut: a letter for each axis, or "" for none."""
        operands, result = self.spec.split("->")
        tensors = operands.split(",")
        letters = sorted(set("".join(tensors)))
        for cut in itertools.product(["", *letters], repeat=len(self.mesh)):
            parts = {
                letter: prod(n for n, c in zip(self.mesh, cut, strict=True) if c == letter)
                for letter in letters
            }
            trivial = any(n == 1 and c for n, c in zip(self.mesh, cut, strict=True))
            if not trivial and all(self.sizes[letter] % count == 0 for letter, count in parts.items()):
                yield tuple(_layout(each, cut, "R") for each in tensors), _layout(result, cut, "P")


def _layout(tensor: str, cut: tuple[str, ...], without: str) -> tuple[str, ...]:
    return tuple(
        "R" if not letter else f"S({tensor.index(letter)})" if letter in tensor else without for letter in cut
    )


def _is_strategy(each: Any) -> bool:
    """Whether it has the shape of one, with words for placements."""
    if type(each) is not list or len(each) != 2 or any(type(part) is not list for part in each):
        return False
    layouts = [*each[0], each[1]]
    return all(type(own) is list and all(type(word) is str for word in own) for own in layouts)


def _in_words(strategy: Spelled) -> str:
    operands, result = strategy
    return f"{', '.join(map(''.join, operands))} -> {''.join(result)}"
