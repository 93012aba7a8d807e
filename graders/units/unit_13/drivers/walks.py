"""The driver of the walk through plans: proposals and prices are ours, and what is asked of them is kept."""

import random
from dataclasses import dataclass

from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.random_states import random_states


@dataclass(frozen=True, slots=True)
class WalkReply(DriverReply):
    """result: what the answer returned. at: the plan that each proposal was asked for. proposed: what it was.
    priced: how often a cost was asked for. undisturbed: whether the states of `random`, of NumPy and of torch
    are what they were. start: the first plan afterwards.
    """

    result: PlainData
    at: list[int]
    proposed: list[int]
    priced: int
    undisturbed: bool
    start: PlainData


def walk(
    answer: AnswerFunction, costs: list[float], start: int, steps: int, seed: int, beta: float
) -> WalkReply:
    """A walk through plans [n] of these costs, from [start] on. Each other plan is proposed equally often."""
    at: list[int] = []
    proposed: list[int] = []
    priced = 0

    def propose(plan: list[int], generator: random.Random) -> list[int]:
        at.append(plan[0])
        proposed.append((plan[0] + generator.randrange(1, len(costs))) % len(costs))
        return proposed[-1:]

    def cost(plan: list[int]) -> float:
        nonlocal priced
        priced += 1
        return costs[plan[0]]

    first, before = [start], random_states()
    result = answer(first, propose, cost, steps, seed, beta)
    return WalkReply(result, at, proposed, priced, random_states() == before, first)
