"""Layers and networks for which nested plans are asked."""

from collections.abc import Callable, Iterator

from graders.grading.kit import Rng
from graders.units.unit_13.levels import Layers, Levels


def drawn(rng: Rng, layers: int, units: tuple[int, ...], slow: int = 4) -> Layers:
    """Layers of which the first hand on much and the last have large weights; each level is slower."""
    bandwidth, levels = 400.0, []
    for count in units:
        levels.append((count, bandwidth))
        bandwidth /= slow
    return Layers(
        [rng.integer(2, 20) / 2 for _ in range(layers)],
        [rng.integer(1, 60 // (place + 1)) for place in range(layers)],
        [rng.integer(1, 40) * (1 + place * rng.integer(0, 5)) for place in range(layers)],
        levels,
    )


def _flat(scale: int) -> Iterator[Layers]:
    """Where half the price of a cut makes another plan the best one, and where the last stage is shared."""
    yield _large_in_the_middle(scale, [(2, 10.0)])
    yield Layers([1.0, 9.0], [1, 1], [10**6 * scale, 1], [(3, 10.0)])
    for units in (4, 6, 7):
        yield Layers([1.0, 30.0], [1, 1], [10**6 * scale, 1], [(units, 1000.0)])
    # Computing and exchange at the same time: two replicas are as fast as two stages in turn are not.
    yield Layers([6.0, 10.0], [1, 1], [35, 35], [(2, 10.0)])


def _large_in_the_middle(scale: int, levels: Levels) -> Layers:
    """Even halves would be best, were it not for what crosses the cut between them."""
    return Layers([1.0 * scale, 2.0 * scale, 3.0 * scale], [scale, 30 * scale, scale], [10**6] * 3, levels)


def _telling(scale: int) -> Iterator[Layers]:
    """Where the exchange between servers, shared by their GPUs, decides; and a cut within a server."""
    for weights in (150, 300, 600, 1200):
        yield Layers([4.0, 4.0], [10, 10], [weights * scale] * 2, [(4, 5000.0 * scale), (2, 100.0 * scale)])
    # The same where each server has one GPU, and where there is one server.
    for levels in ([(1, 900.0), (2, 10.0)], [(2, 10.0), (1, 10.0)]):
        yield _large_in_the_middle(scale, levels)
    for handed_on in (20, 45, 80):
        yield Layers(
            [4.0, 4.0, 1.0],
            [handed_on * scale] * 3,
            [9000 * scale] * 3,
            [(2, 30.0 * scale), (2, 20.0 * scale)],
        )


def _dear_cuts(rng: Rng, units: tuple[int, ...]) -> Layers:
    """Weights that no two replicas can exchange; what crosses a cut says where to cut."""
    return Layers(
        [float(rng.integer(4, 9)) for _ in range(5)],
        [rng.integer(5, 160) for _ in range(5)],
        [10**5] * 5,
        [(count, 20.0) for count in units],
    )


def _light(rng: Rng) -> Layers:
    """Weights of a few bytes, and a network on which each byte counts."""
    seconds = [rng.integer(2, 9) / 2 for _ in range(4)]
    activations, weights = ([rng.integer(0, 3) for _ in range(4)] for _ in range(2))
    return Layers(seconds, activations, weights, [(rng.integer(2, 4), 1.0)])


def _slow_within(rng: Rng, units: tuple[int, ...], slow: int) -> Layers:
    """A network that is slow on one level below the outermost: only there has the plan to be a good one. The
    first layers' large weights must not be exchanged there, and those behind them take long.
    """
    large = rng.integer(2, 3)
    return Layers(
        [float(rng.integer(4, 9) if place < large else rng.integer(8, 24)) for place in range(5)],
        [rng.integer(1, 3) for _ in range(5)],
        [rng.integer(300, 900) if place < large else rng.integer(0, 1) for place in range(5)],
        [(count, 20.0 if level == slow else 2e4) for level, count in enumerate(units)],
    )


def large(rng: Rng) -> Layers:
    """Many layers on four servers of four GPUs."""
    return Layers(
        [rng.integer(1, 20) / 10 for _ in range(30)],
        [rng.integer(1, 60) for _ in range(30)],
        [rng.integer(1, 9) * (50 if place > 22 else 1) for place in range(30)],
        [(4, 1500.0), (4, 300.0)],
    )


TELLING: dict[str, Callable[[Rng], list[Layers]]] = {
    "one level that tells": lambda rng: [
        *_flat(rng.integer(1, 5)),
        *(each.in_milliseconds() for each in _flat(1)),
        # One byte decides whether both layers are shared, or each has a GPU of its own.
        *(Layers([9.0, 9.5], [1, 1], [5, last], [(2, 1.0)]) for last in (4, 5)),
    ],
    "servers that tell": lambda rng: [
        *_telling(rng.integer(1, 4)),
        *(each.in_milliseconds() for each in _telling(1)),
    ],
    "dear cuts": lambda rng: [_dear_cuts(rng, units) for units in ((2,), (3,), (4,), (2, 2), (2, 2))],
    "light weights": lambda rng: [_light(rng) for _ in range(5)],
    "slow within": lambda rng: [
        _slow_within(rng, units, slow)
        for units, slow in (((3, 2), 0), ((4, 2), 0), ((3, 2), 0), ((3, 2, 2), 0), ((2, 3, 2), 1))
    ],
    # Racks exchange gradients once for the batches of all their four GPUs, or else a cut would be better.
    "racks that tell": lambda rng: [Layers([8.0, 8.0], [25, 25], [60, 60], [(2, 1e5), (2, 1e5), (2, 20.0)])],
}
"""Models in which something else decides than in those that are drawn."""
