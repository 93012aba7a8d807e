"""The grader of `hierarchical_all_reduce`."""

from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding
from graders.grading.traffic import Allowed
from graders.units.ranks.rows import frugal
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, split, total
from graders.units.unit_07.given import x_and_nodes, x_and_nodes_written
from graders.units.unit_07.ring import RING_TENSORS
from graders.units.unit_07.rows import (
    A_SLOW_RANK,
    bytes_and_messages,
    collective,
    in_place,
    on_a_subgroup,
    rounds,
)

NODES = ((1, 1), (3, 3), (3, 1), (6, 3), (8, 2))
"""Numbers of ranks, and of ranks a node."""


def on_two_rings(setting: Setting) -> Allowed:
    """Twice round the ring of the node's ranks with a chunk, and of those with one local rank with a part."""
    node, nodes = setting.node, setting.ranks // setting.node
    width, elements = setting.dtype.itemsize, setting.nbytes // setting.dtype.itemsize
    chunk = -(-elements // node)
    near, far = 2 * (node - 1), 2 * (nodes - 1)
    return Allowed(
        messages=near + far,
        nbytes=2 * (elements - elements // node + chunk - chunk // nodes) * width,
        rounds=near + far,
        nbytes_of_rounds=(near * chunk + far * -(-chunk // nodes)) * width,
    )


def sends_little(tried: Tried[Setting]) -> Finding | None:
    """Passes if a node's ranks together send others no more than each chunk, but for a part, twice; and if no
    rank sends more than its two rings take.
    """
    setting: Setting = tried.case.features
    node, nodes = setting.node, setting.ranks // setting.node
    elements = setting.nbytes // setting.dtype.itemsize
    most = 2 * sum(chunk - chunk // nodes for chunk in split(elements, node)) * setting.dtype.itemsize
    for number in range(nodes):
        of_node = [each for each in tried.seen.traffic.messages if each[0] // node == number]
        sent = sum(nbytes for _, receiver, nbytes in of_node if receiver // node != number)
        if sent > most:
            text = f"node {number} sends {sent:,} bytes to other nodes; {most:,} suffice."
            return Finding(False, text, Kind.TOO_MUCH)
    return frugal(tried)


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
            2,
            "One node, or one rank per node, leaves one of the stages empty. Name the source of each recv: "
            "without one it takes whatever comes first.",
            vary=tuple({"ranks": ranks, "node": node} for ranks, node in NODES) + A_SLOW_RANK,
        ),
        RING_TENSORS,
        in_place("x becomes the sum, and x itself is returned."),
        on_a_subgroup(
            "Places of the group are no global ranks. dist.new_group(ranks) takes global ones, "
            "dist.get_global_rank(group, place), and waits for all ranks of the default group unless it is "
            "given use_local_synchronization=True; steps for a list of places need no group."
        ),
        bytes_and_messages(
            "With N nodes, all ranks of a node together send at most 2 (N - 1) / N of the tensor to other "
            "nodes: each rank carries one chunk across, then once more in a part for each node. Within its "
            "node of g ranks a rank sends at most 2 (g - 1) / g of the tensor.",
            3,
            sends_little,
        ),
        rounds(
            "2 (g - 1) steps round the ring of the node's g ranks and 2 (N - 1) round that of the ranks with "
            "the same local rank on N nodes, all ranks at work."
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
