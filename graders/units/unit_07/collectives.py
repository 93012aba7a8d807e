"""What the graders of hand-written collectives share: what a call is given, and what must stand where afterwards."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer, Observed, PlainData
from graders.grading.exercise import Finding, Findings
from graders.grading.rng import Rng

Arguments = list[Any]
"""Positional arguments of one rank: tensors, lists of tensors, None, numbers."""


@dataclass(frozen=True, slots=True)
class World:
    """A setting in which a collective is called.

    ranks: of the calling group. length: elements of the whole tensor, or its rows if it has `columns`.
    root: place of the root in the group. layout: how tensors stand in memory, see the driver's LAYOUTS.
    members: the group's global ranks where it is not the default group. node: ranks a node.
    """

    ranks: int
    length: int
    dtype: torch.dtype = torch.float32
    root: int = 0
    columns: int = 0
    layout: str = "contiguous"
    members: tuple[int, ...] | None = None
    node: int = 1

    @property
    def launched(self) -> int:
        """How many ranks the launch has: more than the group, if that is not the default group."""
        return self.ranks if self.members is None else self.members[-1] + 2

    @property
    def global_root(self) -> int:
        return self.root if self.members is None else self.members[self.root]

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        group = "" if self.members is None else f" (global ranks {', '.join(map(str, self.members))})"
        size = f"a matrix of {self.length} x {self.columns}" if self.columns else f"{self.length} elements"
        layout = "" if self.layout == "contiguous" else f", {self.layout}, not contiguous"
        return f"{self.ranks} ranks{group}, {size} of {kind}{layout}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank must have after the call.

    result: what is returned; `returned`: the position of the argument that it must be, None for a new object.
    arguments: what these hold afterwards; ANYTHING where that is left open.
    """

    result: Any
    arguments: Arguments
    returned: int | None = 0


ANYTHING = object()


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: `arguments(rng, world)` and `outcomes(world, arguments)` have an item for each rank.

    options: keyword arguments, the same on every rank.
    """

    arguments: Callable[[Rng, World], list[Arguments]]
    outcomes: Callable[[World, list[Arguments]], list[Outcome]]
    options: Callable[[World], dict[str, PlainData]] = field(default=lambda world: {})


@dataclass(frozen=True, slots=True)
class Played:
    """A launch of the answer: for each world what was expected, and what each rank of the group told."""

    worlds: Sequence[World]
    outcomes: list[list[Outcome]]
    told: list[list[Any]]
    observed: Observed

    @property
    def calls(self) -> list[str]:
        return [call for rank in range(len(self.observed.results)) for call in self.observed.calls(rank)]


def play(
    answer: Answer,
    rng: Rng,
    collective: Collective,
    worlds: Sequence[World],
    cluster: Cluster | None = None,
) -> Played:
    """Let the answer work in each of `worlds`, one after the other in one launch.

    The worlds differ in length and dtype only.
    """
    first = worlds[0]
    members = list(first.members) if first.members is not None else None
    inputs = [collective.arguments(rng, world) for world in worlds]
    places = members or list(range(first.ranks))
    cases: list[list[Arguments]] = [[] for _ in range(first.launched)]
    for place, rank in enumerate(places):
        cases[rank] = [per_world[place] for per_world in inputs]
    observed = answer.launch(
        "unit_07.collective",
        per_rank(cases),
        collective.options(first),
        first.layout,
        members,
        ranks=first.launched,
        cluster=cluster,
    )
    told = [[_case(observed.results[rank], index) for rank in places] for index in range(len(worlds))]
    outcomes = [collective.outcomes(world, given) for world, given in zip(worlds, inputs, strict=True)]
    return Played(worlds, outcomes, told, observed)


def results(*plays: Played) -> Finding:
    """Passes if every rank returned what it must."""
    for world, outcome, told, where in _each_rank(plays):
        seen = told["result"] if told["returned"] is None else told["arguments"][told["returned"]]
        finding = _same(seen, outcome.result, f"what {where} returned", world)
        if not finding.passed:
            return finding
    return Finding(True, f"right with {_listed(plays)}.")


def in_place(*plays: Played) -> Finding:
    """Passes if every argument holds afterwards what it must, and the right object is returned."""
    for world, outcome, told, where in _each_rank(plays):
        for position, wanted in enumerate(outcome.arguments):
            if wanted is ANYTHING:
                continue
            what = f"argument {position + 1} of {where}, after the call,"
            finding = _same(told["arguments"][position], wanted, what, world)
            if not finding.passed:
                return finding
        if told["returned"] != outcome.returned:
            wanted = "a new tensor" if outcome.returned is None else f"argument {outcome.returned + 1} itself"
            got = "another object" if told["returned"] is None else f"argument {told['returned'] + 1} itself"
            return Finding(False, f"{where} returned {got}; expected {wanted}.")
    return Finding(True, "what was to change has changed in place, and nothing else has.")


def layouts(*plays: Played) -> Finding:
    """Passes if results and arguments are right and the memory between the elements was left alone."""
    for finding in (results(*plays), in_place(*plays)):
        if not finding.passed:
            return finding
    for _, _, told, where in _each_rank(plays):
        if not told["gaps_kept"]:
            return Finding(False, f"{where} wrote into memory between the elements of a tensor.")
    return Finding(True, f"right with {_listed(plays)}.")


def only_messages(*plays: Played) -> Finding:
    """Passes if there are no calls but send and recv, and every message was received."""
    calls = [call for played in plays for call in played.calls]
    finding = compare.no_calls(calls, sorted(set(calls) - {"send", "recv"}), "the answer")
    lost = [text for played in plays for text in played.observed.unmatched]
    if finding.passed and lost:
        return Finding(False, f"{len(lost)} calls are still open at the end, the first: {lost[0]}.")
    return finding


def traffic(played: Played, allowance: Sequence[Allowance]) -> Finding:
    """Passes if no rank of the only world sends more than it may."""
    world = played.worlds[0]
    most = 0
    for rank, allowed in enumerate(allowance):
        seen = played.observed.traffic[rank]
        most = max(most, seen.sent)
        if seen.messages > allowed.messages or seen.sent > allowed.nbytes:
            return Finding(
                False,
                f"with {world}, rank {rank} sends {seen.messages:,} messages of {seen.sent:,} bytes "
                f"altogether; at most {allowed.messages:,} messages, {allowed.nbytes:,} bytes are allowed.",
            )
    return Finding(True, f"with {world}, no rank sends more than {most:,} bytes.")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one rank may send in one call: so many messages, so many bytes."""

    messages: int
    nbytes: int


def neighbours_only(played: Played) -> Finding:
    """Passes if each rank sends to one rank only, and no two of them to the same."""
    targets: dict[int, set[int]] = {}
    for event in _sends(played):
        targets.setdefault(event.rank, set()).add(event.peer)
    for rank, peers in sorted(targets.items()):
        if len(peers) > 1:
            return Finding(
                False,
                f"rank {rank} sends to the ranks {sorted(peers)}; on a ring it sends to one.",
            )
    reached = {peer for peers in targets.values() for peer in peers}
    passed = len(reached) == len(targets)
    return Finding(passed, f"{len(targets)} ranks send to {len(reached)} different ranks.")


def bytes_between_nodes(played: Played, allowed: int) -> Finding:
    """Passes if the ranks of no node together send more than `allowed` bytes to other nodes."""
    node = played.worlds[0].node
    sent: Counter[int] = Counter()
    for event in _sends(played):
        if event.rank // node != event.peer // node:
            sent[event.rank // node] += event.sent
    what = "Bytes that a node sends to other nodes"
    return compare.at_most(max(sent.values(), default=0), allowed, what)


def bytes_within_nodes(played: Played, allowed: int) -> Finding:
    """Passes if no rank sends more than `allowed` bytes to ranks of its own node."""
    node = played.worlds[0].node
    sent: Counter[int] = Counter()
    for event in _sends(played):
        if event.rank // node == event.peer // node:
            sent[event.rank] += event.sent
    what = "Bytes that a rank sends within its node"
    return compare.at_most(max(sent.values(), default=0), allowed, what)


TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.int64: 0.0}
"""How far a sum may be off, relative and absolute: it may be added up in any order, integers exactly."""


LATENCY, BANDWIDTH = 1e-3, 1e6


MEASURED = Link(LATENCY, BANDWIDTH)
"""The link on which rounds are counted: 1 ms and 1 MB/s, so that both latency and bytes show."""


def seconds(messages: int, nbytes: float, link: Link = MEASURED) -> float:
    """How long so many messages take, one after another, of so many bytes altogether."""
    return messages * link.latency + nbytes / link.bandwidth


def duration(played: Played, allowed: float, rounds: str) -> Finding:
    """Passes if the only world's run took no longer than `allowed` seconds of virtual time."""
    return duration_of(played.observed, allowed, str(played.worlds[0]), rounds)


def duration_of(observed: Observed, allowed: float, world: str, rounds: str) -> Finding:
    """Passes if the run, on MEASURED links, took no longer than `allowed` seconds of virtual time."""
    taken = max((event.end for event in observed.events), default=0.0)
    text = (
        f"with {world} on links of 1 ms and 1 MB/s it takes {taken * 1e3:.3f} ms; "
        f"{rounds} take {allowed * 1e3:.3f} ms."
    )
    return Finding(taken <= allowed * (1 + 1e-9), text)


def measured(answer: Answer, rng: Rng, collective: Collective, world: World) -> Played:
    """One call on links whose times are easy to read, one device a node or `world.node` of them."""
    cluster = Cluster(
        nodes=-(-world.launched // world.node),
        devices_per_node=world.node,
        intra_node=MEASURED,
        inter_node=MEASURED,
    )
    return play(answer, rng, collective, [world], cluster)


def drawn(rng: Rng, world: World, length: int | None = None) -> Tensor:
    """Numbers of the world's dtype, so many or so many rows of them. Integers are so large that no
    floating-point type holds them exactly.
    """
    length = world.length if length is None else length
    shape = (length, world.columns) if world.columns else (length,)
    if world.dtype.is_floating_point:
        return rng.normal(*shape, dtype=world.dtype)
    return rng.integers(-(2**58), 2**58, *shape)


def drawn_members(rng: Rng, size: int) -> tuple[int, ...]:
    """Global ranks of a group that does not begin at 0 and has a gap."""
    start = rng.integer(1, 2)
    gap = rng.integer(1, size - 1)
    return tuple(start + place + (place >= gap) for place in range(size))


def common_findings(
    answer: Answer,
    rng: Rng,
    collective: Collective,
    basic: Sequence[World],
    many: Sequence[World],
    uneven: Sequence[Sequence[World]],
    subgroups: Sequence[World],
    values: str,
) -> Findings:
    """What holds for every collective: values, ranks, lengths, dtypes, in place, layout, group, messages.
    `values` is the name of the first criterion; worlds of one inner list share a launch.
    """
    first = [play(answer, rng, collective, [world]) for world in basic]
    yield values, results(*first)
    yield "any number of ranks", results(*(play(answer, rng, collective, [world]) for world in many))
    yield "any length", results(*(play(answer, rng, collective, worlds) for worlds in uneven))
    model = basic[-1]
    kinds = [replace(model, dtype=dtype) for dtype in (torch.float64, torch.int64)]
    yield "any dtype", results(play(answer, rng, collective, kinds))
    yield "in place", in_place(*first)
    # Five rows of three: cut flat, the parts are others than if rows are cut.
    models = [replace(model, layout="strided"), replace(model, length=5, columns=3, layout="transposed")]
    yield "any layout", layouts(*(play(answer, rng, collective, [each]) for each in models))
    grouped = [play(answer, rng, collective, [world]) for world in subgroups]
    yield "on a subgroup", layouts(*grouped)
    yield "only send and recv", only_messages(*first, *grouped)


def _common(answer: Answer, rng: Rng, collective: Collective, values: str, rooted: bool = False) -> Findings:
    """The findings that all collectives share; `rooted`: with roots other than 0."""

    def root(ranks: int) -> int:
        return rng.integer(0, ranks - 1) if rooted else 0

    return common_findings(
        answer,
        rng,
        collective,
        basic=[World(2, 8, root=int(rooted)), World(4, 12, root=2 * int(rooted))],
        many=[World(ranks, 4 * ranks, root=root(ranks)) for ranks in (1, 3, 5, 7, 8)],
        uneven=[
            [World(ranks, length, root=root_of) for length in lengths]
            for ranks, lengths in ((4, (1, 3, 6, 11)), (5, (2, 7, 13)))
            for root_of in [root(ranks)]
        ],
        subgroups=[
            World(size, 3 * size, layout="strided", members=drawn_members(rng, size), root=int(rooted))
            for size in (3, 4)
        ],
        values=values,
    )


class _Send(NamedTuple):
    """A message: global ranks and bytes."""

    rank: int
    peer: int
    sent: int


def _sends(played: Played) -> list[_Send]:
    events = played.observed.events
    return [_Send(e.rank, e.peer, e.sent) for e in events if e.op == "send" and e.peer is not None]


def _case(told: Any, index: int) -> Any:
    """What a rank told of case `index`; a dictionary without sense if its process was taken over."""
    nothing: dict[str, Any] = {"result": None, "returned": None, "arguments": [], "gaps_kept": False}
    if type(told) is not list or index >= len(told) or type(told[index]) is not dict:
        return nothing
    return {**nothing, **told[index]}


def _each_rank(plays: Sequence[Played]) -> Iterator[tuple[World, Outcome, Any, str]]:
    for played in plays:
        for world, outcomes, told in zip(played.worlds, played.outcomes, played.told, strict=True):
            for place, (outcome, seen) in enumerate(zip(outcomes, told, strict=True)):
                yield world, outcome, seen, f"rank {place} ({world})"


def _same(seen: Any, wanted: Any, what: str, world: World) -> Finding:
    """`judge.close` for a tensor, a list of tensors, or None."""
    if wanted is None:
        return Finding(seen is None, f"{what} is {type(seen).__name__}; expected None.")
    if isinstance(wanted, Tensor):
        tolerance = TOLERANCES[world.dtype]
        return compare.close(seen, wanted, what, rtol=tolerance, atol=tolerance)
    if type(seen) is not list or len(seen) != len(wanted):
        return Finding(False, f"{what} is {type(seen).__name__}; expected a list of {len(wanted)}.")
    finding = Finding(True, f"{what} is as expected.")
    for index, (item, expected) in enumerate(zip(seen, wanted, strict=True)):
        finding = _same(item, expected, f"item {index} of {what}", world)
        if not finding.passed:
            return finding
    return finding


def _listed(plays: Sequence[Played]) -> str:
    return "; ".join(str(world) for played in plays for world in played.worlds)


BYTES = 4
"""Bytes of an element where messages are measured: float32."""
