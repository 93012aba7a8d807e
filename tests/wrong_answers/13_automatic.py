"""Mistakes that people make in unit 13: most are the solution with a line of it changed."""

import itertools
import math

import torch
from torch.distributed.tensor import Shard

from tests.answers import instead, solved, wrong
from tests.planning import Search, shapes_of

UNIT = "13_automatic"


def computing(seconds: str) -> str:
    """What a body has before its line that follows, to compute for so long: as a search of all plans does."""
    return (
        f"until = time.process_time() + {seconds}\n    while time.process_time() < until:\n        pass\n    "
    )


# ------------------------------------------------------------------------------------------------ strategies


@instead("op_strategies", ("Partial()", "Replicate()"), fails="along one axis")
def the_result_is_never_a_sum():
    """Takes each rank's summand for the whole result."""


@instead("op_strategies", ("(None, *letters)", "(None, *op.result)"), fails="along one axis")
def cuts_letters_of_the_result_only():
    """Forgets that what is summed over can be cut."""


@instead("op_strategies", ("parts[letter] *= length", "parts[letter] = length"), fails="what divides")
def each_axis_by_itself():
    """6 divides by 2 and by 2, but not by both."""


@instead(
    "op_strategies",
    ("if divides(cut)", "if divides(cut) and all(cut.count(letter) < 2 for letter in letters)"),
    fails="along several axes",
)
def a_letter_along_one_axis_only():
    """As Mesh-TensorFlow's layouts, in which a letter has one axis."""


@instead("op_strategies", ("if length > 1 else (None,)", ""), fails="axes with nothing to cut")
def cuts_in_one_part():
    """Along an axis of length 1 each letter divides."""


# -------------------------------------------------------------------------------------------- changed layouts


@instead(
    "reshard",
    (
        "torch.cat(parts.chunk(p), source.dim)",
        "parts.reshape([n * p if d == source.dim else n for d, n in enumerate(x.shape)])",
    ),
    fails="whole on every rank",
)
def joins_along_dimension_0():
    """Leaves the parts where the all-gather has put them, and calls that the tensor."""


@wrong("reshard", fails="any dtype")
def sends_floats(x, source, target, group=None):
    """Sends numbers as float64, which has not all digits of an int64."""
    given = x.double() if x.dtype is torch.int64 else x
    return solved(UNIT)["reshard"](given, source, target, group).to(x.dtype)


@instead(
    "reshard",
    ("dist.reduce_scatter_tensor(own, sent, group=group)", "own.copy_(sent.chunk(p)[place])"),
    fails="cut, from a sum or from another cut",
)
def cuts_a_summand():
    """Takes its part of its own summand."""


@instead("reshard", ("torch.zeros_like(x) if place else x.clone()", "x.clone()"), fails="without a word")
def everybody_keeps_all():
    """Every rank keeps the whole as its summand: the sum is p times too large."""


@instead("reshard", ("dim)[place].clone()", "dim)[dist.get_rank() % p].clone()"), fails="in a group")
def place_in_the_world():
    """Takes the part of its rank among all."""


@instead(
    "reshard",
    (
        "dist.reduce_scatter_tensor(own, sent, group=group)",
        "dist.all_reduce(sent, group=group)\n        own.copy_(sent.chunk(p)[place])",
    ),
    fails="what is sent",
)
def adds_up_all_of_it():
    """An all-reduce where a reduce-scatter does."""


@instead(
    "reshard", ("target:\n        return x.clone()", "target:\n        return x"), fails="x is left alone"
)
def a_view_of_x():
    """Hands back x itself where nothing is to be done."""


# ------------------------------------------------------------------------------------------- layouts' prices


@instead("reshard_cost", ("nbytes // ranks", "nbytes"), fails="whole on every rank")
def each_gives_the_whole():
    """Takes an all-gather's payload for what comes out of it."""


@instead("reshard_cost", ('"reduce_scatter"', '"all_reduce"'), fails="cut, from a sum or from another cut")
def adds_up_all_and_cuts():
    """An all-reduce, of which each rank keeps a part."""


@instead("reshard_cost", ('"all_to_all"', '"all_gather"'), fails="cut, from a sum or from another cut")
def gathers_all_and_cuts():
    """As PyTorch prices an all-to-all: nearly as an all-gather."""


@instead(
    "reshard_cost",
    (
        "if source == target",
        "if isinstance(source, Replicate) and isinstance(target, Shard):\n"
        '        return seconds_of("scatter", nbytes // ranks, ranks, link)\n'
        "    if source == target",
    ),
    fails="without a word",
)
def hands_out_parts():
    """Scatters what every rank has already."""


@instead(
    "reshard_cost",
    (
        "if source == target",
        "if isinstance(source, Shard) and isinstance(target, Partial): return math.inf\n"
        "    if source == target",
    ),
    fails="without a word",
)
def never_becomes_a_sum():
    """As PyTorch, in which a cut tensor cannot become a sum."""


# ------------------------------------------------------------------------------------------------------ ways


@wrong("reshard_path", fails="least seconds")
def axis_after_axis(source, target, nbytes, mesh, links, dims):
    """Goes through the axes in their order, each straight to its target."""
    seconds, way = 0.0, [source]
    for axis, new in enumerate(target):
        here = way[-1]
        if here[axis] != new:
            others = [n for k, n in enumerate(mesh) if k != axis and isinstance(here[k], Shard)]
            size = nbytes // math.prod(others)
            seconds += solved(UNIT)["reshard_cost"](here[axis], new, size, mesh[axis], links[axis])
            way.append((*here[:axis], new, *here[axis + 1 :]))
    return seconds, way


@instead("reshard_path", ("nbytes // math.prod(others)", "nbytes"), fails="least seconds")
def the_whole_tensor_at_each_step():
    """Forgets that the other axes have cut it already."""


@instead("reshard_path", ("seconds, way\n", "seconds, way[1:] or way\n"), fails="a way that takes them")
def only_where_it_gets():
    """Leaves out where it begins."""


@instead("reshard_path", ("each in (old, new)", "each in ()"), fails="one dim along several axes")
def any_order_of_cuts():
    """Joins the first axis of S(0)S(0) as if the parts lay side by side."""


@instead("reshard_path", ("each in (old, new)", "each == old"), fails="one dim along several axes")
def only_what_goes():
    """Looks at the cut that a step takes away, and not at the one that it brings."""


@instead(
    "reshard_path",
    ("done = set()", f"{computing('6 * bool(mesh[2:])')}done = set()"),
    fails="many layouts",
)
def every_way():
    """Takes as long as looking at every way without a circle, of which there are too many."""


# --------------------------------------------------------------------------------------------------- choices


def _told(plan, node_cost, edge_cost):
    """A chain's choice, and what it costs."""
    seconds = sum(own[s] for own, s in zip(node_cost, plan, strict=True))
    steps = zip(itertools.pairwise(plan), edge_cost, strict=True)
    return seconds + sum(table[s][t] for (s, t), table in steps), plan


@wrong("best_chain", fails="least seconds")
def the_cheapest_next_step(node_cost, edge_cost):
    """Greedy: for each operator what is cheapest after the last choice."""
    plan = [node_cost[0].index(min(node_cost[0]))]
    for own, table in zip(node_cost[1:], edge_cost, strict=True):
        costs = [edge + each for edge, each in zip(table[plan[-1]], own, strict=True)]
        plan.append(costs.index(min(costs)))
    return _told(plan, node_cost, edge_cost)


@wrong("best_chain", fails="least seconds")
def each_by_itself(node_cost, edge_cost):
    """The cheapest strategy of each operator, wherever the tensors lie."""
    return _told([own.index(min(own)) for own in node_cost], node_cost, edge_cost)


@instead("best_chain", ("choices[::-1]", "choices"), fails="a choice that has them")
def backwards():
    """Forgets to turn the way back round."""


@instead(
    "best_chain",
    (
        "seconds, came_from = node_cost[0], []",
        "seconds, came_from = node_cost[0], []\n    assert math.inf not in sum(sum(edge_cost, []), [])",
    ),
    fails="what cannot be done",
)
def refuses_infinity():
    """Raises where something cannot be done."""


@instead(
    "best_chain",
    (
        "seconds, came_from = node_cost[0], []",
        f"{computing('5 * (len(node_cost) > 20)')}seconds, came_from = node_cost[0], []",
    ),
    fails="long chains",
)
def all_plans_of_a_chain():
    """Takes as long as looking at all plans, of which there are too many."""


@wrong("best_intra", fails="least seconds")
def as_if_it_were_a_chain(graph, node_cost, edge_cost, memory=None, capacity=None):
    """Only edges between neighbours count."""
    chain = [
        edge_cost[graph.index((i, i + 1))] if (i, i + 1) in graph else [[0.0] * len(b) for _ in a]
        for i, (a, b) in enumerate(itertools.pairwise(node_cost))
    ]
    return solved(UNIT)["best_chain"](node_cost, chain)


@wrong("best_intra", fails="several edges")
def one_table_for_a_pair(graph, node_cost, edge_cost, memory=None, capacity=None):
    """A dictionary of edges, in which the last of two between the same operators remains."""
    tables = dict(zip(graph, edge_cost, strict=True))
    return solved(UNIT)["best_intra"](list(tables), node_cost, list(tables.values()), memory, capacity)


@instead("best_intra", ("total, choices", "total, [*map(float, choices)]"), fails="a choice that has them")
def floats_as_choices():
    """Returns what the solver has, rounded, and not as integers."""


@wrong("best_intra", fails="what cannot be done")
def a_dear_change(graph, node_cost, edge_cost, *bound):
    """Has a large number for infinity, and returns a plan in any case."""
    dear = [[[min(each, 1e3) for each in row] for row in table] for table in edge_cost]
    return solved(UNIT)["best_intra"](graph, node_cost, dear, *bound)


@instead("best_intra", (" / max(limit, 1e-300)", ""), fails="the solver's tolerances")
def in_seconds():
    """Gives the solver seconds, as they are."""


@instead("best_intra", ("total == 0 or 2 * total >= limit", "True"), fails="the solver's tolerances")
def divides_by_the_largest():
    """One dear strategy, which is in no good plan, makes all others alike."""


@instead(
    "best_intra",
    ("if capacity is not None and sum(held", "if False and sum(held"),
    fails="the solver's tolerances",
)
def trusts_the_constraint():
    """Does not add up the bytes: a plan may have too many by a millionth of the capacity."""


@instead(
    "best_intra",
    ('"mip_rel_gap": 0.0', '"mip_rel_gap": 1e-2 if len(node_cost) > 9 else 0.0'),
    fails="a larger graph",
)
def a_percent_is_near_enough():
    """The solver may stop at a plan that is within a percent of its bound."""


# ---------------------------------------------------------------------------------------------------- search

TAKEN = "there <= here or generator.random() < math.exp(beta * (here - there))"


@instead("search", ("return best, least", "return plan, here"), fails="the best plan seen")
def returns_where_it_ends():
    """The last plan of the walk instead of the best."""


@instead("search", ("range(steps)", "range(steps - 1)"), fails="the best plan seen")
def one_step_too_few():
    """Takes the first plan for a step."""


@instead("search", ("there <= here or ", ""), fails="never refuses what is no dearer")
def computes_the_power_of_any_gain():
    """A gain of a million is a power too large for a float."""


@instead(
    "search",
    (TAKEN, "generator.random() < 1 / (1 + math.exp(min(700.0, beta * (there - here))))"),
    fails="never refuses what is no dearer",
)
def heat_bath():
    """The same proportions in the long run, but it stays half the time when costs are equal."""


@instead("search", (TAKEN, "there <= here"), fails="how often it is where")
def hill_climbing():
    """Never goes where it is dearer."""


@instead("search", ("random.Random(seed)", "random.Random()"), fails="the same again")
def without_the_seed():
    """Another walk at every call."""


@instead("search", ("random.Random(seed)", "random.seed(seed) or random._inst"), fails="the same again")
def seeds_what_all_share():
    """Its generator is the module's own, which others use, too."""


@instead(
    "search",
    ("there = cost(proposed)", "there, here = cost(proposed), cost(plan)"),
    fails="each plan priced once",
)
def prices_where_it_stands():
    """Asks for the cost of the present plan in every step."""


# -------------------------------------------------------------------------------------------------- simulate


@instead("simulate", ("max(timeline.end[each]", "min(timeline.end[each]"), fails="waits for all before it")
def waits_for_the_first():
    """A task begins when one of those before it has ended."""


@instead(
    "simulate", ("max(ready, free[task.device])", "ready"), fails="one at a time, in the order of readiness"
)
def all_at_once():
    """A device runs whatever is ready, several tasks together."""


@wrong("simulate", fails="one at a time, in the order of readiness")
def as_they_are_listed(tasks, edges, devices):
    """Goes through the tasks by their numbers."""
    timeline = solved(UNIT)["simulate"](tasks, edges, devices)
    timeline.queues = [sorted(queue) for queue in timeline.queues]
    last = [0.0] * devices
    for number, task in enumerate(tasks):
        timeline.ready[number] = max((timeline.end[each] for each in timeline.before[number]), default=0.0)
        last[task.device] = max(timeline.ready[number], last[task.device]) + task.seconds
        timeline.end[number] = last[task.device]
    return timeline


@instead(
    "simulate",
    ("waiting = [(0.0, number)", "waiting = [(0.0, tasks[number].seconds, number)"),
    ("while waiting", "heapq.heapify(waiting)\n    while waiting"),
    ("ready, number = ", "ready, _, number = "),
    ("for each in before[later]), later)", "for each in before[later]), tasks[later].seconds, later)"),
    fails="ready at the same moment",
)
def ties_by_length():
    """Of those ready at the same moment the shorter one: tuples compare what comes next."""


@wrong("simulate", fails="a long chain")
def settles_by_recursion(tasks, edges, devices):
    """Each task asks those before it when they end, and these ask on."""
    timeline = solved(UNIT)["simulate"](tasks, edges, devices)

    def steps(number):
        return 1 + max(map(steps, timeline.before[number]), default=0)

    assert all(steps(number) for number in range(len(tasks) - 1, -1, -1))
    return timeline


@instead("simulate", ("list(tasks)", "tasks"), fails="what waits for what")
def shares_the_list():
    """The timeline's list is the caller's."""


# ------------------------------------------------------------------------------------------------ resimulate


@instead("resimulate", ("may_move(queue[where + 1 : where + 2])", "pass"), fails="another duration")
def forgets_its_device():
    """Tells those that wait for the task, not the one behind it."""


@instead("resimulate", ("for each in timeline.after[number]", "for each in ()"), fails="another duration")
def forgets_those_that_wait():
    """Tells the one behind it on its device, not those that wait for it."""


@instead(
    "resimulate",
    (
        "was, tasks[number] = tasks[number], task",
        "was = tasks[number]\n        tasks[number] = task = replace(was, seconds=task.seconds)",
    ),
    fails="another device",
)
def stays_in_its_queue():
    """Only the seconds of a change count."""


@instead("resimulate", ("in changes.items()", "in [*changes.items()][:1]"), fails="several changes")
def the_first_change_only():
    """A call with three changes makes one of them."""


@instead("resimulate", ("if times != (ready[number], end[number])", ""), fails="which have moved")
def all_that_was_looked_at():
    """Returns also what has not moved in the end."""


@instead(
    "resimulate",
    ("times != (ready[number], end[number])", "times[1] != end[number]"),
    fails="which have moved",
)
def those_that_end_elsewhere():
    """A task that is ready earlier and ends as before has moved, too."""


@instead("resimulate", ("if arrival(each) != ready[each]", ""), fails="reads what it needs")
def looks_at_all_that_wait():
    """Also at those that wait for another one, which ends later."""


@wrong("resimulate", fails="reads what it needs")
def simulates_all_of_it(timeline, changes):
    """Right, and as slow as before."""
    was = list(zip(timeline.ready, timeline.end, strict=True))
    for number, task in changes.items():
        timeline.tasks[number] = task
    edges = [(a, b) for a, after in enumerate(timeline.after) for b in after]
    new = solved(UNIT)["simulate"]([*timeline.tasks], edges, len(timeline.queues))
    timeline.ready, timeline.end, timeline.queues = new.ready, new.end, new.queues
    return {n for n, times in enumerate(zip(new.ready, new.end, strict=True)) if times != was[n]}


# ------------------------------------------------------------------------------------------------ best_inter

STEP = "total + (micro_batches - 1) * slowest"


@instead("best_inter", (STEP, "slowest if total < math.inf else math.inf"), fails="a few micro-batches")
def the_slowest_stage_alone():
    """As PipeDream's planner, whose pipeline never runs empty."""


@instead(
    "best_inter",
    (STEP, "total"),
    ("micro_batches * slowest >= best[0]", "False"),
    fails="a few micro-batches",
)
def the_sum_alone():
    """The latency of one micro-batch, however many there are."""


@instead(
    "best_inter",
    (STEP, STEP.replace("micro_batches", "max(2, micro_batches)")),
    fails="one micro-batch, or many",
)
def two_micro_batches_at_least():
    """The slowest stage counts twice even if there is a single micro-batch."""


@instead(
    "best_inter",
    (
        "least.get((layers, devices), (math.inf, []))",
        "min((least.get((layers, n), (math.inf, [])) for n in range(devices + 1)), key=lambda p: p[0])",
    ),
    fails="a few micro-batches",
)
def all_devices_or_fewer():
    """Takes a plan that leaves devices idle, if it is faster."""


@instead("best_inter", ("raise ValueError(f", "return [] and (f"), fails="what does not fit")
def returns_no_stages():
    """An empty list where nothing fits."""


@instead(
    "best_inter",
    (": stage_seconds(begin, end, size) for", ": max(stage_seconds(begin, end, size) for _ in range(2)) for"),
    fails="each stage asked for once",
)
def asks_again():
    """Has each stage measured twice."""


@instead("best_inter", ("for size in usable", "for size in sizes"), fails="each stage asked for once")
def asks_for_more_than_there_are():
    """Has every size measured, also those larger than the cluster."""


@instead("best_inter", ("usable = [", f"{computing('7 * (layers > 12)')}usable = ["), fails="a large model")
def tries_all_plans():
    """Right, and for large models as slow as trying all plans."""


# --------------------------------------------------------------------------------------- pipedream_hierarchy


@instead("pipedream_hierarchy", ("cut = 2 * ", "cut = "), fails="servers of several GPUs")
def a_cut_is_crossed_once():
    """Forgets the gradients that come back."""


@instead(
    "pipedream_hierarchy", ("range(1, used))", "range(1, min(used, 2)))"), fails="servers of several GPUs"
)
def the_last_stage_on_one():
    """Only the first stage is replicated."""


@instead(
    "pipedream_hierarchy",
    (" in levels:", " in [(n, levels[-1][1]) for n, _ in levels]:"),
    fails="servers of several GPUs",
)
def the_slowest_network_everywhere():
    """GPUs of one server as far apart as servers."""


@instead(
    "pipedream_hierarchy", ("alone[0, count][1]", "levels.clear() or alone[0, count][1]"), fails="one level"
)
def takes_the_levels_out():
    """In the end the caller's list is empty."""


@instead("pipedream_hierarchy", ("gpus *= units", "gpus = units"), fails="three levels")
def shared_by_the_level_below():
    """Divides the exchange by the units of one level below, not by all GPUs."""


# ------------------------------------------------------------------------------------------------ plans


@wrong("plan", fails="runs within the memory")
def has_never_heard_of_memory(model, cluster, memory):
    """The fastest of all plans, wherever it fits."""
    return Search(within=False)(model, cluster, memory)


@wrong("plan", fails="runs within the memory")
def leaves_ranks_idle(model, cluster, memory):
    """Plans for half of the ranks: that needs less memory for gradients of replicas."""
    return Search(shapes=lambda ranks: shapes_of(ranks // 2), within=False)(model, cluster, memory)


@wrong("plan", fails="within a tenth of the best known")
def never_replicates(model, cluster, memory):
    """Stages and split operators only."""
    return Search(shapes=lambda ranks: [each for each in shapes_of(ranks) if each[1] == 1])(
        model, cluster, memory
    )


@wrong("plan", fails="no slower than one kind of parallelism")
def always_in_two_stages(model, cluster, memory):
    """The recipe that was right for the last model."""
    return Search(shapes=lambda ranks: [each for each in shapes_of(ranks) if each[0] == 2])(
        model, cluster, memory
    )


@wrong("plan", fails="within a tenth of the best known")
def as_many_micro_batches_as_stages(model, cluster, memory):
    """Enough for every stage to have something to do, and half of the time they still wait."""
    return Search(micro_batches=1)(model, cluster, memory)
