"""The grader of `shard_range`."""

from dataclasses import dataclass
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, of_function


@dataclass(frozen=True, slots=True)
class Place:
    """numel: None: ranks times something that is drawn, and `rest` more."""

    rank: int = feature(1, "rank {}")
    ranks: int = feature(4, "of {}")
    rest: int = feature(0, lambda rest: f"a rest of {rest}" if rest else "")
    numel: int | None = feature(None, lambda numel: "" if numel is None else f"{numel} numbers")


def place_of(rng: Rng, case: Place) -> Arguments:
    """What shard_range is given."""
    numel = case.ranks * rng.integer(3, 1000) + case.rest if case.numel is None else case.numel
    return [numel, case.ranks, case.rank]


def every(ranks: int, **features: int) -> tuple[dict[str, int], ...]:
    """The changes of all ranks with these features."""
    return tuple({"rank": rank, "ranks": ranks, **features} for rank in range(ranks))


@of_function(
    base=Place(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "parts of one length",
            2,
            "Where the ranks divide the numbers, each has numel / ranks of them.",
            vary=vary(rank=(0, 2, 3)) + both(rank=0, ranks=1) + both(rank=6, ranks=7),
        ),
        Criterion(
            "a shorter part at the end",
            1,
            "All parts have one length with the padding, numel / ranks rounded up. Only the last numbers of "
            "the padded tensor are padding.",
            vary=every(4, rest=2) + every(3, rest=1),
        ),
        Criterion(
            "ranks without numbers",
            1,
            "More than one rank may have nothing but padding. A shard never reaches beyond numel, and never "
            "begins beyond it.",
            needs=("a shorter part at the end",),
            vary=every(8, numel=3) + every(8, numel=10),
        ),
    ),
    hints=(
        "How long is a part of the padded tensor? numel / ranks, rounded up.",
        "Where would a rank's part begin and end in the padded tensor, and how much of that is padding?",
    ),
    arguments=place_of,
)
def shard_range(case: Place, given: Arguments) -> Expected:
    """From the first number of the rank's part up to, and without, the second; a list will do."""
    numel, ranks, rank = given
    length = -(-numel // ranks)
    ends = [min(rank * length, numel), min((rank + 1) * length, numel)]

    def same_ends(seen: Any, what: str) -> Finding:
        return compare.equal(list(seen) if type(seen) is tuple else seen, ends, what)

    return Expected(Checked(same_ends), {"numel": numel, "ranks": ranks, "rank": rank}, returned=None)
