"""The grader of `reshard_cost`."""

from dataclasses import dataclass

from course_lib.cluster.topology import Link
from course_lib.runtime.communication.costs import seconds_of
from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_13.drivers import layouts as drivers

CALLS = {"SR": "all_gather", "PR": "all_reduce", "PS": "reduce_scatter", "SS": "all_to_all"}
"""The collective that a change takes, by the kinds of both placements."""
CUT = (("P", "S(0)"), ("P", "S(1)"), ("S(0)", "S(1)"), ("S(3)", "S(0)"))
ALONE = (
    ("R", "R"), ("P", "P"), ("S(1)", "S(1)"), ("R", "S(0)"), ("R", "S(2)"), ("R", "P"), ("S(1)", "P"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Priced:
    """change: from one placement to another, as `spelled`."""

    change: tuple[str, str] = feature(("S(0)", "R"), " to ".join)
    ranks: int = feature(4, "{} ranks")


def a_change(rng: Rng, case: Priced) -> Arguments:
    """Of a tensor of drawn bytes, over a drawn link."""
    link = {"latency": rng.integer(1, 50) * 1e-6, "bandwidth": rng.integer(1, 300) * 1e9}
    return [*case.change, rng.integer(1, 10**6) * 4 * case.ranks**2, case.ranks, link]


def call_of(change: tuple[str, str]) -> str:
    """The collective that it takes, or ""."""
    source, target = change
    return "" if source == target else CALLS.get(source[0] + target[0], "")


def cost_of(change: tuple[str, str], nbytes: int, ranks: int, link: Link) -> float:
    """Seconds of a change along one axis. What is cut is given to the call as the part that it is."""
    call = call_of(change)
    return seconds_of(call, nbytes // ranks if change[0] != "P" else nbytes, ranks, link) if call else 0.0


@of_function(
    base=Priced(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "whole on every rank",
            2,
            "What does a rank lack: parts that others have, or what others would add?",
            vary=vary(change=(("S(2)", "R"), ("P", "R")), ranks=(1, 2, 5)),
        ),
        Criterion(
            "cut, from a sum or from another cut",
            2,
            "No rank needs more than its own part. Which call gives it that and nothing else?",
            vary=vary(change=CUT),
        ),
        Criterion(
            "without a word",
            2,
            "Can every rank make what it needs from what it has? A sum may have zeros in it.",
            vary=vary(change=ALONE),
        ),
    ),
    hints=(
        "Which changes between the three kinds of layout need other ranks? Fill a table by hand, three on "
        "the left, three above.",
        "For each call, what is its payload: the whole tensor, or one rank's part?",
        "Which tensors add up to a whole one if rank 0 has all of it? And if each rank has a part?",
    ),
    arguments=a_change,
    driver=drivers.priced,
    written=lambda given: "{}, {}, {}, {}, Link(**{})".format(*given),
)
def reshard_cost(case: Priced, given: Arguments) -> Expected:
    """The seconds of the one call, or none."""
    names = ("source", "target", "nbytes", "ranks", "link")
    seconds = cost_of(case.change, given[2], case.ranks, Link(**given[4]))
    return Expected(seconds, dict(zip(names, given, strict=True)), returned=None)
