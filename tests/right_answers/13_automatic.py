"""Right answers of unit 13, written differently."""

import math
import random

from torch.distributed.tensor import Partial, Replicate, Shard

from course_lib.planner import Strategy
from tests.answers import right

# ------------------------------------------------------------------------------------------------ strategies


@right("op_strategies")
def axis_by_axis(op, mesh):
    """Recursion: the strategies on the other axes, of an operator whose letter is shorter."""
    if not mesh:
        return [Strategy(((),) * len(op.operands), ())]
    length, found = mesh[0], []
    for letter in [None] + (
        [a for a in sorted(set(op.spec) - set(",->")) if length > 1] if length > 1 else []
    ):
        if letter is not None and op.sizes[letter] % length:
            continue
        rest = type(op)(op.spec, {a: n // length if a == letter else n for a, n in op.sizes.items()})

        def first(tensor, otherwise, letter=letter):
            if letter is None:
                return Replicate()
            return Shard(tensor.index(letter)) if letter in tensor else otherwise

        for each in axis_by_axis(rest, mesh[1:]):
            operands = tuple(
                (first(t, Replicate()), *own) for t, own in zip(op.operands, each.operands, strict=True)
            )
            found.append(Strategy(operands, (first(op.result, Partial()), *each.result)))
    return found


@right("op_strategies")
def grows_a_list(op, mesh):
    """Starts with one strategy without axes and adds an axis to all of them, with the parts still left."""
    grown = [([[] for _ in op.operands], [], dict(op.sizes))]
    for length in mesh:
        longer = []
        for operands, result, left in grown:
            longer.append(([[*own, Replicate()] for own in operands], [*result, Replicate()], left))
            for letter in dict.fromkeys("".join(op.operands)) if length != 1 else ():
                if left[letter] % length == 0:
                    cut = [
                        [*own, Shard(names.index(letter)) if letter in names else Replicate()]
                        for names, own in zip(op.operands, operands, strict=True)
                    ]
                    last = Shard(op.result.index(letter)) if letter in op.result else Partial("sum")
                    longer.append((cut, [*result, last], {**left, letter: left[letter] // length}))
        grown = longer
    return [Strategy(tuple(map(tuple, operands)), tuple(result)) for operands, result, _ in grown]


# ---------------------------------------------------------------------------------------------------- search


@right("search")
def in_logarithms(plan, propose, cost, steps, seed, beta=1.0):
    """Draws how much dearer a plan may be: an exponential distribution, whose mean is 1 / beta."""
    generator = random.Random(seed)
    walk = [(cost(plan), plan)]
    best = walk[0]
    while len(walk) <= steps:
        here, plan = walk[-1]
        proposed = propose(plan, generator)
        there = cost(proposed)
        best = min(best, (there, proposed), key=lambda pair: pair[0])
        allowed = generator.expovariate(1.0)
        goes = there <= here or beta * (there - here) < allowed
        walk.append((there, proposed) if goes else walk[-1])
    return best[1], best[0]


@right("search")
class AsSteps:
    """A generator of what is seen, and the best of it."""

    def __new__(cls, plan, propose, cost, steps, seed, beta=1.0):
        def seen(plan, generator):
            here = cost(plan)
            yield plan, here
            for _ in range(steps):
                proposed = propose(plan, generator)
                there = cost(proposed)
                yield proposed, there
                worse = max(0.0, there - here) if there != here else 0.0
                if generator.random() < math.exp(-beta * worse):
                    plan, here = proposed, there

        return min(seen(plan, random.Random(seed)), key=lambda pair: pair[1])
