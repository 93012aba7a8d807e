"""What a rank holds when units compute whose weights are cut over ranks."""

from graders.grading.kit import Finding, compare
from graders.units.unit_09.held import at_most_held, held_at, most_held
from graders.units.unit_09.sharded_units import Run, Units

SLACK = 1024
"""Bytes that small tensors may take, which nobody counts."""


def lets_go_in_forward(units: Units, run: Run) -> Finding:
    """Passes if, once the units are made, a rank holds its shards, and no more of the modules; and in forward
    no more than one unit's weights, and what they are made of.
    """
    made = _at(run, "made", units.given + units.of_shards + SLACK, "Once made")
    held = _between(units, run, ("step begins", "forward ends"), shards=2, wholes=2)
    return compare.first_failure((made, held))


def lets_go_in_backward(units: Units, run: Run) -> Finding:
    """Passes if a rank holds no more than a unit's weights, their flat gradient, and what the two are made
    of; and afterwards only shards.
    """
    held = _between(units, run, ("backward begins", "backward ends"), shards=3, wholes=6)
    allowed = units.given + 3 * units.of_shards + units.whole // 2 + SLACK
    return compare.first_failure((held, _at(run, "backward ends", allowed, "After backward")))


def _between(units: Units, run: Run, marks: tuple[str, str], shards: int, wholes: int) -> Finding:
    """shards: how many times a rank's: as they were made, as they are, and after forward their gradients."""
    activations = 6 * units.setting.units * units.setting.width * units.values[0][0].element_size()
    allowed = units.given + shards * units.of_shards + wholes * units.whole + activations + SLACK
    seen = [most_held(run, rank, *marks) for rank in range(len(run.results))]
    return at_most_held(seen, [allowed] * len(seen), "From the mark {!r} to the mark {!r}".format(*marks))


def _at(run: Run, label: str, allowed: int, when: str) -> Finding:
    seen = [held_at(run, rank, label) for rank in range(len(run.results))]
    return at_most_held(seen, [allowed] * len(seen), when)
