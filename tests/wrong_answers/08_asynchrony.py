"""Mistakes that people make in unit 08."""

import torch
import torch.distributed as dist

from tests.answers import instead, wrong


@instead("server_bandwidth", (" / seconds_per_gradient", ""), fails="one server")
def of_one_step():
    """Bytes a step, not a second."""


@instead(
    "server_bandwidth",
    ("return each_way, each_way", "return each_way, each_way / workers"),
    fails="one server",
)
def sends_the_weights_once():
    """One copy of the weights leaves the server, as if the network made the others."""


@instead("server_bandwidth", ("= workers *", "= 2 * workers *"), fails="one server")
def both_ways_together():
    """Adds what comes in and what goes out."""


@instead("server_bandwidth", (" / servers", ""), fails="several servers")
def one_server_for_all():
    """Each server takes in every gradient whole."""


@instead(
    "server_bandwidth",
    ("return each_way, each_way", "return each_way, each_way * servers"),
    fails="several servers",
)
def weights_on_every_server():
    """Gradients are shared out; the weights go out from each server whole."""


@instead("parameter_server_sgd", (" / len(workers)", " / dist.get_world_size()"), fails="trained weights")
def counts_the_server():
    """Divides by all ranks; the server has no gradient."""


@instead("parameter_server_sgd", ("w.clone()", "w"), fails="w unchanged")
def trains_the_callers_weights():
    """Steps in place, in the caller's tensor."""


@wrong("parameter_server_sgd", fails="the star")
def all_reduces_instead(w, gradient, steps, lr):
    """The right weights, and no parameter server."""
    weights = w.clone()
    dist.broadcast(weights, 0)
    for _ in range(steps):
        total = gradient(weights) if dist.get_rank() > 0 else torch.zeros_like(w)
        dist.all_reduce(total)
        weights = weights - lr * total / (dist.get_world_size() - 1)
    return weights if dist.get_rank() == 0 else None


@instead(
    "parameter_server_sgd",
    ("        return None\n", "        dist.recv(weights, 0)\n        return None\n"),
    (
        "    return weights\n",
        "    for worker in workers:\n        dist.send(weights, worker)\n    return weights\n",
    ),
    fails="messages and bytes",
)
def sends_the_last_weights_too():
    """After the last step the workers get the weights once more."""


@instead(
    "parameter_server_sgd",
    (
        "        for worker in workers:\n            dist.send(weights, worker)\n        total",
        "        total",
    ),
    (
        "            dist.recv(arrived, worker)",
        "            dist.send(weights, worker)\n            dist.recv(arrived, worker)",
    ),
    fails="side by side",
)
def one_worker_after_the_other():
    """Waits for the first worker's gradient before the second gets the weights."""


@instead(
    "place_parameters", ("(tensor, start, end))", "(tensor, start, end - 1))"), fails="every number once"
)
def ends_included():
    """(tensor, first, last) in place of (tensor, start, end)."""


@wrong("place_parameters", fails="every number once")
def empty_pieces(sizes, servers):
    """Every tensor is cut in as many parts as there are servers, even if they are empty."""
    placed = [[] for _ in range(servers)]
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            placed[server].append((tensor, size * server // servers, size * (server + 1) // servers))
    return placed


@instead(
    "place_parameters",
    ("(before + start) // share", "tensor % servers"),
    ("min(size, (server + 1) * share - before)", "size"),
    fails="busiest server",
)
def in_turns():
    """Whole tensors, the first to server 0, the next to server 1."""


@wrong("place_parameters", fails="busiest server")
def each_tensor_in_equal_parts(sizes, servers):
    """Every tensor cut by itself, larger parts first: the first servers get all the remainders."""
    placed = [[] for _ in range(servers)]
    for tensor, size in enumerate(sizes):
        start = 0
        for server in range(servers):
            end = start + size // servers + (server < size % servers)
            if start < end:
                placed[server].append((tensor, start, end))
            start = end
    return placed


@instead(
    "place_parameters",
    ("(before + start) // share", "(before + start) % servers"),
    ("min(size, (server + 1) * share - before)", "start + 1"),
    fails="few pieces",
)
def number_by_number():
    """Deals out single numbers in turns: balanced, and each is a message."""


@instead("deal_dynamically", ("range(1, dist.get_world_size())", "range(0)"), fails="each batch once")
def forgets_to_say_the_end():
    """When nothing is left, rank 0 returns, and the workers wait for an answer."""


@instead(
    "deal_dynamically",
    ("return whose", "return [whose.count(rank) for rank in range(dist.get_world_size())]"),
    fails="who had which",
)
def counts_instead_of_naming():
    """Rank 0 returns how many batches each worker had."""


@wrong("deal_dynamically", fails="whoever is free")
def dealt_before(batches, work):
    """An even split that everyone can compute: no messages, and the slowest worker decides."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() == 0:
        return [1 + batch % workers for batch in range(batches)]
    mine = list(range(dist.get_rank() - 1, batches, workers))
    for batch in mine:
        work(batch)
    return mine


@instead(
    "deal_dynamically",
    (
        "whose.append(dist.recv(number))",
        "whose.append(dist.recv(number, 1 + batch % (dist.get_world_size() - 1)))",
    ),
    fails="whoever is free",
)
def in_rank_order():
    """Rank 0 listens to worker 1, then to worker 2, and so on: who is fast waits for its turn."""


@instead(
    "deal_dynamically",
    ("                return mine", "                dist.barrier()\n                return mine"),
    ("    return whose", "    dist.barrier()\n    return whose"),
    fails="the star",
)
def waits_for_all_at_the_end():
    """A barrier, so that all are done together."""


@instead(
    "downpour_sgd",
    (
        "{min(begin + n_push, steps) for begin in range(0, steps, n_push)}",
        "{*range(n_push, steps + 1, n_push)}",
    ),
    fails="every gradient once",
)
def loses_the_last_steps():
    """Where n_push does not divide the steps, the last gradients are never sent."""


@instead("downpour_sgd", ("                total.zero_()\n", ""), fails="every gradient once")
def goes_on_with_the_sum():
    """The sum is never emptied: each push has all gradients since the beginning."""


@instead("downpour_sgd", ("w.clone()", "w"), fails="w unchanged")
def serves_the_callers_weights():
    """Steps in the caller's tensor."""


@instead("downpour_sgd", ("{*range(0, steps, n_fetch)}", "{*range(steps)}"), fails="messages and bytes")
def fetches_in_every_step():
    """n_fetch is not looked at."""


@instead("downpour_sgd", ("                weights -= lr * each\n", ""), fails="weights of each step")
def stands_still_between_fetches():
    """A worker computes all gradients until the next fetch at the same weights."""


@instead(
    "downpour_sgd",
    ("for _ in range(len(", "for turn in range(len("),
    ("worker = dist.recv(wish)", "worker = dist.recv(wish, 1 + turn % (dist.get_world_size() - 1))"),
    fails="waits for nobody",
)
def serves_in_turns():
    """One message from each worker, in the order of their ranks, then the next from each."""


@instead(
    "staleness",
    ("ages.append(version - read[worker])", "ages.append(version + 1 - read[worker])"),
    fails="updates in between",
)
def counts_itself():
    """The update itself is counted too."""


@instead(
    "staleness",
    (
        "            read[worker] = version\n",
        "            version += 1\n            read[worker] = version\n",
    ),
    fails="updates in between",
)
def counts_readings():
    """Counts readings in between as well."""


@instead(
    "staleness",
    ("        version += 1", "        version += 1\n        read[worker] = version"),
    fails="several updates for one reading",
)
def writing_is_reading():
    """After an update the worker is taken to know the weights."""


@instead("staleness", ("if worker not in read:", "if False:"), fails="nothing read")
def key_error():
    """The dictionary's own error."""


@instead(
    "staleness",
    ('raise ValueError(f"Worker {worker} writes, and has read nothing.")', "read[worker] = 0"),
    fails="nothing read",
)
def begins_with_version_0():
    """Who has read nothing is taken to have read the first weights."""


@instead("BoundedClock", ("<= self.bound", "< max(self.bound, 1)"), fails="who may go on")
def less_than_the_bound():
    """A lead of exactly `bound` is too much already."""


@instead(
    "BoundedClock",
    ("self.bound = bound", "self.bound = bound or float('inf')"),
    fails="no bound, and none ahead",
)
def no_bound_is_zero():
    """`bound or math.inf` takes 0 for none."""


@instead(
    "BoundedClock", ("        if not self.may_go_on(worker):", "        if False:"), fails="without leave"
)
def counts_any_tick():
    """Whoever says that it has finished a step is believed."""


@instead(
    "BoundedClock",
    (
        "        if not self.may_go_on(worker):",
        "        allowed = self.may_go_on(worker)\n        self.steps[worker] += 1\n        if not allowed:",
    ),
    ("        self.steps[worker] += 1\n        ### END", "        ### END"),
    fails="without leave",
)
def refuses_too_late():
    """Raises, and has counted the step."""


@instead("BoundedClock", ("self.steps = [0]", "type(self).steps = [0]"), fails="two clocks")
def one_for_all():
    """The steps belong to the class."""


@instead("ssp_sgd", ("lr / workers * arrived", "lr * arrived"), fails="every gradient once")
def whole_steps():
    """lr times each gradient, K times too much."""


@instead("ssp_sgd", ("w.clone()", "w"), fails="w unchanged")
def bounded_in_place():
    """Steps in the caller's tensor."""


@instead(
    "ssp_sgd",
    ("        return None\n", "        dist.barrier()\n        return None\n"),
    ("    return weights\n", "    dist.barrier()\n    return weights\n"),
    fails="the star",
)
def a_barrier_in_the_end():
    """All wait for all in the end."""


@instead(
    "ssp_sgd",
    ("BoundedClock(workers, bound)", "BoundedClock(workers, float('inf'))"),
    fails="lead at most the bound",
)
def nobody_ever_waits():
    """The bound is not looked at."""


@instead(
    "ssp_sgd", ("BoundedClock(workers, bound)", "BoundedClock(workers, 0)"), fails="nobody within it waits"
)
def always_in_step():
    """Synchronous, whatever the bound."""


@instead("tree_step", ("lr / size", "lr"), fails="the step")
def the_sum_instead_of_the_mean():
    """A step that grows with the number of ranks."""


@instead(
    "tree_step",
    ("if rank + distance < size:\n            dist.recv", "if True:\n            dist.recv"),
    fails="any number of ranks",
)
def powers_of_two():
    """Receives from ranks that do not exist."""


@instead(
    "tree_step",
    ("if p.requires_grad]", "if p.requires_grad and p.grad is not None]"),
    fails="missing gradients",
)
def skips_what_has_no_gradient():
    """Ranks then send messages of different lengths."""


@instead("tree_step", (" if p.requires_grad]", "]"), fails="the same model everywhere")
def frozen_ones_too():
    """Whatever has a gradient, be it from long ago."""


@instead(
    "tree_step",
    (
        "    arriving = torch.empty_like(total)\n",
        "    dist.all_reduce(total)\n    arriving, rank, size = torch.empty_like(total), 0, 1\n",
    ),
    ("lr / size", "lr / dist.get_world_size()"),
    fails="messages",
)
def the_librarys_all_reduce():
    """Right sums, and no tree."""


@instead(
    "tree_step",
    ("distance = 1\n", "distance = rank or 1\n"),
    ("rank % (2 * distance) == 0", "rank == 0"),
    ("distance *= 2", "distance += 1"),
    ("while distance > 1", "while rank == 0 and distance > 1"),
    ("distance //= 2", "distance -= 1"),
    fails="rounds",
)
def all_with_rank_0():
    """A server after all."""


@instead("local_sgd", ("        optimizer.zero_grad()\n", ""), fails="the weights")
def keeps_old_gradients():
    """No zero_grad."""


@instead("local_sgd", (" or step == len(batches)", ""), fails="any period, any number of ranks")
def leaves_the_rest():
    """Seven steps by threes: after the seventh the ranks are apart."""


@instead(
    "local_sgd",
    (
        "torch.no_grad():",
        "torch.no_grad():\n                trained = [p for p in model.parameters() if p.grad is not None]",
    ),
    fails="layers that only some ranks train",
)
def what_has_a_gradient():
    """As torch's averagers do: a layer that this rank has not used is left out."""


@instead(
    "local_sgd",
    ("if p.requires_grad]", "if p.requires_grad] + [*model.buffers()]"),
    fails="what stays a rank's own",
)
def buffers_too():
    """Everything in the state dict."""


@instead("local_sgd", ("return losses", "return losses[-1:]"), fails="losses")
def the_last_loss():
    """Of each training one loss."""


@instead(
    "local_sgd",
    ("optimizer.step()", "optimizer.step()\n        dist.all_reduce(loss.detach().clone())"),
    fails="all-reduces",
)
def a_loss_more():
    """Adds up the loss too, in each step."""


@instead(
    "federated_round",
    ("arriving[-1] * arriving[:-1]", "arriving[:-1]"),
    ("total[-1] += arriving[-1]", "total[-1] += 1"),
    fails="the mean of the chosen",
)
def all_count_alike():
    """1 / K for each, however many samples it has."""


@instead("federated_round", ("count = max(1, round(", "count = max(1, int("), fails="how many are chosen")
def rounds_down():
    """int() for round()."""


@instead(
    "federated_round",
    ("torch.randperm(clients, generator=generator)", "torch.arange(clients)"),
    fails="chosen at random",
)
def always_the_first():
    """Clients 1 to m."""


@instead("federated_round", (" if total[-1] else w.clone()", ""), fails="clients without samples")
def divides_by_nothing():
    """0 / 0."""


@instead(
    "federated_round",
    ("torch.Generator().manual_seed(seed)", "torch.manual_seed(seed)"),
    fails="what was given",
)
def seeds_everybody():
    """torch.manual_seed: whoever drops out next does so as in the round before."""


@instead(
    "federated_round",
    ("        return None\n", "        dist.barrier()\n        return None\n"),
    ("    return total[:-1]", "    dist.barrier()\n    return total[:-1]"),
    fails="only the chosen talk",
)
def all_meet_in_the_end():
    """A barrier, also of those who were not chosen."""


@instead(
    "federated_round",
    ("    for client in chosen:\n        dist.send(w, client)\n", ""),
    (
        "        dist.recv(arriving, client)",
        "        dist.send(w, client)\n        dist.recv(arriving, client)",
    ),
    fails="clients train at the same time",
)
def one_client_at_a_time():
    """Asks the next when the last has answered."""


@instead(
    "design_averaging", ("in (nodes[rank // gpus], rails[rank % gpus])", "in ()"), fails="reaches the loss"
)
def alone():
    """No message takes no time, and each node's ranks learn what their own data is like."""


@instead(
    "design_averaging",
    ("(nodes[rank // gpus], rails[rank % gpus])", "(nodes[rank // gpus],)"),
    fails="reaches the loss",
)
def within_nodes_only():
    """The mean of those that are near."""


@instead(
    "design_averaging",
    ("max(*seconds, min(16 * min(seconds), 8 * talk))", "max(seconds)"),
    ("(seconds[rank], min(seconds))", "(max(seconds), max(seconds))"),
    ("(nodes[rank // gpus], rails[rank % gpus])", "(dist.group.WORLD,)"),
    fails="half of what can be saved",
)
def in_each_step():
    """An all-reduce of everyone after each step, as unit 02 has it."""


@instead(
    "design_averaging",
    ("(seconds[rank], min(seconds))", "(min(seconds), min(seconds))"),
    fails="at most half as long again as the best known",
)
def waits_for_the_slow():
    """Few messages, and as many steps from each rank."""


@instead(
    "design_averaging",
    ("min(16 * min(seconds), 8 * talk)", "3 * min(seconds)"),
    fails="at most half as long again as the best known",
)
def too_often():
    """By level and nobody waits, but every three steps, whatever messages cost."""
