"""Unit 07, hierarchies."""

from graders.grading.communication import bytes_between_nodes, bytes_within_nodes, seconds
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07.collectives import Played, measured
from graders.units.unit_07.common import common_findings
from graders.units.unit_07.criteria import (
    A_SLOW_RANK,
    ANY_DTYPE,
    CHUNK_LENGTHS,
    LAYOUT_IN_PLACE,
    ONLY_MESSAGES,
    RIGHT_BY_MESSAGES,
    on_a_subgroup,
)
from graders.units.unit_07.cuts import cut_as_asked
from graders.units.unit_07.shapes import takes_a_number
from graders.units.unit_07.worlds import BYTES, World, drawn_members


@exercise(
    minutes=35,
    difficulty=5,
    rubric=(
        Criterion(
            "the sum on every rank",
            1,
            "Reduce-scatter within the node, all-reduce of each chunk between nodes, all-gather within.",
        ),
        Criterion(
            "any number of ranks", 1, "One node, or one rank per node, leaves one of the stages empty."
        ),
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        on_a_subgroup(
            "Places of the group are no global ranks. dist.new_group(ranks) takes global ones, "
            "dist.get_global_rank(group, place), and waits for all ranks of the default group unless it is "
            "given use_local_synchronization=True; steps for a list of places need no group."
        ),
        A_SLOW_RANK,
        ONLY_MESSAGES,
        Criterion(
            "bytes between nodes",
            2,
            "With N nodes, all ranks of a node together send at most 2 (N - 1) / N of the tensor to other "
            "nodes: each rank carries one chunk across, cut by torch.tensor_split from x.flatten() and not "
            "from rows, then once more in a part for each node.",
            needs=RIGHT_BY_MESSAGES,
        ),
        Criterion(
            "bytes within a node",
            1,
            "Within its node a rank sends at most 2 (g - 1) / g of the tensor, where g is gpus_per_node.",
            needs=(*RIGHT_BY_MESSAGES, "bytes between nodes"),
        ),
        Criterion(
            "rounds",
            1,
            "2 (g - 1) steps round the ring of the node's ranks and 2 (N - 1) round that of the ranks with "
            "the same local rank on N nodes, all ranks at work; g is gpus_per_node.",
            needs=(*RIGHT_BY_MESSAGES, "bytes between nodes", "bytes within a node"),
        ),
    ),
    hints=(
        "Who has the same chunk as rank r after the first stage, if r sits on node r // gpus_per_node, with "
        "local rank r % gpus_per_node?",
        "Write the ring steps once for a list of ranks, and call them with the node's ranks and with the "
        "ranks that have the same local rank on each node.",
        "Between nodes it is a ring all-reduce on one chunk, so that chunk is cut once more, in a part for "
        "each node.",
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
        many=[World(p, 480, node=g) for p, g in ((1, 1), (2, 2), (3, 1), (5, 5), (7, 1), (8, 2), (8, 4))],
        uneven=[
            [World(4, length, node=2) for length in (1, 5)],
            [World(6, length, node=2) for length in (0, 2, 13)],
        ],
        subgroups=[
            [World(1, 4, members=(2,), node=1)],
            [World(4, 8, members=each, node=2) for each in in_fours(members)],
            [World(4, 8, members=members, node=node) for node in (2, 1, 4)],
        ],
        values="the sum on every rank",
        slow=[World(4, 8, node=2)],
        special=[World(p, 12, node=g) for p, g in ((1, 1), (3, 1), (3, 3))],
    )
    yield from _costs(answer, rng)


def in_fours(members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The groups of four that eight ranks make, the members and the rest, and two that have two of each.

    So each rank is in two: PyTorch makes groups by local synchronization only among ranks of equally many.
    """
    rest = [rank for rank in range(1, 9) if rank not in members]
    return [members, tuple(rest), *(tuple(sorted((*members[i::2], *rest[i::2]))) for i in (0, 1))]


def _costs(answer: Answer, rng: Rng) -> Findings:
    """Five nodes of three; four of four, where there are more than neighbours, with fewer elements than
    ranks, and with chunks that are cut in parts of two elements and of one; four of one, and one of four,
    which are no hierarchy and a ring all the same.
    """
    nodes, node, length, few, odd = 5, 3, 270, 12, 20
    ring, whole = 4, 40
    apart, alone = (measured(answer, rng, kinds.HIERARCHICAL, World(ring, whole, node=n)) for n in (1, ring))
    passed_on = 2 * (ring - 1) * whole // ring * BYTES
    in_rows = takes_a_number(answer, rng, kinds.HIERARCHICAL, World(ring, 1, node=2))
    rows, columns = (2, length // 2) if in_rows else (length, 0)
    world = World(nodes * node, rows, columns=columns, node=node)
    played = measured(answer, rng, kinds.HIERARCHICAL, world)
    short, uneven = (
        measured(answer, rng, kinds.HIERARCHICAL, World(16, count, node=4)).if_right() for count in (few, odd)
    )
    crossing = [_crosses(played, 2 * (nodes - 1) * length // nodes * BYTES)]
    # In a pass round a ring a rank leaves out one chunk: of 1 or 0 elements between nodes, of 3 in the node.
    crossing += [_crosses(each, 2 * few * BYTES) for each in short]
    # In each pass the node's four ranks leave out a part each, of one element at least, on a ring.
    uneven = [each for each in uneven if round_rings(each).passed]
    crossing += [_crosses(each, 2 * (odd - 4) * BYTES) for each in uneven]
    # Chunks of 11 and 10 elements, of parts of 3 and 2: wherever these are cut, bytes are the same.
    crossing += [cut_as_asked(answer, rng, kinds.HIERARCHICAL, 16, 42, 4) for _ in uneven]
    crossing.append(_crosses(apart, passed_on))
    yield "bytes between nodes", (crosses := compare.first_failure(crossing))
    near = [_stays(played, 2 * (node - 1) * length // node * BYTES)]
    near += [_stays(each, 2 * (few - 3) * BYTES) for each in short]
    near.append(_stays(alone, passed_on))
    yield "bytes within a node", (stays := compare.first_failure(near))
    within = seconds(2 * (node - 1), 2 * (node - 1) / node * length * BYTES)
    between = seconds(2 * (nodes - 1), 2 * (nodes - 1) / nodes * length / node * BYTES)
    steps = f"{2 * (node - 1)} rounds within and {2 * (nodes - 1)} between nodes"
    rounds = [played.duration(within + between, steps)]
    fours = seconds(6 + 6, (6 * 3 + 6) * BYTES)
    for each in short if crosses.passed and stays.passed else ():
        rounds += [round_rings(each), each.duration(fours, "6 rounds within and 6 between nodes")]
    yield "rounds", compare.first_failure(rounds)


def _crosses(played: Played, allowed: int) -> Finding:
    return played.there(bytes_between_nodes(played.observed, played.worlds[0].node, allowed))


def _stays(played: Played, allowed: int) -> Finding:
    return played.there(bytes_within_nodes(played.observed, played.worlds[0].node, allowed))


def round_rings(played: Played) -> Finding:
    """Passes if each rank sends only to neighbours on two rings: of its node, and of those with its place."""
    ranks, node = played.worlds[0].ranks, played.worlds[0].node
    for rank in range(ranks):
        first = rank - rank % node
        near = [first + (rank + step) % node for step in (1, -1)]
        far = [(rank + step) % ranks for step in (node, -node)]
        sends = {event.peer for event in played.observed.communication(rank) if event.op == "send"}
        others = sorted(peer for peer in sends if peer is not None and peer not in near + far)
        if others:
            text = f"with {ranks} ranks, {node} a node, rank {rank} sends to rank {others[0]}"
            return Finding(False, f"{text}; its neighbours are {near} in the node, and {far} on other nodes.")
    return Finding(
        True, "Each rank sends to neighbours only, on the ring of its node and on that of its place."
    )
