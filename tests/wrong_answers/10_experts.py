"""Mistakes that people make in unit 10."""

import torch
import torch.distributed as dist

from tests.answers import instead, solved, wrong


def _own(name):
    """The solution of an exercise that others build on."""
    return solved("10_experts")[name]


# ------------------------------------------------------------------------------------------------ the gate


@wrong("top_k_gate", fails="ties")
def a_little_less_for_later_ones(logits, k):
    """Breaks ties with a small number, which is lost in large ones and too large for others."""
    experts = (logits - 1e-6 * torch.arange(logits.shape[1])).topk(k, 1).indices
    return logits.gather(1, experts).softmax(1), experts


@instead(
    "top_k_gate", ("largest[:, :k].softmax(1)", "largest.softmax(1)[:, :k]"), fails="weights and experts"
)
def not_renormalised():
    """The softmax over all experts: the k weights add up to less than 1."""


@instead("top_k_gate", ("largest[:, :k].softmax(1)", "largest[:, :k].softmax(1).detach()"), fails="gradient")
def weights_as_constants():
    """Keeps autograd out of it, so that the gate never learns."""


@instead(
    "top_k_gate",
    (
        "    return largest[:, :k].softmax(1)",
        "    weights = largest[:, :k].exp()\n    return weights / weights.sum(1, keepdim=True)",
    ),
    fails="any logits",
)
def exponents_of_large_numbers():
    """exp of a thousand is infinite."""


@instead("top_k_gate", ("logits.sort(", "logits.float().sort("), fails="any logits")
def gate_in_float():
    """Always float32."""


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


@instead("dispatch_plan", ("chosen[kept].bincount", "chosen.bincount"), fails="capacity")
def counts_of_all():
    """Drops them from the order, and counts them."""


@instead(
    "dispatch_plan",
    ("    tokens, k = experts.shape\n", "    tokens, k = experts.shape\n    assert experts.max() < count\n"),
    fails="no tokens",
)
def largest_of_nothing():
    """Checks the numbers, of which there may be none."""


@instead(
    "dispatch_plan",
    ("    chosen = experts.T.flatten()\n", "    chosen = experts.T.flatten()\n    experts.fill_(-1)\n"),
    fails="one choice a token",
)
def marks_what_it_has_seen():
    """Writes -1 where a choice has been placed."""


# ------------------------------------------------------------------------------------------------ journeys


@instead("dispatch", ("Travel.apply(x_RD, sent", "Travel.apply(x_RD.detach(), sent"), fails="gradient")
def rows_without_history():
    """Autograd knows nothing of dist.all_to_all_single: nothing comes back."""


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


@instead(
    "dispatch",
    (
        "    y_TD = x_RD.new_empty(sum(received), x_RD.shape[1])\n"
        "        dist.all_to_all_single(y_TD, x_RD.contiguous(), received, sent, group=group)\n",
        "    y_TD = torch.empty(sum(received), x_RD.shape[1])\n"
        "        dist.all_to_all_single(y_TD, x_RD.float().contiguous(), received, sent, group=group)\n",
    ),
    fails="any dtype",
)
def rows_in_single_precision():
    """Receives everything in float32."""


@instead(
    "dispatch",
    (
        "Travel.apply(gradient_TD, ctx.received, ctx.sent, ctx.group)",
        "Travel.apply(gradient_TD, ctx.received, ctx.sent, None)",
    ),
    fails="group",
)
def rows_of_all_ranks():
    """Forgets the group in backward."""


@instead(
    "combine",
    ("    weighted = rows * weights.flatten()[order].unsqueeze(1)\n", "    weighted = rows\n"),
    fails="sum of rows",
)
def without_weights():
    """Adds rows up as they are."""


@instead("combine", ("rows * weights.flatten()", "rows * weights.detach().flatten()"), fails="gradients")
def weights_get_nothing():
    """Keeps the weights out of autograd: the gate does not learn."""


@instead(
    "combine",
    (
        "    return weighted.new_zeros(tokens, y_TD.shape[1]).index_add(0, order // k, weighted)",
        "    left = torch.zeros_like(weights.flatten()).index_copy(0, order, weights.flatten()[order])\n"
        "    share = left.view(weights.shape).sum(1, keepdim=True) / weights.sum(1, keepdim=True)\n"
        "    return weighted.new_zeros(tokens, y_TD.shape[1]).index_add(0, order // k, weighted) / share",
    ),
    fails="dropped",
)
def makes_up_for_the_dropped():
    """Divides by the weights that are left, which are zero where all were dropped."""


@instead(
    "combine",
    (
        "    tokens, k = weights.shape\n",
        "    tokens, k = weights.shape\n"
        "    dist.all_to_all_single(torch.empty_like(received), received.contiguous(), group=group)\n",
    ),
    fails="calls and bytes",
)
def asks_how_many():
    """Exchanges counts that everybody knows."""


@instead("combine", ("sent, group)", "sent, None)"), fails="group")
def back_to_all():
    """Forgets the group."""


# ------------------------------------------------------------------------------------------------ the layer


@instead("ExpertParallelMLP", ("computed[by_expert.argsort()]", "computed"), fails="outputs")
class RowsStaySorted:
    """Sends the rows back sorted by expert, not as they came."""


@instead("ExpertParallelMLP", ("x.reshape(-1, x.shape[-1])", "x.reshape(-1, x.shape[1])"), fails="outputs")
class WidthIsTheSecond:
    """Takes the second dimension for the width: right for [N, D], and not for [B, T, D]."""


@instead(
    "ExpertParallelMLP",
    ("[expert(part) for expert", "[expert(part.detach()) + 0 * part for expert"),
    fails="gradients of x",
)
class ExpertsWithoutHistory:
    """Puts the experts' results into a tensor that autograd does not follow back to the rows."""


@instead(
    "ExpertParallelMLP",
    ("                parameter.grad /= ranks", "                pass"),
    fails="average_gradients",
)
class SumsForExperts:
    """Leaves the experts' gradients as they are: p times too large beside the gate's."""


@instead(
    "ExpertParallelMLP",
    (
        "        self.gate = copy.deepcopy(whole.gate)\n",
        "        self.gate = copy.deepcopy(whole.gate)\n        self.whole = [copy.deepcopy(whole)]\n",
    ),
    fails="parameters and routing",
)
class KeepsAllExperts:
    """Has all experts in memory, and uses its own."""


@instead(
    "ExpertParallelMLP",
    (
        "        y_TD = computed[by_expert.argsort()]",
        "        y_TD = computed[by_expert.argsort()] if len(rows) else rows.detach()",
    ),
    fails="any ranks",
)
class IdleExperts:
    """A rank to whose experts nobody came computes nothing, and is missing in backward."""


@instead(
    "ExpertParallelMLP",
    ("factor * experts.numel() / count", "factor * len(experts) / count"),
    fails="capacity",
)
class RoomForTokens:
    """Reckons with tokens, each of which makes k choices."""


@instead(
    "ExpertParallelMLP",
    ("[expert(part) for expert", "[torch.cat([expert(row) for row in part.split(1)]) for expert"),
    fails="calls and bytes",
)
class RowByRow:
    """Calls an expert for each row."""


# ------------------------------------------------------------------------------------------------ the balance


@instead("load_balancing_loss", ("    dist.all_reduce(chosen, group=group)\n", ""), fails="value")
def own_tokens_only():
    """Each rank's own load: the mean of products is not the product of means."""


@instead("load_balancing_loss", ("count * part @", "part @"), fails="value")
def without_the_factor():
    """Leaves out E."""


@instead("load_balancing_loss", ("probabilities.mean(0)", "probabilities.detach().mean(0)"), fails="gradient")
def constant_probabilities():
    """The right number, from which nobody learns."""


@instead("load_balancing_loss", ("group=group", "group=None"), fails="group")
def load_of_all():
    """Forgets the group."""


@instead(
    "load_balancing_loss",
    ("part @ probabilities.mean(0)", "part.float() @ probabilities.float().mean(0)"),
    fails="other sizes",
)
def in_single_precision():
    """Always float32."""


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


@instead(
    "hierarchical_all_to_all",
    (
        "    g, rank = gpus_per_node, dist.get_rank(group)\n",
        "    g, rank = gpus_per_node, dist.get_rank(group)\n"
        "    if g in (1, len(x)):\n"
        "        return x.clone()\n",
    ),
    fails="any nodes and blocks",
)
def more_than_one_gpu():
    """Stops where there is nothing to exchange in one of the stages."""


@instead(
    "hierarchical_all_to_all",
    ("return result.flatten(0, 1)", "return x.copy_(result.flatten(0, 1))"),
    fails="any nodes and blocks",
)
def back_into_x():
    """Writes the result into x."""


@wrong("hierarchical_all_to_all", fails="g times fewer messages")
def everyone_to_everyone(x, gpus_per_node, group=None):
    """A message for each block."""
    return _flat(x, group)


@wrong("hierarchical_all_to_all", fails="one message from node to node")
def two_stages(x, gpus_per_node, group=None):
    """A message from each rank of a node to the one at its place on the other."""
    return _two_stages(x, gpus_per_node, group)


@instead(
    "hierarchical_all_to_all",
    (
        "[list(range(j, len(blocks), g)) for j in range(g)]",
        "[list(range(len(blocks))) if j == 0 else [] for j in range(g)]",
    ),
    ("other * g + node % g for other", "other * g for other"),
    fails="no rank carries all",
)
def one_leader():
    """The first rank of each node speaks for all of it."""


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
