"""Right answers of unit 13, written differently."""

import math
import random

import torch
import torch.distributed as dist

from tests.answers import right


@right("automatic_example")
def divides_first(x):
    share = x / dist.get_world_size()
    dist.all_reduce(share)
    return share


@right("automatic_example")
def gathers(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return torch.stack(everything).mean(0)


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
