"""The grader of `hierarchical_all_reduce`."""

from graders.grading.cases import both
from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding
from graders.grading.traffic import Allowed, in_time, only_to
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.collective import collective
from graders.units.unit_07.given import x_and_nodes, x_and_nodes_written
from graders.units.unit_07.ring import RING_LENGTHS
from graders.units.unit_07.rows import A_SLOW_RANK, ANY_TENSOR, in_place, on_a_subgroup

NODES = ((1, 1), (2, 2), (3, 1), (5, 5), (6, 3), (8, 2), (8, 4))
"""Numbers of ranks, and of ranks a node."""


def on_two_rings(setting: Setting) -> Allowed:
    """Twice round the ring of the node's ranks with a chunk, and of those with one local rank with a part."""
    node, nodes = setting.node, setting.ranks // setting.node
    width, elements = setting.dtype.itemsize, setting.nbytes // setting.dtype.itemsize
    chunk = -(-elements // node)
    near, far = 2 * (node - 1), 2 * (nodes - 1)
    return Allowed(
        messages=near + far,
        nbytes=(2 * (elements - elements // node) + 2 * chunk) * width,
        rounds=near + far,
        nbytes_of_rounds=(near * chunk + far * -(-chunk // nodes)) * width,
    )


def crosses_little(tried: Tried[Setting]) -> Finding | None:
    """Passes if a node's ranks together send others no more than each chunk, but for a part, twice."""
    setting: Setting = tried.case.features
    node, nodes = setting.node, setting.ranks // setting.node
    elements = setting.nbytes // setting.dtype.itemsize
    chunks = [elements // node + (local < elements % node) for local in range(node)]
    most = 2 * sum(chunk - chunk // nodes for chunk in chunks) * setting.dtype.itemsize
    for number in range(nodes):
        of_node = [each for each in tried.seen.traffic.messages if each[0] // node == number]
        sent = sum(nbytes for _, receiver, nbytes in of_node if receiver // node != number)
        if sent > most:
            text = f"node {number} sends {sent:,} bytes to other nodes; {most:,} suffice."
            return Finding(False, text, Kind.TOO_MUCH)
    return Finding(True, "no node sends more to others than it must.")


def stays_little(tried: Tried[Setting]) -> Finding | None:
    """Passes if no rank sends more within its node than two passes round the node's ring take."""
    setting: Setting = tried.case.features
    node, width = setting.node, setting.dtype.itemsize
    elements = setting.nbytes // width
    most = 2 * (elements - elements // node) * width
    for place in range(setting.ranks):
        of_place = [each for each in tried.seen.traffic.messages if each[0] == place]
        sent = sum(nbytes for _, receiver, nbytes in of_place if receiver // node == place // node)
        if sent > most:
            text = f"place {place} sends {sent:,} bytes within its node; {most:,} suffice."
            return Finding(False, text, Kind.TOO_MUCH)
    return Finding(True, "no rank sends more within its node than it must.")


def rings_in_time(tried: Tried[Setting]) -> Finding | None:
    """Passes if ranks send to neighbours on the two rings only, and if it takes no longer than the rounds."""
    setting: Setting = tried.case.features
    if tried.seen.allowed is None:
        return None
    ranks, node = setting.ranks, setting.node

    def neighbours(place: int) -> list[int]:
        first = place - place % node
        near = [first + (place + step) % node for step in (1, -1)]
        return [*near, *((place + step) % ranks for step in (node, -node))]

    found = only_to(tried.seen.traffic, neighbours, "a neighbour on its node's ring or on that across nodes")
    return in_time(tried.seen.traffic, tried.seen.allowed) if found.passed else found


@collective(
    base=Setting(ranks=4, node=2),
    minutes=35,
    difficulty=5,
    rubric=(
        Criterion(
            "the sum on every rank",
            3,
            "Reduce-scatter within the node, all-reduce of each chunk between nodes, all-gather within.",
        ),
        Criterion(
            "any number of ranks",
            1,
            "One node, or one rank per node, leaves one of the stages empty.",
            vary=tuple(change for ranks, node in NODES for change in both(ranks=ranks, node=node)),
        ),
        RING_LENGTHS,
        ANY_TENSOR,
        in_place("x becomes the sum, and x itself is returned."),
        on_a_subgroup(
            "Places of the group are no global ranks. dist.new_group(ranks) takes global ones, "
            "dist.get_global_rank(group, place), and waits for all ranks of the default group unless it is "
            "given use_local_synchronization=True; steps for a list of places need no group."
        ),
        A_SLOW_RANK,
        Criterion(
            "bytes between nodes",
            2,
            "With N nodes, all ranks of a node together send at most 2 (N - 1) / N of the tensor to other "
            "nodes: each rank carries one chunk across, cut by torch.tensor_split from x.flatten() and not "
            "from rows, then once more in a part for each node.",
            how=crosses_little,
        ),
        Criterion(
            "bytes within a node",
            1,
            "Within its node a rank sends at most 2 (g - 1) / g of the tensor, where g is gpus_per_node.",
            needs=("bytes between nodes",),
            how=stays_little,
        ),
        Criterion(
            "rounds",
            1,
            "2 (g - 1) steps round the ring of the node's ranks and 2 (N - 1) round that of the ranks with "
            "the same local rank on N nodes, all ranks at work; g is gpus_per_node.",
            needs=("bytes between nodes", "bytes within a node"),
            how=rings_in_time,
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
    arguments=x_and_nodes,
    allowed=on_two_rings,
    written=x_and_nodes_written,
)
def hierarchical_all_reduce(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """Three stages, so that little crosses between nodes."""
    summed = total([x for x, _ in given])
    return [Expected(summed, {"x": summed, "gpus_per_node": ANYTHING}) for _ in given]
