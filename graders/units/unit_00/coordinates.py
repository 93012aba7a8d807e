"""Unit 00, where a rank sits."""

from collections.abc import Sequence

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_00 import drivers

Machine = list[int]
"""How many GPUs each node has."""


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "one node, or one GPU on each",
            1,
            "Return the pair (node, local rank), two ints counted from 0. Do not change the list `gpus`.",
        ),
        Criterion(
            "node after node",
            1,
            "With 4 GPUs a node, ranks 0 to 3 are on node 0 and have the local ranks 0 to 3; rank 4 is on "
            "node 1 and has the local rank 0.",
        ),
        Criterion(
            "nodes of unlike sizes",
            1,
            "No division finds the node then. How many ranks are on all nodes before it?",
            needs=("node after node",),
        ),
        Criterion(
            "in turn",
            2,
            "Rank 0 is on the first node, rank 1 on the second; after the last node comes the first again.",
        ),
        Criterion(
            "full nodes are passed over",
            1,
            "In the table node 2 is full after its first rank: rank 5 goes to node 0. From rank 7 on only "
            "node 0 has places left.",
            needs=("in turn",),
        ),
    ),
    hints=(
        "Which places are there at all? Write down (node, local rank) of all GPUs of the table's machine, in "
        "the order in which ranks fill one node after the other. Where in this list is the place of rank 9?",
        "In which order do the same places get their ranks in turn? Who comes first: (2, 0) or (0, 1)? Which "
        "of the two numbers decides, and which one if that is the same?",
        "What is at position r of a list of all places, sorted by the right key?",
    ),
)
def rank_coordinates(answer: Answer, rng: Rng) -> Findings:
    """All ranks of machines with equal nodes and others, node after node and in turn."""
    single = [[1] * 3, [rng.integer(2, 4)]]
    equal = [[rng.choice((2, 4))] * 3]
    # The first node is the smallest, the largest, or the mean of all, with room left where the second is
    # full; nodes and places of two digits.
    unlike = [[1, rng.integer(3, 4), 2], [rng.integer(10, 11), 3, 1], [3, 1, 4, 4], [2, *[1] * 9, 2]]
    yield "one node, or one GPU on each", _all_right(answer, single, cyclic=False)
    yield "node after node", _all_right(answer, equal, cyclic=False)
    yield "nodes of unlike sizes", _all_right(answer, unlike, cyclic=False)
    yield "in turn", _all_right(answer, equal + single, cyclic=True)
    yield "full nodes are passed over", _all_right(answer, unlike, cyclic=True)


def _all_right(answer: Answer, machines: Sequence[Machine], cyclic: bool) -> Finding:
    """Passes if the places of all ranks of all machines are right."""
    return compare.first_failure(_right(answer, machine, cyclic) for machine in machines)


def _right(answer: Answer, machine: Machine, cyclic: bool) -> Finding:
    places = [(node, local) for node, gpus in enumerate(machine) for local in range(gpus)]
    if cyclic:
        places.sort(key=lambda place: place[::-1])
    for rank, expected in enumerate(places):
        reply = answer.call(drivers.place, rank, list(machine), cyclic)
        pair = reply.place
        text = f"rank_coordinates({rank}, {machine}, cyclic={cyclic}) returned {pair!r:.80}"
        if type(pair) is not tuple or len(pair) != 2:
            return Finding(False, f"{text}; expected a pair (a tuple).")
        if any(type(each) is not int for each in pair) or pair != expected:
            return Finding(
                False, f"{text}; expected {expected}: node {expected[0]}, local rank {expected[1]}."
            )
        if reply.gpus != machine:
            return Finding(
                False, f"{text}, and has made {reply.gpus!r:.80} of the list; expected it as it was."
            )
    order = f"(cyclic={cyclic})"
    return Finding(True, f"All {len(places)} ranks of {machine} GPUs are in their places {order}.")
