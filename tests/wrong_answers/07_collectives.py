"""Mistakes that people make in unit 07."""

import numpy as np
import torch
import torch.distributed as dist

from tests.answers import instead, wrong

RECEIVE = "            dist.recv(arriving, group_src=left, group=group)\n"


def _place(group):
    return dist.get_rank(group), dist.get_world_size(group)


def _root(group, rank):
    return dist.get_group_rank(group or dist.group.WORLD, rank)


def _both(outgoing, to, incoming, source, group):
    """Send and receive at the same time."""
    sending = dist.isend(outgoing, group_dst=to, group=group)
    dist.recv(incoming, group_src=source, group=group)
    sending.wait()


@instead("scatter_from", ("if place != root:", "if True:"), fails="its part on every rank")
def sends_to_itself():
    """The root waits for itself."""


@instead("scatter_from", ("return x.copy_(parts[root])", "return x"), fails="its part on every rank")
def forgets_its_own_part():
    """The root hands everything out and keeps nothing."""


@instead(
    "scatter_from",
    ("dist.get_group_rank(group or dist.group.WORLD, src)", "0"),
    fails="any root, any number of ranks",
)
def root_is_always_rank_0():
    """Ignores src."""


@instead("scatter_from", ("x.contiguous()", "torch.empty(x.shape)"), fails="any tensor")
def buffer_of_float32():
    """Receives in PyTorch's default dtype."""


@instead(
    "scatter_from",
    ("return x.copy_(parts[root])", "return x.copy_(parts[root]) if parts[1:] else parts[0]"),
    fails="in place",
)
def alone_it_returns_the_part():
    """With one rank it returns the part that it was given, and x stays as it was."""


@instead(
    "scatter_from", ("dist.get_group_rank(group or dist.group.WORLD, src)", "src"), fails="on a subgroup"
)
def src_taken_for_a_place():
    """A global rank is no place in the group."""


@instead("gather_to", ("return None", "return x"), fails="every part on the root")
def returns_x_elsewhere():
    """The other ranks return their own tensor."""


@wrong("gather_to", fails="any root, any number of ranks")
def takes_whoever_comes_first(x, parts=None, dst=0, group=None):
    """Receives from anyone, and files what comes in the order in which it comes."""
    if parts is None:
        dist.send(x.contiguous(), dst, group=group)
        return None
    for part in parts[1:]:
        dist.recv(part, group=group)
    parts[0].copy_(x)
    return parts


@instead("gather_to", ("dist.send(x.contiguous()", "dist.send(x"), fails="any tensor")
def sends_x_with_gaps():
    """A message needs a contiguous tensor."""


@instead("gather_to", ("part.copy_(arriving)", "parts[place] = arriving.clone()"), fails="in place")
def other_tensors_in_the_list():
    """Whoever holds the tensors that were to be filled sees nothing of it."""


@instead("gather_to", ("dist.get_group_rank(group or dist.group.WORLD, dst)", "dst"), fails="on a subgroup")
def dst_taken_for_a_place():
    """A global rank is no place in the group."""


@instead(
    "broadcast_tree",
    ("dist.get_group_rank(group or dist.group.WORLD, src)", "0"),
    fails="any root, any number of ranks",
)
def root_0_only():
    """Ignores src."""


@instead("broadcast_tree", (" and place + distance < size", ""), fails="any root, any number of ranks")
def to_places_that_do_not_exist():
    """Sends whether or not there is such a place."""


@instead("broadcast_tree", ("x.contiguous()", "x.double().contiguous()"), fails="any tensor")
def through_float64():
    """Large integers lose their last digits."""


@instead(
    "broadcast_tree",
    ("x.contiguous()", "x.clone(memory_format=torch.contiguous_format)"),
    ("return x.copy_(data)", "return data"),
    fails="in place",
)
def broadcasts_a_copy():
    """x itself stays as it was."""


@instead(
    "broadcast_tree",
    ("dist.get_world_size(group), dist.get_rank(group)", "dist.get_world_size(), dist.get_rank()"),
    fails="on a subgroup",
)
def ranks_of_the_world():
    """Takes rank and size from the default group."""


@wrong("broadcast_tree", fails="bytes and messages")
def from_the_root_to_each(x, src=0, group=None):
    """The root sends p - 1 messages at once: a star."""
    rank, size = _place(group)
    root = _root(group, src)
    data = x.contiguous()
    if rank == root:
        works = [dist.isend(data, group_dst=p, group=group) for p in range(size) if p != root]
        for work in works:
            work.wait()
    else:
        dist.recv(data, group_src=root, group=group)
    return x.copy_(data)


@wrong("broadcast_tree", fails="rounds")
def along_a_chain(x, src=0, group=None):
    """From rank to rank: p - 1 rounds."""
    rank, size = _place(group)
    place = (rank - _root(group, src)) % size
    data = x.contiguous()
    if place > 0:
        dist.recv(data, group_src=(rank - 1) % size, group=group)
    if place < size - 1:
        dist.send(data, group_dst=(rank + 1) % size, group=group)
    return x.copy_(data)


@instead("reduce_tree", ("total += arriving", "total = arriving.clone()"), fails="the sum on the root")
def replaces_instead_of_adding():
    """What arrives takes the place of the sum."""


@wrong("reduce_tree", fails="the sum on the root")
def the_librarys_reduce(x, dst=0, group=None):
    """One line, and not the exercise."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.reduce(total, dst, group=group)
    return x.copy_(total) if dist.get_rank() == dst else x


@instead(
    "reduce_tree",
    ("dist.get_group_rank(group or dist.group.WORLD, dst)", "0"),
    fails="any root, any number of ranks",
)
def sum_on_rank_0():
    """Ignores dst."""


@instead("reduce_tree", ("if place + distance < size:", "if True:"), fails="any root, any number of ranks")
def receives_from_ranks_that_do_not_exist():
    """Waits for place + distance whether or not there is one."""


@instead(
    "reduce_tree", ("x.clone(memory_format=torch.contiguous_format)", "x.contiguous()"), fails="in place"
)
def adds_into_x_and_returns_it():
    """contiguous() is x itself where it can be: ranks in the middle of the tree change their x."""


@instead(
    "ring_reduce_scatter",
    ("chunks[rank].clone()", "chunks[(rank + 1) % size].clone()"),
    fails="its chunk of the sum",
)
def the_next_ranks_chunk():
    """Returns another chunk than its own."""


@instead("ring_reduce_scatter", ("range(size - 1)", "range(size - 2)"), fails="its chunk of the sum")
def one_step_too_few():
    """p - 2 steps: the last rank's part is missing."""


@instead(
    "ring_reduce_scatter",
    (
        "torch.tensor_split(x.clone(memory_format=torch.contiguous_format).view(-1), size)",
        "x.clone(memory_format=torch.contiguous_format).view(size, -1)",
    ),
    fails="any tensor",
)
def only_where_p_divides_n():
    """view(p, -1) needs a length that divides."""


@instead(
    "ring_reduce_scatter",
    ("x.clone(memory_format=torch.contiguous_format)", "x.contiguous()"),
    fails="in place",
)
def adds_into_the_callers_x():
    """contiguous() is x itself where it can be."""


@instead(
    "ring_reduce_scatter",
    ("        sending = dist", f"        if rank:\n{RECEIVE}        sending = dist"),
    (f"{RECEIVE[4:]}        sending.wait()\n", f"        sending.wait()\n        if not rank:\n{RECEIVE}"),
    fails="rounds",
)
def one_after_another():
    """Rank 0 sends first, all others receive first: a message runs round while everyone waits."""


@instead(
    "ring_all_gather", ("chunks[(rank - step) % size]", "chunks[rank]"), fails="every chunk on every rank"
)
def sends_its_own_chunk_every_time():
    """The same chunk in each step: the neighbour gets it p - 1 times."""


@instead("ring_all_gather", ("range(size - 1)", "range(size - 2)"), fails="every chunk on every rank")
def forgets_the_last_chunk():
    """p - 2 steps."""


@instead("ring_all_gather", ("torch.tensor_split(data", "torch.chunk(data"), fails="any tensor")
def torch_chunk_instead_of_tensor_split():
    """torch.chunk makes fewer chunks than ranks, and other ones."""


@instead("ring_all_gather", ("return x.copy_(data)", "return x"), fails="any tensor")
def flattens_and_forgets():
    """contiguous() of a tensor with gaps is a copy."""


@instead(
    "ring_all_gather",
    ("x.contiguous()", "x.clone(memory_format=torch.contiguous_format)"),
    ("return x.copy_(data)", "return data"),
    fails="in place",
)
def leaves_x_alone():
    """Gathers into a copy, and returns that."""


@instead(
    "ring_all_reduce",
    ("(rank - 2 - step)", "(rank - 1 - step)"),
    ("(rank - 1 - step) % size], group_dst", "(rank - step) % size], group_dst"),
    fails="the sum on every rank",
)
def gathers_the_wrong_chunk():
    """After this reduce-scatter rank r has chunk r + 1, and passes on chunk r."""


@instead(
    "ring_all_reduce",
    ("torch.tensor_split(data.view(-1), size)", "data.view(-1).split(max(1, data.numel() // size))[:size]"),
    fails="any tensor",
)
def drops_the_remainder():
    """Chunks of n // p elements: what is left over at the end is never added."""


@instead("ring_all_reduce", ("x.contiguous()", "x.double().contiguous()"), fails="any tensor")
def sums_in_float64():
    """Accumulates in the wrong dtype: integers above 2**53 are rounded."""


@instead(
    "ring_all_reduce",
    ("dist.get_world_size(group), dist.get_rank(group)", "dist.get_world_size(), dist.get_rank()"),
    fails="on a subgroup",
)
def the_whole_world():
    """Ignores the group."""


@wrong("ring_all_reduce", fails="bytes and messages")
def whole_tensors(x, group=None):
    """Everyone's whole tensor goes round once: the right sum, and p / 2 times the bytes."""
    rank, size = _place(group)
    total = x.clone(memory_format=torch.contiguous_format)
    passing = total.clone()
    for _ in range(size - 1):
        arriving = torch.empty_like(passing)
        _both(passing, (rank + 1) % size, arriving, (rank - 1) % size, group)
        total += arriving
        passing = arriving
    return x.copy_(total)


@instead(
    "ring_all_reduce",
    ("        sending = dist", f"        if rank:\n{RECEIVE}        sending = dist"),
    (f"{RECEIVE[4:]}        sending.wait()\n", f"        sending.wait()\n        if not rank:\n{RECEIVE}"),
    fails="rounds",
)
def rank_0_begins():
    """No deadlock, since rank 0 sends first and the others receive first; and no two messages at a time."""


@instead(
    "recursive_doubling_all_reduce",
    ("while distance < core", "while 2 * distance < core"),
    fails="the sum on every rank",
)
def one_round_too_few():
    """Ends before the distance is half of the ranks."""


@instead(
    "recursive_doubling_all_reduce",
    ("        data += arriving\n        distance", "        distance"),
    fails="the sum on every rank",
)
def never_adds():
    """Swaps, and does not add."""


@instead("recursive_doubling_all_reduce", ("if rank >= core:", "if False:"), fails="any number of ranks")
def powers_of_two_are_taken_for_granted():
    """Ranks beyond the power of two do as all others."""


@instead(
    "recursive_doubling_all_reduce",
    ("dist.recv(arriving, group_src=rank ^ distance, group=group)", "dist.recv(arriving, group=group)"),
    fails="any number of ranks",
)
def doubles_with_anybody():
    """recv without a source: if a rank is slow, the next round's message comes before this round's."""


@instead(
    "recursive_doubling_all_reduce",
    (
        "dist.recv(arriving, group_src=rank ^ distance, group=group)",
        "dist.recv(arriving, src=rank ^ distance, group=group)",
    ),
    fails="on a subgroup",
)
def partners_by_global_rank():
    """src= is a global rank."""


@instead("halving_doubling_all_reduce", ("in reversed(rounds)", "in ()"), fails="the sum on every rank")
def only_halves():
    """A reduce-scatter: each rank has a part of the sum, and nobody all of it."""


@instead("halving_doubling_all_reduce", ("group_src=partner, ", ""), fails="any number of ranks")
def halves_with_anybody():
    """recv without a source: of five ranks one waits for its guest, while others go on."""


@instead("halving_doubling_all_reduce", ("if rank >= core:", "if False:"), fails="any number of ranks")
def powers_of_two_only():
    """Partners that do not exist where p is no power of two."""


@instead("halving_doubling_all_reduce", ("part[middle:]", "part[-middle:]"), fails="any tensor")
def halves_of_one_length():
    """Of an odd number of elements the middle one is lost."""


@instead("halving_doubling_all_reduce", ("x.contiguous()", "x.float().contiguous()"), fails="any tensor")
def adds_in_float32():
    """Large integers lose their last digits."""


@instead(
    "hierarchical_all_reduce",
    ("    reduce_scatter(pieces, rail)\n    all_gather(pieces, rail)\n", ""),
    fails="the sum on every rank",
)
def within_nodes_only():
    """Each node has a sum of its own."""


@instead("hierarchical_all_reduce", ("group_src=members[me - 1], ", ""), fails="any number of ranks")
def takes_from_anybody():
    """recv without a source: of two stages the later one's message may come first, if a rank is slow."""


@instead("hierarchical_all_reduce", ("return x.copy_(data)", "return x"), fails="any tensor")
def flat_copy_lost():
    """Works on a copy if there are gaps."""


@instead(
    "hierarchical_all_reduce",
    ("x.contiguous()", "x.clone(memory_format=torch.contiguous_format)"),
    ("return x.copy_(data)", "return data"),
    fails="in place",
)
def sum_in_a_new_tensor():
    """x itself stays as it was."""


@instead(
    "hierarchical_all_reduce",
    ("    data = x", "    return ring_all_reduce(x, group)\n    data = x"),
    fails="bytes and messages",
)
def one_big_ring():
    """A ring over all ranks crosses between nodes with all that it has."""


@instead(
    "all_to_all_pairwise", ("    outputs[rank].copy_(inputs[rank])\n", ""), fails="every part at its place"
)
def forgets_its_own():
    """What a rank has for itself must be copied too."""


@instead(
    "all_to_all_pairwise",
    ("(rank + step) % size, (rank - step) % size", "rank ^ step, rank ^ step"),
    fails="any number of ranks",
)
def by_exclusive_or():
    """rank ^ step is a partner only if p is a power of two."""


@instead("all_to_all_pairwise", ("group_src=left, ", ""), fails="any number of ranks")
def takes_what_comes_first():
    """recv without a source: right as long as no rank is slow."""


@instead(
    "all_to_all_pairwise",
    ("outputs[left].contiguous()", "torch.empty_like(outputs[rank])"),
    fails="any tensor",
)
def parts_of_one_length():
    """Takes it that every part is as long as its own."""


@instead("all_to_all_pairwise", ("inputs[right].contiguous()", "inputs[right]"), fails="any tensor")
def parts_with_gaps():
    """Sends straight from tensors that are not contiguous."""


@instead("predict_time", ('"master": (2 * (p - 1), 2 * (p - 1) * n', '"master": (2, 2 * n'), fails="master")
def all_at_once_into_the_master():
    """As if p - 1 messages took no longer than one through one link."""


@instead("predict_time", ("(2 * rounds, 2 * rounds * n", "(rounds, rounds * n"), fails="tree")
def a_tree_one_way():
    """Forgets that the sum has to come down again."""


@instead("predict_time", ("2 * (p - 1) * n / p", "2 * (p - 1) * n"), fails="ring")
def a_ring_of_whole_tensors():
    """2 (p - 1) messages of n bytes."""


@instead("predict_time", ("(p - 1).bit_length()", "math.log2(p)"), fails="any number of ranks")
def a_logarithm_with_a_fraction():
    """There is no half round."""


@instead("predict_time", (" + added * gamma", ""), fails="reduction")
def additions_are_free():
    """Leaves gamma out."""


@instead("predict_time", ("added * gamma", "sent * gamma"), fails="reduction")
def copies_are_additions():
    """Pays gamma for every byte that arrives, also for those that are only copied."""


@instead("fit_alpha_beta", ("return alpha, beta", "return alpha, 1 / beta"), fails="exact samples")
def bandwidth_instead_of_beta():
    """Bytes a second instead of seconds a byte."""


@instead("fit_alpha_beta", ("return alpha, beta", "return beta, alpha"), fails="exact samples")
def beta_before_alpha():
    """The pair the wrong way round."""


@instead("fit_alpha_beta", ("return alpha, beta", "return max(alpha, 0.0), beta"), fails="exact samples")
def no_less_than_nothing():
    """A latency below 0 makes no sense; but the nearest line may have one."""


@instead(
    "fit_alpha_beta",
    ("1 / seconds, nbytes / seconds", "torch.ones_like(seconds), nbytes"),
    ("torch.ones(len(samples), 1, dtype=torch.float64)", "seconds[:, None]"),
    fails="noisy samples",
)
def ordinary_least_squares():
    """The errors of the longest messages, in seconds, decide about alpha."""


@instead(
    "fit_alpha_beta",
    ("    nbytes, seconds =", "    samples.sort()\n    nbytes, seconds ="),
    fails="samples unchanged",
)
def sorts_the_samples():
    """list.sort works in place."""


CAUSES = {
    "swap": "all receive first",
    "shift": "all send first",
    "report": "a collective that some ranks skip",
    "grid_sums": "groups made in different orders",
    "collect": "more receives than sends",
    "chain": "a barrier after an error",
}


@wrong("causes_of_hangs", fails="swap")
def senders_and_receivers_confused():
    """Waiting for a send means that nobody sends: all receive."""
    return CAUSES | {"swap": "all send first"}


@wrong("causes_of_hangs", fails="report")
def a_barrier_to_blame():
    """There is a barrier in the second report, but it is not what is wrong."""
    return CAUSES | {"report": "a barrier after an error"}


@wrong("causes_of_hangs", fails="grid_sums")
def a_skipped_collective():
    """All ranks call all_reduce; they do so in different groups."""
    return CAUSES | {"grid_sums": "a collective that some ranks skip"}


@wrong("causes_of_hangs", fails="collect")
def an_early_end_is_no_cause():
    """The sender has returned because it had sent all that it has."""
    return CAUSES | {"collect": "a collective that some ranks skip"}


@wrong("causes_of_hangs", fails="chain")
def the_chain_waits_for_a_send():
    """It does; but why did the sender not send?"""
    return CAUSES | {"chain": "more receives than sends"}


@instead("mend_swap", ("if rank % 2 == 0:", "if False:"), fails="the partner's tensor")
def still_receives_first():
    """As it was."""


@instead("mend_swap", ("if rank % 2 == 0:", "if True:"), fails="the partner's tensor")
def now_both_send_first():
    """A circle of sends instead of a circle of receives."""


@instead("mend_swap", ("return arriving", "return x"), fails="the partner's tensor")
def returns_its_own():
    """Returns what it has sent."""


@wrong("mend_swap", fails="the partner's tensor")
def gathers_everything(x):
    """An all-gather of which one part is needed."""
    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x)
    return everyone[dist.get_rank() ^ 1]


@instead(
    "mend_swap",
    ("    arriving = torch.empty_like(x)", "    x, arriving = x.clone(), x"),
    fails="a tensor of its own",
)
def receives_into_x():
    """Overwrites its input."""


@instead("mend_shift", ("sending = dist.isend(", "sending = dist.send("), fails="the left neighbour's tensor")
def still_all_send_first():
    """As it was."""


@instead(
    "mend_shift",
    ("    dist.recv(", "    sending.wait()\n    dist.recv("),
    fails="the left neighbour's tensor",
)
def waits_before_it_receives():
    """isend(...).wait() is send."""


@instead(
    "mend_shift",
    ("(rank + 1)", "(rank - 1)"),
    ("arriving, (rank - 1)", "arriving, (rank + 1)"),
    fails="the left neighbour's tensor",
)
def shifts_to_the_left():
    """The other way round the ring."""


@instead(
    "mend_shift",
    ("    arriving = torch.empty_like(x)", "    x, arriving = x.clone(), x"),
    fails="a tensor of its own",
)
def shifts_in_place():
    """x becomes the neighbour's."""


@wrong("mend_shift", fails="all at the same time")
def rank_0_receives_first(x):
    """It ends, one message after another."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    if rank == 0:
        dist.recv(arriving, (rank - 1) % size)
        dist.send(x, (rank + 1) % size)
    else:
        dist.send(x, (rank + 1) % size)
        dist.recv(arriving, (rank - 1) % size)
    return arriving


@wrong("mend_report", fails="the mean on rank 0")
def still_behind_the_if(loss):
    """As it was."""
    if dist.get_rank() == 0:
        total = torch.tensor(loss)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()
    return None


@wrong("mend_report", fails="the mean on rank 0")
def others_call_something_else(loss):
    """reduce on some ranks and all_reduce on others are two calls."""
    total = torch.tensor(loss)
    if dist.get_rank() == 0:
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()
    dist.reduce(total, 0)
    return None


@instead("mend_report", (" / dist.get_world_size()", ""), fails="the mean on rank 0")
def reports_the_sum():
    """Forgets to divide."""


@instead("mend_report", ("total.item() / dist.get_world_size()", "loss"), fails="the mean on rank 0")
def reports_its_own_loss():
    """No hang, and no mean."""


@instead("mend_report", (" if dist.get_rank() == 0 else None", ""), fails="the mean on rank 0")
def everyone_reports():
    """Every rank returns the mean."""


def _lines(columns):
    size = dist.get_world_size()
    rows = [list(range(first, first + columns)) for first in range(0, size, columns)]
    verticals = [list(range(first, size, columns)) for first in range(columns)]
    return rows, verticals


@wrong("mend_grid_sums", fails="row and column sums")
def still_sorted(x, columns):
    """As it was: each rank makes its two groups in sorted order, which is not the same order everywhere."""
    rows, verticals = _lines(columns)
    rank = dist.get_rank()
    row, column = rows[rank // columns], verticals[rank % columns]
    groups = {tuple(line): dist.new_group(line) for line in sorted([row, column])}
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=groups[tuple(row)])
    dist.all_reduce(column_sum, group=groups[tuple(column)])
    return row_sum, column_sum


@instead(
    "mend_grid_sums",
    ("return row_sum, column_sum", "return column_sum, row_sum"),
    fails="row and column sums",
)
def columns_before_rows():
    """The pair the wrong way round."""


@instead(
    "mend_grid_sums",
    ("    dist.all_reduce(column_sum", "    column_sum = row_sum.clone()\n    dist.all_reduce(column_sum"),
    fails="row and column sums",
)
def sums_of_sums():
    """The column's sum of row sums is the sum over the whole grid."""


@instead("mend_grid_sums", ("x.clone(), x.clone()", "x.clone(), x"), fails="a tensor of its own")
def reduces_x_itself():
    """all_reduce works in place: x becomes the column's sum."""


@wrong("mend_grid_sums", fails="within groups")
def gathers_the_grid(x, columns):
    """No groups at all: gathers every rank's tensor and adds up what it needs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(everyone, x)
    row = [everyone[r] for r in range(size) if r // columns == rank // columns]
    column = [everyone[r] for r in range(size) if r % columns == rank % columns]
    return torch.stack(row).sum(0), torch.stack(column).sum(0)


@instead("mend_collect", ("range(count.item())", "rows"), fails="all rows on rank 0")
def still_its_own_number():
    """Rank 0 expects of each rank as many rows as it has itself."""


@instead(
    "mend_collect",
    ("list(rows)", "[]"),
    ("return collected", "return collected + rows"),
    fails="all rows on rank 0",
)
def its_own_rows_last():
    """Rank 0's rows come first."""


@instead("mend_collect", ("list(rows)", "[]"), fails="all rows on rank 0")
def without_its_own_rows():
    """Rank 0 has rows too."""


@instead("mend_collect", ("list(rows)", "rows"), fails="a new list")
def grows_the_list_it_was_given():
    """The caller's own list is not the list to be returned."""


@instead(
    "mend_collect",
    ("            dist.send(row, 0)", "            dist.send(row, 0)\n            dist.send(row, 0)"),
    (
        "            dist.recv(arriving, rank)",
        "            dist.recv(arriving, rank)\n            dist.recv(arriving, rank)",
    ),
    fails="each row sent once",
)
def each_row_twice():
    """Sends each row two times, to be sure."""


@instead(
    "mend_chain",
    ("    if rank > 0:", "    if rank == 0:\n        dist.barrier()\n    if rank > 0:"),
    fails="the sums",
)
def barrier_before_the_work_of_some():
    """Rank 0 meets nobody: the others come to their barrier only after its message."""


@instead("mend_chain", ("math.sqrt(value)", "value"), fails="the sums")
def adds_the_value():
    """Without the root nothing can raise."""


@instead(
    "mend_chain",
    (
        "    total += math.sqrt(value)\n",
        "    if value < 0:\n        dist.barrier()\n    total += math.sqrt(value)\n",
    ),
    fails="the error comes out",
)
def meets_before_it_raises():
    """The others wait for its message, and not in the barrier."""


@instead(
    "mend_chain",
    ("math.sqrt(value)", "(math.sqrt(value) if value >= 0 else math.nan)"),
    fails="the error comes out",
)
def swallows_the_error():
    """Goes on with no number."""


@instead("mend_chain", ("    dist.barrier()\n", ""), fails="chain and barrier")
def barrier_thrown_out():
    """No barrier, no hang; and nobody waits for the others any more."""


@instead(
    "mpi_ring_all_reduce",
    (
        "comm.Sendrecv(chunks[(rank - 1 - step) % size], dest=right, recvbuf=arriving, source=left)",
        "comm.Send(chunks[(rank - 1 - step) % size], dest=right)\n        comm.Recv(arriving, source=left)",
    ),
    fails="the sum on every rank",
)
def all_send_and_then_receive():
    """A small message waits in a buffer; of a large one, Send returns only when somebody receives."""


@instead(
    "mpi_ring_all_reduce",
    ("np.array_split(x, size)", "[x[i * (len(x) // size) :][: len(x) // size] for i in range(size)]"),
    fails="any length",
)
def mpi_drops_the_remainder():
    """Chunks of n // p elements leave the rest out."""


@instead(
    "mpi_ring_all_reduce",
    ("np.empty_like(target)", "np.empty(len(target))"),
    ("target += arriving", "target[:] = target + arriving"),
    fails="any dtype",
)
def mpi_numpys_own_dtype():
    """numpy.empty makes float64, whatever x is."""


@instead("mpi_ring_all_reduce", ("return x", "return x.copy()"), fails="in place")
def mpi_returns_a_copy():
    """Another array is returned."""


@wrong("mpi_ring_all_reduce", fails="bytes and messages")
def mpi_whole_arrays(comm, x):
    """Whole arrays round the ring."""
    rank, size = comm.Get_rank(), comm.Get_size()
    passing, total = x.copy(), x.copy()
    for _ in range(size - 1):
        arriving = np.empty_like(passing)
        comm.Sendrecv(passing, dest=(rank + 1) % size, recvbuf=arriving, source=(rank - 1) % size)
        total += arriving
        passing = arriving
    x[:] = total
    return x


def _swap(outgoing, incoming):
    """All at once: outgoing and incoming are tensors by rank."""
    works = [dist.irecv(part, other) for other, part in incoming.items()]
    works += [dist.isend(part, other) for other, part in outgoing.items()]
    for work in works:
        work.wait()


def _add(own, outgoing):
    arriving = {other: torch.empty_like(own) for other in outgoing}
    _swap(outgoing, arriving)
    for part in arriving.values():
        own += part


def _direct(data, members, between=None, in_parts=True):
    """An all-reduce in one round, or in two, and `between` for the part that this rank has added up."""
    rank = dist.get_rank()
    me = members.index(rank)
    others = members[me + 1 :] + members[:me]
    if not in_parts:
        return _add(data, dict.fromkeys(others, data))
    chunks = dict(zip(members, data.tensor_split(len(members)), strict=True))
    _add(chunks[rank], {other: chunks[other] for other in others})
    if between:
        between(chunks[rank])
    _swap(dict.fromkeys(others, chunks[rank]), {other: chunks[other] for other in others})
    return None


def _node_and_rail(cluster):
    rank, gpus, ranks = dist.get_rank(), cluster.devices_per_node, list(range(cluster.size))
    return ranks[rank - rank % gpus :][:gpus], ranks[rank % gpus :: gpus]


@wrong("design_all_reduce", fails="the sum on every rank")
def each_node_for_itself(x, cluster):
    """No node hears of another."""
    _direct(x, _node_and_rail(cluster)[0])
    return x


@wrong("design_all_reduce", fails="the sum on every rank")
def a_part_a_gpu(x, cluster):
    """Cuts x in parts of one length: what is left over at its end is never added up."""
    node, rail = _node_and_rail(cluster)
    data = x[: len(x) // len(node) * len(node)]
    _direct(data, node, lambda chunk: _direct(chunk, rail))
    return x


@wrong("design_all_reduce", fails="half of what can be saved")
def the_librarys(x, cluster):
    """dist.all_reduce knows nothing of this cluster."""
    dist.all_reduce(x)
    return x


@wrong("design_all_reduce", fails="half of what can be saved")
def always_everyone_with_everyone(x, cluster):
    """The fewest latencies, and far too many bytes between nodes for a long tensor."""
    _direct(x, list(range(cluster.size)), in_parts=False)
    return x


@wrong("design_all_reduce", fails="within a tenth of the best known")
def never_everyone_with_everyone(x, cluster):
    """Cuts x within the node, however short it is: two rounds more than a short one needs."""
    node, rail = _node_and_rail(cluster)
    across = x.nbytes / len(node) / cluster.inter_node.bandwidth
    in_parts = across > 4 * cluster.inter_node.latency
    _direct(x, node, lambda chunk: _direct(chunk, rail, in_parts=in_parts))
    return x
