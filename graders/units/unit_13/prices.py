"""Unit 13, what it costs to change a layout."""

from course_lib.cluster.topology import Link
from course_lib.runtime.communication.costs import seconds_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import layouts as drivers

Change = tuple[str, str]
"""From one placement to another, as `spelled`."""


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "whole on every rank",
            2,
            "What does a rank lack: parts that others have, or what others would add? And what does a rank "
            "give to an all-gather, of which nbytes are all ranks' together?",
        ),
        Criterion(
            "cut, from a sum or from another cut",
            2,
            "No rank needs more than its own part. Which call gives it that and nothing else? And what has a "
            "rank to give, when the tensor is cut already?",
        ),
        Criterion(
            "without a word",
            2,
            "Can every rank make what it needs from what it has? A sum may have zeros in it.",
        ),
    ),
    hints=(
        "Between which of the three kinds of layout need ranks talk? Fill a table by hand, three on the "
        "left, three above.",
        "For each call, what is its payload: the whole tensor, or one rank's part?",
        "Which tensors add up to a whole one if rank 0 has all of it? And if each rank has a part?",
    ),
)
def reshard_cost(answer: Answer, rng: Rng) -> Findings:
    """Drawn changes of drawn tensors, along axes of several lengths, one among them."""
    rows: dict[str, list[Change]] = {
        "whole on every rank": [("S(0)", "R"), ("S(2)", "R"), ("P", "R")],
        "cut, from a sum or from another cut": [
            ("P", "S(0)"), ("P", "S(1)"), ("S(0)", "S(1)"), ("S(3)", "S(0)"),
        ],
        "without a word": [
            *((each, each) for each in ("R", "P", "S(0)", "S(1)")),
            ("R", "S(0)"), ("R", "S(2)"), ("R", "P"), ("S(0)", "P"), ("S(1)", "P"),
        ],
    }  # fmt: skip
    for name, changes in rows.items():
        asked = []
        for ranks in (1, 2, rng.integer(3, 6), rng.integer(7, 16)):
            link = (rng.integer(1, 50) * 1e-6, rng.integer(1, 300) * 1e9)
            asked += [(change, rng.integer(1, 10**6) * 4 * ranks**2, ranks, link) for change in changes]
        replies = answer.call(drivers.reshard_costs, asked)
        yield (
            name,
            compare.first_failure(
                _right_cost(each, seen) for seen, each in compare.side_by_side(replies, asked)
            ),
        )


def cost_of(change: Change, nbytes: int, ranks: int, link: Link) -> float:
    """Seconds of a change along one axis."""
    source, target = change
    if source == target or source == "R" or target == "P":
        return 0.0
    if source == "P":
        return seconds_of("all_reduce" if target == "R" else "reduce_scatter", nbytes, ranks, link)
    return seconds_of("all_gather" if target == "R" else "all_to_all", nbytes // ranks, ranks, link)


def _right_cost(asked: tuple[Change, int, int, tuple[float, float]], seen: object) -> Finding:
    (source, target), nbytes, ranks, link = asked
    expected = cost_of((source, target), nbytes, ranks, Link(*link))
    said = (
        f"{source} to {target}, {nbytes:,} bytes, {ranks} ranks, latency {link[0]:g} s, {link[1]:g} bytes/s: "
        f"{compare.shown(seen)} s; expected {expected:.6g} s."
    )
    number = compare.as_float(seen)
    return Finding(abs(number - expected) <= 1e-6 * expected, said)
