"""The grader of `load_once`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.events import Event, Kind
from graders.grading import compare
from graders.grading.cases import both
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, per_rank
from graders.units.one_by_one import one_by_one
from graders.units.unit_02.drivers import data as drivers
from graders.units.unit_02.drivers.data import LoadingReply


@dataclass(frozen=True, slots=True)
class Loading:
    """nodes, devices: of the cluster. failing: the ranks on which load() raises an error."""

    nodes: int = feature(1, lambda nodes: compare.counted(nodes, "node"))
    devices: int = feature(4, lambda devices: f"{compare.counted(devices, 'rank')} on each")
    failing: tuple[int, ...] = feature(
        (), lambda failing: f"an error of load() on rank {failing[0]}" if failing else ""
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
            how=lambda tried: tried.seen,
        ),
        Criterion(
            "one first rank on each node",
            1,
            "Each node has its own disk. dist.get_node_local_rank() is 0 once on every node; get_rank() is 0 "
            "once in all. The first ranks of all nodes load at once: none has another to wait for.",
            needs=("others wait for the first", "every rank has the data"),
            vary=both(nodes=2, devices=2) + both(nodes=3, devices=1),
        ),
        Criterion(
            "an error frees the others",
            1,
            "If load() raises before the barrier, the others wait in it for ever. `try: ... finally:` runs "
            "the barrier either way, and lets the error through.",
            needs=("others wait for the first", "every rank has the data"),
            vary=both(failing=(0,)) + both(nodes=2, devices=2, failing=(2,)),
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
)
def load_once(answer: Answer, case: Loading, rng: Rng) -> tuple[Finding, Finding | None]:
    """On each node one rank loads before the others, and at once. Devices are so slow that a `load` takes a
    virtual second.
    """
    cluster = Cluster(nodes=case.nodes, devices_per_node=case.devices, flops=2.0 * drivers.LOAD_SIDE**3)
    values = [rng.normal(3) for _ in range(cluster.size)]
    observed = answer.launch(
        drivers.loading, per_rank(values), [*case.failing], ranks=cluster.size, cluster=cluster
    )
    if case.failing:
        return after_error(observed.results, case.failing[0]), None
    return first_alone(observed, cluster), all_loaded(observed.results, values)


def all_loaded(replies: Sequence[LoadingReply], values: Sequence[Tensor]) -> Finding:
    """Passes if every rank called `load` once and returned what it gave, values[r]."""
    for rank, (reply, value) in enumerate(zip(replies, values, strict=True)):
        if reply.calls != 1:
            return Finding(False, f"rank {rank} called load() {reply.calls} times; expected once.")
        finding = compare.close(reply.result, value, f"what rank {rank} returned")
        if not finding.passed:
            return finding
    return Finding(True, f"each of the {len(values)} ranks called load() once and returned its value.")


def first_alone(observed: Observed[Any], cluster: Cluster) -> Finding:
    """Passes if on every node local rank 0 loads at once, and has loaded before any other rank begins."""
    for first in range(0, cluster.size, cluster.devices_per_node):
        members = range(first, first + cluster.devices_per_node)
        loads = [loads_of(observed, rank) for rank in members]
        if not all(loads):
            return Finding(False, f"rank {members[loads.index([])]} never calls load().")
        own, *others = (each[0] for each in loads)
        if own.start > 0.5:
            text = f"rank {first}, the first of its node, begins to load at {own.start:.1f} s"
            return Finding(False, f"{text}; expected at once, whatever other nodes do.")
        early = [load for load in others if load.start < own.end]
        if early:
            text = (
                f"rank {early[0].rank} begins to load at {early[0].start:.1f} s, and rank {first}, the first"
            )
            return Finding(False, f"{text} of its node, has loaded at {own.end:.1f} s.")
    return Finding(True, "One rank of each node loads at once, the others when it has loaded.")


def after_error(replies: Sequence[LoadingReply], failing: int) -> Finding:
    """Passes if the first rank whose load failed raised that error, and every other rank went on to load, or
    said that it was told of the error.
    """
    wanted = "KeyError: 'no such data set'"
    if replies[failing].raised != wanted:
        text = f"load() raised {wanted} on rank {failing}, and load_once there raised"
        return Finding(False, f"{text} {replies[failing].raised or 'nothing'}; expected the same error.")
    for rank, reply in enumerate(replies):
        if reply.calls != 1 and not reply.raised:
            text = f"after the error on rank {failing}, rank {rank} called load() {reply.calls} times"
            return Finding(False, f"{text}; expected one call, as if nothing had happened.")
    return Finding(True, "Where load() raises load_once does; nobody is left waiting.")


def loads_of(observed: Observed[Any], rank: int) -> list[Event]:
    """When a rank called load(), in order."""
    return [e for e in observed.events if e.rank == rank and e.kind is Kind.SPAN and e.op == "load"]
