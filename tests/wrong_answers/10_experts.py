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


@wrong("top_k_gate", fails="weights and experts")
def smallest_first(logits, k):
    """The right ones, the smallest of them first."""
    largest, experts = logits.sort(dim=1, stable=True)
    return largest[:, -k:].softmax(1), experts[:, -k:]


@wrong("top_k_gate", fails="weights and experts")
def always_two(logits, k):
    """As if k were 2."""
    largest, experts = logits.sort(dim=1, descending=True, stable=True)
    return largest[:, :2].softmax(1), experts[:, :2]


@wrong("top_k_gate", fails="ties")
def higher_number_first(logits, k):
    """Of equal ones takes the last."""
    largest, experts = logits.flip(1).sort(dim=1, descending=True, stable=True)
    return largest[:, :k].softmax(1), logits.shape[1] - 1 - experts[:, :k]


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


@wrong("top_k_gate", fails="weights and experts")
def in_proportion_to_logits(logits, k):
    """Divides logits by their sum, which need not even be positive."""
    largest, experts = logits.sort(dim=1, descending=True, stable=True)
    return largest[:, :k] / largest[:, :k].sum(1, keepdim=True), experts[:, :k]


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


def _by_place(tokens, k):
    return ((token, j) for j in range(k) for token in range(tokens))


def _by_token(tokens, k):
    return ((token, j) for token in range(tokens) for j in range(k))


@wrong("dispatch_plan", fails="one choice a token")
def key_with_room_for_so_many(experts, count, capacity=None):
    """Sorts by one number made of expert, place and token, which holds up to a thousand tokens."""
    tokens, k = experts.shape
    places = torch.arange(k) * 1000 + torch.arange(tokens).unsqueeze(1)
    key = (experts * 1000 * k + places).flatten()
    parts = key.argsort().split(
        key.div(1000 * k, rounding_mode="floor").bincount(minlength=count)[:count].tolist()
    )
    parts = [part[:capacity] for part in parts]
    return torch.cat(parts), torch.tensor([len(part) for part in parts])


@wrong("dispatch_plan", fails="several choices")
def token_by_token(experts, count, capacity=None):
    """A token's second choice before the next token's first one."""
    return _lists(experts, count, capacity, _by_token)


@wrong("dispatch_plan", fails="one choice a token")
def last_token_first(experts, count, capacity=None):
    """Inserts at the front."""
    return _lists(experts, count, capacity, lambda n, k: reversed(list(_by_token(n, k))))


@wrong("dispatch_plan", fails="one choice a token")
def only_experts_that_are_there(experts, count, capacity=None):
    """Counts as many experts as anybody chose."""
    order, counts = _own("dispatch_plan")(experts, count, capacity)
    return order, counts[counts > 0]


@wrong("dispatch_plan", fails="several choices")
def tokens_in_place_of_choices(experts, count, capacity=None):
    """Says which token travels, and not with which of its choices."""
    order, counts = _own("dispatch_plan")(experts, count, capacity)
    return order // experts.shape[1], counts


@wrong("dispatch_plan", fails="several choices")
def number_of_the_transposed(experts, count, capacity=None):
    """Numbers the choices place by place."""
    chosen = experts.T.flatten()
    order, counts = _own("dispatch_plan")(chosen.unsqueeze(1), count, capacity)
    return order, counts


@wrong("dispatch_plan", fails="capacity")
def counts_of_all(experts, count, capacity=None):
    """Drops them from the order, and counts them."""
    order, _ = _own("dispatch_plan")(experts, count, capacity)
    return order, experts.flatten().bincount(minlength=count)


@wrong("dispatch_plan", fails="capacity")
def capacity_of_each_place(experts, count, capacity=None):
    """Room for so many first choices, and for as many second ones."""
    if capacity is None:
        return _own("dispatch_plan")(experts, count)
    k = experts.shape[1]
    kept = []
    for j in range(k):
        order, _ = _own("dispatch_plan")(experts[:, j : j + 1], count, capacity)
        kept.append(order * k + j)
    chosen = torch.cat(kept)
    of = experts.flatten()[chosen]
    by_expert = of.argsort(stable=True)
    return chosen[by_expert], of.bincount(minlength=count)


@wrong("dispatch_plan", fails="capacity")
def keeps_the_last(experts, count, capacity=None):
    """Drops the first of those who come, not the last."""
    order, counts = _own("dispatch_plan")(experts, count)
    if capacity is None:
        return order, counts
    parts = [part[max(0, len(part) - capacity) :] for part in order.split(counts.tolist())]
    return torch.cat(parts), counts.clamp(max=capacity)


@wrong("dispatch_plan", fails="capacity")
def no_capacity_is_zero(experts, count, capacity=None):
    """Takes room for nobody as room for all."""
    return _own("dispatch_plan")(experts, count, capacity or None)


@wrong("dispatch_plan", fails="no tokens")
def largest_of_nothing(experts, count, capacity=None):
    """Checks the numbers, of which there may be none."""
    assert experts.max() < count
    return _own("dispatch_plan")(experts, count, capacity)


@wrong("dispatch_plan", fails="arguments unchanged")
def marks_what_it_has_seen(experts, count, capacity=None):
    """Writes -1 where a choice has been placed."""
    result = _own("dispatch_plan")(experts, count, capacity)
    experts.fill_(-1)
    return result


@wrong("dispatch_plan", fails="arguments unchanged")
def view_of_the_transposed(experts, count, capacity=None):
    """Takes it that memory is laid out row by row."""
    if experts.numel():
        experts.view(-1)
    return _own("dispatch_plan")(experts, count, capacity)


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


@wrong("dispatch", fails="gradient")
def sizes_not_exchanged_in_backward(x_RD, counts, group=None):
    """Sends the gradients as the rows were sent, in place of the other way."""

    def again(gradient, sent, received, group):
        sizes = [min(each) for each in zip(sent, received, strict=True)]
        parts = [part[:size] for part, size in zip(gradient.split(received), sizes, strict=True)]
        came = _travel(torch.cat(parts), sizes, sizes, group)
        return torch.cat([came, came.new_zeros(max(0, sum(sent) - len(came)), came.shape[1])])[: sum(sent)]

    return _dispatch(x_RD, counts, group, again)


LAST_SIZES: dict = {}


@wrong("dispatch", fails="empty hands")
def sizes_of_the_last_journey(x_RD, counts, group=None):
    """Keeps its sizes where the next journey overwrites them: with two layers gradients go astray."""
    rank = dist.get_rank()

    def noted(counts, group):
        sent = counts.view(dist.get_world_size(group), -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        LAST_SIZES[rank] = sent.sum(1).tolist(), received.sum(1).tolist(), group
        return received

    return _dispatch(x_RD, counts, group, lambda gradient, *_: _returns(gradient, *LAST_SIZES[rank]), noted)


class _Impatient(_Journey):
    """Does not wait for rows."""

    @staticmethod
    def forward(ctx, x, sent, received, group, back):
        ctx.rest, ctx.back = (sent, received, group), back
        y = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), received, sent, group=group, async_op=True).get_future()
        return y


@wrong("dispatch", fails="rows and received")
def looks_before_they_are_there(x_RD, counts, group=None):
    """Starts the exchange, asks for its future, and goes on with rows that have not come yet."""
    sent = counts.view(dist.get_world_size(group), -1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return _Impatient.apply(x_RD, sent.sum(1).tolist(), received.sum(1).tolist(), group, _returns), received


@wrong("dispatch", fails="gradient")
def looks_at_the_gradient(x_RD, counts, group=None):
    """A hook on the rows, as if they always needed a gradient: where they need none there is an error."""
    if torch.is_grad_enabled():
        x_RD.register_hook(lambda gradient: gradient)
    return _own("dispatch")(x_RD, counts, group)


@wrong("dispatch", fails="gradient")
def asks_for_a_gradient(x_RD, counts, group=None):
    """Makes the caller's rows need a gradient, so that backward comes by in any case."""
    if not x_RD.requires_grad:
        x_RD.requires_grad_()
    return _own("dispatch")(x_RD, counts, group)


@wrong("dispatch", fails="gradient")
def mean_of_gradients(x_RD, counts, group=None):
    """Divides by the number of ranks, as in data parallelism."""
    ranks = dist.get_world_size(group)
    return _dispatch(x_RD, counts, group, lambda *given: _returns(*given) / ranks)


@wrong("dispatch", fails="rows and received")
def received_by_rank_only(x_RD, counts, group=None):
    """How many rows came from each rank, and not for which expert."""
    rows, received = _own("dispatch")(x_RD, counts, group)
    return rows, received.sum(1)


@wrong("dispatch", fails="rows and received")
def sorted_by_expert(x_RD, counts, group=None):
    """Expert by expert, where rank by rank was asked for."""
    rows, received = _own("dispatch")(x_RD, counts, group)
    own = torch.arange(received.shape[1]).repeat(len(received)).repeat_interleave(received.flatten())
    return rows[own.argsort(stable=True)], received


@wrong("dispatch", fails="calls and bytes")
def gathers_all_counts(x_RD, counts, group=None):
    """Everybody's counts to everybody: p times what is needed."""

    def gathered(counts, group):
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        every = [torch.empty_like(counts) for _ in range(ranks)]
        dist.all_gather(every, counts, group=group)
        return torch.stack([each.view(ranks, -1)[rank] for each in every])

    return _dispatch(x_RD, counts, group, counts_of=gathered)


@wrong("dispatch", fails="calls and bytes")
def padded(x_RD, counts, group=None):
    """Every rank sends every rank as many rows, most of them padding."""
    ranks = dist.get_world_size(group)
    sent = counts.view(ranks, -1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    most = 20
    sizes, came = sent.sum(1).tolist(), received.sum(1).tolist()
    parts = [torch.cat([p, p.new_zeros(most - len(p), p.shape[1])]) for p in x_RD.split(sizes)]
    rows = _Journey.apply(torch.cat(parts), [most] * ranks, [most] * ranks, group, _returns)
    return torch.cat([part[:size] for part, size in zip(rows.split(most), came, strict=True)]), received


@wrong("dispatch", fails="empty hands")
def nothing_to_send(x_RD, counts, group=None):
    """Who has no rows does not take part."""
    if not len(x_RD):
        return x_RD, torch.zeros_like(counts.view(dist.get_world_size(group), -1))
    return _own("dispatch")(x_RD, counts, group)


@wrong("dispatch", fails="layout and arguments")
def gradients_as_they_stand(x_RD, counts, group=None):
    """A gradient may stand transposed in memory, which no message can."""

    def as_it_is(gradient, sent, received, group):
        result = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(result, gradient, sent, received, group=group)
        return result

    return _dispatch(x_RD, counts, group, as_it_is)


@wrong("dispatch", fails="layout and arguments")
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


class _InOrder(_Combined):
    def weighted(self, rows):
        return rows * self.weights.flatten()[: len(rows)].unsqueeze(1)


class _Overwrites(_Combined):
    def added(self, rows):
        result = rows.new_zeros(len(self.weights), rows.shape[1])
        result[self.tokens()] = rows
        return result


class _ConstantWeights(_Combined):
    def weighted(self, rows):
        return rows * self.weights.detach().flatten()[self.plan[0]].unsqueeze(1)


class _ConstantRows(_Combined):
    def rows(self):
        return super().rows().detach()


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


@wrong("combine", fails="sum of rows")
def weights_in_order(*given, **options):
    """Takes it that row i belongs to choice i."""
    return _combine(_InOrder)(*given, **options)


@wrong("combine", fails="sum of rows")
def second_overwrites_first(*given, **options):
    """Assigns to places, where two rows of a token have to be added."""
    return _combine(_Overwrites)(*given, **options)


@wrong("combine", fails="gradients")
def weights_get_nothing(*given, **options):
    """Keeps the weights out of autograd: the gate does not learn."""
    return _combine(_ConstantWeights)(*given, **options)


@wrong("combine", fails="gradients")
def rows_get_nothing(*given, **options):
    """The rows have no history: experts do not learn."""
    return _combine(_ConstantRows)(*given, **options)


@wrong("combine", fails="gradients")
def rows_always_learn(y_TD, plan, received, weights, group=None):
    """A hook on the rows: where experts are frozen, and x needs no gradient, there is an error."""
    if torch.is_grad_enabled():
        y_TD.register_hook(lambda gradient: gradient)
    return _own("combine")(y_TD, plan, received, weights, group)


@wrong("combine", fails="gradients")
def weights_always_learn(y_TD, plan, received, weights, group=None):
    """Makes the caller's weights need a gradient, where the gate is frozen."""
    if not weights.requires_grad:
        weights.requires_grad_()
    return _own("combine")(y_TD, plan, received, weights, group)


@wrong("combine", fails="dropped")
def makes_up_for_the_dropped(*given, **options):
    """Divides by the weights that are left, which are zero where all were dropped."""
    return _combine(_Renormalised)(*given, **options)


@wrong("combine", fails="sum of rows")
def adds_in_single_precision(y_TD, plan, received, weights, group=None):
    """float32 inside, where float64 was given."""
    return _own("combine")(y_TD.float(), plan, received, weights.float(), group).to(y_TD.dtype)


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


@wrong("ExpertParallelMLP", fails="outputs")
class SortedOnceMore(_Layer):
    """Applies the order a second time in place of undoing it."""

    def back_in_place(self, computed, by_expert):
        return computed[by_expert]


@wrong("ExpertParallelMLP", fails="outputs")
class FirstExpertsEverywhere(_Layer):
    """Every rank has experts 0 to E / p - 1."""

    def parts(self, whole, own):
        return copy.deepcopy(whole.gate), nn.ModuleList(map(copy.deepcopy, whole.experts[:own]))


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


@wrong("ExpertParallelMLP", fails="average_gradients")
class GateByItself(_Layer):
    """Forgets that every rank's gate has seen other tokens."""

    def average_of_gate(self, weight):
        pass


@wrong("ExpertParallelMLP", fails="average_gradients")
class ExpertsTogether(_Layer):
    """Averages everything, as in data parallelism: other ranks' experts are other experts."""

    def average_of_expert(self, parameter):
        super().average_of_expert(parameter)
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(parameter.grad, group=self.group)


@wrong("ExpertParallelMLP", fails="parameters")
class KeepsAllExperts(_Layer):
    """Has all experts in memory, and uses its own."""

    def parts(self, whole, own):
        self.whole = [copy.deepcopy(whole)]
        return super().parts(whole, own)


@wrong("ExpertParallelMLP", fails="parameters")
class GateOfTheOther(_Layer):
    """Uses the gate that was given, and trains it."""

    def parts(self, whole, own):
        return whole.gate, super().parts(whole, own)[1]


@wrong("ExpertParallelMLP", fails="nobody comes")
class IdleExperts(_Layer):
    """A rank to whose experts nobody came computes nothing, and is missing in backward."""

    def compute(self, rows, received):
        return super().compute(rows, received) if len(rows) else rows.detach()


@wrong("ExpertParallelMLP", fails="nobody comes")
class BusyExpertsOnly(_Layer):
    """Leaves out experts to whom nobody came: where x needs no gradient, nothing is left in the graph."""

    def call(self, expert, rows):
        return expert(rows) if len(rows) else rows


@wrong("ExpertParallelMLP", fails="nobody comes")
class NothingToAverage(_Layer):
    """Reduces the gate's gradient as it is, also where there is none."""

    def average_of_gate(self, weight):
        dist.all_reduce(weight.grad, group=self.group)
        weight.grad /= self.ranks()


@wrong("ExpertParallelMLP", fails="nobody comes")
class GateWithoutTokens(_Layer):
    """A rank whose gate has no gradient stays away from the all-reduce."""

    def average_of_gate(self, weight):
        if weight.grad is not None and weight.grad.any():
            super().average_of_gate(weight)


@wrong("ExpertParallelMLP", fails="capacity")
class RoomForAll(_Layer):
    """Ignores the capacity factor."""

    def capacity(self, experts, count):
        return None


@wrong("ExpertParallelMLP", fails="capacity")
class RoundedDown(_Layer):
    """Whole places only."""

    def capacity(self, experts, count):
        return None if self.factor is None else int(self.factor * experts.numel() / count)


@wrong("ExpertParallelMLP", fails="capacity")
class RoomForTokens(_Layer):
    """Reckons with tokens, each of which makes k choices."""

    def capacity(self, experts, count):
        return None if self.factor is None else math.ceil(self.factor * len(experts) / count)


@wrong("ExpertParallelMLP", fails="capacity")
class OneMoreThanFits(_Layer):
    """Adds one in place of rounding up."""

    def capacity(self, experts, count):
        return None if self.factor is None else int(self.factor * experts.numel() / count) + 1


@wrong("ExpertParallelMLP", fails="capacity")
class RoomOfTheFirstBatch(_Layer):
    """Reckons the capacity once and for all."""

    def capacity(self, experts, count):
        self.room = getattr(self, "room", None) or super().capacity(experts, count)
        return self.room


@wrong("ExpertParallelMLP", fails="capacity")
class RoomForAllInEvaluation(_Layer):
    """Drops in training only."""

    def capacity(self, experts, count):
        return super().capacity(experts, count) if self.training else None


@wrong("ExpertParallelMLP", fails="routing")
class RoutingWithoutHistory(_Layer):
    """Tells probabilities from which the gate cannot learn."""

    def route(self, logits, experts):
        self.routing = logits.detach().softmax(1), experts


@wrong("ExpertParallelMLP", fails="routing")
class RoutingOfTraining(_Layer):
    """Tells the routing of the last forward that had a graph."""

    def route(self, logits, experts):
        if torch.is_grad_enabled():
            super().route(logits, experts)


@wrong("ExpertParallelMLP", fails="routing")
class RoutingOfLogits(_Layer):
    """Tells the logits, which are no probabilities."""

    def route(self, logits, experts):
        self.routing = logits, experts


@wrong("ExpertParallelMLP", fails="calls and bytes")
class AveragesGateTwice(_Layer):
    """Reduces to one rank, which sends to all."""

    def average_of_gate(self, weight):
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        dist.reduce(weight.grad, group_dst=0, group=self.group)
        dist.broadcast(weight.grad, group_src=0, group=self.group)
        weight.grad /= self.ranks()


@wrong("ExpertParallelMLP", fails="calls and bytes")
class GradientsNobodyWants(_Layer):
    """Sends gradients back to x, also where x needs none."""

    def forward(self, x):
        return super().forward(x + 0 * self.gate.weight.sum())


@wrong("ExpertParallelMLP", fails="calls and bytes")
class AveragesFrozenGate(_Layer):
    """Has the gradient of a frozen gate averaged, which is zeros."""

    @torch.no_grad()
    def average_gradients(self):
        for parameter in self.experts.parameters():
            self.average_of_expert(parameter)
        self.average_of_gate(self.gate.weight)


@wrong("ExpertParallelMLP", fails="calls and bytes")
class RowsInDouble(_Layer):
    """Sends rows in double precision: twice the bytes."""

    def forward(self, x):
        x_ND = x.reshape(-1, x.shape[-1])
        logits = self.gate(x_ND)
        weights, experts = _own("top_k_gate")(logits, self.k)
        self.route(logits, experts)
        count = logits.shape[1]
        order, counts = _own("dispatch_plan")(experts, count, self.capacity(experts, count))
        rows, received = _own("dispatch")(x_ND[order // self.k].double(), counts, self.group)
        y_TD = self.compute(rows.to(x.dtype), received).double()
        y_ND = _own("combine")(y_TD, (order, counts), received, weights.double(), self.group)
        return y_ND.to(x.dtype).view(x.shape)


@wrong("ExpertParallelMLP", fails="one call an expert")
class RowByRow(_Layer):
    """Calls an expert for each rank's rows apart."""

    def compute(self, rows, received):
        sizes = received.flatten().tolist()
        experts = list(self.experts) * len(received)
        return torch.cat([expert(part) for expert, part in zip(experts, rows.split(sizes), strict=True)])


@wrong("ExpertParallelMLP", fails="one call an expert")
class IdleExpertsTimesZero(_Layer):
    """Keeps experts to whom nobody came in the graph, and calls them not."""

    def call(self, expert, rows):
        return expert(rows) if len(rows) else rows + 0 * sum(each.sum() for each in expert.parameters())


@wrong("ExpertParallelMLP", fails="group")
class AverageOfAll(_Layer):
    """Forgets the group when it averages."""

    def average_of_gate(self, weight):
        group, self.group = self.group, None
        super().average_of_gate(weight)
        self.group = group


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


@wrong("load_balancing_loss", fails="value")
def sum_of_probabilities(probabilities, experts, group=None):
    """A sum where a mean is meant."""
    return _loss(probabilities, experts, group, mean=lambda p: p.sum(0))


@wrong("load_balancing_loss", fails="value")
def per_token(probabilities, experts, group=None):
    """Divides counts by tokens, not by choices."""
    return _loss(probabilities, experts, group) * experts.shape[1]


@wrong("load_balancing_loss", fails="value")
def squares_of_counts(probabilities, experts, group=None):
    """f times f, which nothing can be learnt from; with probabilities it only looks alike."""
    count = probabilities.shape[1]
    chosen = experts.flatten().bincount(minlength=count)
    dist.all_reduce(chosen, group=group)
    part = chosen.to(probabilities.dtype) / chosen.sum()
    return count * part @ part + 0 * probabilities.sum()


@wrong("load_balancing_loss", fails="gradient")
def constant_probabilities(probabilities, experts, group=None):
    """The right number, from which nobody learns."""
    return _loss(probabilities.detach(), experts, group)


@wrong("load_balancing_loss", fails="one small collective")
def all_probabilities(probabilities, experts, group=None):
    """Averages the probabilities over ranks too, which the mean of gradients does already."""
    result = _loss(probabilities, experts, group)
    dist.all_reduce(probabilities.detach().mean(0), group=group)
    return result


@wrong("load_balancing_loss", fails="one small collective")
def every_choice(probabilities, experts, group=None):
    """Gathers every token's choices to count them."""

    def gathered(chosen, group):
        every = [torch.empty(experts.shape, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, experts.contiguous(), group=group)
        chosen.copy_(torch.cat(every).flatten().bincount(minlength=len(chosen)))

    return _loss(probabilities, experts, group, sums=gathered)


@wrong("load_balancing_loss", fails="group")
def load_of_all(probabilities, experts, group=None):
    """Forgets the group."""
    return _loss(probabilities, experts, None)


@wrong("load_balancing_loss", fails="other sizes")
def counts_in_their_dtype(probabilities, experts, group=None):
    """Counts in the dtype of the probabilities: float16 has no whole number above 2,048 but the even ones."""
    count = probabilities.shape[1]
    chosen = probabilities.new_zeros(count)
    for each in experts.flatten().tolist():
        chosen[each] += 1
    dist.all_reduce(chosen, group=group)
    return count * (chosen / chosen.sum()) @ probabilities.mean(0)


@wrong("load_balancing_loss", fails="other sizes")
def gate_always_learns(probabilities, experts, group=None):
    """A hook on the probabilities, which need no gradient where the gate is frozen."""
    probabilities.register_hook(lambda gradient: gradient)
    return _loss(probabilities, experts, group)


@wrong("load_balancing_loss", fails="other sizes")
def squeezes(probabilities, experts, group=None):
    """Drops dimensions of size 1, to have no column where k is 1: of one choice no list is left."""
    count = probabilities.shape[1]
    chosen = nn.functional.one_hot(experts.squeeze(), count).flatten(0, -2).sum(0)
    dist.all_reduce(chosen, group=group)
    part = (chosen.double() / chosen.sum()).to(probabilities.dtype)
    return count * part @ probabilities.mean(0)


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


@wrong("hierarchical_all_to_all", fails="every block")
def stays_as_it_is(x, gpus_per_node, group=None):
    """Transposes nothing."""
    return x.clone()


@wrong("hierarchical_all_to_all", fails="every block")
def places_mixed_up(x, gpus_per_node, group=None):
    """Puts blocks back place by place in place of node by node."""
    result = _two_stages(x, gpus_per_node, group)
    return result.unflatten(0, (-1, gpus_per_node)).transpose(0, 1).flatten(0, 1)


@wrong("hierarchical_all_to_all", fails="only messages")
def by_the_collective(x, gpus_per_node, group=None):
    """PyTorch's own."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(result, x.contiguous(), group=group)
    return result


@wrong("hierarchical_all_to_all", fails="only messages")
def own_block_by_message(x, gpus_per_node, group=None):
    """Sends itself what it has for itself, which works on simulated ranks."""
    result, rank = _own("hierarchical_all_to_all")(x, gpus_per_node, group), dist.get_rank(group)
    calls = [
        dist.P2POp(dist.isend, x[rank].contiguous(), group=group, group_peer=rank),
        dist.P2POp(dist.irecv, result[rank], group=group, group_peer=rank),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return result


@wrong("hierarchical_all_to_all", fails="any nodes")
def more_than_one_gpu(x, gpus_per_node, group=None):
    """Stops where there is nothing to exchange in one of the stages."""
    if gpus_per_node == 1 or len(x) == gpus_per_node:
        return x.clone()
    return _own("hierarchical_all_to_all")(x, gpus_per_node, group)


@wrong("hierarchical_all_to_all", fails="any blocks")
def rows_of_float(x, gpus_per_node, group=None):
    """Makes float32 of everything."""
    return _own("hierarchical_all_to_all")(x.float(), gpus_per_node, group)


@wrong("hierarchical_all_to_all", fails="any blocks")
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


@wrong("hierarchical_all_to_all", fails="no rank carries all")
def last_place_carries_the_rest(x, gpus_per_node, group=None):
    """Nodes beyond g are all carried by the last place."""
    g, p, rank = gpus_per_node, len(x), dist.get_rank(group)
    node, place = divmod(rank, g)
    blocks = x.contiguous().unflatten(0, (-1, g))
    carried = [[n for n in range(p // g) if min(n, g - 1) == j] for j in range(g)]
    own, beside = carried[place], range(node * g, node * g + g)
    held = _swap(
        {peer: blocks[carried[j]] for j, peer in enumerate(beside)},
        {peer: torch.empty_like(blocks[own]) for peer in beside},
        group,
    )
    across = torch.stack(held, 1)
    partners = [other * g + min(node, g - 1) for other in own]
    parts = dict(zip(partners, across, strict=True))
    came = _swap(parts, {peer: torch.empty_like(part) for peer, part in parts.items()}, group)
    came = torch.stack(came) if own else across
    dealt = _swap(
        {peer: came[:, :, j] for j, peer in enumerate(beside)},
        {peer: torch.empty_like(blocks[carried[j]]) for j, peer in enumerate(beside)},
        group,
    )
    result = torch.empty_like(blocks)
    for nodes, part in zip(carried, dealt, strict=True):
        result[nodes] = part
    return result.flatten(0, 1)


@wrong("hierarchical_all_to_all", fails="no bytes more")
def with_padding(x, gpus_per_node, group=None):
    """One block too many in each message."""
    return _led(x, gpus_per_node, group, extra=1)


@wrong("hierarchical_all_to_all", fails="group")
def number_in_the_world(x, gpus_per_node, group=None):
    """Reckons node and place from the rank among all, where the group has other ranks."""
    if dist.get_world_size() == dist.get_world_size(group):
        return _own("hierarchical_all_to_all")(x, gpus_per_node, group)
    return _flat(x.roll(dist.get_rank(), 0), group)


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


@wrong("place_experts", fails="half of what can be saved")
def copies_in_any_order(loads, ranks, slots):
    """The right copies, laid out as they are numbered."""
    copies = _copies(loads, ranks, slots)
    return _onto_the_emptiest(loads, copies, ranks, slots, range(len(loads)))


@wrong("place_experts", fails="within a fiftieth of the best known")
def greedy_only(loads, ranks, slots):
    """The largest onto the emptiest, and nothing is tried afterwards."""
    copies = _copies(loads, ranks, slots)
    order = sorted(range(len(loads)), key=lambda e: -loads[e] / copies[e])
    return _onto_the_emptiest(loads, copies, ranks, slots, order)


@wrong("place_experts", fails="within a fiftieth of the best known")
def greedy_with_any_number_of_copies(loads, ranks, slots):
    """The largest onto the emptiest for every number of copies, and no swap afterwards."""
    best, least = None, math.inf
    for spare in range(ranks * slots - len(loads) + 1):
        copies = _copies(loads, ranks, slots, spare)
        order = sorted(range(len(loads)), key=lambda e: -loads[e] / copies[e])
        held = _onto_the_emptiest(loads, copies, ranks, slots, order)
        tokens = max(sum(loads[e] / sum(e in own for own in held) for e in each) for each in held)
        if tokens < least:
            best, least = held, tokens
    return best
