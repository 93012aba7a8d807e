"""Mistakes that people make in unit 13."""

import math
import random

import torch
import torch.distributed as dist

from tests.answers import wrong


@wrong("automatic_example", fails="mean over ranks")
def forgets_to_divide(x):
    """The sum instead of the mean."""
    total = x.clone()
    dist.all_reduce(total)
    return total


@wrong("automatic_example", fails="mean over ranks")
def divides_by_two(x):
    """As if there were always two ranks."""
    total = x.clone()
    dist.all_reduce(total)
    return total / 2


@wrong("automatic_example", fails="mean over ranks")
def mean_of_its_own(x):
    """Averages what one rank holds; nobody is asked."""
    return torch.full_like(x, x.mean().item())


@wrong("automatic_example", fails="x unchanged")
def overwrites_x(x):
    """Gives its own argument to all_reduce."""
    dist.all_reduce(x)
    return x / dist.get_world_size()


@wrong("automatic_example", fails="one collective")
def asks_for_the_number_of_ranks(x):
    """A second collective, for a number that every rank knows."""
    total, ranks = x.clone(), torch.ones(1)
    dist.all_reduce(total)
    dist.all_reduce(ranks)
    return total / ranks


# ---------------------------------------------------------------------------------------------------- search


def metropolis(
    *,
    no_dearer=lambda here, there: there <= here,
    share=lambda here, there, beta: math.exp(-beta * (there - here)),
    of_steps=lambda steps: steps,
    returns=lambda best, last: best,
    makes=random.Random,
    again=False,
):
    """The walk, with something else in one place."""

    def walk(plan, propose, cost, steps, seed, beta=1.0):
        generator = makes(seed)
        here = cost(plan)
        best = plan, here
        for _ in range(of_steps(steps)):
            proposed = propose(plan, generator)
            if again:
                here = cost(plan)
            there = cost(proposed)
            if there < best[1]:
                best = proposed, there
            if no_dearer(here, there) or generator.random() < share(here, there, beta):
                plan, here = proposed, there
        return returns(best, (plan, here))

    return walk


@wrong("search", fails="the best plan seen")
def returns_where_it_ends(*arguments):
    """The last plan of the walk instead of the best."""
    return metropolis(returns=lambda best, last: last)(*arguments)


@wrong("search", fails="the best plan seen")
def one_step_too_few(*arguments):
    """Takes the first plan for a step."""
    return metropolis(of_steps=lambda steps: max(0, steps - 1))(*arguments)


@wrong("search", fails="the best plan seen")
def forgets_the_first_plan(plan, propose, cost, steps, seed, beta=1.0):
    """Only plans that were proposed can be the best."""
    generator, here, best = random.Random(seed), cost(plan), (plan, math.inf)
    for _ in range(steps):
        proposed = propose(plan, generator)
        there = cost(proposed)
        best = min(best, (proposed, there), key=lambda pair: pair[1])
        if there <= here or generator.random() < math.exp(-beta * (there - here)):
            plan, here = proposed, there
    return best


@wrong("search", fails="the best plan seen")
def keeps_the_last_of_equal_ones(plan, propose, cost, steps, seed, beta=1.0):
    """A plan as good as the best takes its place."""
    generator, here = random.Random(seed), cost(plan)
    best, least = plan, here
    for _ in range(steps):
        proposed = propose(plan, generator)
        there = cost(proposed)
        if there <= least:
            best, least = proposed, there
        if there <= here or generator.random() < math.exp(-beta * (there - here)):
            plan, here = proposed, there
    return best, least


@wrong("search", fails="never refuses what is no dearer")
def computes_the_power_of_any_gain(*arguments):
    """A gain of a million is a power too large for a float."""
    return metropolis(no_dearer=lambda here, there: False)(*arguments)


@wrong("search", fails="never refuses what is no dearer")
def heat_bath(*arguments):
    """The same proportions in the long run, but it stays half the time when costs are equal."""

    def share(here, there, beta):
        return 1 / (1 + math.exp(min(700.0, beta * (there - here)))) if there > here else 0.5

    return metropolis(no_dearer=lambda here, there: False, share=share)(*arguments)


@wrong("search", fails="how often it is where")
def hill_climbing(*arguments):
    """Never goes where it is dearer."""
    return metropolis(share=lambda here, there, beta: 0.0)(*arguments)


@wrong("search", fails="how often it is where")
def without_beta(*arguments):
    """The difference itself in the power."""
    return metropolis(share=lambda here, there, beta: math.exp(here - there))(*arguments)


@wrong("search", fails="how often it is where")
def beta_as_a_temperature(*arguments):
    """Divides by beta."""
    return metropolis(share=lambda here, there, beta: math.exp((here - there) / beta))(*arguments)


@wrong("search", fails="how often it is where")
def power_of_the_new_cost(*arguments):
    """Asks how good the proposed plan is, not how much worse."""
    return metropolis(share=lambda here, there, beta: math.exp(-beta * there))(*arguments)


@wrong("search", fails="how often it is where")
def a_fixed_chance(*arguments):
    """Takes any plan that is worse, and possible, with one probability."""
    return metropolis(share=lambda here, there, beta: 0.0 if math.isinf(there) else 0.3)(*arguments)


@wrong("search", fails="how often it is where")
def relative_to_the_cost(*arguments):
    """A share of the cost instead of a difference."""

    def share(here, there, beta):
        return math.exp(-beta * (there - here) / here)

    return metropolis(share=share)(*arguments)


@wrong("search", fails="the same again")
def without_the_seed(*arguments):
    """Another walk at every call."""
    return metropolis(makes=lambda seed: random.Random())(*arguments)


@wrong("search", fails="the same again")
def always_one_seed(*arguments):
    """The same walk, whatever the seed is."""
    return metropolis(makes=lambda seed: random.Random(0))(*arguments)


@wrong("search", fails="the same again")
def seeds_the_module(*arguments):
    """Draws from the module's own generator, and so from that of everyone else."""

    def makes(seed):
        random.seed(seed)
        return random

    return metropolis(makes=makes)(*arguments)


@wrong("search", fails="each plan priced once")
def prices_where_it_stands(*arguments):
    """Asks for the cost of the present plan in every step."""
    return metropolis(again=True)(*arguments)
