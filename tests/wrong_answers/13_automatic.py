"""Mistakes that people make in unit 13."""

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
