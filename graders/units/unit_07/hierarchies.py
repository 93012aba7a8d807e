"""Unit 07, hierarchies."""

from graders.grading.communication import bytes_between_nodes, bytes_within_nodes, seconds
from graders.grading.kit import Answer, Criterion, Findings, Rng, exercise
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07.collectives import common_findings, measured
from graders.units.unit_07.criteria import (
    ANY_DTYPE,
    CHUNK_LENGTHS,
    LAYOUT_IN_PLACE,
    ON_A_SUBGROUP,
    ONLY_MESSAGES,
    RIGHT_BY_MESSAGES,
)
from graders.units.unit_07.worlds import BYTES, World, drawn_members


@exercise(
    minutes=35,
    difficulty=5,
    rubric=(
        Criterion(
            "the sum on every rank",
            2,
            "Reduce-scatter within the node, all-reduce of each chunk between nodes, all-gather within. A "
            "recv without a source takes whatever comes first.",
        ),
        Criterion("any number of ranks", 1, "One node, or one rank a node, leaves one of the stages empty."),
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion(
            "bytes between nodes",
            2,
            "All ranks of a node together send at most 2 (m - 1) / m of the tensor to other nodes (m nodes): "
            "each rank carries one chunk across.",
            needs=RIGHT_BY_MESSAGES,
        ),
        Criterion(
            "bytes within a node",
            1,
            "At most 2 (g - 1) / g of the tensor a rank, with g ranks a node.",
            needs=RIGHT_BY_MESSAGES,
        ),
        Criterion(
            "rounds",
            1,
            "2 (g - 1) steps within the node and 2 (m - 1) between nodes, all ranks at work.",
            needs=RIGHT_BY_MESSAGES,
        ),
    ),
    hints=(
        "Who has the same chunk as rank r after the first stage, if r sits on node r // g at place r % g?",
        "Write the ring steps once for a list of ranks, and call them with the node's ranks and with the "
        "ranks that have the same place on each node.",
        "Between nodes it is a ring all-reduce on one chunk, so that chunk is cut once more, in m parts.",
    ),
)
def hierarchical_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """Three stages, so that little crosses between nodes."""
    collective = kinds.HIERARCHICAL
    members = drawn_members(rng, 4)
    yield from common_findings(
        answer,
        rng,
        collective,
        basic=[World(4, 16, node=2), World(6, 18, node=3)],
        many=[World(p, 24, node=g) for p, g in ((1, 1), (2, 2), (3, 1), (5, 5), (7, 1), (8, 2), (8, 4))],
        uneven=[[World(6, length, node=2) for length in (1, 2, 5, 13)]],
        subgroups=[World(4, 8, members=members, node=2)],
        values="the sum on every rank",
        slow=[World(4, 8, node=2)],
    )
    nodes, node, length = 3, 3, 270
    played = measured(answer, rng, collective, World(nodes * node, 2, columns=length // 2, node=node))
    across, inside = 2 * (nodes - 1) * length // nodes * BYTES, 2 * (node - 1) * length // node * BYTES
    yield "bytes between nodes", bytes_between_nodes(played.observed, node, across)
    yield "bytes within a node", bytes_within_nodes(played.observed, node, inside)
    within = seconds(2 * (node - 1), 2 * (node - 1) / node * length * BYTES)
    between = seconds(2 * (nodes - 1), 2 * (nodes - 1) / nodes * length / node * BYTES)
    yield "rounds", played.duration(within + between, "4 rounds within and 4 between nodes")
