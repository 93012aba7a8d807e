"""Operators with strategies, edges between them, and the least that a choice costs, by looking at all."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

from graders.grading.kit import Finding, Rng, compare

Table = list[list[float]]

ROUNDING = 1e-5
"""By what part seconds may be off."""


@dataclass(frozen=True)
class Problem:
    """Operators, edges between them, and the seconds of both; perhaps bytes of each strategy, and a bound."""

    edges: list[tuple[int, int]]
    node_cost: Table
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
        return cls(edges, nodes, tables)

    @classmethod
    def chain(cls, rng: Rng, lengths: list[int], closed: int = 0) -> "Problem":
        return cls.drawn(rng, lengths, list(itertools.pairwise(range(len(lengths)))), closed=closed)

    @classmethod
    def ladder(cls, rng: Rng, count: int, least: int = 1) -> "Problem":
        """Each operator has edges to the next two."""
        edges = [(i, i + step) for step in (1, 2) for i in range(count - step)]
        return cls.drawn(rng, [4] * count, edges, least=least)

    def bounded(self, rng: Rng, share: float, unit: int = 1) -> "Problem":
        """The same with bytes, and a bound at this share of the way from what is least to what is most."""
        memory = [[rng.integer(1, 9) * unit for _ in own] for own in self.node_cost]
        least, most = sum(map(min, memory)), sum(map(max, memory))
        capacity = int(least + share * (most - least))
        return Problem(self.edges, self.node_cost, self.edge_cost, memory, capacity)

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

    @property
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
        """The least of a ladder without a bound: all pairs of strategies of two neighbours, on and on."""
        tables, nodes = dict(zip(self.edges, self.edge_cost, strict=True)), self.node_cost
        costs = {
            (s, t): nodes[0][s] + nodes[1][t] + tables[0, 1][s][t]
            for s, t in itertools.product(range(len(nodes[0])), range(len(nodes[1])))
        }
        for i in range(2, len(nodes)):
            before, costs = costs, {}
            for (s, t), seconds in before.items():
                for u, own in enumerate(nodes[i]):
                    taken = seconds + own + tables[i - 1, i][t][u] + tables[i - 2, i][s][u]
                    costs[t, u] = min(costs.get((t, u), math.inf), taken)
        return min(costs.values())

    def right_seconds(self, gave: Any, what: str, least: float) -> Finding:
        """Passes if what it gave has the least sum in it, and something else."""
        if type(gave) is not tuple or len(gave) != 2:
            return Finding(False, f"{what} is {compare.shown(gave)}; expected seconds and choices.")
        seen = compare.as_float(gave[0])
        text = f"{what}: {compare.shown(gave[0])} s; the least is {least:.8g} s."
        return Finding(abs(seen - least) <= ROUNDING * least, text)

    def right_choice(self, gave: Any, what: str) -> Finding:
        """Passes if the choice is one that fits and costs what was said."""
        seconds, plan = compare.as_float(gave[0]), gave[1]
        text = f"{what}: the choice is {compare.shown(plan)}"
        lengths = [len(own) for own in self.node_cost]
        if (
            type(plan) is not list
            or len(plan) != len(lengths)
            or not all(type(s) is int and 0 <= s < n for s, n in zip(plan, lengths, strict=True))
        ):
            return Finding(False, f"{text}; expected a list of int, the number of a strategy each.")
        if not self.fits(plan):
            return Finding(False, f"{text}, which needs more than the capacity.")
        costs = self.seconds(plan)
        told = f"{text}; it costs {costs:.8g} s, {seconds:.8g} s were told."
        return Finding(abs(costs - seconds) <= ROUNDING * seconds, told)

    def right(self, gave: Any, what: str, least: float) -> Finding:
        """Passes if seconds and choice are right."""
        found = self.right_seconds(gave, what, least)
        return self.right_choice(gave, what) if found.passed else found


def typed(given: list[Any]) -> str:
    """The arguments of a call, unless they are long."""
    text = ", ".join(map(repr, given))
    return text if len(text) < 900 else "..."


def _seconds(rng: Rng, unit: float, least: int, *shape: int) -> Any:
    """Lists of seconds with few digits, so that they can be typed in again."""
    return (rng.integers(least, 999, *shape).double() / (100 / unit)).tolist()
