"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import Cluster, Link, mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn

REFUSED = "ValueError"
"""What `einsums` tells where the answer raised that."""


@dataclass(frozen=True, slots=True)
class DrawnReply(DriverReply):
    """outside, within: what a rank drew outside of own() and within, in turn, float64. came_out: how many
    exceptions left their blocks. again: as much as within, by a new object, in one block. other: with another
    seed.
    """

    outside: Tensor
    within: Tensor
    came_out: int
    again: Tensor
    other: Tensor


def random_streams(
    answer: AnswerFunction, seeds: list[int], counts: list[tuple[int, int]], raises: bool
) -> DrawnReply:
    """Draw so many numbers outside of own() and within, in turn. raises: whether an exception ends each block
    within.
    """
    rank = dist.get_rank()
    streams = answer(seeds[0], rank)
    outside, within, came_out = [], [], 0
    for count, own in counts:
        outside.append(torch.rand(count, dtype=torch.float64))
        try:
            with streams.own():
                within.append(torch.rand(own, dtype=torch.float64))
                if raises:
                    raise InterruptedError
        except InterruptedError:
            came_out += 1
    once_more = []
    for seed in seeds:
        with answer(seed, rank).own():
            once_more.append(torch.rand(sum(own for _, own in counts), dtype=torch.float64))
    return DrawnReply(torch.cat(outside), torch.cat(within), came_out, *once_more)


def einsums(
    answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()
) -> list[Called]:
    """What the answer makes of each einsum and layout, or REFUSED."""

    def asked(einsum: str, layout: dict[str, str]) -> PlainData:
        try:
            return answer(einsum, layout)
        except ValueError:
            return REFUSED

    return in_turn(asked, calls, layouts)


def overlapped(
    answer: AnswerFunction,
    x: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    numbers: tuple[float, float, float, float],
) -> PlainData:
    """What the answer makes of x [T, D] with a part of an MLP, between two marks. numbers: see `machine`."""
    layers = [nn.Linear(part.shape[1], part.shape[0]) for part in (up, down)]
    with torch.no_grad():
        for layer, weight, bias in zip(layers, (up, down), (up_bias, down_bias), strict=True):
            layer.weight, layer.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
        mark("begins")
        result = answer(x, *layers, machine(dist.get_world_size(), *numbers))
    mark("done")
    return result


def machine(ranks: int, latency: float, bandwidth: float, flops: float, memory: float) -> Cluster:
    """One node of so many devices."""
    link = Link(latency, bandwidth)
    return Cluster(devices_per_node=ranks, intra_node=link, flops=flops, memory_bandwidth=memory)
