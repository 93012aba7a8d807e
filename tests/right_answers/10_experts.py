"""Right answers of unit 10, written differently."""

import copy

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch import nn

from tests.answers import right, solved


def _own(name):
    """The solution of an exercise that others build on."""
    return solved("10_experts")[name]


@right("top_k_gate")
def divides_in_double(logits, k):
    """The softmax of all, in double precision, divided by what the k have."""
    order = logits.double().sort(descending=True, stable=True).indices[:, :k]
    chosen = logits.double().gather(1, order)
    powers = (chosen - chosen[:, :1]).exp()
    return [(powers / powers.sum(1, keepdim=True)).to(logits.dtype), order]


@right("dispatch_plan")
def in_lists(experts, count, capacity=None):
    """A list for each expert."""
    k = experts.shape[1]
    lists = [[] for _ in range(count)]
    for j in range(k):
        for token, expert in enumerate(experts[:, j].tolist()):
            if capacity is None or len(lists[expert]) < capacity:
                lists[expert].append(token * k + j)
    order = torch.tensor([choice for each in lists for choice in each], dtype=torch.int64)
    return order, torch.tensor(list(map(len, lists)))


@right("dispatch")
def functional_way(x_RD, counts, group=None):
    """By torch's functional collectives, one of which knows autograd."""
    members = group or dist.group.WORLD
    sent = counts.view(dist.get_world_size(group), -1)
    received = functional_collectives.wait_tensor(
        functional_collectives.all_to_all_single(sent, None, None, members)
    )
    sizes = received.sum(1).tolist(), sent.sum(1).tolist()
    rows = functional_collectives.all_to_all_single_autograd(x_RD.contiguous(), *sizes, members)
    return functional_collectives.wait_tensor(rows), received


class _Returned(torch.autograd.Function):
    """The whole of combine: rows travel and are added up, weighted; both gradients are written out."""

    @staticmethod
    def forward(ctx, y, weights, order, sizes, group):
        sent, received = ctx.sizes = sizes
        ctx.group = group
        rows = y.new_empty(sum(sent), y.shape[1])
        dist.all_to_all_single(rows, y.contiguous(), sent, received, group=group)
        ctx.save_for_backward(rows, weights, order)
        weighted = rows * weights.reshape(-1)[order, None]
        return y.new_zeros(len(weights), y.shape[1]).index_add(0, order // weights.shape[1], weighted)

    @staticmethod
    def backward(ctx, gradient):
        rows, weights, order = ctx.saved_tensors
        sent, received = ctx.sizes
        of_rows = gradient[order // weights.shape[1]]
        of_weights = weights.new_zeros(weights.numel()).index_copy(0, order, (of_rows * rows).sum(1))
        of_rows = of_rows * weights.reshape(-1)[order, None]
        back = of_rows.new_empty(sum(received), of_rows.shape[1])
        dist.all_to_all_single(back, of_rows, received, sent, group=ctx.group)
        return back, of_weights.view(weights.shape), None, None, None


@right("combine")
def in_one_function(y_TD, plan, received, weights, group=None):
    """One autograd function for all of it."""
    order, counts = plan
    sizes = counts.view(received.shape).sum(1).tolist(), received.sum(1).tolist()
    return _Returned.apply(y_TD, weights, order, sizes, group)


@right("ExpertParallelMLP")
class RowsByMask(nn.Module):
    """Picks each expert's rows out by a mask, and puts results back with index_add."""

    def __init__(self, whole, capacity_factor=None, group=None):
        super().__init__()
        self.count, self.k, self.factor, self.group = len(whole.experts), whole.k, capacity_factor, group
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        numbers = torch.arange(self.count).chunk(ranks)[rank].tolist()
        self.gate = copy.deepcopy(whole.gate)
        self.experts = nn.ModuleList([copy.deepcopy(whole.experts[number]) for number in numbers])

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        probabilities = self.gate(tokens).softmax(-1)
        weights, experts = _own("top_k_gate")(self.gate(tokens), self.k)
        self.routing = (probabilities, experts)
        capacity = None
        if self.factor is not None:
            capacity = -int(-self.factor * len(tokens) * self.k // self.count)
        plan = _own("dispatch_plan")(experts, self.count, capacity)
        rows, received = _own("dispatch")(tokens[plan[0] // self.k], plan[1], self.group)
        of = torch.cat([torch.arange(len(self.experts)).repeat_interleave(each) for each in received])
        result = torch.zeros_like(rows) + 0 * rows
        for number, expert in enumerate(self.experts):
            (places,) = (of == number).nonzero(as_tuple=True)
            result = result.index_add(0, places, expert(rows[places]))
        return _own("combine")(result, plan, received, weights, self.group).reshape(x.shape)

    def average_gradients(self):
        ranks = dist.get_world_size(self.group)
        for parameter in self.experts.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(ranks)
        weight = self.gate.weight
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            total = weight.grad.clone()
            dist.all_reduce(total, group=self.group)
            weight.grad.copy_(total / ranks)


@right("ExpertParallelMLP")
class HooksThatAverage(nn.Module):
    """Scales what arrives at the experts' results, so that nothing is left to do for them afterwards."""

    def __init__(self, whole, capacity_factor=None, group=None):
        super().__init__()
        self.k, self.factor, self.group, self.ranks = (
            whole.k,
            capacity_factor,
            group,
            dist.get_world_size(group),
        )
        self.gate = nn.Linear(
            whole.gate.in_features, whole.gate.out_features, bias=False, dtype=whole.gate.weight.dtype
        )
        self.gate.load_state_dict(whole.gate.state_dict())
        self.gate.requires_grad_(whole.gate.weight.requires_grad)
        self.experts = nn.ModuleList()
        for number, expert in enumerate(whole.experts):
            if number // (len(whole.experts) // self.ranks) == dist.get_rank(group):
                self.experts.append(copy.deepcopy(expert))
        for parameter in self.experts.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: gradient / self.ranks)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        logits = self.gate(tokens)
        weights, experts = _own("top_k_gate")(logits, self.k)
        self.routing = (logits.softmax(1), experts)
        count = logits.shape[1]
        capacity = None if self.factor is None else int(-(-self.factor * experts.numel() // count))
        order, counts = _own("dispatch_plan")(experts, count, capacity)
        rows, received = _own("dispatch")(tokens[order // self.k], counts, self.group)
        parts = rows.split(received.flatten().tolist())
        own = len(self.experts)
        made = [expert(torch.cat(parts[number::own])) for number, expert in enumerate(self.experts)]
        made = [each.split(received[:, number].tolist()) for number, each in enumerate(made)]
        result = torch.cat([made[number][rank] for rank in range(len(received)) for number in range(own)])
        return _own("combine")(result, (order, counts), received, weights, self.group).view(x.shape)

    def average_gradients(self):
        weight = self.gate.weight
        if weight.requires_grad:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad.div_(self.ranks)
            dist.all_reduce(weight.grad, group=self.group, async_op=True).wait()


@right("load_balancing_loss")
def gathers_counts(probabilities, experts, group=None):
    """Everybody's counts, added up here."""
    count = probabilities.shape[1]
    own = torch.zeros(count, dtype=torch.int64).index_add(
        0, experts.reshape(-1), torch.ones(experts.numel()).long()
    )
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    total = torch.stack(every).sum(0)
    return count * torch.dot((total / total.sum()).to(probabilities.dtype), probabilities.mean(0))


@right("hierarchical_all_to_all")
def with_send_and_recv(x, gpus_per_node, group=None):
    """One message at a time, in lists of blocks; every rank knows who carries for whom."""
    g, p, rank = gpus_per_node, len(x), dist.get_rank(group)
    node, nodes = rank // g, range(p // g)

    def message(source, target, blocks, count):
        """Blocks from one rank to another; both call it, in one order for all."""
        if source == target or not count:
            return blocks
        if rank == source:
            dist.send(torch.stack(blocks), group=group, group_dst=target)
        elif rank == target:
            whole = x.new_empty(count, *x.shape[1:])
            dist.recv(whole, group=group, group_src=source)
            return list(whole)
        return []

    held = {}
    for source in range(node * g, node * g + g):
        for target in range(node * g, node * g + g):
            carried = [each for each in nodes if each % g == target % g]
            blocks = [x[each * g + j].contiguous() for each in carried for j in range(g)]
            came = message(source, target, blocks if rank == source else [], len(carried) * g)
            if rank == target:
                held[source] = {each: came[i * g : i * g + g] for i, each in enumerate(carried)}
    arrived = {}
    for a in nodes:
        for b in nodes:
            source, target = a * g + b % g, b * g + a % g
            if rank in (source, target):
                blocks = [block for each in sorted(held) for block in held[each][b]] if rank == source else []
                came = message(source, target, blocks, g * g)
                if rank == target:
                    arrived[a] = came
    result = x.new_empty(x.shape)
    for source in range(node * g, node * g + g):
        for target in range(node * g, node * g + g):
            carried = [each for each in nodes if each % g == source % g]
            blocks = (
                [block for each in carried for block in arrived[each][target % g :: g]]
                if rank == source
                else []
            )
            came = message(source, target, blocks, len(carried) * g)
            if rank == target:
                for i, each in enumerate(carried):
                    result[each * g : each * g + g] = torch.stack(came[i * g : i * g + g])
    return result


@right("hierarchical_all_to_all")
def node_numbers_as_keys(x, gpus_per_node, group=None):
    """Works on copies of rows that stand elsewhere in memory, and calls what the solution calls."""
    spread = torch.stack(list(x)).clone()
    return _own("hierarchical_all_to_all")(spread, gpus_per_node, group)


@right("place_experts")
def solution_of_sorted(loads, ranks, slots):
    """The experts renumbered by load, placed, and numbered as before; tuples for lists."""
    order = sorted(range(len(loads)), key=lambda e: -loads[e])
    held = _own("place_experts")([loads[e] for e in order], ranks, slots)
    return tuple(tuple(order[place] for place in own) for own in held)
