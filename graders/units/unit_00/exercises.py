"""Graders of unit 00: ranks, where they sit, the first messages, and Amdahl's law."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer, Observed
from graders.grading.exercise import Criterion, Finding, exercise
from graders.grading.rng import Rng

UNIT = "00_hello_ranks"


# --------------------------------------------------------------------------------------- amdahl_speedup


@exercise(
    unit=UNIT,
    name="amdahl_speedup",
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            "one worker", 1, "One worker takes as long as before, whatever the fraction: a speedup of 1."
        ),
        Criterion(
            "nothing serial",
            1,
            "If all of the work can be shared, w workers are w times as fast: old time / new time.",
        ),
        Criterion(
            "partly serial",
            1,
            "The serial part takes as long as ever; only the parallel part is divided by the workers. Add "
            "the times, then divide.",
        ),
    ),
    hints=(
        "Let one worker take 1 second. How long is the serial part of it, and how long the parallel part?",
        "With w workers the parallel part takes parallel_fraction / w. What is the time altogether?",
    ),
)
def amdahl_speedup(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """The two ends first, then what lies between them."""
    fraction = _draw_fraction(rng)
    yield _speedups("one worker", answer, [(fraction, 1), (0.0, 1), (1.0, 1)])
    yield _speedups("nothing serial", answer, [(1.0, rng.integer(2, 100)), (1.0, rng.integer(101, 5000))])
    cases = [(_draw_fraction(rng), rng.integer(2, 300)) for _ in range(3)]
    limits = [(0.0, rng.integer(2, 100)), (_draw_fraction(rng), 10**9)]
    yield _speedups("partly serial", answer, [*limits, *cases])


def _draw_fraction(rng: Rng) -> float:
    return rng.integer(50, 990) / 1000


def _speedups(criterion: str, answer: Answer, cases: list[tuple[float, int]]) -> Finding:
    """Passes if the answer agrees with Amdahl (1967) in every case."""
    finding = Finding(criterion, False, "")
    for fraction, workers in cases:
        value = answer.call("call", fraction, workers)
        expected = 1 / ((1 - fraction) + fraction / workers)
        what = f"the speedup of {_count(workers, 'worker')} with a parallel fraction of {fraction:g}"
        finding = compare.near(criterion, value, expected, what)
        if not finding.passed:
            return finding
    return finding


# ----------------------------------------------------------------------------------------------- who_am_i


@exercise(
    unit=UNIT,
    name="who_am_i",
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
        ),
        Criterion(
            "no messages", 1, "Every rank was told both numbers when it started; nobody has to be asked."
        ),
    ),
    hints=("torch.distributed has a function for each of the two: get_rank() and get_world_size().",),
)
def who_am_i(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """On one node and on several, where local numbers differ from global ones."""
    devices = rng.integer(2, 3)
    nodes = rng.integer(2, 3)
    clusters = [Cluster(devices_per_node=rng.integer(3, 5)), Cluster(nodes=nodes, devices_per_node=devices)]
    runs = [answer.launch("call", ranks=cluster.size, cluster=cluster) for cluster in clusters]

    yield _every_pair("rank", 0, list(zip(clusters, runs, strict=True)))
    yield _every_pair("world size", 1, list(zip(clusters, runs, strict=True)))
    calls = [call for run in runs for rank in range(len(run.results)) for call in run.calls(rank)]
    yield compare.no_calls("no messages", calls, calls, "who_am_i")


def _every_pair(criterion: str, position: int, runs: Sequence[tuple[Cluster, Observed]]) -> Finding:
    """Passes if on every rank the pair's item at `position` is the rank (0) or the world size (1)."""
    for cluster, observed in runs:
        for rank, seen in enumerate(observed.results):
            where = f"rank {rank} of {cluster.size}, on {_count(cluster.nodes, 'node')}"
            if type(seen) is not tuple or len(seen) != 2:
                return Finding(
                    criterion, False, f"{where}, returned {seen!r:.80}; expected a pair (a tuple)."
                )
            expected = (rank, cluster.size)[position]
            if type(seen[position]) is not int or seen[position] != expected:
                text = f"{where}, has {seen[position]!r:.80} as its {criterion}; expected {expected}"
                return Finding(criterion, False, f"{text}.")
    worlds = " and ".join(f"{cluster.size} ranks on {_count(cluster.nodes, 'node')}" for cluster, _ in runs)
    return Finding(criterion, True, f"The {criterion} is right on every rank, with {worlds}.")


# --------------------------------------------------------------------------------------- rank_coordinates


@exercise(
    unit=UNIT,
    name="rank_coordinates",
    minutes=4,
    difficulty=1,
    rubric=(
        Criterion(
            "node",
            1,
            "Ranks fill one node before the next begins: with 4 GPUs a node, ranks 0 to 3 are on node 0.",
        ),
        Criterion(
            "local rank", 1, "How many ranks of the same node come before this one? It starts at 0 again."
        ),
        Criterion(
            "any GPUs per node", 1, "Take the number from gpus_per_node; with one a node all is simple."
        ),
    ),
    hints=(
        "Write ranks 0 to 7 down in two rows of four. Row and column are what is asked for.",
        "Whole-number division and its remainder: `//` and `%`, or `divmod`, which gives both.",
    ),
)
def rank_coordinates(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Node and local rank of all ranks of a machine, then of machines with other numbers of GPUs."""
    gpus, nodes = rng.integer(3, 6), rng.integer(3, 5)
    yield _coordinates("node", answer, gpus, nodes, (0,))
    yield _coordinates("local rank", answer, gpus, nodes, (1,))
    findings = [_coordinates("any GPUs per node", answer, g, 3, (0, 1)) for g in (1, 2, 7, 8)]
    yield _first_wrong(findings)


def _coordinates(
    criterion: str, answer: Answer, gpus: int, nodes: int, positions: tuple[int, ...]
) -> Finding:
    """Passes if every rank's pair is right in the given positions."""
    ranks = list(range(gpus * nodes))
    for rank in ranks:
        pair = answer.call("call", rank, gpus)
        expected = divmod(rank, gpus)
        text = f"rank {rank} with {_count(gpus, 'GPU')} a node: got {pair!r:.80}"
        if type(pair) is not tuple or len(pair) != 2:
            return Finding(criterion, False, f"{text}, expected a pair (a tuple).")
        wrong = [p for p in positions if type(pair[p]) is not int or pair[p] != expected[p]]
        if wrong:
            name = ("node", "local rank")[wrong[0]]
            return Finding(criterion, False, f"{text}, expected {name} {expected[wrong[0]]} (whole numbers).")
    right = " and ".join(("node", "local rank")[p] for p in positions)
    return Finding(criterion, True, f"The {right} of {_count(len(ranks), 'rank')} is right, {gpus} a node.")


# ---------------------------------------------------------------------------------------- pass_the_token


@exercise(
    unit=UNIT,
    name="pass_the_token",
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "the token comes back",
            1,
            "Only rank 0 may send first. The rank after p - 1 is 0: think of (rank + 1) % world_size.",
        ),
        Criterion(
            "every rank returns what it held",
            1,
            "Rank r last held the token when it sent it on: with its own rank added, and not those after it.",
        ),
        Criterion("only send and recv", 1, "A token is passed by hand; no collective is needed."),
        Criterion(
            "one message a rank, to the next",
            1,
            "Each rank receives once, from the rank before it, and sends once, to the rank after it.",
        ),
        Criterion("a world of one", 1, "Rank 0 has no neighbour then, and nobody can send to itself."),
    ),
    hints=(
        "What rank 0 does differs from what all others do: write `if rank == 0: ... else: ...`.",
        "Rank 0: send to the next, then receive from the last. All others: receive, add, send.",
        "dist.recv(tensor, src) writes into the tensor that it is given, and any tensor of the right shape "
        "and dtype will do: the one that your function got, for example.",
        "With one rank there is no one to send to: return at once.",
    ),
)
def pass_the_token(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Values first, in worlds of several sizes and tensors of several dtypes, then who sent what to whom."""
    worlds = [_draw_tokens(rng, *world) for world in _WORLDS]
    runs = [_passed(answer, tokens) for tokens in worlds]

    yield _first_wrong(
        [_returned("the token comes back", t, run, (0,)) for t, run in zip(worlds, runs, strict=True)]
    )
    name = "every rank returns what it held"
    yield _first_wrong([_returned(name, t, run, range(len(t))) for t, run in zip(worlds, runs, strict=True)])
    calls = [call for run in runs for rank in range(len(run.results)) for call in run.calls(rank)]
    yield compare.no_calls(
        "only send and recv", calls, sorted(set(calls) - {"send", "recv"}), "pass_the_token"
    )
    yield _first_wrong([_round_the_ring(run) for run in runs])
    yield _alone(answer, rng)


_WORLDS = ((2, torch.float32, (4,)), (3, torch.int64, (2, 3)), (5, torch.float64, ()))
"""Ranks, and the token's dtype and shape: none of them may be taken for granted."""


def _draw_tokens(rng: Rng, ranks: int, dtype: torch.dtype, shape: tuple[int, ...]) -> list[Tensor]:
    """What each rank is called with: rank 0 the token, the others something of its kind that is not it."""
    return [rng.integers(100 * (rank + 1), 100 * (rank + 1) + 50, *shape).to(dtype) for rank in range(ranks)]


def _passed(answer: Answer, tokens: list[Tensor]) -> Observed:
    return answer.launch("call", per_rank(tokens), ranks=len(tokens))


def _returned(criterion: str, tokens: list[Tensor], observed: Observed, ranks: Sequence[int]) -> Finding:
    """Passes if each of the ranks returned the token as it was when that rank last held it."""
    world = len(tokens)
    held = [tokens[0] + added for added in accumulate(range(world))]
    held[0] = held[-1]  # rank 0 is the first to hold it, and the last
    finding = Finding(criterion, True, "")
    for rank in ranks:
        what = f"what rank {rank} of {world} returned (the token began as {tokens[0].tolist()})"
        finding = compare.close(criterion, observed.results[rank], held[rank], what)
        if not finding.passed:
            return finding
    return finding


def _round_the_ring(observed: Observed) -> Finding:
    """Passes if each rank receives once, from the rank before it, and sends once, to the one after it.

    In which order is no matter: what has the right value cannot have been sent before it arrived.
    """
    criterion = "one message a rank, to the next"
    world = len(observed.results)
    for rank in range(world):
        next_rank, previous = (rank + 1) % world, (rank - 1) % world
        expected = [("recv", previous), ("send", next_rank)]
        seen = [(event.op, event.peer) for event in observed.communication(rank)]
        if sorted(seen, key=str) != expected:
            text = f"rank {rank} of {world} made the calls {_calls(seen)}; expected {_calls(expected)}"
            return Finding(criterion, False, f"{text}.")
    return Finding(
        criterion, True, f"{world} ranks, {observed.traffic.messages} messages, each to the next rank."
    )


def _alone(answer: Answer, rng: Rng) -> Finding:
    """Passes if the only rank of a world returns the token and sends nothing."""
    criterion = "a world of one"
    tokens = _draw_tokens(rng, 1, torch.float32, (3,))
    observed = _passed(answer, tokens)
    finding = _returned(criterion, tokens, observed, (0,))
    if not finding.passed:
        return finding
    calls = observed.calls(0)
    return Finding(
        criterion, not calls, f"The only rank returned the token and called {', '.join(calls) or 'nothing'}."
    )


# ------------------------------------------------------------------------------------------------ shared


def _first_wrong(findings: Sequence[Finding]) -> Finding:
    """The first that did not pass, or else the last."""
    return next((finding for finding in findings if not finding.passed), findings[-1])


def _count(number: int, what: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _calls(calls: Sequence[tuple[str, int | None]]) -> str:
    """`recv from 0, send to 2`."""
    words = {"send": "to", "recv": "from"}
    return ", ".join(f"{op} {words.get(op, 'with')} {peer}" for op, peer in calls) or "(none)"
