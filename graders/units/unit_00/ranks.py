"""Unit 00, ranks: the same function everywhere."""

from collections.abc import Sequence

from course_lib.cluster.topology import Cluster
from graders.grading import compare
from graders.grading.communication import calls_of, only_calls
from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, PlainData, Rng, exercise
from graders.units.drivers import call


@exercise(
    minutes=3,
    difficulty=1,
    rubric=(
        Criterion(
            "rank",
            1,
            "The first of the pair is this process's number in the whole group, not on its node, as an int.",
        ),
        Criterion(
            "world size",
            1,
            "The second of the pair is how many ranks there are altogether, on all nodes.",
            needs=(),
        ),
        Criterion(
            "no messages",
            1,
            "Every rank was told both numbers when it started; nobody has to be asked.",
            needs=("rank", "world size"),
        ),
    ),
    hints=(
        "Whom can a process ask without a message? torch.distributed has a function for each number: "
        "get_rank() and get_world_size().",
    ),
)
def who_am_i(answer: Answer, rng: Rng) -> Findings:
    """On one node and on several, where local numbers differ from global ones."""
    devices = rng.integer(2, 3)
    nodes = rng.integer(2, 3)
    clusters = [Cluster(devices_per_node=rng.integer(3, 5)), Cluster(nodes=nodes, devices_per_node=devices)]
    runs = [answer.launch(call, ranks=cluster.size, cluster=cluster) for cluster in clusters]

    seen = list(zip(clusters, runs, strict=True))
    yield "rank", _every_pair(0, seen)
    yield "world size", _every_pair(1, seen)
    yield "no messages", only_calls(calls_of(runs), (), "who_am_i")


def _every_pair(position: int, runs: Sequence[tuple[Cluster, Observed[PlainData]]]) -> Finding:
    """Passes if on every rank the pair's item at `position` is the rank (0) or the world size (1)."""
    name = ("rank", "world size")[position]
    for cluster, observed in runs:
        for rank, seen in enumerate(observed.results):
            where = f"rank {rank} of {cluster.size}, on {compare.counted(cluster.nodes, 'node')}"
            if type(seen) is not tuple or len(seen) != 2:
                return Finding(False, f"{where}, returned {seen!r:.80}; expected a pair (a tuple).")
            expected = (rank, cluster.size)[position]
            if type(seen[position]) is not int or seen[position] != expected:
                text = f"{where}, has {seen[position]!r:.80} as its {name}; expected {expected}"
                return Finding(False, f"{text}.")
    worlds = " and ".join(
        f"{compare.counted(cluster.size, 'rank')} on {compare.counted(cluster.nodes, 'node')}"
        for cluster, _ in runs
    )
    return Finding(True, f"The {name} is right on every rank, with {worlds}.")
