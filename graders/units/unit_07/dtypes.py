"""What holds for all hand-written collectives: any dtype, and any device."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch

from graders.grading.kinds import Kind
from graders.grading.kit import Finding, compare
from graders.units.unit_07.collectives import Played, results, stays_on_its_device
from graders.units.unit_07.groups import launches
from graders.units.unit_07.shapes import in_other_shapes
from graders.units.unit_07.tries import Tries
from graders.units.unit_07.worlds import World

DTYPES = {
    torch.float64: "",
    torch.int64: "(2**58 + 1 fits no floating-point type.)",
    torch.int32: "(torch.sum and numpy.sum make int64 of int32, unless they are given a dtype.)",
    torch.bfloat16: "(NumPy has no bfloat16.)",
    torch.float16: "",
}
"""Beside float32, each with what people may not know of it."""


def any_dtype(
    tries: Tries,
    model: World,
    single: Played,
    after_another: bool,
    any_length: bool,
    special: Sequence[World],
) -> Finding:
    """Passes if results are right in each of DTYPES, `after_another` call in float32, whose buffers are none
    for them; if elements travel as wide as they are; and if every tensor is on the device that x is on; of
    other shapes, too, if `any_length` is right.
    single: a launch with `model` in float32. special: other worlds, of which some ranks have a part of their
    own, and buffers for it; these in int64, and on another device.
    """
    earlier = [model] * after_another

    def one(dtype: torch.dtype, note: str) -> Finding:
        def right(played: Played) -> Finding:
            finding = results(played)
            return travels_as_it_is(played, single) if finding.passed else finding

        finding = tries.found([*earlier, replace(model, dtype=dtype)], right)
        told = finding.passed or finding.kind is Kind.TOO_MUCH or not note
        return finding if told else Finding(False, f"{finding.seen} {note}", finding.kind)

    found = (one(*each) for each in DTYPES.items())
    others = chain.from_iterable(in_another_world(tries, each) for each in special)
    shapes = in_other_shapes(model, torch.float64, torch.int64) if any_length else []
    in_shapes = (tries.found(each, results) for each in launches([shapes], after_another) if each)
    numbers = [replace(model, length=1, single=True)] * any_length
    passed = f"right in {', '.join(str(dtype) for dtype in DTYPES)}, and on another device."
    away = (elsewhere(tries, each) for each in launches([[model, *numbers]], after_another))
    return compare.first_failure(chain(found, in_shapes, away, others), passed)


def in_another_world(tries: Tries, world: World) -> Iterator[Finding]:
    """What is found of one dtype, and of one device."""
    yield tries.right([replace(world, dtype=torch.int64)])
    yield elsewhere(tries, [world])


def elsewhere(tries: Tries, worlds: Sequence[World]) -> Finding:
    """Passes if tensors stay on the device meta."""
    finding = tries.found([replace(world, layout="meta") for world in worlds], stays_on_its_device)
    if finding.passed:
        return finding
    said = "Here all tensors are on the device meta: those that you make have to be there, too."
    return Finding(False, f"{finding.seen}\n{said}")


def travels_as_it_is(played: Played, single: Played) -> Finding:
    """Passes if the last call of `played` sends fewer bytes than `single`, the same in float32, where its
    elements are narrower, more where they are wider, and else no more: so they travel in their own dtype.
    Calls before it are as `single`.
    """
    *earlier, world = played.worlds
    before = single.observed.traffic.sent
    sent = played.observed.traffic.sent - len(earlier) * before
    width, usual = world.dtype.itemsize, torch.float32.itemsize
    right = sent < before if width < usual else sent > before if width > usual else sent <= before
    text = f"with {world}, all ranks together send {sent:,} bytes, and in float32 {before:,}"
    said = "elements travel in another dtype than that of x, and take more bytes."
    return Finding(right, f"{text}: {said}", Kind.OTHER if right else Kind.TOO_MUCH)
