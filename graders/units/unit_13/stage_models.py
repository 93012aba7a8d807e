"""Models and submeshes whose best stages are asked for."""

import math
from collections.abc import Callable, Iterator
from itertools import combinations

from graders.grading.kit import Rng
from graders.units.unit_13.stage_cases import Case, Table


def _table(
    work: list[int],
    sizes: tuple[int, ...],
    waits: dict[int, float],
    most: float = math.inf,
    start: float = 0.5,
) -> Table:
    """A stage takes its work by its devices, and for each layer a wait that depends on their number; what is
    more work than `most` a device does not fit.
    """
    return {
        (begin, end, size): (
            start + sum(work[begin:end]) / size + waits[size] * (end - begin)
            if sum(work[begin:end]) <= most * size
            else math.inf
        )
        for begin, end in combinations(range(len(work) + 1), 2)
        for size in sizes
    }


def drawn(rng: Rng, layers: int, devices: int, of_sizes: tuple[int, ...] = ()) -> Case:
    """Layers of which some are dear; on many devices a layer waits longer than it gains."""
    sizes = of_sizes or tuple(size for size in (1, 2, 4, 8) if size <= devices)
    work = [rng.choice((1, 2, 3, 4, 12, 20)) for _ in range(layers)]
    waits = {size: rng.integer(0, 3) * (size - 1) / 4 for size in sizes}
    return Case(_table(work, sizes, waits), layers, devices, 1, sizes)


def telling(scale: float) -> Case:
    """The best plan of two layers has two stages; beside the slow last one a single one is better."""
    quick, table = float(scale), {}
    for begin, end in combinations(range(4), 2):
        for size in (1, 2):
            table[begin, end, size] = 40 * quick
    table |= {
        (0, 1, 1): 6 * quick,
        (0, 1, 2): 5 * quick,
        (1, 2, 1): 6 * quick,
        (1, 2, 2): 9 * quick,
        (2, 3, 2): 20 * quick,
        (0, 2, 2): 10 * quick,
    }
    return Case(table, 3, 4, 3, (1, 2))


def nearly_alike(scale: float, apart: float = 1e-6) -> Case:
    """The slowest stage of the best plan is slower, by this share, than that of a plan with a larger sum."""
    table = {
        (begin, end, size): 400.0 * scale for begin, end in combinations(range(3), 2) for size in (1, 2, 3)
    }
    table |= {(0, 1, 2): 100.0 * scale, (1, 2, 2): 100.0 * scale}
    table |= {(0, 1, 1): 100.0 * (1 + apart) * scale, (1, 2, 3): 10.0 * scale}
    return Case(table, 2, 4, 9, (1, 2, 3))


def two_valleys(scale: float) -> Case:
    """Ten equal stages are better than all that have a little more time for the slowest; one stage of all
    layers, which has five times as much, is better still. With many micro-batches only ten stages are good.
    """
    sizes = (1, 2, 10)
    table = {(begin, end, size): 400.0 * scale for begin, end in combinations(range(11), 2) for size in sizes}
    for layer in range(10):
        table[layer, layer + 1, 1] = 10.0 * scale
        table[layer, layer + 1, 2] = (11.0 + layer) * scale
        table[layer, layer + 1, 10] = (25.0 + layer) * scale
    table[0, 10, 10] = 52.0 * scale
    return Case(table, 10, 10, 2, sizes)


def _crossing(plans: list[tuple[float, float]], slow: float, before: bool) -> Case:
    """Two layers whose stages take so long, plan by plan: the first stage has 1 device, or 2, and so on, and
    the second one the rest. Before or behind both stands a layer that takes `slow` on a device.
    """
    devices = len(plans) + 1
    at, sizes, dear = int(before), tuple(range(1, devices)), 90 * max(slow, *(max(each) for each in plans))
    table = {(begin, end, size): dear for begin, end in combinations(range(4), 2) for size in sizes}
    for size, (first, second) in enumerate(plans, start=1):
        table[at, at + 1, size], table[at + 1, at + 2, devices - size] = first, second
    table[0 if before else 2, 1 if before else 3, 1] = slow
    return Case(table, 3, devices + 1, 41, sizes)


def _front(steps: list[int]) -> list[tuple[float, float]]:
    """Two stages each, plan by plan: the slowest takes longer and longer, and both together take less and
    less, by so little that a step of 41 micro-batches takes 4,190 and some two-hundredths more, as is told.
    """
    slowest = [100 + 0.045 * place for place in range(len(steps))]
    return [(slow, 4190 + step / 200 - 41 * slow) for slow, step in zip(slowest, steps, strict=True)]


def crossings(rng: Rng) -> Iterator[Case]:
    """Among forty plans, of which each has a slower slowest stage than the one before, and a smaller sum,
    the best comes last, first, or between others, and the second best as far from it as can be; or good
    ones stand together elsewhere, and bad ones round the best. And where a slow layer stands behind the two,
    or before them, the sum alone decides: it is best to take those stages that are worst for the two.
    """
    count = 40
    for best, second in ((count - 1, 0), (0, count - 1), (rng.integer(15, 24), 0)):
        steps = [rng.integer(30, 290) for _ in range(count)]
        steps[best], steps[second] = 0, 4
        yield _crossing(_front(steps), 1.0, before=False)
    valley = [rng.integer(*((4, 20) if 22 <= place < 30 else (230, 290))) for place in range(count)]
    valley[rng.integer(5, 9)] = 0
    rising = [10 * place for place in range(count)]
    for steps, slow in ((valley, 1.0), (valley[::-1], 1.0), (rising, 130.0)):
        yield _crossing(_front(steps), slow, before=False)
    yield _crossing(_front(rising), 130.0, before=True)


def faster_together(scale: float) -> Case:
    """Layers 0 and 1 take less time together than each alone. With one stage the sum is a little smaller."""
    table = {(begin, end, size): 50.0 * scale for begin, end in combinations(range(4), 2) for size in (1, 2)}
    table |= {(0, 2, 1): 10.0 * scale, (2, 3, 1): 10.0 * scale, (0, 3, 2): 19.0 * scale}
    return Case(table, 3, 2, 9, (1, 2))


def merging(rng: Rng) -> Iterator[Case]:
    """Runs of seven quick layers, each layer with a device: the longer they are, the less their sum, and the
    more the slowest takes. Beside a slow last layer it is good to merge up to a certain length; beside a
    quick one, where each stage takes a moment to start, neither few stages nor many are best.
    """
    unit, sizes = rng.integer(1, 9), tuple(range(1, 8))
    for slow, start, micro_batches in ((2.5, 0.0, 9), (4.5, 0.0, 5), (30.0, 0.0, 9), (0.5, 1.0, 2)):
        table = {
            (begin, end, size): 900.0 * unit for begin, end in combinations(range(9), 2) for size in sizes
        }
        for begin, end in combinations(range(8), 2):
            length = end - begin
            table[begin, end, length] = unit * (start + length * (1 - 0.02 * length))
        table[7, 8, 1] = unit * slow
        yield Case(table, 8, 8, micro_batches, sizes)


def measured(rng: Rng, layers: int, devices: int) -> Case:
    """Seconds that follow no rule: more layers may be faster, and more devices slower."""
    sizes = (1, 2, 3, 4)
    table = {
        (begin, end, size): float(rng.integer(20, 99) * rng.integer(1, end - begin))
        for begin, end in combinations(range(layers + 1), 2)
        for size in sizes
    }
    return Case(table, layers, devices, rng.integer(2, 12), sizes)


def _too_full(rng: Rng) -> Iterator[Case]:
    """Stages of which some do not fit, or none; devices that no stages can fill."""
    for layers, devices, most in ((4, 4, 7), (5, 6, 5), (3, 2, 2)):
        sizes = tuple(size for size in (1, 2, 4) if size <= devices)
        work = [rng.integer(4, 6) for _ in range(layers)]
        waits = {size: float(size) for size in sizes}
        yield Case(_table(work, sizes, waits, most), layers, devices, rng.integer(2, 6), sizes)
    yield Case(_table([3], (1, 2), {1: 0.0, 2: 1.0}), 1, 3, 4, (1, 2))
    yield Case(_table([3, 4, 5], (2, 4), {2: 0.0, 4: 1.0}), 3, 5, 4, (2, 4))


def large(rng: Rng, micro_batches: int) -> Case:
    """Sixteen layers on sixteen devices."""
    sizes = (1, 2, 4, 8, 16)
    work = [rng.integer(20, 99) for _ in range(16)]
    waits = {size: rng.integer(0, 4) * (size - 1) / 3 for size in sizes}
    return Case(_table(work, sizes, waits), 16, 16, micro_batches, sizes)


def one_of_each(rng: Rng) -> list[Case]:
    """Where the best plan of the first layers is no part of the best of all, or bounds are nearly alike."""
    made = (kind(rng.integer(1, 9)) for kind in (telling, nearly_alike, two_valleys, faster_together))
    return [*made, *(measured(rng, *size) for size in ((5, 6), (7, 7)))]


def for_many(rng: Rng) -> list[Case]:
    """Where with many micro-batches it is the sum that decides between stages that are nearly as slow."""
    made = (nearly_alike(rng.integer(1, 9), apart=0.02), two_valleys(rng.integer(1, 9)))
    return [each.with_batches(40) for each in made]


TELLING: dict[str, Callable[[Rng], list[Case]]] = {
    "seconds that tell": one_of_each,
    "many micro-batches that tell": for_many,
    "runs that are better the longer they are": lambda rng: [*merging(rng)],
    "forty plans": lambda rng: [*crossings(rng)],
    "what does not fit": lambda rng: [*_too_full(rng)],
}
"""Tables in which something else decides than in those that are drawn."""
