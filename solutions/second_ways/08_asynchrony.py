"""Second ways to do exercises of unit 08, shown once they are solved. Each docstring says how it differs."""

import random

import torch
import torch.distributed as dist


def place_parameters(sizes, servers):
    """Server s has the numbers total * s // servers to total * (s + 1) // servers of the line: each server is worked
    out by itself, and no two differ by more than one number."""
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


def deal_dynamically(batches, work):
    """Rank 0 has a receive open for each worker and asks which one is there, in turn: so it goes on NCCL too, which has
    no receive from just anyone."""
    if dist.get_rank() > 0:
        number, mine = torch.zeros(1, dtype=torch.int64), []
        while True:
            dist.send(number, 0)
            dist.recv(number, 0)
            if number < 0:
                return mine
            mine.append(int(number))
            work(mine[-1])
    wishes = {worker: torch.zeros(1, dtype=torch.int64) for worker in range(1, dist.get_world_size())}
    asked = {worker: dist.irecv(wish, worker) for worker, wish in wishes.items()}
    whose = []
    while asked:
        for worker in list(asked):
            if not asked[worker].is_completed():
                continue
            asked.pop(worker).wait()
            more = len(whose) < batches
            dist.send(torch.tensor([len(whose) if more else -1]), worker)
            if more:
                whose.append(worker)
                asked[worker] = dist.irecv(wishes[worker], worker)
    return whose


def downpour_sgd(w, gradient, steps, lr, n_push, n_fetch):
    """The server does not count messages. Each worker says in the end that it is done, and one that has died could be
    taken off the list."""
    weights, wish = w.clone(), torch.empty(1)
    if dist.get_rank() == 0:
        at_work = set(range(1, dist.get_world_size()))
        while at_work:
            worker = dist.recv(wish)
            if wish == 2:
                at_work.remove(worker)
            elif wish == 1:
                arrived = torch.empty_like(w)
                dist.recv(arrived, worker)
                weights -= lr * arrived
            else:
                dist.send(weights, worker)
        return weights
    kept = []
    for step in range(steps):
        if step % n_fetch == 0:
            dist.send(wish.fill_(0), 0)
            dist.recv(weights, 0)
        kept.append(gradient(weights))
        weights -= lr * kept[-1]
        if len(kept) == n_push or step == steps - 1:
            dist.send(wish.fill_(1), 0)
            dist.send(torch.stack(kept).sum(0), 0)
            kept = []
    dist.send(wish.fill_(2), 0)
    return None


def ssp_sgd(w, gradient, steps, lr, bound):
    """As in Petuum, a worker asks for weights and says how far it is; the server keeps the questions that it may not
    answer yet."""
    step_of = torch.empty(1, dtype=torch.int64)
    if dist.get_rank():
        weights = torch.empty_like(w)
        for step in range(steps):
            dist.send(torch.tensor([step]), 0)
            dist.recv(weights, 0)
            each = gradient(weights)
            dist.send(torch.tensor([-1]), 0)
            dist.send(each, 0)
        return None
    workers = dist.get_world_size() - 1
    weights, arrived, asked = w.clone(), torch.empty_like(w), {}
    finished = [0] * workers
    for _ in range(2 * steps * workers):
        worker = dist.recv(step_of)
        if step_of >= 0:
            asked[worker] = int(step_of)
        else:
            dist.recv(arrived, worker)
            weights -= lr * arrived / workers
            finished[worker - 1] += 1
        for waiting in sorted(asked):
            if asked[waiting] <= min(finished) + bound:
                dist.send(weights, waiting)
                del asked[waiting]
    return weights


def tree_step(model, lr):
    """Who is whose child is read off the rank's bits, and a rank has the receives of all its children open at once."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
    rank, size = dist.get_rank(), dist.get_world_size()
    # The lowest bit that is set says how far the parent is; all lower ones, how far the children are.
    lowest = rank & -rank if rank else 1 << (size - 1).bit_length()
    children = [rank + (1 << bit) for bit in range(lowest.bit_length() - 1) if rank + (1 << bit) < size]
    parts = [torch.empty_like(total) for _ in children]
    for work in [dist.irecv(part, child) for part, child in zip(parts, children, strict=True)]:
        work.wait()
    total = total + sum(parts)
    if rank:
        dist.send(total, rank - lowest)
        dist.recv(total, rank - lowest)
    # The farthest child has most ranks below it.
    for work in [dist.isend(total, child) for child in reversed(children)]:
        work.wait()
    with torch.no_grad():
        for p, gradient in zip(trained, total.split([p.numel() for p in trained]), strict=True):
            p -= lr / size * gradient.view_as(p)


def federated_round(w, client_update, samples, fraction, seed):
    """Clients send m_k times their weights and m_k. Then sums are all that the server needs: a tree could add them up on
    the way, or a protocol that shows the server the sum alone."""
    rank, clients = dist.get_rank(), dist.get_world_size() - 1
    chosen = random.Random(seed).sample(range(1, clients + 1), max(1, round(fraction * clients)))
    if not rank:
        for work in [dist.isend(w, client) for client in chosen]:
            work.wait()
        parts = [w.new_empty(len(w) + 1) for _ in chosen]
        for part in parts:
            dist.recv(part)
        total = torch.stack(parts).sum(0)
        return total[:-1] / total[-1] if total[-1] > 0 else w.clone()
    if rank in chosen:
        mine = w.clone()
        dist.recv(mine, 0)
        m = len(samples)
        mine = m * client_update(mine, samples) if m else torch.zeros_like(mine)
        dist.send(torch.cat([mine, mine.new_full((1,), m)]), 0)
    return None
