"""Operators with strategies, edges between them, and the least that a choice costs, by looking at all."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graders.grading.kit import Finding, Rng, compare

Table = list[list[float]]

ROUNDING = 1e-5
"""By what part seconds may be off."""


@dataclass(frozen=True)
class Problem:
    """Operators, edges between them, and the seconds of both; perhaps bytes of each strategy, and a bound."""

    node_cost: Table
    edges: list[tuple[int, int]]
    edge_cost: list[Table]
    memory: list[list[int]] | None = None
    capacity: int | None = None

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        lengths: list[int],
        edges: list[tuple[int, int]],
        unit: float = 1e-3,
        closed: int = 0,
        least: int = 1,
    ) -> "Problem":
        """Seconds about `unit`. closed: so many pairs of each edge cannot be, but there is a plan. least: of
        the numbers up to 999 that are drawn; with a large one all plans are nearly as good as the best.
        """
        nodes = [_seconds(rng, unit, least, length) for length in lengths]
        tables = [_seconds(rng, unit, least, lengths[i], lengths[j]) for i, j in edges]
        plan = [rng.integer(0, length - 1) for length in lengths]
        for (i, j), table in zip(edges, tables, strict=True):
            for _ in range(closed):
                s, t = rng.integer(0, lengths[i] - 1), rng.integer(0, lengths[j] - 1)
                if (s, t) != (plan[i], plan[j]):
                    table[s][t] = math.inf
        if closed:
            nodes[0][(plan[0] + 1) % lengths[0]] = math.inf
        return cls(nodes, edges, tables)

    @classmethod
    def chain(cls, rng: Rng, lengths: list[int], closed: int = 0) -> "Problem":
        return cls.drawn(rng, lengths, list(itertools.pairwise(range(len(lengths)))), closed=closed)

    @classmethod
    def ladder(cls, rng: Rng, count: int, least: int = 1, closed: int = 0) -> "Problem":
        """Each operator has edges to the next two."""
        edges = [(i, i + step) for step in (1, 2) for i in range(count - step)]
        return cls.drawn(rng, [4] * count, edges, least=least, closed=closed)

    def within_a_third(self, rng: Rng, most: int = 5) -> "Problem":
        """The same with memory, and a bound a third of the way from what is least to what is most."""
        memory = [[rng.integer(0, most) for _ in own] for own in self.node_cost]
        capacity = (2 * sum(map(min, memory)) + sum(map(max, memory))) // 3
        return Problem(self.node_cost, self.edges, self.edge_cost, memory, capacity)

    @property
    def arguments(self) -> list[Any]:
        """What best_intra is given."""
        return [self.edges, self.node_cost, self.edge_cost, self.memory, self.capacity]

    def seconds(self, plan: tuple[int, ...] | list[int]) -> float:
        """What a choice costs."""
        own = sum(costs[choice] for costs, choice in zip(self.node_cost, plan, strict=True))
        between = (t[plan[i]][plan[j]] for (i, j), t in zip(self.edges, self.edge_cost, strict=True))
        return own + sum(between)

    def fits(self, plan: tuple[int, ...] | list[int]) -> bool:
        """Whether it is within the bound."""
        if self.capacity is None or self.memory is None:
            return True
        return sum(own[choice] for own, choice in zip(self.memory, plan, strict=True)) <= self.capacity

    @cached_property
    def least(self) -> float:
        """Of all choices that fit."""
        plans = itertools.product(*(range(len(own)) for own in self.node_cost))
        return min((self.seconds(plan) for plan in plans if self.fits(plan)), default=math.inf)

    def along(self) -> float:
        """The least of a chain, from the end to the beginning."""
        costs = self.node_cost[-1]
        for own, table in zip(self.node_cost[-2::-1], self.edge_cost[::-1], strict=True):
            costs = [
                each + min(map(sum, zip(row, costs, strict=True)))
                for each, row in zip(own, table, strict=True)
            ]
        return min(costs)

    def along_ladder(self) -> float:
        """The least of a ladder: all pairs of strategies of two neighbours, from the beginning to the end."""
        tables, nodes = dict(zip(self.edges, self.edge_cost, strict=True)), self.node_cost
        memory = self.memory or [[0] * len(own) for own in nodes]
        most = math.inf if self.capacity is None else self.capacity
        costs = {  # strategies of the last two, and their bytes with all before
            (s, t, memory[0][s] + memory[1][t]): nodes[0][s] + nodes[1][t] + tables[0, 1][s][t]
            for s, t in itertools.product(range(len(nodes[0])), range(len(nodes[1])))
        }
        for i in range(2, len(nodes)):
            longer: dict[tuple[int, int, int], float] = {}
            for (s, t, held), before in costs.items():
                for u, own in enumerate(nodes[i]):
                    key = t, u, held + memory[i][u]
                    seconds = before + own + tables[i - 1, i][t][u] + tables[i - 2, i][s][u]
                    if key[2] <= most and seconds < longer.get(key, math.inf):
                        longer[key] = seconds
            costs = longer
        return min(costs.values())

    def right_seconds(self, gave: Any, what: str, least: float) -> Finding:
        """Passes if what it gave has the least sum in it, and something else."""
        if not _is_pair(gave):
            return Finding(False, f"{what} is {compare.shown(gave)}; expected seconds and choices.")
        seen = compare.as_float(gave[0])
        text = f"{what}: {compare.shown(gave[0])} s; the least is {least:.8g} s."
        return Finding(abs(seen - least) <= ROUNDING * least, text)

    def right_choice(self, gave: Any, what: str) -> Finding:
        """Passes if the choice is one that fits and costs what was said."""
        seconds, plan = compare.as_float(gave[0]), gave[1]
        text = f"{what}: the choice is {compare.shown(plan)}"
        lengths = [len(own) for own in self.node_cost]
        if type(plan) is not list or len(plan) != len(lengths) or any(type(each) is not int for each in plan):
            return Finding(False, f"{text}; expected a list of {len(lengths)} int.")
        if not all(0 <= each < length for each, length in zip(plan, lengths, strict=True)):
            return Finding(False, f"{text}; there are no strategies of these numbers.")
        if not self.fits(plan):
            return Finding(False, f"{text}, which needs more than the capacity.")
        costs = self.seconds(plan)
        return Finding(
            abs(costs - seconds) <= ROUNDING * seconds,
            f"{text}; it costs {costs:.8g} s, {seconds:.8g} s were told.",
        )

    def right(self, gave: Any, what: str, least: float) -> Finding:
        """Passes if seconds and choice are right."""
        found = self.right_seconds(gave, what, least)
        return self.right_choice(gave, what) if found.passed else found

    def __str__(self) -> str:
        """In words, all of it if it is small."""
        if len(self.node_cost) > 6:
            return f"{len(self.node_cost)} operators, {len(self.edges)} edges"
        bound = "" if self.memory is None else f", memory {self.memory}, capacity {self.capacity}"
        return f"nodes {self.node_cost}, edges {self.edges} {self.edge_cost}{bound}"


def typed(given: list[Any]) -> str:
    """The arguments of a call, unless they are long."""
    text = ", ".join(map(repr, given))
    return text if len(text) < 900 else "..."


def _is_pair(gave: Any) -> bool:
    return type(gave) is tuple and len(gave) == 2


def _seconds(rng: Rng, unit: float, least: int, *shape: int) -> Any:
    """Lists of seconds with few digits, so that they can be typed in again."""
    return (rng.integers(least, 999, *shape).double() / (100 / unit)).tolist()
