"""The grader of `rank_coordinates`."""

from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, kept, of_function

UNLIKE = ((1, 4, 2), (4, 1, 7, 2, 6))
PARTS = tuple(step / 11 for step in range(12))


@dataclass(frozen=True, slots=True)
class Machine:
    """gpus: of each node. rank: which one is asked for, as a part of all. cyclic: to the nodes in turn."""

    gpus: tuple[int, ...] = feature((4, 4, 4), lambda gpus: f"nodes of {[*gpus]} GPUs")
    part: float = 0.5
    cyclic: bool = feature(False, lambda cyclic: "in turn" if cyclic else "node after node")


def one_rank(rng: Rng, machine: Machine) -> Arguments:
    """The rank at this part of all, the machine, and the order."""
    last = sum(machine.gpus) - 1
    return [round(machine.part * last), list(machine.gpus), machine.cyclic]


@of_function(
    base=Machine(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "node after node",
            2,
            "With 4 GPUs a node, ranks 0 to 3 are on node 0 and have the local ranks 0 to 3; rank 4 is on "
            "node 1 and has the local rank 0. Return the pair (node, local rank), two ints counted from 0.",
            vary=vary(part=PARTS, gpus=((3,), (2, 2))),
        ),
        Criterion(
            "in turn",
            1,
            "Rank 0 is on the first node, rank 1 on the second; after the last node comes the first again.",
            vary=tuple(change for part in PARTS for change in both(part=part, cyclic=True)),
        ),
        Criterion(
            "gpus unchanged",
            1,
            "Compute it from rank, gpus and cyclic, and leave the list as it is.",
            how=kept,
        ),
        Criterion(
            "nodes of unlike sizes",
            1,
            "No division finds the node then. How many ranks are on all nodes before it?",
            vary=tuple(change for gpus in UNLIKE for part in PARTS for change in both(gpus=gpus, part=part)),
        ),
        Criterion(
            "full nodes are passed over",
            1,
            "In the table node 2 is full after its first rank: rank 5 goes to node 0. From rank 7 on only "
            "node 0 has places left.",
            needs=("in turn",),
            vary=tuple(
                change
                for gpus in UNLIKE
                for part in PARTS
                for change in both(gpus=gpus, part=part, cyclic=True)
            ),
        ),
    ),
    hints=(
        "Which places are there at all? Write down (node, local rank) of all GPUs of the table's machine, in "
        "the order in which ranks fill one node after the other. Where in this list is the place of rank 9?",
        "In which order do the same places get their ranks in turn? Who comes first: (2, 0) or (0, 1)? Which "
        "of the two numbers decides, and which one if that is the same?",
        "What is at position r of a list of all places, sorted by the right key?",
    ),
    arguments=one_rank,
)
def rank_coordinates(machine: Machine, given: Arguments) -> Expected:
    """A place in the list of all, node after node or in turn."""
    rank, gpus, cyclic = given
    places = [(node, local) for node, count in enumerate(gpus) for local in range(count)]
    if cyclic:
        places.sort(key=lambda each: each[::-1])
    return Expected(places[rank], {"rank": rank, "gpus": gpus, "cyclic": cyclic}, returned=None)
