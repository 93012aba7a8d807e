"""Drivers of the walk through plans: proposals and prices are ours, and what is asked of them is kept."""

import random
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class WalkReply(DriverReply):
    """result: what the answer returned. at: the plan that each proposal was asked for. proposed: what it was.
    priced: the plans whose cost was asked for. undisturbed: whether the states of `random`, of NumPy and of
    torch are what they were. drew: whether the answer itself drew from propose's generator; only looked at
    where a walk has at most 100 steps. start: the first plan afterwards.
    """

    result: PlainData
    at: list[int]
    proposed: list[int]
    priced: list[int]
    undisturbed: bool
    drew: bool
    start: PlainData


class Shy:
    """A plan [place] that cannot be compared, nor hashed, and is neither true nor false."""

    def __init__(self, place: int) -> None:
        self.place = place

    def __getitem__(self, _: int) -> int:
        return self.place

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("plans of this kind cannot be compared, hashed or taken for true or false")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _refuse


def walk(
    answer: AnswerFunction,
    costs: list[float],
    start: int,
    steps: int,
    seed: int,
    beta: float,
    shy: bool,
) -> WalkReply:
    """A walk through plans [n] of these costs, from [start] on. Each other plan is proposed equally often.
    shy: plans are no lists, but objects that cannot be compared.
    """
    at: list[int] = []
    proposed: list[int] = []
    priced: list[int] = []

    states: list[Any] = [random.Random(seed).getstate()]
    drew = False

    def propose(plan: Any, generator: random.Random) -> Any:
        nonlocal drew
        if steps <= 100:
            drew |= generator.getstate() != states[-1]
        at.append(plan[0])
        proposed.append((plan[0] + generator.randrange(1, len(costs))) % len(costs))
        if steps <= 100:
            states[-1] = generator.getstate()
        return Shy(proposed[-1]) if shy else proposed[-1:]

    def cost(plan: Any) -> float:
        priced.append(plan[0])
        return costs[priced[-1]]

    first: Any = Shy(start) if shy else [start]
    before = _states()
    result = answer(first, propose, cost, steps, seed, beta)
    if isinstance(result, tuple):
        result = tuple([each.place] if isinstance(each, Shy) else each for each in result)
    return WalkReply(result, at, proposed, priced, _states() == before, drew, [first[0]])


def _states() -> list[str]:
    """The states of the generators that a whole process shares."""
    return [
        str(random.getstate()),
        str(np.random.get_state(legacy=True)),
        str(torch.get_rng_state().tolist()),
    ]
