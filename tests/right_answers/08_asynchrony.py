"""Right answers of unit 08, written differently."""

import torch
import torch.distributed as dist

from tests.answers import right

# --- server_bandwidth


@right("server_bandwidth")
def gradients_a_second(model_bytes, seconds_per_gradient, workers, servers=1):
    gradients = workers / seconds_per_gradient
    return (gradients * (model_bytes / servers),) * 2


@right("server_bandwidth")
def part_by_part(model_bytes, seconds_per_gradient, workers, servers=1):
    part = model_bytes / servers
    into = sum(part / seconds_per_gradient for _ in range(workers))
    return into, into


# --- parameter_server_sgd


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
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    weights = w
    for _ in range(steps):
        weights = _step(weights, gradient, lr / workers, rank, range(workers, 0, -1))
    return None if rank else weights.clone()


def _step(weights, gradient, rate, rank, workers):
    tensor = torch.empty_like(weights)
    if rank:
        dist.recv(tensor, 0)
        dist.send(gradient(tensor), 0)
        return weights
    for worker in workers:
        dist.send(weights, worker)
    for worker in workers:
        dist.recv(tensor, worker)
        weights = weights - rate * tensor
    return weights


# --- place_parameters


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


@right("place_parameters")
def shares_that_differ_by_one(sizes, servers):
    """Server s has the numbers total * s // servers to total * (s + 1) // servers of the line."""
    total, placed = sum(sizes), []
    for server in range(servers):
        first, last = total * server // servers, total * (server + 1) // servers
        pieces, before = [], 0
        for tensor, size in enumerate(sizes):
            start, end = max(first - before, 0), min(last - before, size)
            if start < end:
                pieces.append((tensor, start, end))
            before += size
        placed.append(pieces)
    return placed
