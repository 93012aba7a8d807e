"""Unit 13, a tensor from one layout into another."""

from collections.abc import Iterator

from course_lib.runtime.communication.costs import traffic_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Kind, Observed, Rng, compare, exercise
from graders.units.unit_13.drivers.layouts import MovedReply
from graders.units.unit_13.moved_tensors import Change, World

WHOLE: list[Change] = [("S(0)", "R"), ("S(1)", "R"), ("S(2)", "R"), ("P", "R")]
CUT: list[Change] = [
    ("P", "S(0)"), ("P", "S(3)"), ("P", "S(1)"), ("S(0)", "S(1)"), ("S(1)", "S(0)"), ("S(2)", "S(1)"),
    ("S(0)", "S(2)"), ("S(1)", "S(3)"), ("S(2)", "S(0)"),
]  # fmt: skip
ALONE: list[Change] = [
    ("R", "S(0)"), ("R", "S(1)"), ("R", "P"), ("S(0)", "P"), ("S(2)", "P"),
    ("R", "R"), ("P", "P"), ("S(1)", "S(1)"),
]  # fmt: skip
SUMS: list[Change] = [("P", "R"), ("P", "S(0)"), ("P", "S(1)")]
GROUPS = [[0, 3, 4], [1, 2, 5]]
RESULTS = ("whole on every rank", "cut, from a sum or from another cut", "without a word")
CALLS = {"SR": "all_gather", "PR": "all_reduce", "PS": "reduce_scatter", "SS": "all_to_all"}


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "whole on every rank",
            3,
            "Of parts along another dim than 0, what does dist.all_gather_into_tensor leave where? A sum has "
            "to be added up.",
        ),
        Criterion(
            "cut, from a sum or from another cut",
            3,
            "Part r goes to the rank at place r: join the parts along dimension 0, which is where "
            "dist.reduce_scatter_tensor and dist.all_to_all_single cut.",
        ),
        Criterion(
            "without a word",
            2,
            "A part of what all have; or a sum in which each number stands on one rank only, with zeros on "
            "the others. What is 0 * inf?",
        ),
        Criterion(
            "in a group",
            1,
            "A rank's place is dist.get_rank(group), and the group is an argument of every call.",
            needs=RESULTS,
        ),
        Criterion(
            "what is sent",
            2,
            "One collective at most, and the one that brings each rank what it needs and no more.",
            needs=RESULTS,
        ),
        Criterion(
            "x is left alone",
            1,
            "It may be in use elsewhere, and in any order in memory; what is returned has memory of its own, "
            "also when the next call comes.",
            needs=RESULTS,
        ),
    ),
    hints=(
        "Which four changes need other ranks? Which collective gives each rank what it lacks?",
        "Collectives cut and join along dimension 0. How does a part along dim get there?",
        "From S(0) to S(1) on two ranks, with a tensor of 2 x 2: which number goes where?",
    ),
)
def reshard(answer: Answer, rng: Rng) -> Findings:
    """Drawn tensors on one to four ranks, in groups, transposed; and the bytes that the changes took."""
    left: list[Finding] = []
    sent: list[Finding] = []
    for name, changes in (
        ("whole on every rank", WHOLE),
        ("cut, from a sum or from another cut", CUT),
        ("without a word", ALONE),
    ):
        found = []
        for ranks in (3, 1, 2, 4):
            # On two ranks each change is asked for twice, of tensors that are alike but for their numbers.
            world = World.drawn(rng, changes * 2 if ranks == 2 else changes, ranks, first=ranks)
            run = world.launch(answer)
            found.append(world.right(run.results))
            left.append(world.left_alone(run.results))
            if ranks == 3 and found[-1].passed:
                sent += _sent(answer, rng, world, run)
        yield name, compare.first_failure(found)
    for bits in (16, 32, 64) if sent else ():
        short = World.drawn(rng, SUMS, 3, first=bits)
        sent += _sent(answer, rng, short, short.launch(answer))
    grouped = World.drawn(rng, [*WHOLE, *CUT, *ALONE], 6, groups=GROUPS)
    yield "in a group", grouped.right(grouped.launch(answer).results)
    yield "what is sent", compare.first_failure(sent)
    gaps = World.drawn(rng, [*WHOLE, *CUT, *ALONE], 3, gaps=True)
    replies = gaps.launch(answer).results
    yield "x is left alone", compare.first_failure((gaps.right(replies), gaps.left_alone(replies), *left))


def _sent(answer: Answer, rng: Rng, world: World, run: Observed[MovedReply]) -> Iterator[Finding]:
    """Calls and bytes of all changes together; where they are too many, of single ones, until one has too
    many. No change can be done with less than it is allowed, so none makes up for another.
    """
    together = _within(world, run)
    if not together.passed:
        for change in world.changes:
            alone = World.drawn(rng, [change], 3)
            yield _within(alone, alone.launch(answer))
    yield together


def _within(world: World, run: Observed[MovedReply]) -> Finding:
    """Whether no rank made more calls, or sent more bytes, than the changes take."""
    calls = [_call(change) for change in world.changes]
    needed = len(calls) - calls.count("")
    for rank in range(3):
        payloads = zip(calls, world.parts[rank], strict=True)
        allowed = sum(traffic_of(call, part.nbytes, 3).sent for call, part in payloads if call)
        made, sent = len(run.calls(rank)), run.traffic[rank].sent
        if len(calls) == 1:
            setting = (
                f"{' to '.join(world.changes[0])}, {world.parts[rank][0].nbytes:,} bytes a rank, 3 ranks"
            )
        else:
            setting = f"{len(calls)} changes one after another, 3 ranks"
        said = f"{setting}: rank {rank} made {made} calls and sent {sent:,} bytes"
        if made > needed or sent > allowed:
            return Finding(False, f"{said}; allowed are {needed} and {allowed:,}.", Kind.TOO_MUCH)
    return Finding(True, f"{said}; no more is allowed.")


def _call(change: Change) -> str:
    """The collective that a change takes, or ""."""
    source, target = change
    return "" if source == target else CALLS.get(source[0] + target[0], "")
