"""Unit 07, from one to all, from all to one."""

from graders.grading.communication import Allowance
from graders.grading.kit import Answer, Criterion, Findings, Rng, exercise
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07.collectives import measured
from graders.units.unit_07.common import common
from graders.units.unit_07.criteria import (
    ANY_DTYPE,
    LAYOUT_IN_PLACE,
    ONLY_MESSAGES,
    OVERLAPPING,
    _lengths,
)
from graders.units.unit_07.worlds import BYTES, World


@exercise(
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion("its part on every rank", 1, "Rank j gets parts[j]; the root copies its own part."),
        Criterion("any root", 1, "src need not be rank 0, and a root alone sends nothing."),
        _lengths("Parts may differ in length; x has the right one already."),
        ANY_DTYPE,
        Criterion("in place", 1, "Write into x and return x itself; the parts stay as they are."),
        LAYOUT_IN_PLACE,
        Criterion(
            "on a subgroup",
            1,
            "src is a global rank, group_dst and group_src are places: see the rule for any group.",
            needs=("any root",),
        ),
        OVERLAPPING,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            1,
            "The root sends each other rank its part, and nothing else.",
            needs=("any root", "only send and recv"),
        ),
    ),
    hints=(
        "Which rank knows the parts, and what can all others do but wait? There are two cases.",
        "The root loops over the places of the group, sends parts[place] to each, and copies its own.",
        "dist.send(part.contiguous(), group_dst=place, group=group) sends to a place of the group.",
    ),
)
def scatter_from(answer: Answer, rng: Rng) -> Findings:
    """A part for everyone, from any root."""
    following = [(World(4, 40), World(4, 4, root=1))]
    yield from common(
        answer,
        rng,
        kinds.SCATTER,
        "its part on every rank",
        rooted=True,
        following=following,
        roots_alone=False,
    )
    played = measured(answer, rng, kinds.SCATTER, World(5, 20, root=3, columns=3))
    root, other = Allowance(4, 16 * 3 * BYTES), Allowance(0, 0)
    yield "bytes and messages", played.traffic([other, other, other, root, other])


@exercise(
    minutes=8,
    difficulty=1,
    rubric=(
        Criterion(
            "every part on the root",
            1,
            "parts[j] on the root is what rank j has in x; the root copies its own part. Others return None.",
        ),
        Criterion("any root", 1, "dst need not be rank 0, and a root alone receives nothing."),
        _lengths("Parts may differ in length; parts[j] has the right one already."),
        ANY_DTYPE,
        Criterion("in place", 1, "Fill the tensors in parts and return parts itself; x stays as it is."),
        LAYOUT_IN_PLACE,
        Criterion(
            "on a subgroup",
            1,
            "dst is a global rank, group_dst and group_src are places: see the rule for any group.",
            needs=("any root",),
        ),
        OVERLAPPING,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            1,
            "Each rank but the root sends its part once, to the root.",
            needs=("any root", "only send and recv"),
        ),
    ),
    hints=("What becomes of each send of scatter_from if time runs backwards?",),
)
def gather_to(answer: Answer, rng: Rng) -> Findings:
    """Everyone's part, at any root."""
    following = [(World(4, 40), World(4, 4, root=1))]
    yield from common(
        answer,
        rng,
        kinds.GATHER,
        "every part on the root",
        rooted=True,
        following=following,
        roots_alone=False,
    )
    played = measured(answer, rng, kinds.GATHER, World(5, 20, root=3, columns=3))
    root, other = Allowance(0, 0), Allowance(1, 4 * 3 * BYTES)
    yield "bytes and messages", played.traffic([other, other, other, root, other])
