"""Second ways to do exercises of unit 10, shown once they are solved. Each docstring says how it differs."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd


def top_k_gate(logits, k):
    """No sort of all E experts: k times the largest of those that are left, as libraries with a small k do it."""
    left, chosen = logits.detach().clone(), []
    number = torch.arange(logits.shape[1], device=logits.device)
    for _ in range(k):
        largest = left == left.amax(1, keepdim=True)
        # Of several that are equal the first has the largest of these numbers.
        best = (largest * (len(number) - number)).argmax(1, keepdim=True)
        chosen.append(best)
        left = left.scatter(1, best, -torch.inf)
    experts = torch.cat(chosen, 1)
    return logits.gather(1, experts).softmax(1), experts


def dispatch_plan(experts, count, capacity=None):
    """GShard's way: a table with a row for each choice and a column for each expert, whose running sums are places."""
    tokens, k = experts.shape
    numbers = torch.arange(tokens * k, device=experts.device).view(tokens, k).T.flatten()
    chosen = experts.flatten()[numbers]
    table = nn.functional.one_hot(chosen, count)
    place = (table.cumsum(0) * table).sum(1) - 1
    kept = place < (tokens * k if capacity is None else capacity)
    by_place = (chosen * (tokens * k + 1) + place)[kept].argsort()
    return numbers[kept][by_place], table[kept].sum(0)


def dispatch(x_RD, counts, group=None):
    """PyTorch's own all-to-all, which autograd knows: no class of one's own."""
    sent = counts.view(dist.get_world_size(group), -1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    sizes = received.sum(1).tolist(), sent.sum(1).tolist()
    # What is returned may wait in secret; a clone waits.
    return all_to_all_single_autograd(x_RD.contiguous(), *sizes, group or dist.group.WORLD).clone(), received


def combine(y_TD, plan, received, weights, group=None):
    """A table with a row for every choice, zeros for those that were dropped, and one einsum."""
    order, counts = plan
    tokens, k = weights.shape
    sizes = counts.view(received.shape).sum(1).tolist(), received.sum(1).tolist()
    rows = all_to_all_single_autograd(y_TD.contiguous(), *sizes, group or dist.group.WORLD).clone()
    table = y_TD.new_zeros(tokens * k, y_TD.shape[1]).index_copy(0, order, rows)
    return torch.einsum("nk,nkd->nd", weights, table.view(tokens, k, -1))


def load_balancing_loss(probabilities, experts, group=None):
    """Shares in place of counts: each rank's mean of a table of ones and zeros, averaged over ranks."""
    count = probabilities.shape[1]
    share = nn.functional.one_hot(experts, count).to(probabilities.dtype).mean((0, 1))
    dist.all_reduce(share, group=group)
    share /= dist.get_world_size(group)
    return (count * share * probabilities.mean(0)).sum()


def place_experts(loads, ranks, slots):
    """No swaps: many greedy placements, the order of the experts a little disturbed in each, and the best of them."""
    draw = random.Random(0)
    best, least = None, float("inf")
    copies = [1] * len(loads)
    while True:
        share = [load / count for load, count in zip(loads, copies, strict=True)]
        for noise in (0, *[0.2] * 40):
            order = sorted(range(len(loads)), key=lambda e: -share[e] * (1 + noise * draw.random()))
            held, tokens = [[] for _ in range(ranks)], [0.0] * ranks
            for expert in order:
                free = [rank for rank in range(ranks) if len(held[rank]) < slots]
                for rank in sorted(free, key=tokens.__getitem__)[: copies[expert]]:
                    held[rank].append(expert)
                    tokens[rank] += share[expert]
            if sum(map(len, held)) == sum(copies) and max(tokens) < least:
                best, least = held, max(tokens)
        more = [expert for expert, count in enumerate(copies) if count < ranks]
        if not more or sum(copies) == ranks * slots:
            return best
        copies[max(more, key=lambda e: loads[e] / copies[e])] += 1
