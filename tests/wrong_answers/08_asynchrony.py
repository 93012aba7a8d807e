"""Mistakes that people make in unit 08."""

import torch
import torch.distributed as dist

from tests.answers import wrong

# --- server_bandwidth


@wrong("server_bandwidth", fails="one server")
def of_one_worker(model_bytes, seconds_per_gradient, workers, servers=1):
    """What a worker sends; the server has all of them."""
    return model_bytes / seconds_per_gradient / servers, model_bytes / seconds_per_gradient / servers


@wrong("server_bandwidth", fails="one server")
def of_one_step(model_bytes, seconds_per_gradient, workers, servers=1):
    """Bytes a step, not a second."""
    return workers * model_bytes / servers, workers * model_bytes / servers


@wrong("server_bandwidth", fails="one server")
def seconds_as_a_rate(model_bytes, seconds_per_gradient, workers, servers=1):
    """Takes the seconds of a gradient for gradients a second."""
    rate = workers * model_bytes * seconds_per_gradient / servers
    return rate, rate


@wrong("server_bandwidth", fails="one server")
def sends_the_weights_once(model_bytes, seconds_per_gradient, workers, servers=1):
    """One copy of the weights leaves the server, as if the network made the others."""
    rate = model_bytes / seconds_per_gradient / servers
    return workers * rate, rate


@wrong("server_bandwidth", fails="one server")
def both_ways_together(model_bytes, seconds_per_gradient, workers, servers=1):
    """Adds what comes in and what goes out."""
    rate = 2 * workers * model_bytes / seconds_per_gradient / servers
    return rate, rate


@wrong("server_bandwidth", fails="several servers")
def one_server_for_all(model_bytes, seconds_per_gradient, workers, servers=1):
    """Each server takes in every gradient whole."""
    rate = workers * model_bytes / seconds_per_gradient
    return rate, rate


@wrong("server_bandwidth", fails="several servers")
def weights_on_every_server(model_bytes, seconds_per_gradient, workers, servers=1):
    """Gradients are shared out; the weights go out from each server whole."""
    rate = workers * model_bytes / seconds_per_gradient
    return rate / servers, rate


# --- parameter_server_sgd


def _worker(w, gradient, steps):
    weights = torch.empty_like(w)
    for _ in range(steps):
        dist.recv(weights, 0)
        dist.send(gradient(weights), 0)


@wrong("parameter_server_sgd", fails="trained weights")
def adds_without_dividing(w, gradient, steps, lr):
    """The sum of the gradients, not their mean."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def counts_the_server(w, gradient, steps, lr):
    """Divides by all ranks; the server has no gradient."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / dist.get_world_size()
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def steps_with_each_gradient(w, gradient, steps, lr):
    """The server steps whenever a gradient comes, and sends the next worker what it has by then."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
            dist.recv(arrived, worker)
            weights -= lr * arrived / workers
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def keeps_the_last_gradient(w, gradient, steps, lr):
    """Receives all gradients into one tensor, and uses what is there in the end."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
        weights -= lr * arrived
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def every_rank_returns(w, gradient, steps, lr):
    """The workers return the weights of the last step but one."""
    workers = dist.get_world_size() - 1
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        if dist.get_rank() > 0:
            dist.recv(weights, 0)
            dist.send(gradient(weights), 0)
            continue
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / workers
    return weights


@wrong("parameter_server_sgd", fails="w unchanged")
def trains_the_callers_weights(w, gradient, steps, lr):
    """Steps in place, in the caller's tensor."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    arrived = torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(w, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        w -= lr * total / workers
    return w


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


@wrong("parameter_server_sgd", fails="messages and bytes")
def sends_the_last_weights_too(w, gradient, steps, lr):
    """After the last step the workers get the weights once more, which nobody asks them for."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        _worker(w, gradient, steps)
        dist.recv(torch.empty_like(w), 0)
        return None
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / workers
    for worker in range(1, workers + 1):
        dist.send(weights, worker)
    return weights


@wrong("parameter_server_sgd", fails="side by side")
def one_worker_after_the_other(w, gradient, steps, lr):
    """Waits for the first worker's gradient before the second gets the weights."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / workers
    return weights


# --- place_parameters


@wrong("place_parameters", fails="every number once")
def rounds_the_share_down(sizes, servers):
    """Each server gets total // servers numbers; the rest has no place."""
    share = sum(sizes) // servers
    placed, before = [[] for _ in range(servers)], 0
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            start = max(0, server * share - before)
            end = min(size, (server + 1) * share - before)
            if start < end:
                placed[server].append((tensor, start, end))
        before += size
    return placed


@wrong("place_parameters", fails="every number once")
def ends_included(sizes, servers):
    """(tensor, first, last) in place of (tensor, start, end)."""
    share = max(1, -(-sum(sizes) // servers))
    placed, before = [[] for _ in range(servers)], 0
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            start = max(0, server * share - before)
            end = min(size, (server + 1) * share - before)
            if start < end:
                placed[server].append((tensor, start, end - 1))
        before += size
    return placed


@wrong("place_parameters", fails="every number once")
def empty_pieces(sizes, servers):
    """Every tensor is cut in as many parts as there are servers, even if they are empty."""
    placed = [[] for _ in range(servers)]
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            placed[server].append((tensor, size * server // servers, size * (server + 1) // servers))
    return placed


@wrong("place_parameters", fails="busiest server")
def in_turns(sizes, servers):
    """Whole tensors, the first to server 0, the next to server 1."""
    placed = [[] for _ in range(servers)]
    for tensor, size in enumerate(sizes):
        if size:
            placed[tensor % servers].append((tensor, 0, size))
    return placed


@wrong("place_parameters", fails="busiest server")
def largest_first(sizes, servers):
    """Whole tensors, the largest first, each to the server that has least: the best without cutting."""
    placed, held = [[] for _ in range(servers)], [0] * servers
    for tensor in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        server = held.index(min(held))
        held[server] += sizes[tensor]
        if sizes[tensor]:
            placed[server].append((tensor, 0, sizes[tensor]))
    return placed


@wrong("place_parameters", fails="busiest server")
def rest_on_the_last(sizes, servers):
    """total // servers each, and what remains on the last one."""
    share = sum(sizes) // servers
    placed, before = [[] for _ in range(servers)], 0
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            last = server == servers - 1
            start = max(0, server * share - before)
            end = size if last else min(size, (server + 1) * share - before)
            if start < end:
                placed[server].append((tensor, start, end))
        before += size
    return placed


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


@wrong("place_parameters", fails="few pieces")
def number_by_number(sizes, servers):
    """Deals out single numbers in turns: balanced, and each is a message."""
    placed = [[] for _ in range(servers)]
    numbers = [(tensor, at) for tensor, size in enumerate(sizes) for at in range(size)]
    for place, (tensor, at) in enumerate(numbers):
        placed[place % servers].append((tensor, at, at + 1))
    return placed


@wrong("place_parameters", fails="sizes unchanged")
def takes_from_the_sizes(sizes, servers):
    """Counts in the caller's list what is left of each tensor."""
    share, placed, taken = -(-sum(sizes) // servers), [], [0] * len(sizes)
    for _ in range(servers):
        pieces, room = [], share
        for tensor in range(len(sizes)):
            part = min(room, sizes[tensor])
            if part:
                pieces.append((tensor, taken[tensor], taken[tensor] + part))
                taken[tensor] += part
                sizes[tensor] -= part
                room -= part
        placed.append(pieces)
    return placed
