"""Launches of hand-written collectives, and what must stand where after a call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeGuard

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.answer import PlainData
from graders.grading.communication import MEASURED, Allowance, duration_within, traffic_within
from graders.grading.kinds import Kind
from graders.grading.kit import Answer, AnswerFailed, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_07 import drivers
from graders.units.unit_07.collective import ANYTHING, Arguments, Collective, Expected
from graders.units.unit_07.drivers import Called
from graders.units.unit_07.worlds import WHOSE, World, lacking


@dataclass(frozen=True, slots=True)
class Played:
    """A launch of the answer: for each world what was expected, and what each rank of the group told."""

    worlds: Sequence[World]
    expected: list[list[Expected]]
    told: list[list[Called]]
    observed: Observed[list[Called]]

    def if_right(self) -> "list[Played]":
        """This one if its results are right, else none: what is wrong is judged in another row."""
        return [self] if results(self).passed else []

    def there(self, finding: Finding) -> Finding:
        """The finding, which tells of this launch, with its worlds."""
        return replace(finding, seen=f"with {_listed([self])}, {finding.seen}")

    def traffic(self, allowance: Sequence[Allowance]) -> Finding:
        """Passes if no rank of the only world sends more than it may."""
        return traffic_within(self.observed, allowance, str(self.worlds[0]))

    def duration(self, allowed: float, rounds: str) -> Finding:
        """Passes if the only world's run took no longer than `allowed` seconds of virtual time."""
        return duration_within(self.observed, allowed, str(self.worlds[0]), rounds)


def play(
    answer: Answer,
    rng: Rng,
    collective: Collective,
    worlds: Sequence[World],
    cluster: Cluster | None = None,
) -> Played:
    """Let the answer work in each of `worlds`, one after the other in one launch.

    The worlds have as many ranks each; those of groups may have others.
    """
    launched = max(world.launched for world in worlds)
    inputs = [collective.arguments(rng, world) for world in worlds]
    calls = [[call for call, world in enumerate(worlds) if rank in world.places] for rank in range(launched)]
    cases: list[list[Arguments]] = [
        [inputs[call][worlds[call].places.index(rank)] for call in calls[rank]] for rank in range(launched)
    ]
    members = [list(world.members) if world.members is not None else None for world in worlds]
    observed = answer.launch(
        drivers.collective,
        per_rank(cases),
        list(map(collective.options, worlds)),
        [world.layout for world in worlds],
        members,
        ranks=launched,
        cluster=cluster,
    )
    told: list[list[Called]] = [[] for _ in worlds]
    for rank in range(launched):
        for called, call in compare.side_by_side(observed.results[rank], calls[rank]):
            told[call].append(called)
    expected = [collective.expected(world, given) for world, given in zip(worlds, inputs, strict=True)]
    return Played(worlds, expected, told, observed)


def results(*plays: Played) -> Finding:
    """Passes if every rank returned what it must; if it is what another rank must return, that is said."""
    return compare.first_failure(
        (
            _result(world, expected, [each.value for each, _ in compare.side_by_side(told, expected)], place)
            for played in plays
            for world, expected, told in zip(played.worlds, played.expected, played.told, strict=True)
            for place in range(len(expected))
        ),
        f"right with {_listed(plays)}.",
    )


def _result(world: World, expected: Sequence[Expected], values: Sequence[Any], place: int) -> Finding:
    """Passes if the rank at `place` returned what it must. values: what each rank returned."""
    what, value = f"what rank {place} ({world}) returned", values[place]
    finding = _same(value, expected[place].result, what, world)
    if finding.passed or not isinstance(value, Tensor):
        return finding
    others = (
        other
        for other, each in enumerate(expected)
        if each.result is not ANYTHING and _same(value, each.result, what, world).passed
    )
    whose = next(others, None)
    if whose is not None:
        return Finding(False, f"{finding.seen} It is what rank {whose} must return.")
    wanted = expected[place].result
    if not world.has_digits or not _has_digits(wanted) or not _has_digits(value):
        return finding
    if value.shape != wanted.shape:
        return finding
    told = f"{finding.seen} {WHOSE}"
    if missing := lacking(world, value, wanted):
        return Finding(False, f"{told} Rank {missing[0]}'s part is missing.", Kind.LACKS_A_RANK)
    return Finding(False, told, finding.kind)


def _has_digits(value: PlainData) -> TypeGuard[Tensor]:
    """Whether these are numbers in which one can see the ranks, see `drawn_of`, or sums of such."""
    if not isinstance(value, Tensor) or value.is_complex() or not value.numel():
        return False
    numbers = value.double()
    return bool((numbers == numbers.trunc()).all() and (numbers > 0).all())


def with_numbers(plays: Sequence[Played]) -> list[Played]:
    """Those of which numbers are told: none on the device meta."""
    return [played for played in plays if all(world.layout != "meta" for world in played.worlds)]


def in_place(*plays: Played) -> Finding:
    """Passes if every argument holds afterwards what it must, and the right object is returned."""
    return compare.first_failure(
        (_arguments_kept(*each) for each in _each_rank(plays)),
        "what was to change has changed in place, and nothing else has.",
    )


def _arguments_kept(world: World, expected: Expected, told: Called, where: str) -> Finding:
    names = _names(expected)
    for name, (seen, wanted) in zip(
        names, compare.side_by_side(told.arguments, expected.arguments), strict=True
    ):
        finding = _same(seen, wanted, f"{name} of {where}, after the call,", world)
        if not finding.passed:
            return finding
    if not told.items_kept:
        text = f"{where} put other tensors into a list that it was given"
        return Finding(False, f"{text}; expected it to write into those that are there.")
    if not told.memory_kept:
        text = f"{where} gave a tensor other memory, as x.data = ... does: who has a view of it sees nothing"
        return Finding(False, f"{text}; expected it to write into that which is there.")
    if expected.returned is None and told.shares:
        return Finding(
            False,
            f"{where} returned a view of what it was given, or had returned before; expected a new tensor.",
        )
    wanted = "a new tensor" if expected.returned is None else f"{names[expected.returned]} itself"
    got = "another object" if told.returned is None else f"{names[told.returned]} itself"
    return Finding(told.returned == expected.returned, f"{where} returned {got}; expected {wanted}.")


def _names(expected: Expected) -> list[str]:
    """What the specifications call the arguments."""
    first, *others = expected.arguments
    if not others:
        return ["x"]
    if isinstance(first, list):
        return ["outputs", "inputs"]
    return ["x", "gpus_per_node" if others[0] is ANYTHING else "parts"]


def layouts(*plays: Played) -> Finding:
    """Passes if results and arguments are right and the memory between the elements was left alone."""
    gaps = (
        Finding(told.gaps_kept, f"{where} wrote into memory between the elements of a tensor.")
        for _, _, told, where in _each_rank(plays)
    )
    right = (check(*plays) for check in (results, in_place))
    return compare.first_failure(chain(right, gaps), f"right with {_listed(plays)}.")


def stays_on_its_device(played: Played) -> Finding:
    """Passes if what was returned is on the device that the arguments are on, which is the driver's meta."""
    for _, _, told, where in _each_rank([played]):
        for tensor in told.value if isinstance(told.value, list) else [told.value]:
            if isinstance(tensor, Tensor):
                return Finding(False, f"what {where} returned is on the device {tensor.device}.")
    return Finding(True, "Tensors stay on the device that x is on.")


def measured(answer: Answer, rng: Rng, collective: Collective, world: World, eager_limit: int = 0) -> Played:
    """One call on links whose times are easy to read, one device a node or `world.node` of them. eager_limit:
    bytes up to which a message does not wait for its receiver; by default all do.

    In the widest dtype: a buffer of another one, which another row tells, makes no message longer. Where the
    answer is not right with that, in PyTorch's default dtype, with twice the elements: as many bytes.
    """
    devices = max(1, world.node)
    cluster = Cluster(
        nodes=-(-world.launched // devices),
        devices_per_node=devices,
        intra_node=MEASURED,
        inter_node=MEASURED,
        eager_limit=eager_limit,
    )
    wide = replace(world, dtype=torch.float64)
    twice = (
        replace(world, columns=2 * world.columns)
        if world.columns
        else replace(world, length=2 * world.length)
    )
    try:
        played = play(answer, rng, collective, [wide], cluster)
    except AnswerFailed:
        return play(answer, rng, collective, [twice], cluster)
    return played if results(played).passed else play(answer, rng, collective, [twice], cluster)


def _each_rank(plays: Sequence[Played]) -> Iterator[tuple[World, Expected, Called, str]]:
    for played in plays:
        for world, expected, told in zip(played.worlds, played.expected, played.told, strict=True):
            for place, (wanted, seen) in enumerate(zip(expected, told, strict=True)):
                yield world, wanted, seen, f"rank {place} ({world})"


def _same(seen: Any, wanted: Any, what: str, world: World) -> Finding:
    """`compare.close` for a tensor, a list of tensors, or None."""
    if wanted is ANYTHING:
        return Finding(True, f"{what} may be anything.")
    if wanted is None:
        return Finding(seen is None, f"{what} is {type(seen).__name__}; expected None.")
    if isinstance(wanted, Tensor):
        finding = compare.close(seen, wanted, what, rtol=world.tolerance, atol=world.tolerance)
        if finding.passed or not isinstance(seen, Tensor) or not seen.isnan().any():
            return finding
        return replace(finding, seen=f"{finding.seen} (nan is what stands there before the call.)")
    if type(seen) is not list or len(seen) != len(wanted):
        got = f"a list of {len(seen)}" if type(seen) is list else f"a {type(seen).__name__}"
        return Finding(False, f"{what} is {got}; expected a list of {len(wanted)}.")
    items = enumerate(zip(seen, wanted, strict=True))
    return compare.first_failure(
        (_same(item, expected, f"item {index} of {what}", world) for index, (item, expected) in items),
        f"{what} is as expected.",
    )


def _listed(plays: Sequence[Played]) -> str:
    return "; ".join(str(world) for played in plays for world in played.worlds)
