"""Right answers of unit 08, written differently."""

import numpy as np
import torch
import torch.distributed as dist

from tests.answers import right


@right("server_bandwidth")
def gradients_a_second(model_bytes, seconds_per_gradient, workers, servers=1):
    gradients = workers / seconds_per_gradient
    return (gradients * (model_bytes / servers),) * 2


@right("server_bandwidth")
def part_by_part(model_bytes, seconds_per_gradient, workers, servers=1):
    part = model_bytes / servers
    into = sum(part / seconds_per_gradient for _ in range(workers))
    return into, into


@right("parameter_server_sgd")
def all_at_once(w, gradient, steps, lr):
    """Asynchronous messages, and gradients from whoever is ready."""
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    weights = w.clone()
    for _ in range(steps):
        if rank > 0:
            dist.irecv(weights, 0).wait()
            dist.isend(gradient(weights), 0).wait()
            continue
        sent = [dist.isend(weights, worker) for worker in range(1, workers + 1)]
        arrived = torch.empty(workers, *w.shape, dtype=w.dtype)
        for place in range(workers):
            dist.recv(arrived[place])
        for work in sent:
            work.wait()
        weights = weights - lr * arrived.mean(0)
    return weights if rank == 0 else None


@right("parameter_server_sgd")
def backwards(w, gradient, steps, lr):
    """From the last worker to the first, and steps one by one."""
    weights, tensor, workers = w, torch.empty_like(w), range(dist.get_world_size() - 1, 0, -1)
    for _ in range(steps):
        if dist.get_rank():
            dist.recv(tensor, 0)
            dist.send(gradient(tensor), 0)
            continue
        for worker in workers:
            dist.send(weights, worker)
        for worker in workers:
            dist.recv(tensor, worker)
            weights = weights - lr / len(workers) * tensor
    return None if dist.get_rank() else weights.clone()


@right("place_parameters")
def fills_one_server_after_another(sizes, servers):
    """Room of the present server is counted down."""
    share = -(-sum(sizes) // servers)
    placed, room = [[]], share
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            if room == 0:
                placed.append([])
                room = share
            end = min(size, start + room)
            placed[-1].append((tensor, start, end))
            room -= end - start
            start = end
    return placed + [[] for _ in range(servers - len(placed))]


@right("deal_dynamically")
def first_round_unasked(batches, work):
    """Each worker is sent its first batch without asking, and says afterwards that it is done."""
    workers, number = dist.get_world_size() - 1, torch.empty(1)
    if dist.get_rank() > 0:
        mine = []
        dist.recv(number, 0)
        while number < batches:
            mine.append(int(number))
            work(mine[-1])
            dist.send(number, 0)
            dist.recv(number, 0)
        return mine
    whose = {}
    for batch in range(batches + workers):
        worker = batch + 1 if batch < workers else dist.recv(number)
        dist.send(torch.tensor([float(batch)]), worker)
        whose[batch] = worker
    return [whose[batch] for batch in range(batches)]


@right("downpour_sgd")
def sum_as_a_difference(w, gradient, steps, lr, n_push, n_fetch):
    """Workers keep what each step moved; the server takes it off as it is."""
    weights, wish = w.clone(), torch.empty(1, dtype=torch.int64)
    if not dist.get_rank():
        often = len(range(0, steps, n_fetch)) + len(range(0, steps, n_push))
        for _ in range((dist.get_world_size() - 1) * often):
            worker = dist.recv(wish)
            if int(wish) == 7:
                dist.send(weights, worker)
                continue
            moved = torch.empty_like(w)
            dist.recv(moved, worker)
            weights -= moved
        return weights
    moved = torch.zeros_like(w)
    for step in range(1, steps + 1):
        if (step - 1) % n_fetch == 0:
            dist.send(wish.fill_(7), 0)
            dist.recv(weights, 0)
        change = lr * gradient(weights)
        weights -= change
        moved += change
        if step % n_push == 0 or step == steps:
            dist.send(wish.fill_(8), 0)
            dist.send(moved, 0)
            moved = torch.zeros_like(w)
    return None


@right("staleness")
def looks_back(log):
    """For each update, back to the worker's last reading."""
    ages = []
    for place, (what, worker) in enumerate(log):
        if what != "write":
            continue
        before = [line for line in range(place) if log[line] == ("read", worker)]
        if not before:
            raise ValueError(f"nothing read by {worker}")
        ages.append(sum(other == "write" for other, _ in log[before[-1] : place]))
    return ages


@right("staleness")
def counts_up_for_everyone(log):
    """Each reader's count grows with every update, and a reading begins it anew."""
    ages, since = [], {}
    for what, worker in log:
        if what == "read":
            since[worker] = 0
        elif worker in since:
            ages.append(since[worker])
            since = {each: count + 1 for each, count in since.items()}
        else:
            raise ValueError(f"{worker} has no weights")
    return ages


@right("BoundedClock")
class TensorOfSteps:
    """Steps as a tensor."""

    def __init__(self, workers, bound):
        self.finished = torch.zeros(workers, dtype=torch.int64)
        self.bound = float(bound)

    def may_go_on(self, worker):
        return bool(self.finished[worker] <= self.finished.min() + self.bound)

    def tick(self, worker):
        if self.may_go_on(worker):
            self.finished[worker] += 1
        else:
            raise RuntimeError(f"worker {worker} has to wait")


@right("BoundedClock")
class AskEveryone:
    """Nobody else may be further behind than the bound; an error of its own kind."""

    class TooEarly(RuntimeError):
        pass

    def __init__(self, workers, bound):
        self._steps, self._bound = dict.fromkeys(range(workers), 0), bound

    def may_go_on(self, worker):
        return all(self._steps[worker] - steps <= self._bound for steps in self._steps.values())

    def tick(self, worker):
        if not self.may_go_on(worker):
            raise self.TooEarly
        self._steps[worker] += 1


@right("ssp_sgd")
def counts_gradients(w, gradient, steps, lr, bound):
    """Sent copies and arrived gradients are counted; who may go on is asked of all, again and again."""
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps if dist.get_rank() else 0):
        dist.recv(weights, 0)
        dist.send(gradient(weights), 0)
    if dist.get_rank():
        return None
    workers = range(1, dist.get_world_size())
    sent, came = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
    while min(came.values()) < steps:
        for worker in workers:
            ready = sent[worker] == came[worker] < steps
            if ready and came[worker] - min(came.values()) <= bound:
                dist.send(weights, worker)
                sent[worker] += 1
        worker = dist.recv(arrived)
        weights = weights - arrived * (lr / len(workers))
        came[worker] += 1
    return weights


@right("tree_step")
def weights_come_down(model, lr):
    """Rank 0 makes the step, and its weights travel; the halves of a range are the tree."""
    trained = [p for p in model.parameters() if p.requires_grad]
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in trained])
    distances = [1 << k for k in reversed(range((size - 1).bit_length()))]
    for distance in distances:
        if distance <= rank < 2 * distance:
            dist.send(total, rank - distance)
        elif rank < distance and rank + distance < size:
            arriving = torch.empty_like(total)
            dist.recv(arriving, rank + distance)
            total = total + arriving
    weights = torch.nn.utils.parameters_to_vector(trained).detach() - lr * total / size
    for distance in reversed(distances):
        if distance <= rank < 2 * distance:
            dist.recv(weights, rank - distance)
        elif rank < distance and rank + distance < size:
            dist.send(weights, rank + distance)
    torch.nn.utils.vector_to_parameters(weights, trained)


@right("local_sgd")
def period_by_period(model, optimizer, batches, loss_fn, period):
    """Slices of the batches."""
    losses = []
    for start in range(0, len(batches), period):
        for inputs, targets in batches[start : start + period]:
            model.zero_grad()
            losses.append(loss_fn(model(inputs), targets))
            losses[-1].backward()
            optimizer.step()
        trained = [p for p in model.parameters() if p.requires_grad]
        flat = torch.nn.utils.parameters_to_vector(trained).detach() / dist.get_world_size()
        dist.all_reduce(flat)
        torch.nn.utils.vector_to_parameters(flat, trained)
    return [float(loss) for loss in losses]


@right("local_sgd")
def the_optimizers_parameters(model, optimizer, batches, loss_fn, period):
    """Those of its groups; asynchronously; counts down."""
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    losses, left = [], period
    for number, (inputs, targets) in enumerate(batches):
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        left -= 1
        if left and number < len(batches) - 1:
            continue
        left = period
        flat = torch.cat([p.detach().reshape(-1) for p in trained])
        dist.all_reduce(flat, async_op=True).wait()
        for p in trained:
            p.data.copy_(flat[: p.numel()].view_as(p) / dist.get_world_size())
            flat = flat[p.numel() :]
    return losses


@right("federated_round")
def two_messages(w, client_update, samples, fraction, seed):
    """The number of samples first, as a whole number; NumPy's generator; a running mean."""
    rank, clients = dist.get_rank(), dist.get_world_size() - 1
    picked = np.random.default_rng(seed).choice(clients, max(1, round(fraction * clients)), replace=False)
    chosen = sorted(int(client) + 1 for client in picked)
    if rank in chosen:
        mine = torch.empty_like(w)
        dist.recv(mine, 0)
        mine = client_update(mine, samples) if len(samples) else mine
        dist.send(torch.tensor([len(samples)]), 0)
        dist.send(mine, 0)
    if rank:
        return None
    for client in chosen:
        dist.send(w, client)
    mean, seen = w.clone(), 0
    for client in chosen:
        count, theirs = torch.zeros(1, dtype=torch.int64), torch.empty_like(w)
        dist.recv(count, client)
        dist.recv(theirs, client)
        if count:
            seen += count.item()
            mean += (theirs - mean) * (count.item() / seen)
    return mean


def _steps_in(period, seconds):
    """How many steps this rank makes in a period, given in steps of the fastest, and how many that one."""
    fastest = min(seconds)
    lasts = max(period * fastest, *seconds)
    return int(lasts / seconds[dist.get_rank()] + 1e-6), int(lasts / fastest + 1e-6)


def _trained_alone(w, gradient, lr, steps):
    for _ in range(steps):
        w = w - lr * gradient(w)
    return w


@right("design_averaging")
def in_a_tree(w, gradient, steps, lr, seconds, cluster):
    """Sums go up a binomial tree in messages, and means down; ranks of a node come first."""
    dear = cluster.inter_node.latency > min(seconds) / 10
    own, most = _steps_in(16 if dear and cluster.nodes > 1 else 4, seconds)
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(steps // most):
        w = _trained_alone(w, gradient, lr, own)
        other, distance = torch.empty_like(w), 1
        while distance < size and rank % (2 * distance) == 0:
            if rank + distance < size:
                dist.recv(other, rank + distance)
                w += other
            distance *= 2
        if rank:
            dist.send(w, rank - distance)
            dist.recv(w, rank - distance)
        else:
            w /= size
        while distance > 1:
            distance //= 2
            if rank + distance < size:
                dist.send(w, rank + distance)


@right("design_averaging")
class Leaders:
    """One rank of each node speaks for it: a reduction to it, an all-reduce of leaders, a broadcast."""

    def __init__(self, w, gradient, steps, lr, seconds, cluster):
        gpus, rank = cluster.devices_per_node, dist.get_rank()
        self.leader = rank - rank % gpus
        places = range(0, cluster.size, gpus)
        self.node = [dist.new_group([*range(first, first + gpus)]) for first in places][rank // gpus]
        self.leaders = dist.new_group([*places])
        self.cluster = cluster
        talk = cluster.inter_node.latency * cluster.nodes / min(seconds)
        own, most = _steps_in(4 if talk < 1 else 16, seconds)
        for _ in range(steps // most):
            w = self.mean(_trained_alone(w, gradient, lr, own))

    def mean(self, w):
        dist.reduce(w, self.leader, group=self.node)
        if dist.get_rank() == self.leader:
            dist.all_reduce(w, group=self.leaders)
        dist.broadcast(w, self.leader, group=self.node)
        return w / self.cluster.size
