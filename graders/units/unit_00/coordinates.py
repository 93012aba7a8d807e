"""Unit 00, where a rank sits."""

from collections.abc import Sequence

from course_lib.cluster.topology import Cluster
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    PlainData,
    Rng,
    compare,
    exercise,
)
from graders.units.unit_00 import drivers

Machine = list[int]
"""How many GPUs each node has."""


Question = tuple[int, Machine, bool]
"""A rank, the machine, and whether the ranks go to the nodes in turn."""

LARGE = [18, *[1] * 110, 2]
"""More nodes than 100, more GPUs on one than 16, more ranks than a number of 8 bits can count."""


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
            "in turn",
            1,
            "Rank 0 is on the first node, rank 1 on the second; after the last node comes the first again.",
        ),
        Criterion(
            "from its arguments alone",
            1,
            "Compute it from rank, gpus and cyclic: no launch, no environment variable, and nothing that an "
            "earlier call has left behind or put into another order.",
        ),
        Criterion(
            "nodes of unlike sizes",
            1,
            "No division finds the node then. How many ranks are on all nodes before it?",
            needs=("node after node",),
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
    # The first node is the smallest, the mean of all with room left where the second is full, or the largest.
    unlike = [[1, rng.integer(3, 4), 2], [4, 1, 7, 2, 6], LARGE]
    blocks, turns = _questions(equal, cyclic=False), _questions(equal + single, cyclic=True)
    first = _questions(single, cyclic=False)
    yield "one node, or one GPU on each", _one_by_one(answer, first, first=True)
    yield "node after node", (in_blocks := _one_by_one(answer, blocks))
    yield "in turn", (in_turn := _one_by_one(answer, turns))
    known = [*first, *(blocks if in_blocks.passed else ()), *(turns if in_turn.passed else ())]
    yield "from its arguments alone", _anywhere(answer, known)
    yield "nodes of unlike sizes", _one_by_one(answer, _questions(unlike, cyclic=False))
    yield "full nodes are passed over", _one_by_one(answer, _questions(unlike, cyclic=True))


def _questions(machines: Sequence[Machine], cyclic: bool) -> list[Question]:
    """One for each rank of each machine."""
    return [(rank, machine, cyclic) for machine in machines for rank in _ranks(machine)]


def _ranks(machine: Machine) -> Sequence[int]:
    """Those of a machine that are asked for: all, or of many those where nodes and rounds begin and end."""
    return [0, 17, 18, *range(98, 102), *range(110, 116), 129] if machine == LARGE else range(sum(machine))


def _one_by_one(answer: Answer, questions: Sequence[Question], first: bool = False) -> Finding:
    """Passes if the answer to each question is right, and leaves the machine as it was.

    first: whether an error ends the grading. Later ones cost no row but their own.
    """
    try:
        for question in questions:
            rank, machine, cyclic = question
            reply = answer.call(drivers.place, rank, list(machine), cyclic)
            finding = _right(reply.place, question)
            if not finding.passed:
                return finding
            if reply.gpus != machine:
                text = f"{_called(question)} has made {reply.gpus!r:.80} of the list; expected it as it was."
                return Finding(False, text)
    except AnswerFailed as failure:
        if first or failure.kind not in (FailureKind.RAISED, FailureKind.NOT_ATTEMPTED):
            raise
        return Finding(False, failure.report)
    machines = len({str(machine) for _, machine, _ in questions})
    return Finding(True, f"The ranks of {compare.counted(machines, 'machine')} are in their places.")


def _anywhere(answer: Answer, known: Sequence[Question]) -> Finding:
    """Passes if what the answer knew it knows on the ranks of a launch too, asked in another order."""
    # The last rank first, and of each in turn before in blocks.
    questions = sorted(known, key=lambda each: (str(each[1]), each[0], each[2]), reverse=True)
    observed = answer.launch(drivers.places, questions, ranks=2, cluster=Cluster(nodes=2))
    for rank, reply in enumerate(observed.results):
        before = ""
        for place, question in compare.side_by_side(reply.places, questions):
            finding = _right(place, question)
            if not finding.passed:
                return Finding(False, f"on rank {rank} of a launch{before}, {finding.seen}")
            before = f", after {_called(question)}"
    return Finding(True, "Asked on the ranks of a launch, and in another order, it answers the same.")


def _right(place: PlainData, question: Question) -> Finding:
    """Passes if this is where the rank sits."""
    rank, machine, cyclic = question
    places = [(node, local) for node, gpus in enumerate(machine) for local in range(gpus)]
    if cyclic:
        places.sort(key=lambda each: each[::-1])
    expected = places[rank]
    text = f"{_called(question)} returned {place!r:.80}; expected"
    if type(place) is not tuple or len(place) != 2:
        return Finding(False, f"{text} a pair (a tuple).")
    if any(type(each) is not int for each in place) or place != expected:
        return Finding(False, f"{text} {expected}: node {expected[0]}, local rank {expected[1]}.")
    return Finding(True, f"{_called(question)} is {expected}.")


def _called(question: Question) -> str:
    """The call, so that one can type it in."""
    rank, machine, cyclic = question
    gpus = str(machine)
    if len(machine) > 20:
        gpus = f"[{machine[0]}, *[{machine[1]}] * {len(machine) - 2}, {machine[-1]}]"
    return f"rank_coordinates({rank}, {gpus}, cyclic={cyclic})"
