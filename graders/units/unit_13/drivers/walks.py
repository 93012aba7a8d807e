"""Drivers of the walk through plans: proposals and prices are ours, and what is asked of them is kept."""

import random
from dataclasses import dataclass

from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class WalkReply(DriverReply):
    """result: what the answer returned. at: the plan that each proposal was asked for. proposed: what it was.
    priced: the plans whose cost was asked for. undisturbed: whether the state of `random` is what it was.
    """

    result: PlainData
    at: list[int]
    proposed: list[int]
    priced: list[int]
    undisturbed: bool


def walk(
    answer: AnswerFunction, costs: list[float], start: int, steps: int, seed: int, beta: float
) -> WalkReply:
    """A walk through plans [n] of these costs, from [start] on. Each other plan is proposed equally often."""
    at: list[int] = []
    proposed: list[int] = []
    priced: list[int] = []

    def propose(plan: list[int], generator: random.Random) -> list[int]:
        at.append(plan[0])
        proposed.append((plan[0] + generator.randrange(1, len(costs))) % len(costs))
        return proposed[-1:]

    def cost(plan: list[int]) -> float:
        priced.append(plan[0])
        return costs[plan[0]]

    before = random.getstate()
    result = answer([start], propose, cost, steps, seed, beta)
    return WalkReply(result, at, proposed, priced, random.getstate() == before)
