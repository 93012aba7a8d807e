"""The grader of `load_once`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.events import Event, Kind
from graders.grading import compare
from graders.grading.answer import AnswerFailed
from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, per_rank
from graders.units.one_by_one import one_by_one
from graders.units.unit_02.drivers import data as drivers
from graders.units.unit_02.replies import LoadingReply

Loaded = tuple[Sequence[LoadingReply], Sequence[Tensor | None]]
"""What each rank did, and what its load() gave."""


@dataclass(frozen=True, slots=True)
class Loading:
    """nodes, devices: of the cluster. late: the rank whose load() takes longer, if any. nothing: whether
    load() returns None. failing: the ranks on which it raises an error.
    """

    nodes: int = feature(1, lambda nodes: compare.counted(nodes, "node"))
    devices: int = feature(4, lambda devices: f"{compare.counted(devices, 'rank')} on each")
    late: int | None = None
    nothing: bool = feature(False, lambda nothing: "a load() that returns None" if nothing else "")
    failing: tuple[int, ...] = feature(
        (), lambda failing: f"an error of load() on {[*failing]}" if failing else ""
    )


@one_by_one(
    base=Loading(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "others wait for the first",
            1,
            "Every rank calls load(). A barrier holds the others back until the first rank has loaded: the "
            "first calls it after its load(), the others before theirs.",
        ),
        Criterion(
            "every rank has the data",
            1,
            "Every rank calls load() once, first or later, and returns what it gave.",
            vary=vary(nothing=(True,)),
            how=lambda tried: None if tried.case.features.failing else all_loaded(*tried.seen),
        ),
        Criterion(
            "one first rank on each node",
            1,
            "Each node has its own disk. dist.get_node_local_rank() is 0 once on every node; get_rank() is 0 "
            "once in all. The first ranks of all nodes load at once: none has another to wait for.",
            needs=("others wait for the first", "every rank has the data"),
            # The first of the second node loads longer than rank 0, for which nobody has to wait there.
            vary=both(nodes=2, devices=2, late=2) + both(nodes=3, devices=1),
        ),
        Criterion(
            "an error frees the others",
            1,
            "If load() raises before the barrier, the others wait in it for ever. `try: ... finally:` runs "
            "the barrier either way, and lets the error through.",
            needs=("others wait for the first", "every rank has the data"),
            vary=both(failing=(0,)) + both(nodes=2, devices=2, failing=(2, 3)) + both(failing=(1,)),
        ),
    ),
    hints=(
        "How does a rank learn that it is the first of its node, and not of all? dist.get_node_local_rank() "
        "is 0 there.",
        "When does dist.barrier() return? When every rank has called it. Each calls it once; what differs "
        "is whether load() comes before or after.",
        "What must happen on a first rank whose load() raises? It comes to the barrier all the same: "
        "`finally`.",
    ),
    possible=lambda case: not (case.nothing and (case.failing or case.nodes > 1)),
)
def load_once(answer: Answer, case: Loading, rng: Rng) -> tuple[Finding, Loaded]:
    """On each node one rank loads before the others, and at once."""
    cluster = loading_cluster(case.nodes, case.devices)
    if case.failing:
        return _after_errors(answer, rng.normal(3), [*case.failing], cluster), ([], [])
    if case.late is not None:
        cluster = cluster.with_straggler(case.late)
    values = [None if case.nothing else rng.normal(3) for _ in range(cluster.size)]
    observed = answer.launch(drivers.loading, per_rank(values), ranks=cluster.size, cluster=cluster)
    checks = (first_alone, first_is_heard, first_at_once) if case.nodes > 1 else (first_alone,)
    found = compare.first_failure(check(observed, cluster) for check in checks)
    return found, (observed.results, values)


def loading_cluster(nodes: int, devices: int) -> Cluster:
    """Devices so slow that one `load` takes a virtual second."""
    flops = 2.0 * drivers.LOAD_SIDE**3
    return Cluster(nodes=nodes, devices_per_node=devices, flops=flops)


def all_loaded(replies: Sequence[LoadingReply], values: Sequence[Tensor | None]) -> Finding:
    """Passes if every rank called `load` once and returned what it gave, values[r], which may be None."""
    for rank, (reply, value) in enumerate(zip(replies, values, strict=True)):
        if reply.calls != 1:
            gave = " (it gives None here, as a mere download does)" if value is None else ""
            return Finding(False, f"rank {rank} called load() {reply.calls} times{gave}; expected once.")
        what = f"what rank {rank} returned"
        if value is None:
            finding = compare.equal(reply.result, None, what)
        else:
            finding = compare.close(reply.result, value, what)
        if not finding.passed:
            return finding
    return Finding(True, f"Each of the {len(values)} ranks called load() once and returned its value.")


def first_alone(observed: Observed[Any], cluster: Cluster) -> Finding:
    """Passes if on every node local rank 0's load had ended before any other rank's began."""
    for node in range(cluster.nodes):
        members = [rank for rank in range(cluster.size) if cluster.node_of(rank) == node]
        loads = [_marks(observed, rank, "load") for rank in members]
        if not all(loads):
            return Finding(False, f"rank {members[loads.index([])]} never calls load().")
        first, *others = (marks[0] for marks in loads)
        early = [load for load in others if load.start < first.end]
        if early:
            text = (
                f"rank {early[0].rank} begins to load at {early[0].start:.1f} s; "
                f"rank {members[0]}, the first of its node, has loaded at {first.end:.1f} s"
            )
            return Finding(False, f"{text}.")
    nodes = "the node" if cluster.nodes == 1 else f"each of the {cluster.nodes} nodes"
    return Finding(True, f"One rank of {nodes} loads first, the others when it has loaded.")


def first_is_heard(observed: Observed[Any], cluster: Cluster) -> Finding:
    """Passes unless a rank has, before it loads, only received what came from others than the first of its
    node. Simulated ranks leave a broadcast together; real ones when they have what the root sent.
    """
    for rank in range(cluster.size):
        first = rank - rank % cluster.devices_per_node
        load = _marks(observed, rank, "load")[0]
        calls = [call for call in observed.communication(rank) if call.sequence < load.sequence]
        roots = {call.peer if call.op in ("broadcast", "scatter") else first for call in calls}
        if rank != first and roots and first not in roots:
            text = f"rank {rank} loads when it has a {calls[-1].op} from rank {calls[-1].peer}"
            return Finding(False, f"{text}; the first of its node is rank {first}, which may take longer.")
    return Finding(True, "Each rank has waited for the first of its node.")


def first_at_once(observed: Observed[Any], cluster: Cluster) -> Finding:
    """Passes if on no node local rank 0 waited for another's load, which takes a second, or might have waited
    for one that comes late.
    """
    for first in range(0, cluster.size, cluster.devices_per_node):
        load = _marks(observed, first, "load")[0]
        if load.start > 0.5:
            text = f"rank {first}, the first of its node, begins to load at {load.start:.1f} s"
            return Finding(False, f"{text}; expected at once, whatever other nodes do.")
        before = [call.op for call in observed.communication(first) if call.sequence < load.sequence]
        if before:
            text = f"rank {first}, the first of its node, calls {before[0]} before it loads"
            return Finding(False, f"{text}; expected to load at once, also if others come later.")
    return Finding(True, "The first rank of each node loads at once, the others when it has loaded.")


def _after_errors(answer: Answer, value: Tensor, failing: list[int], cluster: Cluster) -> Finding:
    """Passes if first ranks whose load failed raised that error, and every other rank went on to load."""
    given, where = (value, failing), " and ".join(map(str, failing))
    wanted = "KeyError: 'no such data set'"
    try:
        replies = answer.launch(drivers.failing_load, *given, ranks=cluster.size, cluster=cluster).results
    except AnswerFailed as failure:
        said = f"Here load() raises {wanted} on rank {where}.\n{failure.report}"
        raise AnswerFailed(failure.kind, said, failure.error, failure.deadlock) from None
    for rank, reply in enumerate(replies):
        first = rank % cluster.devices_per_node == 0
        # Who was told that the first one failed may say so in words of its own.
        if (first or reply.calls) and rank in failing and reply.raised != wanted:
            text = f"load() raised {wanted} on rank {rank}, and load_once there raised"
            return Finding(False, f"{text} {reply.raised or 'nothing'}; expected the same error.")
        if rank in failing and not reply.raised:
            text = f"load() raised {wanted} on rank {rank}, and load_once there returned"
            return Finding(False, f"{text}; expected the same error there.")
        if reply.calls > 1 or (reply.calls != 1 and not reply.raised):
            text = f"after the error on rank {failing[0]}, rank {rank} called load() {reply.calls} times"
            return Finding(False, f"{text}; expected one call, as if nothing had happened.")
    return Finding(True, f"Where load() raises (rank {where}) load_once does; nobody is left waiting.")


def _marks(observed: Observed[Any], rank: int, label: str) -> list[Event]:
    """A rank's marks of this label, in order."""
    return [e for e in observed.events if e.rank == rank and e.kind is Kind.SPAN and e.op == label]
