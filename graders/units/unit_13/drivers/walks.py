"""The driver of the walk through plans: proposals and prices are ours, and what is asked of them is kept."""

import random
from collections.abc import Sequence

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.functions.drivers import in_turn
from graders.units.random_states import random_states


def walks(answer: AnswerFunction, calls: list[list[PlainData]], layouts: Sequence[str] = ()) -> list[Called]:
    """Walks through plans [n] of these costs, from [start] on. Each other plan is proposed equally often.

    Of each: the result; the plan that each proposal was asked for; what it was; how often a cost was asked
    for; the first plan afterwards; whether the states of `random`, of NumPy and of torch are what they were.
    """

    def walk(costs: list[float], start: int, steps: int, seed: int, beta: float) -> dict[str, PlainData]:
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

        first, before = [start], random_states()
        result = answer(first, propose, cost, steps, seed, beta)
        kept = random_states() == before
        seen = {"at": at, "proposed": proposed, "priced": len(priced)}
        return {"result": result, "start": first, "undisturbed": kept, **seen}

    return in_turn(walk, calls, layouts)
