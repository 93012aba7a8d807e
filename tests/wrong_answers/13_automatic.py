"""Mistakes that people make in unit 13."""

import itertools
import math
import random
from math import prod

from torch.distributed.tensor import Partial, Replicate, Shard

from course_lib.planner import Strategy
from tests.answers import wrong

# ------------------------------------------------------------------------------------------------ strategies


def _cuts(op, mesh, parts_of=prod, without=Partial, letters=None, trivial=False):
    """All strategies, with one thing changed.

    parts_of: lengths of the axes along which a letter is cut -> into how many parts its length has to divide.
    without: what the result is along an axis whose letter it lacks. letters: those that may be cut.
    trivial: whether axes of length 1 are cut, too.
    """
    letters = sorted(set("".join(op.operands))) if letters is None else letters

    def layout(tensor, cut, missing):
        return tuple(
            Replicate() if each is None else Shard(tensor.index(each)) if each in tensor else missing()
            for each in cut
        )

    found = []
    for cut in itertools.product(*([None, *letters] if n > 1 or trivial else [None] for n in mesh)):
        along = {each: [n for n, c in zip(mesh, cut, strict=True) if c == each] for each in letters}
        if all(op.sizes[each] % parts_of(axes) == 0 for each, axes in along.items()):
            operands = tuple(layout(each, cut, Replicate) for each in op.operands)
            found.append(Strategy(operands, layout(op.result, cut, without)))
    return found


@wrong("op_strategies", fails="along one axis")
def the_result_is_never_a_sum(op, mesh):
    """Takes each rank's summand for the whole result."""
    return _cuts(op, mesh, without=Replicate)


@wrong("op_strategies", fails="along one axis")
def cuts_letters_of_the_result_only(op, mesh):
    """Forgets that what is summed over can be cut."""
    return _cuts(op, mesh, letters=sorted(op.result))


@wrong("op_strategies", fails="along one axis")
def leaves_out_all_alike(op, mesh):
    """Every rank has to share in the work."""
    return [each for each in _cuts(op, mesh) if any(p != Replicate() for t in each.operands for p in t)]


@wrong("op_strategies", fails="along one axis")
def once_for_each_tensor(op, mesh):
    """Goes over the tensors and their letters, so that a letter of two comes twice."""
    return [each for letters in op.operands for each in _cuts(op, mesh, letters=sorted(letters))]


@wrong("op_strategies", fails="what divides")
def cuts_what_does_not_divide(op, mesh):
    """Parts need not be equal, it thinks."""
    return _cuts(op, mesh, parts_of=lambda axes: 1)


@wrong("op_strategies", fails="what divides")
def at_least_one_for_each_rank(op, mesh):
    """Long enough is not divisible."""
    return [
        each
        for each in _cuts(op, mesh, parts_of=lambda axes: 1)
        if all(
            op.sizes[tensor[place.dim]] >= length
            for tensor, layout in zip(op.operands, each.operands, strict=True)
            for place, length in zip(layout, mesh, strict=True)
            if isinstance(place, Shard)
        )
    ]


@wrong("op_strategies", fails="along several axes")
def each_axis_by_itself(op, mesh):
    """6 divides by 2 and by 2, but not by both."""
    return _cuts(op, mesh, parts_of=lambda axes: max(axes, default=1))


@wrong("op_strategies", fails="along several axes")
def a_letter_along_one_axis_only(op, mesh):
    """As Mesh-TensorFlow's layouts, in which a letter has one axis."""
    return _cuts(op, mesh, parts_of=lambda axes: prod(axes) if len(axes) < 2 else 10**9)


@wrong("op_strategies", fails="along several axes")
def a_letter_has_room_for_one_axis(op, mesh):
    """Adds up the lengths of the axes that cut a letter."""
    return _cuts(op, mesh, parts_of=lambda axes: max(sum(axes), 1))


@wrong("op_strategies", fails="axes with nothing to cut")
def cuts_in_one_part(op, mesh):
    """Along an axis of length 1 each letter divides."""
    return _cuts(op, mesh, trivial=True)


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
