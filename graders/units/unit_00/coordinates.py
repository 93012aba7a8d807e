"""Unit 00, where a rank sits."""

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call


@exercise(
    minutes=4,
    difficulty=1,
    rubric=(
        Criterion(
            "node",
            1,
            "Ranks fill one node before the next begins: with 4 GPUs a node, ranks 0 to 3 are on node 0.",
        ),
        Criterion(
            "local rank",
            1,
            "How many ranks of the same node come before this one? It starts at 0 again.",
            needs=(),
        ),
        Criterion(
            "any GPUs per node",
            1,
            "Take the number from gpus_per_node; with one a node all is simple.",
            needs=("node", "local rank"),
        ),
    ),
    hints=(
        "What do you see when you write ranks 0 to 7 down in two rows of four? Row and column are what is "
        "asked for.",
        "Which two operations on whole numbers give them? `//` and `%`, or `divmod`, which gives both.",
    ),
)
def rank_coordinates(answer: Answer, rng: Rng) -> Findings:
    """Node and local rank of all ranks of a machine, then of machines with other numbers of GPUs."""
    gpus, nodes = rng.integer(3, 6), rng.integer(3, 5)
    yield "node", _coordinates(answer, gpus, nodes, (0,))
    yield "local rank", _coordinates(answer, gpus, nodes, (1,))
    yield "any GPUs per node", compare.first_failure(_coordinates(answer, g, 3, (0, 1)) for g in (1, 2, 7, 8))


def _coordinates(answer: Answer, gpus: int, nodes: int, positions: tuple[int, ...]) -> Finding:
    """Passes if every rank's pair is right in the given positions."""
    ranks = list(range(gpus * nodes))
    for rank in ranks:
        pair = answer.call(call, rank, gpus)
        expected = divmod(rank, gpus)
        text = f"rank {rank} with {compare.counted(gpus, 'GPU')} a node: got {pair!r:.80}"
        if type(pair) is not tuple or len(pair) != 2:
            return Finding(False, f"{text}, expected a pair (a tuple).")
        wrong = [p for p in positions if type(pair[p]) is not int or pair[p] != expected[p]]
        if wrong:
            name = ("node", "local rank")[wrong[0]]
            return Finding(False, f"{text}, expected {name} {expected[wrong[0]]} (whole numbers).")
    right = " and ".join(("node", "local rank")[p] for p in positions)
    return Finding(True, f"The {right} of {compare.counted(len(ranks), 'rank')} is right, {gpus} a node.")
