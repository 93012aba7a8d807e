"""Mistakes that people make in unit 10."""

import copy
import math

import torch
import torch.distributed as dist
from torch import nn

from tests.answers import solved, wrong


def _own(name):
    """The solution of an exercise that others build on."""
    return solved("10_experts")[name]


# ------------------------------------------------------------------------------------------------ the gate


@wrong("top_k_gate", fails="ties")
def a_little_less_for_later_ones(logits, k):
    """Breaks ties with a small number, which is lost in large ones and too large for others."""
    experts = (logits - 1e-6 * torch.arange(logits.shape[1])).topk(k, 1).indices
    return logits.gather(1, experts).softmax(1), experts


@wrong("top_k_gate", fails="weights and experts")
def not_renormalised(logits, k):
    """The softmax over all experts: the k weights add up to less than 1."""
    _, experts = logits.sort(dim=1, descending=True, stable=True)
    return logits.softmax(1).gather(1, experts[:, :k]), experts[:, :k]


@wrong("top_k_gate", fails="gradient")
def weights_as_constants(logits, k):
    """Keeps autograd out of it, so that the gate never learns."""
    weights, experts = _own("top_k_gate")(logits.detach(), k)
    return weights, experts


@wrong("top_k_gate", fails="any logits")
def exponents_of_large_numbers(logits, k):
    """exp of a thousand is infinite."""
    largest, experts = logits.sort(dim=1, descending=True, stable=True)
    weights = largest[:, :k].exp()
    return weights / weights.sum(1, keepdim=True), experts[:, :k]


@wrong("top_k_gate", fails="any logits")
def gate_in_float(logits, k):
    """Always float32."""
    return _own("top_k_gate")(logits.float(), k)


# ------------------------------------------------------------------------------------------------ the plan


def _lists(experts, count, capacity, places):
    """Order and counts, from lists that the choices at these places, (token, j), are put into one by one."""
    k = experts.shape[1]
    lists = [[] for _ in range(count)]
    for token, j in places(*experts.shape):
        lists[int(experts[token, j])].append(token * k + j)
    kept = [each[:capacity] for each in lists]
    order = [choice for each in kept for choice in each]
    counts = [len(each) for each in kept]
    return torch.tensor(order, dtype=torch.int64), torch.tensor(counts, dtype=torch.int64)


def _by_token(tokens, k):
    return ((token, j) for token in range(tokens) for j in range(k))


@wrong("dispatch_plan", fails="several choices")
def token_by_token(experts, count, capacity=None):
    """A token's second choice before the next token's first one."""
    return _lists(experts, count, capacity, _by_token)


@wrong("dispatch_plan", fails="one choice a token")
def last_token_first(experts, count, capacity=None):
    """Inserts at the front."""
    return _lists(experts, count, capacity, lambda n, k: reversed(list(_by_token(n, k))))


@wrong("dispatch_plan", fails="capacity")
def counts_of_all(experts, count, capacity=None):
    """Drops them from the order, and counts them."""
    order, _ = _own("dispatch_plan")(experts, count, capacity)
    return order, experts.flatten().bincount(minlength=count)


@wrong("dispatch_plan", fails="no tokens")
def largest_of_nothing(experts, count, capacity=None):
    """Checks the numbers, of which there may be none."""
    assert experts.max() < count
    return _own("dispatch_plan")(experts, count, capacity)


@wrong("dispatch_plan", fails="one choice a token")
def marks_what_it_has_seen(experts, count, capacity=None):
    """Writes -1 where a choice has been placed."""
    result = _own("dispatch_plan")(experts, count, capacity)
    experts.fill_(-1)
    return result


# ------------------------------------------------------------------------------------------------ journeys


class _Journey(torch.autograd.Function):
    """Rows to other ranks; what backward does is `back(gradient, sent, received, group)`."""

    @staticmethod
    def forward(ctx, x, sent, received, group, back):
        ctx.rest = sent, received, group
        ctx.back = back
        return _travel(x, sent, received, group)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient, *ctx.rest), None, None, None, None


def _travel(x, sent, received, group):
    y = x.new_empty(sum(received), x.shape[1])
    dist.all_to_all_single(y, x.contiguous(), received, sent, group=group)
    return y


def _returns(gradient, sent, received, group):
    return _travel(gradient, received, sent, group)


def _dispatch(x, counts, group, back=_returns, counts_of=None):
    """Dispatch, with another backward or another way to learn the counts."""
    ranks = dist.get_world_size(group)
    sent = counts.view(ranks, -1)
    received = torch.empty_like(sent)
    if counts_of is None:
        dist.all_to_all_single(received, sent, group=group)
    else:
        received = counts_of(counts, group)
    sizes = sent.sum(1).tolist(), received.sum(1).tolist()
    return _Journey.apply(x, *sizes, group, back), received


@wrong("dispatch", fails="gradient")
def rows_without_history(x_RD, counts, group=None):
    """Autograd knows nothing of dist.all_to_all_single: nothing comes back."""
    rows, received = _own("dispatch")(x_RD.detach(), counts, group)
    return rows, received


@wrong("dispatch", fails="rows and received")
def sorted_by_expert(x_RD, counts, group=None):
    """Expert by expert, where rank by rank was asked for."""
    rows, received = _own("dispatch")(x_RD, counts, group)
    own = torch.arange(received.shape[1]).repeat(len(received)).repeat_interleave(received.flatten())
    return rows[own.argsort(stable=True)], received


@wrong("dispatch", fails="empty hands")
def nothing_to_send(x_RD, counts, group=None):
    """Who has no rows does not take part."""
    if not len(x_RD):
        return x_RD, torch.zeros_like(counts.view(dist.get_world_size(group), -1))
    return _own("dispatch")(x_RD, counts, group)


@wrong("dispatch", fails="any dtype")
def rows_in_single_precision(x_RD, counts, group=None):
    """Receives all but float64 in float32."""
    rows, received = _own("dispatch")(x_RD, counts, group)
    return rows if x_RD.dtype == torch.float64 else rows.float(), received


@wrong("dispatch", fails="group")
def rows_of_all_ranks(x_RD, counts, group=None):
    """Forgets the group in backward."""
    return _dispatch(
        x_RD, counts, group, lambda gradient, sent, received, _: _returns(gradient, sent, received, None)
    )


class _Combined:
    """The steps of combine, to be spoilt one by one."""

    def __init__(self, y, plan, received, weights, group):
        self.y, self.plan, self.received, self.weights, self.group = y, plan, received, weights, group

    def rows(self):
        """The rows, back here."""
        sent = self.plan[1].view(self.received.shape).sum(1).tolist()
        came = self.received.sum(1).tolist()
        return _Journey.apply(self.y, came, sent, self.group, _returns)

    def weighted(self, rows):
        """Each row with its weight."""
        return rows * self.weights.flatten()[self.plan[0]].unsqueeze(1)

    def tokens(self):
        """Which token each row belongs to."""
        return self.plan[0] // self.weights.shape[1]

    def added(self, rows):
        return rows.new_zeros(len(self.weights), rows.shape[1]).index_add(0, self.tokens(), rows)

    def run(self):
        return self.added(self.weighted(self.rows()))


def _combine(way):
    """What runs a spoilt combine."""
    return lambda y_TD, plan, received, weights, group=None: way(y_TD, plan, received, weights, group).run()


class _Unweighted(_Combined):
    def weighted(self, rows):
        return rows


class _ConstantWeights(_Combined):
    def weighted(self, rows):
        return rows * self.weights.detach().flatten()[self.plan[0]].unsqueeze(1)


class _Renormalised(_Combined):
    def added(self, rows):
        whole = super().added(rows)
        kept = torch.zeros(self.weights.numel(), dtype=self.weights.dtype)
        kept[self.plan[0]] = 1
        share = (self.weights * kept.view_as(self.weights)).sum(1, keepdim=True)
        return whole / share * self.weights.sum(1, keepdim=True)


class _AsksAgain(_Combined):
    def rows(self):
        received = self.received.contiguous()
        dist.all_to_all_single(torch.empty_like(received), received, group=self.group)
        return super().rows()


class _OfAll(_Combined):
    def rows(self):
        sent = self.plan[1].view(self.received.shape).sum(1).tolist()
        came = self.received.sum(1).tolist()
        return _Journey.apply(self.y, came, sent, None, _returns)


@wrong("combine", fails="sum of rows")
def without_weights(*given, **options):
    """Adds rows up as they are."""
    return _combine(_Unweighted)(*given, **options)


@wrong("combine", fails="gradients")
def weights_get_nothing(*given, **options):
    """Keeps the weights out of autograd: the gate does not learn."""
    return _combine(_ConstantWeights)(*given, **options)


@wrong("combine", fails="dropped")
def makes_up_for_the_dropped(*given, **options):
    """Divides by the weights that are left, which are zero where all were dropped."""
    return _combine(_Renormalised)(*given, **options)


@wrong("combine", fails="calls and bytes")
def asks_how_many(*given, **options):
    """Exchanges counts that everybody knows."""
    return _combine(_AsksAgain)(*given, **options)


@wrong("combine", fails="group")
def back_to_all(*given, **options):
    """Forgets the group."""
    return _combine(_OfAll)(*given, **options)


# ------------------------------------------------------------------------------------------------ the layer


class _Layer(nn.Module):
    """A layer of experts in steps that can be spoilt one by one."""

    def __init__(self, whole, capacity_factor=None, group=None):
        super().__init__()
        self.group, self.k, self.factor = group, whole.k, capacity_factor
        own = len(whole.experts) // self.ranks()
        self.first = own * dist.get_rank(group)
        self.gate, self.experts = self.parts(whole, own)

    def ranks(self):
        return dist.get_world_size(self.group)

    def parts(self, whole, own):
        """The gate and the experts of this rank."""
        own = whole.experts[self.first : self.first + own]
        return copy.deepcopy(whole.gate), nn.ModuleList(map(copy.deepcopy, own))

    def capacity(self, experts, count):
        """For how many of these choices an expert has room."""
        return None if self.factor is None else math.ceil(self.factor * experts.numel() / count)

    def route(self, logits, experts):
        """What is told of the routing."""
        self.routing = logits.softmax(1), experts

    def compute(self, rows, received):
        """What the experts make of the rows that came."""
        which = torch.arange(len(self.experts)).repeat(len(received)).repeat_interleave(received.flatten())
        by_expert = which.argsort(stable=True)
        parts = rows[by_expert].split(received.sum(0).tolist())
        computed = torch.cat(
            [self.call(expert, part) for expert, part in zip(self.experts, parts, strict=True)]
        )
        return self.back_in_place(computed, by_expert)

    def call(self, expert, rows):
        return expert(rows)

    def back_in_place(self, computed, by_expert):
        return computed[by_expert.argsort()]

    def forward(self, x):
        x_ND = x.reshape(-1, x.shape[-1])
        logits = self.gate(x_ND)
        weights, experts = _own("top_k_gate")(logits, self.k)
        self.route(logits, experts)
        count = logits.shape[1]
        order, counts = _own("dispatch_plan")(experts, count, self.capacity(experts, count))
        rows, received = _own("dispatch")(x_ND[order // self.k], counts, self.group)
        y_TD = self.compute(rows, received)
        return _own("combine")(y_TD, (order, counts), received, weights, self.group).view(x.shape)

    @torch.no_grad()
    def average_gradients(self):
        for parameter in self.experts.parameters():
            self.average_of_expert(parameter)
        if self.gate.weight.requires_grad:
            self.average_of_gate(self.gate.weight)

    def average_of_expert(self, parameter):
        if parameter.grad is not None:
            parameter.grad /= self.ranks()

    def average_of_gate(self, weight):
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        dist.all_reduce(weight.grad, group=self.group)
        weight.grad /= self.ranks()


@wrong("ExpertParallelMLP", fails="outputs")
class RowsStaySorted(_Layer):
    """Sends the rows back sorted by expert, not as they came."""

    def back_in_place(self, computed, by_expert):
        return computed


@wrong("ExpertParallelMLP", fails="gradients of x")
class ExpertsWithoutHistory(_Layer):
    """Puts the experts' results into a tensor that autograd does not follow back to the rows."""

    def call(self, expert, rows):
        return expert(rows.detach()) + 0 * rows


@wrong("ExpertParallelMLP", fails="average_gradients")
class SumsForExperts(_Layer):
    """Leaves the experts' gradients as they are: p times too large beside the gate's."""

    def average_of_expert(self, parameter):
        pass


@wrong("ExpertParallelMLP", fails="parameters and routing")
class KeepsAllExperts(_Layer):
    """Has all experts in memory, and uses its own."""

    def parts(self, whole, own):
        self.whole = [copy.deepcopy(whole)]
        return super().parts(whole, own)


@wrong("ExpertParallelMLP", fails="any ranks")
class IdleExperts(_Layer):
    """A rank to whose experts nobody came computes nothing, and is missing in backward."""

    def compute(self, rows, received):
        return super().compute(rows, received) if len(rows) else rows.detach()


@wrong("ExpertParallelMLP", fails="capacity")
class RoomForTokens(_Layer):
    """Reckons with tokens, each of which makes k choices."""

    def capacity(self, experts, count):
        return None if self.factor is None else math.ceil(self.factor * len(experts) / count)


@wrong("ExpertParallelMLP", fails="calls and bytes")
class RowByRow(_Layer):
    """Calls an expert for each rank's rows apart."""

    def compute(self, rows, received):
        sizes = received.flatten().tolist()
        experts = list(self.experts) * len(received)
        return torch.cat([expert(part) for expert, part in zip(experts, rows.split(sizes), strict=True)])


# ------------------------------------------------------------------------------------------------ the balance


def _loss(probabilities, experts, group, *, sums=dist.all_reduce, mean=lambda p: p.mean(0), factor=None):
    count = probabilities.shape[1]
    chosen = experts.flatten().bincount(minlength=count)
    sums(chosen, group=group)
    part = (chosen.double() / chosen.sum()).to(probabilities.dtype)
    return (factor or count) * part @ mean(probabilities)


@wrong("load_balancing_loss", fails="value")
def own_tokens_only(probabilities, experts, group=None):
    """Each rank's own load: the mean of products is not the product of means."""
    return _loss(probabilities, experts, group, sums=lambda chosen, group: None)


@wrong("load_balancing_loss", fails="value")
def without_the_factor(probabilities, experts, group=None):
    """Leaves out E."""
    return _loss(probabilities, experts, group, factor=1)


@wrong("load_balancing_loss", fails="gradient")
def constant_probabilities(probabilities, experts, group=None):
    """The right number, from which nobody learns."""
    return _loss(probabilities.detach(), experts, group)


@wrong("load_balancing_loss", fails="group")
def load_of_all(probabilities, experts, group=None):
    """Forgets the group."""
    return _loss(probabilities, experts, None)


@wrong("load_balancing_loss", fails="other sizes")
def in_single_precision(probabilities, experts, group=None):
    """Always float32."""
    return _loss(probabilities.float(), experts, group)


# ---------------------------------------------------------------------------------------------- between nodes


def _swap(parts, arriving, group):
    """Send a part to each peer (a rank of the group) and receive one from each; where there are numbers."""
    rank, calls = dist.get_rank(group), []
    for peer, part in parts.items():
        if peer == rank:
            arriving[peer].copy_(part)
        elif part.numel():
            calls.append(dist.P2POp(dist.isend, part.contiguous(), group=group, group_peer=peer))
    for peer, part in arriving.items():
        if peer != rank and part.numel():
            calls.append(dist.P2POp(dist.irecv, part, group=group, group_peer=peer))
    for work in dist.batch_isend_irecv(calls) if calls else []:
        work.wait()
    return list(arriving.values())


def _flat(x, group):
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    _swap(dict(enumerate(x)), dict(enumerate(result)), group)
    return result


def _two_stages(x, g, group, rank=None):
    """Within nodes for each place, then between ranks of one place: Tutel's way."""
    rank = dist.get_rank(group) if rank is None else rank
    node, place = divmod(rank, g)
    blocks = x.contiguous().unflatten(0, (-1, g))
    nodes = len(blocks)
    beside = {node * g + j: blocks[:, j].contiguous() for j in range(g)}
    collected = torch.stack(
        _swap(beside, {peer: torch.empty_like(p) for peer, p in beside.items()}, group), 1
    )
    across = {other * g + place: collected[other].contiguous() for other in range(nodes)}
    came = _swap(across, {peer: torch.empty_like(p) for peer, p in across.items()}, group)
    return torch.cat(came)


@wrong("hierarchical_all_to_all", fails="any nodes and blocks")
def more_than_one_gpu(x, gpus_per_node, group=None):
    """Stops where there is nothing to exchange in one of the stages."""
    if gpus_per_node == 1 or len(x) == gpus_per_node:
        return x.clone()
    return _own("hierarchical_all_to_all")(x, gpus_per_node, group)


@wrong("hierarchical_all_to_all", fails="any nodes and blocks")
def back_into_x(x, gpus_per_node, group=None):
    """Writes the result into x."""
    return x.copy_(_own("hierarchical_all_to_all")(x, gpus_per_node, group))


@wrong("hierarchical_all_to_all", fails="g times fewer messages")
def everyone_to_everyone(x, gpus_per_node, group=None):
    """A message for each block."""
    return _flat(x, group)


@wrong("hierarchical_all_to_all", fails="one message from node to node")
def two_stages(x, gpus_per_node, group=None):
    """A message from each rank of a node to the one at its place on the other."""
    return _two_stages(x, gpus_per_node, group)


def _led(x, g, group, extra=0):
    """Place 0 of each node carries everything; extra: blocks that every message has too many."""
    rank, p = dist.get_rank(group), len(x)
    node, place = divmod(rank, g)
    own = x.contiguous()
    leader, nodes = node * g, p // g
    members = range(leader, leader + g)
    held = {peer: torch.empty_like(own) for peer in members} if place == 0 else {}
    _swap({leader: own}, held, group)
    dealt = {}
    if place == 0:
        blocks = torch.stack(list(held.values())).unflatten(1, (nodes, g))  # from, node, for
        out = {other * g: blocks[:, other].flatten(0, 1) for other in range(nodes)}
        out = {peer: torch.cat([part, part[:extra]]) for peer, part in out.items()}
        came = _swap(out, {peer: torch.empty_like(part) for peer, part in out.items()}, group)
        every = torch.cat([part[: g * g].unflatten(0, (g, g)) for part in came])  # rank it is from, for
        dealt = {peer: every[:, peer - leader].contiguous() for peer in members}
    result = torch.empty_like(own)
    _swap(dealt, {leader: result}, group)
    return result


@wrong("hierarchical_all_to_all", fails="no rank carries all")
def one_leader(x, gpus_per_node, group=None):
    """The first rank of each node speaks for all of it."""
    return _led(x, gpus_per_node, group)


# ------------------------------------------------------------------------------------------------ places


def _copies(loads, ranks, slots, spare=None):
    copies = [1] * len(loads)
    for _ in range(ranks * slots - len(loads) if spare is None else spare):
        more = [e for e in range(len(loads)) if copies[e] < ranks]
        if more:
            copies[max(more, key=lambda e: loads[e] / copies[e])] += 1
    return copies


def _onto_the_emptiest(loads, copies, ranks, slots, order):
    held = [[] for _ in range(ranks)]
    for expert in order:
        for _ in range(copies[expert]):
            fits = [own for own in held if len(own) < slots and expert not in own]
            if not fits:
                return _round_robin(loads, ranks)
            min(fits, key=lambda own: sum(loads[e] / copies[e] for e in own)).append(expert)
    return held


def _round_robin(loads, ranks):
    order = sorted(range(len(loads)), key=lambda e: -loads[e])
    return [order[rank::ranks] for rank in range(ranks)]


@wrong("place_experts", fails="valid")
def copies_beside_each_other(loads, ranks, slots):
    """A copy on the rank that has the expert already."""
    held = _round_robin(loads, ranks)
    return [own + own[:1] * (slots - len(own)) for own in held]


@wrong("place_experts", fails="valid")
def the_busiest_only(loads, ranks, slots):
    """Forgets those that are hardly used."""
    order = sorted(range(len(loads)), key=lambda e: -loads[e])
    return [order[rank::ranks][: slots - 1] for rank in range(ranks)]


@wrong("place_experts", fails="half of what can be saved")
def one_after_another(loads, ranks, slots):
    """As they are numbered."""
    each = -(-len(loads) // ranks)
    return [list(range(rank * each, min((rank + 1) * each, len(loads)))) for rank in range(ranks)]


@wrong("place_experts", fails="half of what can be saved")
def dealt_without_copies(loads, ranks, slots):
    """Sorted and dealt out; the busiest expert alone is too much for any rank."""
    return _round_robin(loads, ranks)


@wrong("place_experts", fails="within a fiftieth of the best known")
def greedy_only(loads, ranks, slots):
    """The largest onto the emptiest, and nothing is tried afterwards."""
    copies = _copies(loads, ranks, slots)
    order = sorted(range(len(loads)), key=lambda e: -loads[e] / copies[e])
    return _onto_the_emptiest(loads, copies, ranks, slots, order)
