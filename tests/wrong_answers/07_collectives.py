"""Mistakes that people make in unit 07."""

import math

import numpy as np
import torch
import torch.distributed as dist

from course_lib import Link
from tests.answers import wrong


def _place(group):
    return dist.get_rank(group), dist.get_world_size(group)


def _root(group, rank):
    return dist.get_group_rank(group or dist.group.WORLD, rank)


def _both(outgoing, to, incoming, source, group):
    """Send and receive at the same time."""
    sending = dist.isend(outgoing, group_dst=to, group=group)
    dist.recv(incoming, group_src=source, group=group)
    sending.wait()


# ------------------------------------------------------------------------------------------- scatter_from


def _scatter(x, parts, root, group):
    rank, size = _place(group)
    if rank == root:
        for place in range(size):
            if place != root:
                dist.send(parts[place].contiguous(), group_dst=place, group=group)
        return x.copy_(parts[root])
    arriving = x.contiguous()
    dist.recv(arriving, group_src=root, group=group)
    return x.copy_(arriving)


@wrong("scatter_from", fails="in place")
def alone_it_returns_the_part(x, parts=None, src=0, group=None):
    """With one rank it returns the part that it was given, and x stays as it was."""
    if dist.get_world_size(group) == 1:
        return parts[0]
    return _scatter(x, parts, _root(group, src), group)


@wrong("scatter_from", fails="its part on every rank")
def sends_to_itself(x, parts=None, src=0, group=None):
    """The root waits for itself."""
    if parts is not None:
        for place, part in enumerate(parts):
            dist.send(part.contiguous(), group_dst=place, group=group)
    dist.recv(x, src, group=group)
    return x


@wrong("scatter_from", fails="its part on every rank")
def forgets_its_own_part(x, parts=None, src=0, group=None):
    """The root hands everything out and keeps nothing."""
    if dist.get_rank() == src:
        for place, part in enumerate(parts):
            if place != _root(group, src):
                dist.send(part.contiguous(), group_dst=place, group=group)
        return x
    dist.recv(x, src, group=group)
    return x


@wrong("scatter_from", fails="any root")
def root_is_always_rank_0(x, parts=None, src=0, group=None):
    """Ignores src."""
    return _scatter(x, parts, 0, group)


@wrong("scatter_from", fails="any length")
def all_parts_as_long_as_the_first(x, parts=None, src=0, group=None):
    """Makes its own buffer, as long as the root's longest part would be if all were equal."""
    rank, _size = _place(group)
    root = _root(group, src)
    if rank == root:
        longest = max(len(part) for part in parts)
        for place, part in enumerate(parts):
            if place != root:
                padded = part.new_zeros(longest)
                padded[: len(part)] = part
                dist.send(padded, group_dst=place, group=group)
        return x.copy_(parts[root])
    arriving = x.contiguous()
    dist.recv(arriving, group_src=root, group=group)
    return x.copy_(arriving)


@wrong("scatter_from", fails="any dtype and layout")
def buffer_of_float32(x, parts=None, src=0, group=None):
    """Sends and receives in PyTorch's default dtype."""
    if parts is not None:
        parts = [part.float() for part in parts]
    arriving = torch.empty(x.shape)
    _scatter(arriving, parts, _root(group, src), group)
    return x.copy_(arriving)


@wrong("scatter_from", fails="in place")
def lies_in_the_list(x, parts=None, src=0, group=None):
    """On the root x and its part are one memory from then on: who changes one changes both."""
    rank, root = dist.get_rank(group), _root(group, src)
    _scatter(x, parts, root, group)
    if rank == root:
        x.data = parts[root]
    return x


@wrong("scatter_from", fails="in place")
def returns_a_new_tensor(x, parts=None, src=0, group=None):
    """What was to be filled stays empty."""
    return _scatter(torch.empty_like(x), parts, _root(group, src), group)


@wrong("scatter_from", fails="any dtype and layout")
def receives_straight_into_x(x, parts=None, src=0, group=None):
    """x may have gaps, which messages cannot fill."""
    if parts is None:
        dist.recv(x, src, group=group)
        return x
    return _scatter(x, parts, _root(group, src), group)


@wrong("scatter_from", fails="any dtype and layout")
def gaps_in_the_default_dtype(x, parts=None, src=0, group=None):
    """The buffer is needed only where x has gaps, and is float32 there, whatever x is."""
    if parts is not None:
        return _scatter(x, parts, _root(group, src), group)
    arriving = x if x.is_contiguous() else torch.empty(x.shape, device=x.device)
    dist.recv(arriving, src, group=group)
    return x.copy_(arriving)


@wrong("scatter_from", fails="any length")
def as_many_numbers_as_rows(x, parts=None, src=0, group=None):
    """As many numbers as x has elements in its first dimension: of a matrix these are its rows."""
    if parts is not None:
        return _scatter(x, parts, _root(group, src), group)
    arriving = x.new_empty(x.shape[:1])
    dist.recv(arriving, src, group=group)
    return x.copy_(arriving)


@wrong("scatter_from", fails="on a subgroup")
def alone_by_the_global_rank(x, parts=None, src=0, group=None):
    """Alone it takes parts[src], though src is no place; where there is no group, nobody sees it."""
    if dist.get_world_size(group) == 1:
        return x.copy_(parts[src])
    return _scatter(x, parts, _root(group, src), group)


@wrong("scatter_from", fails="any root")
def from_whoever_sends(x, parts=None, src=0, group=None):
    """Only the root sends; but the next call's root may begin before this one's comes to this rank."""
    rank, root = dist.get_rank(group), _root(group, src)
    if rank == root:
        return _scatter(x, parts, root, group)
    arriving = x.contiguous()
    dist.recv(arriving, group=group)
    return x.copy_(arriving)


@wrong("scatter_from", fails="on a subgroup")
def src_taken_for_a_place(x, parts=None, src=0, group=None):
    """A global rank is no place in the group."""
    return _scatter(x, parts, src, group)


@wrong("scatter_from", fails="its part on every rank")
def the_librarys_scatter(x, parts=None, src=0, group=None):
    """Parts of different lengths need padding even there; broadcasts all of them instead."""
    lengths = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
    if parts is not None:
        lengths = torch.tensor([len(part) for part in parts])
    dist.broadcast(lengths, src, group=group)
    whole = torch.empty(int(lengths.sum()), *x.shape[1:], dtype=x.dtype)
    if parts is not None:
        whole = torch.cat(parts)
    dist.broadcast(whole, src, group=group)
    return x.copy_(whole.split(lengths.tolist())[dist.get_rank(group)])


@wrong("scatter_from", fails="bytes and messages")
def passes_the_rest_on(x, parts=None, src=0, group=None):
    """A chain: each rank takes its part and sends all others on."""
    rank, size = _place(group)
    root = _root(group, src)
    place = (rank - root) % size
    if place == 0:
        ordered = [parts[(root + i) % size] for i in range(size)]
        lengths = torch.tensor([part.numel() for part in ordered])
        rest = torch.cat([part.reshape(-1) for part in ordered])
    else:
        lengths = torch.zeros(size, dtype=torch.int64)
        dist.recv(lengths, group_src=(rank - 1) % size, group=group)
        rest = x.new_empty(int(lengths[place - 1 :].sum()))
        dist.recv(rest, group_src=(rank - 1) % size, group=group)
        rest = rest[int(lengths[place - 1]) :]
    if place < size - 1:
        dist.send(lengths, group_dst=(rank + 1) % size, group=group)
        dist.send(rest.contiguous(), group_dst=(rank + 1) % size, group=group)
    return x.copy_(rest[: int(lengths[place])].view(x.shape))


@wrong("scatter_from", fails="any length")
def cuts_all_parts_anew(x, parts=None, src=0, group=None):
    """Puts the parts together and cuts them as tensor_split does: their lengths need not be those."""
    whole = parts and list(torch.cat(parts).tensor_split(len(parts)))
    return _scatter(x, whole, _root(group, src), group)


@wrong("scatter_from", fails="bytes and messages")
def floats_travel_as_doubles(x, parts=None, src=0, group=None):
    """Does the values no harm, and takes twice the bytes."""
    wide = torch.float64 if x.is_floating_point() else x.dtype
    arriving = x.to(wide, copy=True)
    return x.copy_(_scatter(arriving, parts and [part.to(wide) for part in parts], _root(group, src), group))


# ---------------------------------------------------------------------------------------------- gather_to


def _gather(x, parts, root, group):
    rank, size = _place(group)
    if rank != root:
        dist.send(x.contiguous(), group_dst=root, group=group)
        return None
    for place in range(size):
        arriving = parts[place].contiguous()
        if place != root:
            dist.recv(arriving, group_src=place, group=group)
        parts[place].copy_(x if place == root else arriving)
    return parts


@wrong("gather_to", fails="any root")
def takes_whoever_comes_first(x, parts=None, dst=0, group=None):
    """Receives from anyone, and files what comes in the order in which it comes."""
    if parts is None:
        dist.send(x.contiguous(), dst, group=group)
        return None
    for part in parts[1:]:
        dist.recv(part, group=group)
    parts[0].copy_(x)
    return parts


@wrong("gather_to", fails="any root")
def from_whichever_rank_comes(x, parts=None, dst=0, group=None):
    """Files what comes under the rank that ought to come, but a fast one may send for the next call first."""
    rank, root = dist.get_rank(group), _root(group, dst)
    if rank != root:
        return _gather(x, parts, root, group)
    for place, part in enumerate(parts):
        arriving = x if place == root else part.contiguous()
        if place != root:
            dist.recv(arriving, group=group)
        part.copy_(arriving)
    return parts


@wrong("gather_to", fails="every part on the root")
def returns_parts_everywhere(x, parts=None, dst=0, group=None):
    """The other ranks return their own tensor."""
    result = _gather(x, parts, _root(group, dst), group)
    return x if result is None else result


@wrong("gather_to", fails="any root")
def gathers_to_rank_0(x, parts=None, dst=0, group=None):
    """Ignores dst."""
    return _gather(x, parts, 0, group)


@wrong("gather_to", fails="every part on the root")
def receives_from_itself(x, parts=None, dst=0, group=None):
    """The root waits for a message from itself."""
    if parts is None:
        dist.send(x.contiguous(), dst, group=group)
        return None
    for place, part in enumerate(parts):
        dist.recv(part, group_src=place, group=group)
    return parts


@wrong("gather_to", fails="in place")
def a_list_of_its_own(x, parts=None, dst=0, group=None):
    """Returns what has arrived, and leaves parts as they were."""
    if parts is not None:
        parts = [part.clone() for part in parts]
    return _gather(x, parts, _root(group, dst), group)


@wrong("gather_to", fails="any dtype and layout")
def sends_x_with_gaps(x, parts=None, dst=0, group=None):
    """A message needs a contiguous tensor."""
    if parts is None:
        dist.send(x, dst, group=group)
        return None
    return _gather(x, parts, _root(group, dst), group)


@wrong("gather_to", fails="bytes and messages")
def rows_if_there_are_gaps(x, parts=None, dst=0, group=None):
    """What has gaps goes item by item, each in a message of its own."""
    rank, root = dist.get_rank(group), _root(group, dst)
    if rank != root:
        for item in [x] if x.is_contiguous() else x:
            dist.send(item.contiguous(), group_dst=root, group=group)
        return None
    for place, part in enumerate(parts):
        if place == root:
            part.copy_(x)
            continue
        for item in [part] if part.is_contiguous() else part:
            arriving = item.contiguous()
            dist.recv(arriving, group_src=place, group=group)
            item.copy_(arriving)
    return parts


ROOTS = {}
"""Of the_root_of_the_first_call."""


@wrong("gather_to", fails="any root")
def the_root_of_the_first_call(x, parts=None, dst=0, group=None):
    """Looks up the root's place once a group."""
    root = ROOTS.setdefault((dist.get_rank(), dist.get_world_size(group), group), _root(group, dst))
    return _gather(x, parts, root, group)


@wrong("gather_to", fails="on a subgroup")
def dst_taken_for_a_place(x, parts=None, dst=0, group=None):
    """A global rank is no place in the group."""
    return _gather(x, parts, dst, group)


@wrong("gather_to", fails="any root")
def announced_by_a_barrier(x, parts=None, dst=0, group=None):
    """A barrier that orders nothing."""
    dist.barrier(group=group)
    return _gather(x, parts, _root(group, dst), group)


@wrong("gather_to", fails="bytes and messages")
def sends_length_and_tensor(x, parts=None, dst=0, group=None):
    """Two messages a rank, though the root knows all lengths."""
    if parts is None:
        dist.send(torch.tensor([x.numel()]), dst, group=group)
    else:
        for place in range(dist.get_world_size(group)):
            if place != _root(group, dst):
                dist.recv(torch.zeros(1, dtype=torch.int64), group_src=place, group=group)
    return _gather(x, parts, _root(group, dst), group)


@wrong("gather_to", fails="in place")
def other_tensors_in_the_list(x, parts=None, dst=0, group=None):
    """Whoever holds the tensors that were to be filled sees nothing of it: views of a larger one."""
    root = _root(group, dst)
    gathered = _gather(x, parts and [part.clone() for part in parts], root, group)
    if gathered is None:
        return None
    parts[:] = gathered
    return parts


@wrong("gather_to", fails="any length")
def one_tensor_cut_in_parts(x, parts=None, dst=0, group=None):
    """Receives into the parts of a tensor_split, which need not be as long as those that come."""
    if parts is None:
        return _gather(x, parts, _root(group, dst), group)
    whole = x.new_empty(sum(len(part) for part in parts), *x.shape[1:])
    for part, arrived in zip(
        parts, _gather(x, list(whole.tensor_split(len(parts))), _root(group, dst), group), strict=True
    ):
        part.copy_(arrived)
    return parts


@wrong("gather_to", fails="bytes and messages")
def a_message_for_each_row(x, parts=None, dst=0, group=None):
    """Rows are contiguous; but each rank is to send once."""
    if x.dim() < 2:
        return _gather(x, parts, _root(group, dst), group)
    root = _root(group, dst)
    if parts is None:
        for row in x:
            dist.send(row.contiguous(), group_dst=root, group=group)
        return None
    for place, part in enumerate(parts):
        for row, own in zip(part, x if place == root else part, strict=True):
            arriving = own.contiguous()
            if place != root:
                dist.recv(arriving, group_src=place, group=group)
            row.copy_(arriving)
    return parts


# --------------------------------------------------------------------------------------------- broadcast_tree


def _tree(x, root, group, rounds=None):
    rank, size = _place(group)
    place = (rank - root) % size
    data = x.contiguous()
    distance = 1
    while distance < size:
        if place < distance and place + distance < size:
            dist.send(data, group_dst=(rank + distance) % size, group=group)
        elif distance <= place < 2 * distance:
            dist.recv(data, group_src=(rank - distance) % size, group=group)
        distance *= 2
    return x.copy_(data)


@wrong("broadcast_tree", fails="any root")
def root_0_only(x, src=0, group=None):
    """Ignores src."""
    return _tree(x, 0, group)


@wrong("broadcast_tree", fails="any number of ranks")
def a_hypercube(x, src=0, group=None):
    """rank ^ distance needs a power of two: some partners do not exist, and some ranks get nothing."""
    rank, size = _place(group)
    root = _root(group, src)
    place = rank ^ root
    data = x.contiguous()
    distance = 1
    while distance < size:
        if place < 2 * distance:
            partner = rank ^ distance
            if place < distance:
                dist.send(data, group_dst=partner, group=group)
            else:
                dist.recv(data, group_src=partner, group=group)
        distance *= 2
    return x.copy_(data)


@wrong("broadcast_tree", fails="any number of ranks")
def wraps_round(x, src=0, group=None):
    """Places beyond the last are not left out, but taken modulo p: they get the tensor twice."""
    rank, size = _place(group)
    place = (rank - _root(group, src)) % size
    data = x.contiguous()
    distance = 1
    while distance < size:
        if place < distance:
            dist.send(data, group_dst=(rank + distance) % size, group=group)
        elif distance <= place < 2 * distance:
            dist.recv(data, group_src=(rank - distance) % size, group=group)
        distance *= 2
    return x.copy_(data)


@wrong("broadcast_tree", fails="any dtype and layout")
def through_float64(x, src=0, group=None):
    """Large integers lose their last digits."""
    data = x.double()
    _tree(data, _root(group, src), group)
    return x.copy_(data)


@wrong("broadcast_tree", fails="in place")
def broadcasts_a_copy(x, src=0, group=None):
    """x itself stays as it was."""
    return _tree(x.clone(), _root(group, src), group)


@wrong("broadcast_tree", fails="any dtype and layout")
def copies_and_forgets(x, src=0, group=None):
    """x.contiguous() is a copy if there are gaps, and nobody copies it back."""
    _tree(x.contiguous(), _root(group, src), group)
    return x


@wrong("broadcast_tree", fails="any root")
def from_any_parent(x, src=0, group=None):
    """A rank has one parent; but in the next call, from another root, it may be another, who comes before."""
    rank, size = _place(group)
    place, distance, data = (rank - _root(group, src)) % size, 1, x.contiguous()
    while distance < size:
        if place < distance and place + distance < size:
            dist.send(data, group_dst=(rank + distance) % size, group=group)
        elif distance <= place < 2 * distance:
            dist.recv(data, group=group)
        distance *= 2
    return x.copy_(data)


@wrong("broadcast_tree", fails="any root")
def far_ones_first_from_any_parent(x, src=0, group=None):
    """The same where far places get it first: other ranks are through early."""
    rank, size = _place(group)
    place, data = (rank - _root(group, src)) % size, x.contiguous()
    distance = 1 << (size - 1).bit_length()
    if place:
        dist.recv(data, group=group)
        distance = place & -place
    while distance > 1:
        distance //= 2
        if place + distance < size:
            dist.send(data, group_dst=(rank + distance) % size, group=group)
    return x.copy_(data)


@wrong("broadcast_tree", fails="on a subgroup")
def ranks_of_the_world(x, src=0, group=None):
    """Takes rank and size from the default group."""
    return _tree(x, src, None)


@wrong("broadcast_tree", fails="the root's values on every rank")
def the_librarys_broadcast(x, src=0, group=None):
    """One line, and not the exercise."""
    data = x.contiguous()
    dist.broadcast(data, src, group=group)
    return x.copy_(data)


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


@wrong("broadcast_tree", fails="rounds")
def two_children_each(x, src=0, group=None):
    """A binary tree, not a binomial one; that both sends begin at once hides it on some links."""
    rank, size = _place(group)
    root = _root(group, src)
    place, data = (rank - root) % size, x.contiguous()
    if place:
        dist.recv(data, group_src=((place - 1) // 2 + root) % size, group=group)
    children = [child for child in (2 * place + 1, 2 * place + 2) if child < size]
    works = [dist.isend(data, group_dst=(child + root) % size, group=group) for child in children]
    for work in works:
        work.wait()
    return x.copy_(data)


@wrong("broadcast_tree", fails="on a subgroup")
def gaps_from_rank_0(x, src=0, group=None):
    """Calls itself with a copy of what has gaps, and does not pass the root on."""
    if x.is_contiguous():
        return _tree(x, _root(group, src), group)
    return x.copy_(gaps_from_rank_0(x.contiguous(), group=group))


@wrong("broadcast_tree", fails="rounds")
def a_chain_of_seven(x, src=0, group=None):
    """A tree where the number of ranks is a power of two, and from rank to rank where it is not."""
    rank, size = _place(group)
    root = _root(group, src)
    if size & (size - 1) == 0:
        return _tree(x, root, group)
    data = x.contiguous()
    if rank != root:
        dist.recv(data, group_src=(rank - 1) % size, group=group)
    if (rank + 1) % size != root:
        dist.send(data, group_dst=(rank + 1) % size, group=group)
    return x.copy_(data)


@wrong("broadcast_tree", fails="any number of ranks")
def three_rounds(x, src=0, group=None):
    """The rounds of eight ranks, as they are drawn."""
    rank, size = _place(group)
    place = (rank - _root(group, src)) % size
    data = x.contiguous()
    for distance in (1, 2, 4):
        if place < distance and place + distance < size:
            dist.send(data, group_dst=(rank + distance) % size, group=group)
        elif distance <= place < 2 * distance:
            dist.recv(data, group_src=(rank - distance) % size, group=group)
    return x.copy_(data)


@wrong("broadcast_tree", fails="bytes and messages")
def row_by_row(x, src=0, group=None):
    """Rows have no gaps between them and need no copy; but each takes messages of its own."""
    for row in x if x.dim() > 1 else [x]:
        _tree(row, _root(group, src), group)
    return x


@wrong("broadcast_tree", fails="any dtype and layout")
def the_librarys_where_there_are_gaps(x, src=0, group=None):
    """Copies of its own are made there, it says, and the library makes them as well."""
    if x.is_contiguous():
        return _tree(x, _root(group, src), group)
    data = x.contiguous()
    dist.broadcast(data, src, group=group)
    return x.copy_(data)


@wrong("broadcast_tree", fails="on a subgroup")
def ranks_without_gaps(x, src=0, group=None):
    """Takes how far the root is from the first rank for its place: a group may leave ranks out."""
    first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    return _tree(x, (src - first) % dist.get_world_size(group), group)


@wrong("broadcast_tree", fails="the root's values on every rank")
def adds_to_nothing(x, src=0, group=None):
    """Adds what arrives to x times zero: what was in memory there may have been NaN."""
    rank, size = _place(group)
    place = (rank - _root(group, src)) % size
    data = x.contiguous() if place == 0 else x.contiguous() * 0
    distance = 1
    while distance < size:
        if place < distance and place + distance < size:
            dist.send(data, group_dst=(rank + distance) % size, group=group)
        elif distance <= place < 2 * distance:
            arriving = torch.empty_like(data)
            dist.recv(arriving, group_src=(rank - distance) % size, group=group)
            data += arriving
        distance *= 2
    return x.copy_(data)


PLACES = {}
"""Of the_places_of_the_first_group."""


# ------------------------------------------------------------------------------------------------ reduce_tree


def _sum_tree(total, root, group):
    rank, size = _place(group)
    place = (rank - root) % size
    arriving = torch.empty_like(total)
    distance = 1
    while distance < size:
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            dist.recv(arriving, group_src=(rank + distance) % size, group=group)
            total += arriving
        distance *= 2
    return total


@wrong("reduce_tree", fails="any root")
def sum_on_rank_0(x, dst=0, group=None):
    """Ignores dst."""
    total = _sum_tree(x.clone(), 0, group)
    return x.copy_(total) if dist.get_rank(group) == 0 else x


@wrong("reduce_tree", fails="any root")
def to_the_first_calls_root(x, dst=0, group=None, roots={}):  # noqa: B006
    """Looks up the root's place once a group; the next call may have another root."""
    root = roots.setdefault(group, _root(group, dst))
    total = _sum_tree(x.clone(memory_format=torch.contiguous_format), root, group)
    return x.copy_(total) if dist.get_rank(group) == root else x


@wrong("reduce_tree", fails="the sum on the root")
def replaces_instead_of_adding(x, dst=0, group=None):
    """Receives into the sum itself."""
    rank, size = _place(group)
    place = (rank - _root(group, dst)) % size
    distance = 1
    total = x.clone()
    while distance < size:
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            dist.recv(total, group_src=(rank + distance) % size, group=group)
        distance *= 2
    return x.copy_(total) if place == 0 else x


@wrong("reduce_tree", fails="any number of ranks")
def receives_from_ranks_that_do_not_exist(x, dst=0, group=None):
    """Waits for place + distance whether or not there is one."""
    rank, size = _place(group)
    place = (rank - _root(group, dst)) % size
    total = x.clone(memory_format=torch.contiguous_format)
    distance = 1
    while distance < size:
        if place % (2 * distance):
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        arriving = torch.empty_like(total)
        dist.recv(arriving, group_src=(rank + distance) % size, group=group)
        total += arriving
        distance *= 2
    return x.copy_(total) if place == 0 else x


@wrong("reduce_tree", fails="any root")
def from_any_child(x, dst=0, group=None):
    """Sums come in any order; but an early child may be in the next call while another is still in this."""
    rank, size = _place(group)
    root = _root(group, dst)
    place, distance = (rank - root) % size, 1
    total = x.clone(memory_format=torch.contiguous_format)
    arriving = torch.empty_like(total)
    while distance < size:
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            dist.recv(arriving, group=group)
            total += arriving
        distance *= 2
    return x.copy_(total) if rank == root else x


@wrong("reduce_tree", fails="any dtype and layout")
def adds_up_in_numpy(x, dst=0, group=None):
    """NumPy has no bfloat16."""
    total = torch.from_numpy(np.array(x.numpy(), order="C"))
    _sum_tree(total, _root(group, dst), group)
    return x.copy_(total) if dist.get_rank() == dst else x


@wrong("reduce_tree", fails="any dtype and layout")
def adds_up_in_float(x, dst=0, group=None):
    """Accumulates in the wrong dtype."""
    total = _sum_tree(x.contiguous().double(), _root(group, dst), group)
    return x.copy_(total) if dist.get_rank() == dst else x


@wrong("reduce_tree", fails="in place")
def adds_into_x_and_returns_it(x, dst=0, group=None):
    """contiguous() is x itself where it can be: ranks in the middle of the tree change their x."""
    total = _sum_tree(x.contiguous(), _root(group, dst), group)
    return x.copy_(total) if dist.get_rank() == dst else x


@wrong("reduce_tree", fails="any dtype and layout")
def receives_on_the_cpu(x, dst=0, group=None):
    """What arrives has x's dtype, and is not where x is."""
    rank, size = _place(group)
    root, total, distance = _root(group, dst), x.clone(memory_format=torch.contiguous_format), 1
    place, arriving = (rank - root) % size, torch.empty(x.shape, dtype=x.dtype)
    while distance < size:
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            dist.recv(arriving, group_src=(rank + distance) % size, group=group)
            total += arriving
        distance *= 2
    return x.copy_(total) if place == 0 else x


@wrong("reduce_tree", fails="any dtype and layout")
def adds_into_x_everywhere(x, dst=0, group=None):
    """Ranks in the middle of the tree overwrite their own input; they return what they were given."""
    before = x.clone()
    total = _sum_tree(x, _root(group, dst), group)
    return total if dist.get_rank() == dst else before


@wrong("reduce_tree", fails="any dtype and layout")
def clone_keeps_the_order(x, dst=0, group=None):
    """A clone of a transposed matrix is transposed, and no message takes it."""
    rank, size = _place(group)
    place = (rank - _root(group, dst)) % size
    total, distance = x.clone(), 1
    arriving = torch.empty_like(total)
    while distance < size:
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            dist.recv(arriving, group_src=(rank + distance) % size, group=group)
            total += arriving
        distance *= 2
    return x.copy_(total) if place == 0 else x


@wrong("reduce_tree", fails="any dtype and layout")
def empty_like_keeps_gaps(x, dst=0, group=None):
    """Sends x itself in the first round."""
    rank, size = _place(group)
    root = _root(group, dst)
    if (rank - root) % size % 2:
        dist.send(x, group_dst=(rank - 1) % size, group=group)
        return x
    total = x.clone(memory_format=torch.contiguous_format)
    place, distance = (rank - root) % size, 1
    while distance < size:
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            arriving = torch.empty_like(total)
            dist.recv(arriving, group_src=(rank + distance) % size, group=group)
            total += arriving
        distance *= 2
    return x.copy_(total) if place == 0 else x


@wrong("reduce_tree", fails="the sum on the root")
def the_librarys_reduce(x, dst=0, group=None):
    """One line, and not the exercise."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.reduce(total, dst, group=group)
    return x.copy_(total) if dist.get_rank() == dst else x


@wrong("reduce_tree", fails="bytes and messages")
def then_broadcasts_it(x, dst=0, group=None):
    """An all-reduce whose result most ranks throw away."""
    total = _sum_tree(x.clone(memory_format=torch.contiguous_format), _root(group, dst), group)
    _tree(total, _root(group, dst), group)
    return x.copy_(total) if dist.get_rank() == dst else x


@wrong("reduce_tree", fails="rounds")
def from_two_children(x, dst=0, group=None):
    """A binary tree, not a binomial one; that both receives wait at once hides it on some links."""
    rank, size = _place(group)
    root = _root(group, dst)
    place, total = (rank - root) % size, x.clone(memory_format=torch.contiguous_format)
    children = [child for child in (2 * place + 1, 2 * place + 2) if child < size]
    arriving = [torch.empty_like(total) for _ in children]
    works = [
        dist.irecv(data, group_src=(child + root) % size, group=group)
        for data, child in zip(arriving, children, strict=True)
    ]
    for work, data in zip(works, arriving, strict=True):
        work.wait()
        total += data
    if place:
        dist.send(total, group_dst=((place - 1) // 2 + root) % size, group=group)
        return x
    return x.copy_(total)


@wrong("reduce_tree", fails="rounds")
def all_to_the_root(x, dst=0, group=None):
    """A star: the root's link takes p - 1 tensors."""
    rank, size = _place(group)
    root = _root(group, dst)
    if rank != root:
        dist.send(x.contiguous(), group_dst=root, group=group)
        return x
    total = x.contiguous().clone()
    for place in range(size):
        if place != root:
            arriving = torch.empty_like(total)
            dist.recv(arriving, group_src=place, group=group)
            total += arriving
    return x.copy_(total)


@wrong("reduce_tree", fails="rounds")
def a_chain_unless_a_power_of_two(x, dst=0, group=None):
    """Seven ranks wait for each other, one after the other."""
    rank, size = _place(group)
    root, total = _root(group, dst), x.clone(memory_format=torch.contiguous_format)
    if size & (size - 1) == 0:
        _sum_tree(total, root, group)
    else:
        arriving = torch.empty_like(total)
        if (rank + 1) % size != root:
            dist.recv(arriving, group_src=(rank + 1) % size, group=group)
            total += arriving
        if rank != root:
            dist.send(total, group_dst=(rank - 1) % size, group=group)
    return x.copy_(total) if rank == root else x


@wrong("reduce_tree", fails="any number of ranks")
def three_levels(x, dst=0, group=None):
    """The rounds of eight ranks."""
    rank, size = _place(group)
    place = (rank - _root(group, dst)) % size
    total = x.clone(memory_format=torch.contiguous_format)
    for distance in (1, 2, 4):
        if place % (2 * distance) == distance:
            dist.send(total, group_dst=(rank - distance) % size, group=group)
            break
        if place + distance < size:
            arriving = torch.empty_like(total)
            dist.recv(arriving, group_src=(rank + distance) % size, group=group)
            total += arriving
    return x.copy_(total) if place == 0 else x


# ---------------------------------------------------------------------------------------- ring_reduce_scatter


def _reduce_scatter(chunks, group, shift=1):
    """p - 1 steps; with shift 1 the rank's own chunk is complete, with 0 the next one."""
    rank, size = _place(group)
    for step in range(size - 1):
        target = chunks[(rank - shift - 1 - step) % size]
        arriving = torch.empty_like(target)
        _both(chunks[(rank - shift - step) % size], (rank + 1) % size, arriving, (rank - 1) % size, group)
        target += arriving
    return chunks


def _cut(x, group):
    return list(torch.tensor_split(x.clone(memory_format=torch.contiguous_format).view(-1), _place(group)[1]))


@wrong("ring_reduce_scatter", fails="its chunk of the sum")
def the_next_ranks_chunk(x, group=None):
    """Begins with its own chunk, so that it ends with that of the next rank; and returns its own."""
    return _reduce_scatter(_cut(x, group), group, shift=0)[dist.get_rank(group)].clone()


@wrong("ring_reduce_scatter", fails="any dtype and layout")
def nothing_is_float32(x, group=None):
    """An empty chunk is made anew, and has the default dtype."""
    mine = _reduce_scatter(_cut(x, group), group)[dist.get_rank(group)]
    return mine.clone() if mine.numel() else torch.empty(0)


@wrong("ring_reduce_scatter", fails="on a subgroup")
def alone_in_the_world_only(x, group=None):
    """A rank alone in its group sends to itself, and waits; get_world_size() is that of all ranks."""
    (rank, size), chunks = _place(group), _cut(x, group)
    for step in range(max(1, size - 1) if dist.get_world_size() > 1 else 0):
        target = chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        _both(chunks[(rank - 1 - step) % size], (rank + 1) % size, arriving, (rank - 1) % size, group)
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="its chunk of the sum")
def one_step_too_few(x, group=None):
    """p - 2 steps: the last rank's part is missing."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    for step in range(size - 2):
        target = chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        _both(chunks[(rank - 1 - step) % size], (rank + 1) % size, arriving, (rank - 1) % size, group)
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="any number of ranks")
def hangs_for_odd_sizes(x, group=None):
    """Sends before it receives where p is odd: no pairing of neighbours comes out even there."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    for step in range(size - 1):
        outgoing, target = chunks[(rank - 1 - step) % size], chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        right, left = (rank + 1) % size, (rank - 1) % size
        if size % 2:
            dist.send(outgoing, group_dst=right, group=group)
            dist.recv(arriving, group_src=left, group=group)
        else:
            _both(outgoing, right, arriving, left, group)
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="any length")
def only_where_p_divides_n(x, group=None):
    """view(p, -1) needs a length that divides."""
    size = dist.get_world_size(group)
    chunks = list(x.clone(memory_format=torch.contiguous_format).view(size, -1))
    return _reduce_scatter(chunks, group)[dist.get_rank(group)].clone()


@wrong("ring_reduce_scatter", fails="any length")
def buffers_of_one_length(x, group=None):
    """Receives every chunk into a buffer of the first one's length."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    arriving = torch.empty_like(chunks[0])
    for step in range(size - 1):
        outgoing, target = chunks[(rank - 1 - step) % size], chunks[(rank - 2 - step) % size]
        _both(outgoing, (rank + 1) % size, arriving, (rank - 1) % size, group)
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="any dtype and layout")
def adds_in_float64(x, group=None):
    """Accumulates in the wrong dtype."""
    return _reduce_scatter(_cut(x.double(), group), group)[dist.get_rank(group)].to(x.dtype)


@wrong("ring_reduce_scatter", fails="any dtype and layout")
def adds_into_its_input(x, group=None):
    """tensor_split gives views: x is changed. The input is no place to work in."""
    chunks = list(torch.tensor_split(x.view(-1), dist.get_world_size(group)))
    return _reduce_scatter(chunks, group)[dist.get_rank(group)].clone()


@wrong("ring_reduce_scatter", fails="any dtype and layout")
def receives_in_the_default_dtype(x, group=None):
    """torch.empty(n) is float32 whatever x is, and so right for all that the ordinary case shows."""
    rank, size = _place(group)
    chunks = torch.tensor_split(x.clone(memory_format=torch.contiguous_format).view(-1), size)
    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = torch.empty(target.numel())
        _both(chunks[(rank - 1 - step) % size], (rank + 1) % size, arriving, (rank - 1) % size, group)
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="any length")
def cuts_rows_of_all_that_has_rows(x, group=None):
    """tensor_split of x in place of x.flatten(): a number without a dimension has no rows."""
    copied = x.clone(memory_format=torch.contiguous_format)
    chunks = list(torch.tensor_split(copied, dist.get_world_size(group)))
    return _reduce_scatter(chunks, group)[dist.get_rank(group)]


@wrong("ring_reduce_scatter", fails="any length")
def cuts_rows(x, group=None):
    """tensor_split of a matrix cuts between its rows only."""
    copied = torch.atleast_1d(x.clone(memory_format=torch.contiguous_format))
    chunks = list(torch.tensor_split(copied, dist.get_world_size(group)))
    return _reduce_scatter(chunks, group)[dist.get_rank(group)].flatten()


@wrong("ring_reduce_scatter", fails="any length")
def cuts_what_has_no_length(x, group=None):
    """tensor_split needs a dimension."""
    x = x if x.dim() < 2 else x.flatten()
    chunks = list(
        torch.tensor_split(x.clone(memory_format=torch.contiguous_format), dist.get_world_size(group))
    )
    return _reduce_scatter(chunks, group)[dist.get_rank(group)]


WORKSPACES = {}
"""Of one_workspace_for_all_calls."""


@wrong("ring_reduce_scatter", fails="any dtype and layout")
def one_workspace_for_all_calls(x, group=None):
    """Saves the allocation; but the next call overwrites what this one has returned."""
    key = dist.get_rank(), x.dtype, x.numel()
    data = WORKSPACES.setdefault(key, x.new_empty(x.numel()))
    data.view(x.shape).copy_(x)
    chunks = list(torch.tensor_split(data, dist.get_world_size(group)))
    return _reduce_scatter(chunks, group)[dist.get_rank(group)]


@wrong("ring_reduce_scatter", fails="bytes and messages")
def two_ranks_swap_it_all(x, group=None):
    """The neighbour on both sides is the same: each gets the other's tensor, and needs half of it."""
    rank, size = _place(group)
    if size != 2:
        return _reduce_scatter(_cut(x, group), group)[rank].clone()
    data = x.clone(memory_format=torch.contiguous_format)
    arriving = torch.empty_like(data)
    _both(data, 1 - rank, arriving, 1 - rank, group)
    return torch.tensor_split((data + arriving).view(-1), 2)[rank].clone()


@wrong("ring_reduce_scatter", fails="on a subgroup")
def neighbours_of_the_world(x, group=None):
    """dst and src are global ranks; in a group the neighbour is somebody else."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        sending = dist.isend(chunks[(rank - 1 - step) % size], (rank + 1) % size, group=group)
        dist.recv(arriving, (rank - 1) % size, group=group)
        sending.wait()
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="its chunk of the sum")
def all_reduce_and_cut(x, group=None):
    """Twice the bytes, and not the exercise."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return torch.tensor_split(total.view(-1), dist.get_world_size(group))[dist.get_rank(group)].clone()


@wrong("ring_reduce_scatter", fails="its chunk of the sum")
def never_waits_for_its_sends(x, group=None):
    """isend without wait(): what the next rank needs may still be on its way when this rank is done."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        dist.isend(chunks[(rank - 1 - step) % size], group_dst=(rank + 1) % size, group=group)
        dist.recv(arriving, group_src=(rank - 1) % size, group=group)
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="in place")
def alone_it_returns_x(x, group=None):
    """With one rank the sum is x, but a new tensor is asked for."""
    rank, size = _place(group)
    if size == 1:
        return x.flatten()
    chunks = _cut(x, group)
    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        sending = dist.isend(chunks[(rank - 1 - step) % size], group_dst=(rank + 1) % size, group=group)
        dist.recv(arriving, group_src=(rank - 1) % size, group=group)
        sending.wait()
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="neighbours only")
def straight_to_the_owner(x, group=None):
    """Sends each chunk to the rank that wants it: right, as cheap, and no ring."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    total = chunks[rank].clone()
    for step in range(1, size):
        arriving = torch.empty_like(total)
        _both(chunks[(rank + step) % size], (rank + step) % size, arriving, (rank - step) % size, group)
        total += arriving
    return total


@wrong("ring_reduce_scatter", fails="bytes and messages")
def whole_tensors_round_the_ring(x, group=None):
    """The right sum, with p times the bytes."""
    rank, size = _place(group)
    total = x.clone(memory_format=torch.contiguous_format)
    passing = total.clone()
    for _ in range(size - 1):
        arriving = torch.empty_like(passing)
        _both(passing, (rank + 1) % size, arriving, (rank - 1) % size, group)
        total += arriving
        passing = arriving
    return torch.tensor_split(total.view(-1), size)[rank].clone()


@wrong("ring_reduce_scatter", fails="rounds")
def one_after_another(x, group=None):
    """Rank 0 sends first, all others receive first: a message runs round while everyone waits."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing, target = chunks[(rank - 1 - step) % size], chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        if rank == 0:
            dist.send(outgoing, group_dst=right, group=group)
            dist.recv(arriving, group_src=left, group=group)
        else:
            dist.recv(arriving, group_src=left, group=group)
            dist.send(outgoing, group_dst=right, group=group)
        target += arriving
    return chunks[rank].clone()


@wrong("ring_reduce_scatter", fails="any length")
def alone_it_keeps_the_shape(x, group=None):
    """With one rank it returns a copy of x, and no 1-D tensor."""
    if dist.get_world_size(group) == 1:
        return x.clone()
    return _reduce_scatter(_cut(x, group), group)[dist.get_rank(group)].clone()


@wrong("ring_reduce_scatter", fails="in place")
def alone_it_returns_a_view(x, group=None):
    """Carries a sum from rank to rank, which begins as a chunk of x: with one rank it is never added to."""
    rank, size = _place(group)
    chunks = torch.tensor_split(x.reshape(-1), size)
    carried = chunks[(rank - 1) % size]
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        arriving = x.new_empty(len(own))
        _both(carried.contiguous(), (rank + 1) % size, arriving, (rank - 1) % size, group)
        carried = arriving + own
    return carried


def _padded(chunks):
    """Each chunk in a tensor of its own, as long as the longest."""
    room = [chunks[0].new_zeros(len(chunks[0])) for _ in chunks]
    for chunk, longer in zip(chunks, room, strict=True):
        longer[: len(chunk)] = chunk
    return room


@wrong("ring_reduce_scatter", fails="bytes and messages")
def all_chunks_as_long_as_the_first(x, group=None):
    """One length for all messages: those of shorter chunks are padded."""
    chunks, rank = _cut(x, group), dist.get_rank(group)
    return _reduce_scatter(_padded(chunks), group)[rank][: len(chunks[rank])].clone()


@wrong("ring_reduce_scatter", fails="any dtype and layout")
def sums_are_long(x, group=None):
    """torch.sum of int32 is int64, for which the next rank has no room."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    carried = chunks[rank - 1]
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(own)
        _both(carried, (rank + 1) % size, arriving, (rank - 1) % size, group)
        carried = torch.stack([own, arriving]).sum(0)
    return carried


@wrong("ring_reduce_scatter", fails="any length")
def as_if_all_were_full(x, group=None):
    """Zeros at the end make all chunks equally long: of 9 elements 4 ranks get 3, 3, 3 and 0."""
    (rank, size), length = _place(group), x.numel()
    part = -(-length // size)
    padded = torch.cat([x.reshape(-1), x.new_zeros(part * size - length)])
    whole = _reduce_scatter(list(padded.tensor_split(size)), group)[rank]
    return whole[: max(0, length - rank * part)].clone()


@wrong("ring_reduce_scatter", fails="any dtype and layout")
def alone_by_view(x, group=None):
    """A short cut for one rank, which no tensor with another layout can take."""
    rank, size = _place(group)
    return x.view(-1).clone() if size == 1 else _reduce_scatter(_cut(x, group), group)[rank].clone()


# -------------------------------------------------------------------------------------------- ring_all_gather


def _all_gather(chunks, group, shift=0, steps=None):
    rank, size = _place(group)
    for step in range(size - 1 if steps is None else steps):
        _both(
            chunks[(rank - shift - step) % size],
            (rank + 1) % size,
            chunks[(rank - shift - step - 1) % size],
            (rank - 1) % size,
            group,
        )


@wrong("ring_all_gather", fails="every chunk on every rank")
def sends_its_own_chunk_every_time(x, group=None):
    """The same chunk in each step: the neighbour gets it p - 1 times."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(size - 1):
        _both(chunks[rank], (rank + 1) % size, chunks[(rank - step - 1) % size], (rank - 1) % size, group)
    return x.copy_(data)


@wrong("ring_all_gather", fails="on a subgroup")
def gaps_round_all_ranks(x, group=None):
    """Calls itself with a copy of what has gaps, and does not pass the group on."""
    if not x.is_contiguous():
        return x.copy_(gaps_round_all_ranks(x.contiguous()))
    _all_gather(torch.tensor_split(x.view(-1), dist.get_world_size(group)), group)
    return x


@wrong("ring_all_gather", fails="every chunk on every rank")
def forgets_the_last_chunk(x, group=None):
    """p - 2 steps."""
    data = x.contiguous()
    size = dist.get_world_size(group)
    _all_gather(torch.tensor_split(data.view(-1), size), group, steps=size - 2)
    return x.copy_(data)


@wrong("ring_all_gather", fails="every chunk on every rank")
def begins_with_the_next_chunk(x, group=None):
    """As after a reduce-scatter that ends one place further; here each rank brings its own."""
    data = x.contiguous()
    _all_gather(torch.tensor_split(data.view(-1), dist.get_world_size(group)), group, shift=-1)
    return x.copy_(data)


@wrong("ring_all_gather", fails="every chunk on every rank")
def everyone_sends_first(x, group=None):
    """Blocking sends all round the ring: nobody receives."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(size - 1):
        dist.send(chunks[(rank - step) % size], group_dst=(rank + 1) % size, group=group)
        dist.recv(chunks[(rank - step - 1) % size], group_src=(rank - 1) % size, group=group)
    return x.copy_(data)


@wrong("ring_all_gather", fails="any length")
def torch_chunk_instead_of_tensor_split(x, group=None):
    """torch.chunk makes fewer chunks than ranks, and other ones."""
    data = x.contiguous()
    size = dist.get_world_size(group)
    chunks = list(torch.chunk(data.view(-1), size))
    chunks += [data.view(-1)[:0]] * (size - len(chunks))
    _all_gather(chunks, group)
    return x.copy_(data)


@wrong("ring_all_gather", fails="any length")
def into_a_slice(x, group=None):
    """A number without a dimension has no slices."""
    data = x.contiguous()
    _all_gather(torch.tensor_split(data.view(-1), dist.get_world_size(group)), group)
    x[:] = data
    return x


@wrong("ring_all_gather", fails="in place")
def leaves_x_alone(x, group=None):
    """Gathers into a copy, and returns that."""
    data = x.clone(memory_format=torch.contiguous_format)
    _all_gather(torch.tensor_split(data.view(-1), dist.get_world_size(group)), group)
    return data


@wrong("ring_all_gather", fails="any dtype and layout")
def flattens_and_forgets(x, group=None):
    """x.flatten() of a tensor with gaps is a copy."""
    _all_gather(torch.tensor_split(x.flatten(), dist.get_world_size(group)), group)
    return x


@wrong("ring_all_gather", fails="every chunk on every rank")
def a_broadcast_for_each_chunk(x, group=None):
    """p broadcasts."""
    data = x.contiguous()
    for place, chunk in enumerate(torch.tensor_split(data.view(-1), dist.get_world_size(group))):
        dist.broadcast(chunk, group_src=place, group=group)
    return x.copy_(data)


@wrong("ring_all_gather", fails="neighbours only")
def own_chunk_to_everyone(x, group=None):
    """Sends its chunk to each other rank itself."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(1, size):
        _both(chunks[rank], (rank + step) % size, chunks[(rank - step) % size], (rank - step) % size, group)
    return x.copy_(data)


@wrong("ring_all_gather", fails="bytes and messages")
def passes_on_all_that_it_has(x, group=None):
    """The whole tensor in every step; the receiver takes what it lacks."""
    rank, size = _place(group)
    data = x.contiguous()
    for step in range(size - 1):
        arriving = torch.empty_like(data)
        _both(data, (rank + 1) % size, arriving, (rank - 1) % size, group)
        fresh = (rank - step - 1) % size
        torch.tensor_split(data.view(-1), size)[fresh].copy_(
            torch.tensor_split(arriving.view(-1), size)[fresh]
        )
    return x.copy_(data)


@wrong("ring_all_gather", fails="every chunk on every rank")
def added_to_nothing(x, group=None):
    """Adds what arrives to the chunk times zero: what was in memory there may have been NaN."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for place in range(size):
        if place != rank:
            chunks[place].mul_(0)
    for step in range(size - 1):
        target = chunks[(rank - step - 1) % size]
        arriving = torch.empty_like(target)
        _both(chunks[(rank - step) % size], (rank + 1) % size, arriving, (rank - 1) % size, group)
        target += arriving
    return x.copy_(data)


@wrong("ring_all_gather", fails="bytes and messages")
def gathers_padded_chunks(x, group=None):
    """One length for all messages: those of shorter chunks are padded."""
    chunks = _cut(x, group)
    room = _padded(chunks)
    _all_gather(room, group)
    for chunk, longer in zip(chunks, room, strict=True):
        chunk.copy_(longer[: len(chunk)])
    return x.copy_(torch.cat(chunks).view_as(x))


@wrong("ring_all_gather", fails="neighbours only")
def short_ones_to_everyone(x, group=None):
    """With fewer elements than ranks nobody goes round a ring."""
    rank, size = _place(group)
    chunks = _cut(x, group)
    if x.numel() < size:
        for step in range(1, size):
            to, source = (rank + step) % size, (rank - step) % size
            _both(chunks[rank], to, chunks[source], source, group)
    else:
        _all_gather(chunks, group)
    return x.copy_(torch.cat(chunks).view_as(x))


# -------------------------------------------------------------------------------------------- ring_all_reduce


def _all_reduce(data, group):
    chunks = torch.tensor_split(data.view(-1), dist.get_world_size(group))
    _reduce_scatter(chunks, group)
    _all_gather(chunks, group)
    return data


@wrong("ring_all_reduce", fails="neighbours only")
def to_the_left(x, group=None):
    """The ring the other way round: each rank sends to the one before it, not to the next."""
    rank, size = _place(group)
    chunks = list(torch.tensor_split(x.reshape(-1).clone(), size))
    right_rank, left_rank = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        give, take = (rank + step) % size, (rank + step + 1) % size
        arriving = torch.empty_like(chunks[take])
        sending = dist.isend(chunks[give], group_dst=left_rank, group=group)
        dist.recv(arriving, group_src=right_rank, group=group)
        sending.wait()
        chunks[take] += arriving
    for step in range(size - 1):
        give, take = (rank + step - 1) % size, (rank + step) % size
        sending = dist.isend(chunks[give], group_dst=left_rank, group=group)
        dist.recv(chunks[take], group_src=right_rank, group=group)
        sending.wait()
    return x.copy_(torch.cat(chunks).view_as(x))


@wrong("ring_all_reduce", fails="the sum on every rank")
def gathers_the_wrong_chunk(x, group=None):
    """After this reduce-scatter rank r has chunk r + 1, and passes on chunk r."""
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), dist.get_world_size(group))
    _reduce_scatter(chunks, group, shift=0)
    _all_gather(chunks, group)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="the sum on every rank")
def averages(x, group=None):
    """The mean, not the sum."""
    data = _all_reduce(x.contiguous(), group)
    return x.copy_(data / dist.get_world_size(group))


@wrong("ring_all_reduce", fails="any number of ranks")
def hangs_for_odd_rings(x, group=None):
    """Waits for a partner that nobody is: odd p leaves one rank alone."""
    rank, size = _place(group)
    if size % 2 and size > 1:
        dist.recv(x, group_src=(rank - 1) % size, group=group)
    return x.copy_(_all_reduce(x.contiguous(), group))


@wrong("ring_all_reduce", fails="any number of ranks")
def no_ring_of_one(x, group=None):
    """One rank has no neighbour but itself."""
    _rank, size = _place(group)
    if size == 1:
        dist.send(x, group_dst=0, group=group)
    return x.copy_(_all_reduce(x.contiguous(), group))


@wrong("ring_all_reduce", fails="any length")
def drops_the_remainder(x, group=None):
    """Chunks of n // p elements: what is left over at the end is never added."""
    size = dist.get_world_size(group)
    data = x.contiguous()
    flat = data.view(-1)
    part = flat.numel() // size
    chunks = [flat[i * part : (i + 1) * part] for i in range(size)]
    _reduce_scatter(chunks, group)
    _all_gather(chunks, group)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="any dtype and layout")
def sums_in_float64(x, group=None):
    """Accumulates in the wrong dtype: integers above 2**53 are rounded."""
    return x.copy_(_all_reduce(x.contiguous().double(), group))


@wrong("ring_all_reduce", fails="any dtype and layout")
def chunks_on_the_cpu(x, group=None):
    """Buffers of x's dtype, but not on x's device."""
    (rank, size), data = _place(group), x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(2 * (size - 1)):
        arrived = chunks[(rank - 1 - step) % size]
        arriving = torch.empty(arrived.numel(), dtype=x.dtype)
        _both(chunks[(rank - step) % size], (rank + 1) % size, arriving, (rank - 1) % size, group)
        arrived.copy_(arriving if step >= size - 1 else arrived + arriving)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="any dtype and layout")
def a_loss_by_its_item(x, group=None):
    """A tensor of one dimension out of x.item() has the default dtype."""
    data = x.contiguous() if x.dim() else torch.tensor([x.item()])
    return x.copy_(_all_reduce(data, group).view_as(x))


@wrong("ring_all_reduce", fails="any dtype and layout")
def in_numpys_arrays(x, group=None):
    """NumPy has no bfloat16."""
    chunks = np.array_split(np.array(x.numpy(), order="C").reshape(-1), dist.get_world_size(group))
    data = torch.from_numpy(np.concatenate(chunks))
    return x.copy_(_all_reduce(data, group).view(x.shape))


@wrong("ring_all_reduce", fails="in place")
def gives_it_other_data(x, group=None):
    """Who has a view of x, such as the bucket in which it lies, sees nothing of the sum."""
    data = x.clone(memory_format=torch.contiguous_format)
    x.data = _all_reduce(data, group)
    return x


@wrong("ring_all_reduce", fails="in place")
def returns_a_copy(x, group=None):
    """The sum is returned, and x stays as it was."""
    return _all_reduce(x.clone(memory_format=torch.contiguous_format), group)


@wrong("ring_all_reduce", fails="any dtype and layout")
def needs_contiguous_memory(x, group=None):
    """x.view(-1) raises for a tensor with gaps."""
    return _all_reduce(x, group)


@wrong("ring_all_reduce", fails="on a subgroup")
def the_whole_world(x, group=None):
    """Ignores the group."""
    return x.copy_(_all_reduce(x.contiguous(), None))


@wrong("ring_all_reduce", fails="the sum on every rank")
def by_the_groups_own_method(x, group=None):
    """What dist.all_reduce calls itself."""
    data = x.contiguous()
    (group or dist.group.WORLD).allreduce([data]).wait()
    return x.copy_(data)


@wrong("ring_all_reduce", fails="the sum on every rank")
def uses_the_librarys(x, group=None):
    """dist.all_reduce."""
    data = x.contiguous()
    dist.all_reduce(data, group=group)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="neighbours only")
def not_round_the_ring(x, group=None):
    """Chunks go straight to their owners, and back to all: the same bytes on other ways."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    own = chunks[rank].clone()
    for step in range(1, size):
        arriving = torch.empty_like(own)
        _both(chunks[(rank + step) % size], (rank + step) % size, arriving, (rank - step) % size, group)
        own += arriving
    chunks[rank].copy_(own)
    for step in range(1, size):
        _both(own, (rank + step) % size, chunks[(rank - step) % size], (rank - step) % size, group)
    return x.copy_(data)


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


@wrong("ring_all_reduce", fails="bytes and messages")
def twice_the_bytes(x, group=None):
    """Sends every chunk twice, to be sure."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(2 * (size - 1)):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving = torch.empty_like(take)
        for _ in range(2):
            _both(give, (rank + 1) % size, arriving, (rank - 1) % size, group)
        take.copy_(take + arriving if step < size - 1 else arriving)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="rounds")
def rank_0_begins(x, group=None):
    """No deadlock, since rank 0 sends first and the others receive first; and no two messages at a time."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(2 * (size - 1)):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving = torch.empty_like(take)
        if rank == 0:
            dist.send(give, group_dst=right, group=group)
            dist.recv(arriving, group_src=left, group=group)
        else:
            dist.recv(arriving, group_src=left, group=group)
            dist.send(give, group_dst=right, group=group)
        take.copy_(take + arriving if step < size - 1 else arriving)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="any length")
def sums_by_rows(x, group=None):
    """A loss has no rows, and no length."""
    if not len(x):
        return x
    return x.copy_(_all_reduce(x.contiguous(), group))


@wrong("ring_all_reduce", fails="any length")
def returns_at_once_if_empty(x, group=None):
    """Nothing is to be done, but x is to be returned."""
    if not x.numel():
        return None
    return x.copy_(_all_reduce(x.contiguous(), group))


@wrong("ring_all_reduce", fails="any length")
def short_ones_by_the_library(x, group=None):
    """Some chunks are empty there, and dist.all_reduce knows what to do."""
    data = x.contiguous()
    if x.numel() < dist.get_world_size(group):
        dist.all_reduce(data, group=group)
    else:
        _all_reduce(data, group)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="rounds")
def one_after_another_if_odd(x, group=None):
    """All at once where there are pairs of neighbours; of an odd number of ranks, rank 0 sends first."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)

    def pass_on(outgoing, incoming):
        right, left = (rank + 1) % size, (rank - 1) % size
        if size % 2 == 0:
            _both(outgoing, right, incoming, left, group)
        elif rank == 0:
            dist.send(outgoing, group_dst=right, group=group)
            dist.recv(incoming, group_src=left, group=group)
        else:
            dist.recv(incoming, group_src=left, group=group)
            dist.send(outgoing, group_dst=right, group=group)

    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = torch.empty_like(target)
        pass_on(chunks[(rank - 1 - step) % size], arriving)
        target += arriving
    for step in range(size - 1):
        pass_on(chunks[(rank - step) % size], chunks[(rank - step - 1) % size])
    return x.copy_(data)


@wrong("ring_all_reduce", fails="bytes and messages")
def pads_to_a_multiple(x, group=None):
    """Zeros at the end make all chunks equally long, and travel with them."""
    size, numel = dist.get_world_size(group), x.numel()
    padded = torch.cat([x.reshape(-1), x.new_zeros(-numel % size)])
    return x.copy_(_all_reduce(padded, group)[:numel].view_as(x))


@wrong("ring_all_reduce", fails="in place")
def uneven_ones_on_a_copy(x, group=None):
    """What the ranks do not divide is worked on in another tensor, and nobody copies it back."""
    if not x.is_contiguous():
        return x.copy_(uneven_ones_on_a_copy(x.contiguous(), group))
    return _all_reduce(x if x.numel() % dist.get_world_size(group) == 0 else x.clone(), group)


@wrong("ring_all_reduce", fails="neighbours only")
def short_ones_by_a_tree(x, group=None):
    """Fewer latencies, as a library would choose; but asked for is the ring."""
    if x.numel() >= dist.get_world_size(group):
        return x.copy_(_all_reduce(x.contiguous(), group))
    return x.copy_(_tree(_sum_tree(x.clone(memory_format=torch.contiguous_format), 0, group), 0, group))


@wrong("ring_all_reduce", fails="bytes and messages")
def short_ones_as_a_whole(x, group=None):
    """What cannot be cut in p chunks with something in them goes round uncut."""
    rank, size = _place(group)
    if x.numel() >= size:
        return x.copy_(_all_reduce(x.contiguous(), group))
    passing = x.clone(memory_format=torch.contiguous_format)
    for _ in range(size - 1):
        arriving = torch.empty_like(passing)
        _both(passing, (rank + 1) % size, arriving, (rank - 1) % size, group)
        x += arriving
        passing = arriving
    return x


@wrong("ring_all_reduce", fails="rounds")
def even_ones_by_turns(x, group=None):
    """Even ranks send first, and odd ones receive; only where that leaves one over, all at once."""
    rank, size = _place(group)
    data = x.contiguous()
    if size % 2:
        return x.copy_(_all_reduce(data, group))
    chunks = list(torch.tensor_split(data.view(-1), size))
    for step in range(2 * (size - 1)):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving = torch.empty_like(take)
        calls = [(dist.send, give, {"group_dst": (rank + 1) % size})]
        calls += [(dist.recv, arriving, {"group_src": (rank - 1) % size})]
        for call, tensor, peer in calls[::-1] if rank % 2 else calls:
            call(tensor, group=group, **peer)
        take.copy_(take + arriving if step < size - 1 else arriving)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="bytes and messages")
def all_but_the_last_alike(x, group=None):
    """Of 9 elements 4 ranks get 3, 3, 3 and none, as torch.chunk cuts them, and not 3, 2, 2 and 2."""
    data, size = x.contiguous(), dist.get_world_size(group)
    flat, length = data.view(-1), -(-x.numel() // size)
    chunks = [flat[place * length :][:length] for place in range(size)]
    _reduce_scatter(chunks, group)
    _all_gather(chunks, group)
    return x.copy_(data)


def _in_proportion(flat, count):
    """Of 10 elements 4 ranks get 2, 3, 2 and 3."""
    length = len(flat)
    return [flat[place * length // count : (place + 1) * length // count] for place in range(count)]


def _rest_to_the_last(flat, count):
    """Of 10 elements 4 ranks get 2, 2, 2 and 4."""
    length = len(flat) // count
    return [*(flat[place * length :][:length] for place in range(count - 1)), flat[(count - 1) * length :]]


@wrong("ring_all_reduce", fails="rounds")
def the_last_has_the_rest(x, group=None):
    """Chunks of n // p, and what is left over in the last one. It takes longer, but not more rounds."""
    data = x.contiguous()
    chunks = _rest_to_the_last(data.view(-1), dist.get_world_size(group))
    _reduce_scatter(chunks, group)
    _all_gather(chunks, group)
    return x.copy_(data)


BUFFERS = {}
"""Of one_buffer_for_all_dtypes."""


@wrong("ring_all_reduce", fails="any dtype and layout")
def one_buffer_for_all_dtypes(x, group=None):
    """Keeps what it receives into, by length: the next call's x may be of another dtype."""
    (rank, size), data = _place(group), x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(size - 1):
        target = chunks[(rank - 2 - step) % size]
        arriving = BUFFERS.setdefault((dist.get_rank(), len(target)), torch.empty_like(target))
        _both(chunks[(rank - 1 - step) % size], (rank + 1) % size, arriving, (rank - 1) % size, group)
        target += arriving
    _all_gather(chunks, group)
    return x.copy_(data)


# ------------------------------------------------------------------------------ recursive_doubling_all_reduce


def _swapped(data, partner, group):
    """Right: both send at the same time; what the partner had."""
    arriving = torch.empty_like(data)
    sending = dist.isend(data, group_dst=partner, group=group)
    dist.recv(arriving, group_src=partner, group=group)
    sending.wait()
    return arriving


def _distances(core):
    """Right: 1, 2, 4, ... below core."""
    return [1 << k for k in range(core.bit_length() - 1)]


def _doubling(x, group, distances=_distances, swapped=_swapped, give_back=True):
    """Right, but for what the arguments replace."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (size.bit_length() - 1)
    data = x.contiguous()
    if rank >= core:
        dist.send(data, group_dst=rank - core, group=group)
        if give_back:
            dist.recv(data, group_src=rank - core, group=group)
        return x.copy_(data)
    if rank + core < size:
        arriving = torch.empty_like(data)
        dist.recv(arriving, group_src=rank + core, group=group)
        data += arriving
    for distance in distances(core):
        data += swapped(data, rank ^ distance, group)
    if rank + core < size and give_back:
        dist.send(data, group_dst=rank + core, group=group)
    return x.copy_(data)


@wrong("recursive_doubling_all_reduce", fails="the sum on every rank")
def one_round_too_few(x, group=None):
    """Ends before the distance is half of the ranks."""
    return _doubling(x, group, lambda core: _distances(core)[:-1])


@wrong("recursive_doubling_all_reduce", fails="the sum on every rank")
def the_same_partner_again(x, group=None):
    """The distance is never doubled: what the partner has comes twice, and four times."""
    return _doubling(x, group, lambda core: [1] * len(_distances(core)))


@wrong("recursive_doubling_all_reduce", fails="any number of ranks")
def powers_of_two_are_taken_for_granted(x, group=None):
    """Ranks beyond the power of two take no part."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (size.bit_length() - 1)
    data = x.contiguous()
    for distance in _distances(core) if rank < core else ():
        data += _swapped(data, rank ^ distance, group)
    return x.copy_(data)


@wrong("recursive_doubling_all_reduce", fails="any number of ranks")
def folded_ranks_get_nothing(x, group=None):
    """They give their tensor, and nobody gives them the sum."""
    return _doubling(x, group, give_back=False)


@wrong("recursive_doubling_all_reduce", fails="a slow rank")
def doubles_with_anybody(x, group=None):
    """recv without a source: if a rank is slow, the next round's message comes before this round's."""

    def swapped(data, partner, group):
        arriving = torch.empty_like(data)
        sending = dist.isend(data, group_dst=partner, group=group)
        dist.recv(arriving, group=group)
        sending.wait()
        return arriving

    return _doubling(x, group, swapped=swapped)


@wrong("recursive_doubling_all_reduce", fails="in place")
def halves_in_a_tensor_of_their_own(x, group=None):
    """16-bit numbers are added up in another tensor, and x stays as it was."""
    if x.is_floating_point() and x.itemsize == 2:
        return _doubling(x.clone(), group)
    return _doubling(x, group)


@wrong("recursive_doubling_all_reduce", fails="in place")
def doubles_a_copy(x, group=None):
    """x itself stays as it was."""
    return _doubling(x.clone(), group)


@wrong("recursive_doubling_all_reduce", fails="any dtype and layout")
def sends_it_as_it_lies(x, group=None):
    """A message needs a contiguous tensor."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if x.is_contiguous() or size == 1:
        return _doubling(x, group)
    dist.send(x, group_dst=rank ^ 1, group=group)
    return x


@wrong("recursive_doubling_all_reduce", fails="on a subgroup")
def partners_by_global_rank(x, group=None):
    """dst= and src= are global ranks."""

    def swapped(data, partner, group):
        arriving = torch.empty_like(data)
        sending = dist.isend(data, partner, group=group)
        dist.recv(arriving, partner, group=group)
        sending.wait()
        return arriving

    return _doubling(x, group, swapped=swapped)


@wrong("recursive_doubling_all_reduce", fails="bytes and messages")
def swaps_two_halves(x, group=None):
    """Two messages a round."""

    def swapped(data, partner, group):
        flat = data.view(-1)
        middle = flat.numel() // 2
        parts = [_swapped(part.clone(), partner, group) for part in (flat[:middle], flat[middle:])]
        return torch.cat(parts).view_as(data)

    return _doubling(x, group, swapped=swapped)


@wrong("recursive_doubling_all_reduce", fails="nearest partner first")
def farthest_partner_first(x, group=None):
    """4, 2, 1: the right sum, in the order of halving."""
    return _doubling(x, group, lambda core: _distances(core)[::-1])


@wrong("recursive_doubling_all_reduce", fails="rounds")
def one_partner_after_the_other(x, group=None):
    """The lower of two partners sends first: each round takes two messages' time."""

    def swapped(data, partner, group):
        arriving = torch.empty_like(data)
        if dist.get_rank(group) < partner:
            dist.send(data, group_dst=partner, group=group)
            dist.recv(arriving, group_src=partner, group=group)
        else:
            dist.recv(arriving, group_src=partner, group=group)
            dist.send(data, group_dst=partner, group=group)
        return arriving

    return _doubling(x, group, swapped=swapped)


@wrong("recursive_doubling_all_reduce", fails="nearest partner first")
def pairs_of_neighbours_fold(x, group=None):
    """As in MPICH the first ranks fold, in pairs; here those from c on do."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (size.bit_length() - 1)
    rest, data = size - core, x.contiguous()
    if rank < 2 * rest and rank % 2 == 0:
        dist.send(data, group_dst=rank + 1, group=group)
        dist.recv(data, group_src=rank + 1, group=group)
        return x.copy_(data)
    place = rank - rest
    if rank < 2 * rest:
        place, arriving = rank // 2, torch.empty_like(data)
        dist.recv(arriving, group_src=rank - 1, group=group)
        data += arriving
    for distance in _distances(core):
        partner = place ^ distance
        data += _swapped(data, 2 * partner + 1 if partner < rest else partner + rest, group)
    if rank < 2 * rest:
        dist.send(data, group_dst=rank - 1, group=group)
    return x.copy_(data)


@wrong("recursive_doubling_all_reduce", fails="nearest partner first")
def a_tree_unless_a_power_of_two(x, group=None):
    """Up a tree and down again: right, and another algorithm."""
    size = dist.get_world_size(group)
    if size & (size - 1) == 0:
        return _doubling(x, group)
    return x.copy_(_tree(_sum_tree(x.clone(memory_format=torch.contiguous_format), 0, group), 0, group))


@wrong("recursive_doubling_all_reduce", fails="rounds")
def by_turns_unless_a_power_of_two(x, group=None):
    """Of two partners the lower sends first, where some have folded."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)

    def swapped(data, partner, group):
        arriving = torch.empty_like(data)
        calls = [(dist.send, data, {"group_dst": partner}), (dist.recv, arriving, {"group_src": partner})]
        for call, tensor, peer in calls if rank < partner else calls[::-1]:
            call(tensor, group=group, **peer)
        return arriving

    return _doubling(x, group, swapped=swapped if size & (size - 1) else _swapped)


@wrong("recursive_doubling_all_reduce", fails="any number of ranks")
def at_most_eight(x, group=None):
    """Three rounds, as with the eight ranks of the example."""
    return _doubling(x, group, lambda core: [distance for distance in (1, 2, 4) if distance < core])


@wrong("recursive_doubling_all_reduce", fails="in place")
def a_copy_if_empty(x, group=None):
    """Nothing is to be done, and another nothing is returned."""
    return x.clone() if x.numel() == 0 else _doubling(x, group)


@wrong("recursive_doubling_all_reduce", fails="bytes and messages")
def halves_travel_as_floats(x, group=None):
    """Adds up bfloat16 in float32, which is good, and sends it so, in twice the bytes."""
    wide = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    return x.copy_(_doubling(x.to(wide, copy=True, memory_format=torch.contiguous_format), group))


@wrong("recursive_doubling_all_reduce", fails="any dtype and layout")
def guests_keep_it_for_themselves(x, group=None):
    """Ranks that fold get the sum in a contiguous copy, and do not copy it back."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (size.bit_length() - 1)
    if rank < core:
        return _doubling(x, group)
    data = x.contiguous()
    dist.send(data, group_dst=rank - core, group=group)
    dist.recv(data, group_src=rank - core, group=group)
    return x


# -------------------------------------------------------------------------------- halving_doubling_all_reduce


def _halving_doubling(flat, group, core, halve=True, anybody=False):
    rank, _ = _place(group)
    part, rounds, distance = flat, [], core // 2
    while distance:
        middle = part.numel() // 2
        lower, upper = part[:middle], part[middle:]
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        arriving = torch.empty_like(kept)
        _both(given, rank ^ distance, arriving, None if anybody else rank ^ distance, group)
        kept += arriving
        rounds.append((rank ^ distance, kept, given))
        part, distance = kept, distance // 2
    for partner, kept, given in reversed(rounds):
        _both(kept, partner, given, partner, group)


def _folded(x, group, work):
    """Folds the ranks beyond the largest power of two, and lets `work(flat, group, core)` do the rest."""
    rank, size = _place(group)
    core = 1 << (size.bit_length() - 1)
    data = x.contiguous()
    flat = data.view(-1)
    if rank >= core:
        dist.send(flat, group_dst=rank - core, group=group)
        dist.recv(flat, group_src=rank - core, group=group)
        return x.copy_(data)
    if rank + core < size:
        arriving = torch.empty_like(flat)
        dist.recv(arriving, group_src=rank + core, group=group)
        flat += arriving
    work(flat, group, core)
    if rank + core < size:
        dist.send(flat, group_dst=rank + core, group=group)
    return x.copy_(data)


@wrong("halving_doubling_all_reduce", fails="the sum on every rank")
def only_halves(x, group=None):
    """A reduce-scatter: each rank has a part of the sum, and nobody all of it."""

    def halve(flat, group, core):
        rank = dist.get_rank(group)
        part, distance = flat, core // 2
        while distance:
            lower, upper = part[: len(part) // 2], part[len(part) // 2 :]
            part, given = (upper, lower) if rank & distance else (lower, upper)
            arriving = torch.empty_like(part)
            _both(given, rank ^ distance, arriving, rank ^ distance, group)
            part += arriving
            distance //= 2

    return _folded(x, group, halve)


@wrong("halving_doubling_all_reduce", fails="the sum on every rank")
def both_receive_first(x, group=None):
    """Partners who both receive first wait for each other."""
    partner = dist.get_rank(group) ^ 1
    arriving = torch.empty_like(x)
    dist.recv(arriving, group_src=partner, group=group)
    dist.send(x, group_dst=partner, group=group)
    x += arriving
    return x


@wrong("halving_doubling_all_reduce", fails="any number of ranks")
def halves_with_anybody(x, group=None):
    """recv without a source: of five ranks one waits for its guest, while others go on."""
    return _folded(x, group, lambda *given: _halving_doubling(*given, anybody=True))


@wrong("halving_doubling_all_reduce", fails="any number of ranks")
def powers_of_two_only(x, group=None):
    """Partners that do not exist where p is no power of two."""
    data = x.contiguous()
    size = dist.get_world_size(group)
    _halving_doubling(data.view(-1), group, 1 << (size - 1).bit_length())
    return x.copy_(data)


@wrong("halving_doubling_all_reduce", fails="any number of ranks")
def forgets_to_give_back(x, group=None):
    """Folded ranks never get the result."""
    rank, size = _place(group)
    core = 1 << (size.bit_length() - 1)
    data = x.contiguous()
    flat = data.view(-1)
    if rank >= core:
        dist.send(flat, group_dst=rank - core, group=group)
        return x
    if rank + core < size:
        arriving = torch.empty_like(flat)
        dist.recv(arriving, group_src=rank + core, group=group)
        flat += arriving
    _halving_doubling(flat, group, core)
    return x.copy_(data)


@wrong("halving_doubling_all_reduce", fails="any length")
def lengths_that_halve_evenly(x, group=None):
    """Each partner cuts its own half of n // 2 elements: with an odd length they do not meet."""

    def work(flat, group, core):
        rank = dist.get_rank(group)
        part, rounds, distance = flat, [], core // 2
        while distance:
            half = len(part) // 2
            kept, given = (part[-half:], part[:half]) if rank & distance else (part[:half], part[half:])
            arriving = torch.empty_like(kept)
            _both(given, rank ^ distance, arriving, rank ^ distance, group)
            kept += arriving
            rounds.append((rank ^ distance, kept, given))
            part, distance = kept, distance // 2
        for partner, kept, given in reversed(rounds):
            _both(kept, partner, given, partner, group)

    return _folded(x, group, work)


@wrong("halving_doubling_all_reduce", fails="bytes and messages")
def float16_travels_wide(x, group=None):
    """float16 overflows early, so it is added up in float32, and travels so: twice the bytes."""
    data = x.float() if x.dtype == torch.float16 else x
    return x.copy_(_folded(data, group, _halving_doubling))


@wrong("halving_doubling_all_reduce", fails="in place")
def works_on_a_copy(x, group=None):
    """x itself stays as it was."""
    return _folded(x.clone(memory_format=torch.contiguous_format), group, _halving_doubling)


@wrong("halving_doubling_all_reduce", fails="the sum on every rank")
def library_behind_it(x, group=None):
    """Swaps once for show, and lets dist.all_reduce do the work."""
    data = x.contiguous()
    dist.all_reduce(data, group=group)
    return x.copy_(data)


@wrong("halving_doubling_all_reduce", fails="bytes and messages")
def recursive_doubling(x, group=None):
    """Whole tensors in each of log2 p rounds: half the messages, and log2 p times the tensor."""

    def double(flat, group, core):
        rank = dist.get_rank(group)
        distance = 1
        while distance < core:
            arriving = torch.empty_like(flat)
            _both(flat.clone(), rank ^ distance, arriving, rank ^ distance, group)
            flat += arriving
            distance *= 2

    return _folded(x, group, double)


@wrong("halving_doubling_all_reduce", fails="bytes and messages")
def a_ring_under_another_name(x, group=None):
    """2 (p - 1) messages instead of 2 log2 p."""
    return x.copy_(_all_reduce(x.contiguous(), group))


@wrong("halving_doubling_all_reduce", fails="rounds")
def one_direction_at_a_time(x, group=None):
    """The lower partner sends, then receives: two messages one after another in each round."""

    def work(flat, group, core):
        rank = dist.get_rank(group)

        def swap(outgoing, partner, incoming):
            if rank < partner:
                dist.send(outgoing, group_dst=partner, group=group)
                dist.recv(incoming, group_src=partner, group=group)
            else:
                dist.recv(incoming, group_src=partner, group=group)
                dist.send(outgoing, group_dst=partner, group=group)

        part, rounds, distance = flat, [], core // 2
        while distance:
            lower, upper = part[: len(part) // 2], part[len(part) // 2 :]
            kept, given = (upper, lower) if rank & distance else (lower, upper)
            arriving = torch.empty_like(kept)
            swap(given, rank ^ distance, arriving)
            kept += arriving
            rounds.append((rank ^ distance, kept, given))
            part, distance = kept, distance // 2
        for partner, kept, given in reversed(rounds):
            swap(kept, partner, given)

    return _folded(x, group, work)


@wrong("halving_doubling_all_reduce", fails="bytes and messages")
def doubles_unless_a_power_of_two(x, group=None):
    """Whole tensors in each round, where some have folded."""

    def work(flat, group, core):
        if core == dist.get_world_size(group):
            return _halving_doubling(flat, group, core)
        for distance in _distances(core):
            flat += _swapped(flat, dist.get_rank(group) ^ distance, group)
        return None

    return _folded(x, group, work)


@wrong("halving_doubling_all_reduce", fails="rounds")
def halves_by_turns_unless_a_power_of_two(x, group=None):
    """Of two partners the lower sends first, where some have folded."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (size.bit_length() - 1)

    def by_turns(flat, group, core):
        part, rounds, distance = flat, [], core // 2

        def swap(outgoing, incoming, partner):
            calls = [(dist.send, outgoing, {"group_dst": partner})]
            calls += [(dist.recv, incoming, {"group_src": partner})]
            for call, tensor, peer in calls if rank < partner else calls[::-1]:
                call(tensor, group=group, **peer)

        while distance:
            middle = part.numel() // 2
            lower, upper = part[:middle], part[middle:]
            kept, given = (upper, lower) if rank & distance else (lower, upper)
            arriving = torch.empty_like(kept)
            swap(given, arriving, rank ^ distance)
            kept += arriving
            rounds.append((rank ^ distance, kept, given))
            part, distance = kept, distance // 2
        for partner, kept, given in reversed(rounds):
            swap(kept, given, partner)

    return _folded(x, group, by_turns if core != size else _halving_doubling)


@wrong("halving_doubling_all_reduce", fails="any number of ranks")
def from_four_down(x, group=None):
    """The distances of eight ranks: with sixteen and more, half of them are never met."""
    return _folded(x, group, lambda flat, group, core: _halving_doubling(flat, group, min(core, 8)))


@wrong("halving_doubling_all_reduce", fails="bytes and messages")
def halves_what_is_padded(x, group=None):
    """Zeros at the end make all halves equally long, and travel with them."""

    def work(flat, group, core):
        padded = torch.cat([flat, flat.new_zeros(-flat.numel() % core)])
        _halving_doubling(padded, group, core)
        flat.copy_(padded[: flat.numel()])

    return _folded(x, group, work)


@wrong("halving_doubling_all_reduce", fails="rounds")
def the_last_folds_to_the_first(x, group=None):
    """As many messages, mirrored: place c + i is to send to place i."""
    rank, size = _place(group)
    core = 1 << (size.bit_length() - 1)
    guest, data = size - 1 - rank, x.contiguous()
    flat = data.view(-1)
    if rank >= core:
        dist.send(flat, group_dst=size - 1 - rank, group=group)
        dist.recv(flat, group_src=size - 1 - rank, group=group)
        return x.copy_(data)
    if guest >= core:
        arriving = torch.empty_like(flat)
        dist.recv(arriving, group_src=guest, group=group)
        flat += arriving
    _halving_doubling(flat, group, core)
    if guest >= core:
        dist.send(flat, group_dst=guest, group=group)
    return x.copy_(data)


@wrong("halving_doubling_all_reduce", fails="any dtype and layout")
def guests_bring_floats(x, group=None):
    """Only what comes from a rank that folds is received in PyTorch's default dtype."""
    rank, size = _place(group)
    core = 1 << (size.bit_length() - 1)
    if rank >= core or rank + core >= size:
        return _folded(x, group, lambda flat, group, core: _halving_doubling(flat, group, core))
    data = x.contiguous()
    flat = data.view(-1)
    arriving = torch.empty(flat.shape)
    dist.recv(arriving, group_src=rank + core, group=group)
    flat += arriving
    _halving_doubling(flat, group, core)
    dist.send(flat, group_dst=rank + core, group=group)
    return x.copy_(data)


def _doubles(flat, group, core):
    """Whole tensors in each round."""
    for distance in _distances(core):
        flat += _swapped(flat, dist.get_rank(group) ^ distance, group)


@wrong("halving_doubling_all_reduce", fails="bytes and messages")
def doubles_the_short_ones(x, group=None):
    """As libraries do with fewer elements than ranks: whole tensors in each round."""

    def work(flat, group, core):
        if flat.numel() >= core:
            return _halving_doubling(flat, group, core)
        for distance in _distances(core):
            flat += _swapped(flat, dist.get_rank(group) ^ distance, group)
        return None

    return _folded(x, group, work)


# ------------------------------------------------------------------------------------ hierarchical_all_reduce


def _among(chunks, members, rank, group, passes, anybody=False):
    """Ring passes among places of the group; passes: of (shift, adds). anybody: takes what comes first."""
    me, count = members.index(rank), len(members)
    for shift, adds in passes:
        for step in range(count - 1):
            give, take = chunks[(me - shift - step) % count], chunks[(me - shift - step - 1) % count]
            arriving = torch.empty_like(take)
            _both(give, members[(me + 1) % count], arriving, None if anybody else members[me - 1], group)
            take.copy_(take + arriving if adds else arriving)


REDUCE, GATHER = (1, True), (0, False)


def _hierarchy(data, gpus_per_node, group, stages=(1, 2, 3), anybody=False):
    rank, size = _place(group)
    node, local = divmod(rank, gpus_per_node)
    mates = list(range(node * gpus_per_node, (node + 1) * gpus_per_node))
    rail = list(range(local, size, gpus_per_node))
    chunks = torch.tensor_split(data.view(-1), gpus_per_node)
    pieces = torch.tensor_split(chunks[local], len(rail))
    if 1 in stages:
        _among(chunks, mates, rank, group, [REDUCE], anybody)
    if 2 in stages:
        _among(pieces, rail, rank, group, [REDUCE, GATHER], anybody)
    if 3 in stages:
        _among(chunks, mates, rank, group, [GATHER], anybody)
    return data


@wrong("hierarchical_all_reduce", fails="the sum on every rank")
def within_nodes_only(x, gpus_per_node, group=None):
    """Each node has a sum of its own."""
    return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group, stages=(1, 3)))


@wrong("hierarchical_all_reduce", fails="the sum on every rank")
def forgets_the_last_stage(x, gpus_per_node, group=None):
    """Each rank has its chunk of the sum, and nothing else."""
    return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group, stages=(1, 2)))


@wrong("hierarchical_all_reduce", fails="a slow rank")
def takes_from_anybody(x, gpus_per_node, group=None):
    """recv without a source: of two stages the later one's message may come first, if a rank is slow."""
    return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group, anybody=True))


@wrong("hierarchical_all_reduce", fails="any number of ranks")
def two_nodes_only(x, gpus_per_node, group=None):
    """Swaps with the other node, as if there were always one and only one."""
    _rank, size = _place(group)
    if size // gpus_per_node == 2:
        return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group))
    _hierarchy(x, gpus_per_node, group, stages=(1, 3))
    return x


@wrong("hierarchical_all_reduce", fails="any length")
def needs_divisible_lengths(x, gpus_per_node, group=None):
    """Refuses what does not divide by the number of ranks."""
    if x.numel() % 2:
        raise ValueError("the length must divide")
    return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group))


@wrong("hierarchical_all_reduce", fails="in place")
def sum_in_a_new_tensor(x, gpus_per_node, group=None):
    """x itself stays as it was."""
    return _hierarchy(x.clone(memory_format=torch.contiguous_format), gpus_per_node, group)


@wrong("hierarchical_all_reduce", fails="any dtype and layout")
def flat_copy_lost(x, gpus_per_node, group=None):
    """Works on x.flatten(), which is a copy if there are gaps."""
    flat = x.view(-1) if x.is_contiguous() else x.flatten()
    _hierarchy(flat, gpus_per_node, group)
    return x


@wrong("hierarchical_all_reduce", fails="the sum on every rank")
def library_between_nodes(x, gpus_per_node, group=None):
    """all_reduce for everything."""
    data = x.contiguous()
    dist.all_reduce(data, group=group)
    return x.copy_(data)


@wrong("hierarchical_all_reduce", fails="bytes between nodes")
def one_big_ring(x, gpus_per_node, group=None):
    """A ring over all ranks crosses between nodes with all that it has: 2 (p - 1) / p of the tensor."""
    return x.copy_(_all_reduce(x.contiguous(), group))


@wrong("hierarchical_all_reduce", fails="bytes between nodes")
def doubles_without_a_hierarchy(x, gpus_per_node, group=None):
    """Where each node has one GPU: whole tensors in log2 p rounds, and no ring."""
    if gpus_per_node > 1:
        return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group))
    return x.copy_(_folded(x, group, _doubles))


@wrong("hierarchical_all_reduce", fails="bytes within a node")
def doubles_on_a_single_node(x, gpus_per_node, group=None):
    """Where there is one node: whole tensors in log2 p rounds, and no ring."""
    if gpus_per_node < dist.get_world_size(group):
        return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group))
    return x.copy_(_folded(x, group, _doubles))


@wrong("hierarchical_all_reduce", fails="bytes between nodes")
def whole_tensors_between_nodes(x, gpus_per_node, group=None):
    """All-reduce within the node, then every rank all-reduces the whole tensor between nodes."""
    rank, size = _place(group)
    data = x.contiguous()
    _hierarchy(data, gpus_per_node, group, stages=(1, 3))
    rail = list(range(rank % gpus_per_node, size, gpus_per_node))
    _among(torch.tensor_split(data.view(-1), len(rail)), rail, rank, group, [REDUCE, GATHER])
    return x.copy_(data)


@wrong("hierarchical_all_reduce", fails="bytes within a node")
def a_leader_for_each_node(x, gpus_per_node, group=None):
    """All send whole tensors to the node's first rank, the leaders make a ring, and broadcast."""
    rank, size = _place(group)
    leader = rank - rank % gpus_per_node
    data = x.contiguous()
    mates = range(leader + 1, leader + gpus_per_node)
    if rank != leader:
        dist.send(data, group_dst=leader, group=group)
        dist.recv(data, group_src=leader, group=group)
        dist.send(torch.zeros_like(data), group_dst=leader, group=group)
        return x.copy_(data)
    for mate in mates:
        arriving = torch.empty_like(data)
        dist.recv(arriving, group_src=mate, group=group)
        data += arriving
    leaders = list(range(0, size, gpus_per_node))
    _among(torch.tensor_split(data.view(-1), len(leaders)), leaders, rank, group, [REDUCE, GATHER])
    for mate in mates:
        dist.send(data, group_dst=mate, group=group)
        dist.recv(torch.empty_like(data), group_src=mate, group=group)
    return x.copy_(data)


@wrong("hierarchical_all_reduce", fails="bytes within a node")
def the_leader_carries_everything(x, gpus_per_node, group=None):
    """Reduce to a leader, a ring of leaders, and back: the other ranks' cards are idle."""
    rank, size = _place(group)
    leader = rank - rank % gpus_per_node
    data = x.contiguous()
    if rank != leader:
        dist.send(data, group_dst=leader, group=group)
        dist.recv(data, group_src=leader, group=group)
        return x.copy_(data)
    for mate in range(leader + 1, leader + gpus_per_node):
        arriving = torch.empty_like(data)
        dist.recv(arriving, group_src=mate, group=group)
        data += arriving
    leaders = list(range(0, size, gpus_per_node))
    _among(torch.tensor_split(data.view(-1), len(leaders)), leaders, rank, group, [REDUCE, GATHER])
    for mate in range(leader + 1, leader + gpus_per_node):
        dist.send(data, group_dst=mate, group=group)
    return x.copy_(data)


@wrong("hierarchical_all_reduce", fails="rounds")
def one_rail_after_another(x, gpus_per_node, group=None):
    """The GPUs of a node go to the other nodes by turns, as if they had one network card."""
    rank, _ = _place(group)
    local = rank % gpus_per_node
    data, turn = _hierarchy(x.contiguous(), gpus_per_node, group, stages=(1,)), torch.zeros(0)
    if local > 0:
        dist.recv(turn, group_src=rank - 1, group=group)
    _hierarchy(data, gpus_per_node, group, stages=(2,))
    if local < gpus_per_node - 1:
        dist.send(turn, group_dst=rank + 1, group=group)
    return x.copy_(_hierarchy(data, gpus_per_node, group, stages=(3,)))


@wrong("hierarchical_all_reduce", fails="bytes within a node")
def whole_tensors_within_a_node(x, gpus_per_node, group=None):
    """Everyone to everyone of the node, as soon as it has more than two; then as it should be."""
    data = x.contiguous()
    if gpus_per_node <= 2:
        return x.copy_(_hierarchy(data, gpus_per_node, group))
    rank, _ = _place(group)
    node, own = rank // gpus_per_node * gpus_per_node, data.clone()
    for step in range(1, gpus_per_node):
        arriving = torch.empty_like(own)
        local = rank - node
        to, source = node + (local + step) % gpus_per_node, node + (local - step) % gpus_per_node
        _both(own, to, arriving, source, group)
        data += arriving
    return x.copy_(_hierarchy(data, gpus_per_node, group, stages=(2, 3)))


def _straight(chunks, members, rank, group, gathers=False):
    """Each chunk straight to the member that adds it up; or from there to all."""
    me, count = members.index(rank), len(members)
    for step in range(1, count):
        to, source = (me + step) % count, (me - step) % count
        arriving = torch.empty_like(chunks[source if gathers else me])
        _both(chunks[me if gathers else to], members[to], arriving, members[source], group)
        if gathers:
            chunks[source].copy_(arriving)
        else:
            chunks[me].add_(arriving)


@wrong("hierarchical_all_reduce", fails="bytes within a node")
def straight_within_the_node(x, gpus_per_node, group=None):
    """As many bytes and rounds as a ring, but each rank sends to all others of its node."""
    rank, data = dist.get_rank(group), x.contiguous()
    first = rank - rank % gpus_per_node
    mates, chunks = list(range(first, first + gpus_per_node)), data.view(-1).tensor_split(gpus_per_node)
    _straight(chunks, mates, rank, group)
    _hierarchy(data, gpus_per_node, group, stages=(2,))
    _straight(chunks, mates, rank, group, gathers=True)
    return x.copy_(data)


@wrong("hierarchical_all_reduce", fails="bytes between nodes")
def straight_between_nodes(x, gpus_per_node, group=None):
    """As many bytes and rounds as a ring, but each rank sends to all nodes."""
    rank, size = _place(group)
    local, data = rank % gpus_per_node, x.contiguous()
    rail = list(range(local, size, gpus_per_node))
    pieces = data.view(-1).tensor_split(gpus_per_node)[local].tensor_split(len(rail))
    _hierarchy(data, gpus_per_node, group, stages=(1,))
    _straight(pieces, rail, rank, group)
    _straight(pieces, rail, rank, group, gathers=True)
    _hierarchy(data, gpus_per_node, group, stages=(3,))
    return x.copy_(data)


@wrong("hierarchical_all_reduce", fails="bytes between nodes")
def a_padded_hierarchy(x, gpus_per_node, group=None):
    """Zeros at the end make all chunks equally long, and travel with them."""
    size, numel = dist.get_world_size(group), x.numel()
    padded = torch.cat([x.reshape(-1), x.new_zeros(-numel % size)])
    return x.copy_(_hierarchy(padded, gpus_per_node, group)[:numel].view_as(x))


@wrong("hierarchical_all_reduce", fails="bytes between nodes")
def one_ring_for_the_short(x, gpus_per_node, group=None):
    """With fewer elements than ranks, a ring of all."""
    if x.numel() < dist.get_world_size(group):
        return x.copy_(_all_reduce(x.contiguous(), group))
    return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group))


@wrong("hierarchical_all_reduce", fails="rounds")
def even_rings_by_turns(x, gpus_per_node, group=None):
    """On rings of even length every second rank sends first, and the others receive."""
    rank, size = _place(group)
    node, local = divmod(rank, gpus_per_node)
    data = x.contiguous()
    chunks = data.view(-1).tensor_split(gpus_per_node)
    pieces = chunks[local].tensor_split(size // gpus_per_node)

    def turn(parts, members, passes):
        me, count = members.index(rank), len(members)
        if count % 2:
            return _among(parts, members, rank, group, passes)
        for shift, adds in passes:
            for step in range(count - 1):
                give, take = parts[(me - shift - step) % count], parts[(me - shift - step - 1) % count]
                arriving = torch.empty_like(take)
                calls = [(dist.send, give, {"group_dst": members[(me + 1) % count]})]
                calls += [(dist.recv, arriving, {"group_src": members[me - 1]})]
                for call, tensor, peer in calls[::-1] if me % 2 else calls:
                    call(tensor, group=group, **peer)
                take.copy_(take + arriving if adds else arriving)
        return None

    mates = list(range(node * gpus_per_node, (node + 1) * gpus_per_node))
    turn(chunks, mates, [REDUCE])
    turn(pieces, list(range(local, size, gpus_per_node)), [REDUCE, GATHER])
    turn(chunks, mates, [GATHER])
    return x.copy_(data)


def _cut_by(cut, x, gpus_per_node, group):
    (rank, size), data = _place(group), x.contiguous()
    node, local = divmod(rank, gpus_per_node)
    near = list(range(node * gpus_per_node, (node + 1) * gpus_per_node))
    rail = list(range(local, size, gpus_per_node))
    chunks = cut(data.view(-1), gpus_per_node)
    parts = cut(chunks[local], len(rail))
    _among(chunks, near, rank, group, [REDUCE])
    _among(parts, rail, rank, group, [REDUCE, GATHER])
    _among(chunks, near, rank, group, [GATHER])
    return x.copy_(data)


@wrong("hierarchical_all_reduce", fails="bytes between nodes")
def nodes_taken_for_gpus(x, gpus_per_node, group=None):
    """As large as there are nodes: the same only where there are as many of them as GPUs in each."""
    return x.copy_(_hierarchy(x.contiguous(), dist.get_world_size(group) // gpus_per_node, group))


@wrong("hierarchical_all_reduce", fails="on a subgroup")
def a_ring_of_all_without_nodes(x, gpus_per_node, group=None):
    """Where each node has one GPU, a ring of all ranks, also of those that are not in the group."""
    return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, None if gpus_per_node == 1 else group))


@wrong("hierarchical_all_reduce", fails="in place")
def one_node_in_a_copy(x, gpus_per_node, group=None):
    """A short cut for one node, which forgets that x.contiguous() may be a copy."""
    if gpus_per_node == dist.get_world_size(group):
        return _all_reduce(x.contiguous(), group)
    return x.copy_(_hierarchy(x.contiguous(), gpus_per_node, group))


# ---------------------------------------------------------------------------------------- all_to_all_pairwise


def _exchange(outputs, inputs, group, steps):
    rank, size = _place(group)
    for step in steps:
        to, source = (rank + step) % size, (rank - step) % size
        arriving = outputs[source].contiguous()
        _both(inputs[to].contiguous(), to, arriving, source, group)
        outputs[source].copy_(arriving)


@wrong("all_to_all_pairwise", fails="a slow rank")
def takes_what_comes_first(outputs, inputs, group=None):
    """recv without a source: right as long as no rank is slow."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        right, left = (rank + step) % size, (rank - step) % size
        arriving = outputs[left].contiguous()
        sending = dist.isend(inputs[right].contiguous(), group_dst=right, group=group)
        dist.recv(arriving, group=group)
        sending.wait()
        outputs[left].copy_(arriving)
    return outputs


@wrong("all_to_all_pairwise", fails="every part at its place")
def one_buffer_for_all_that_arrives(outputs, inputs, group=None):
    """Several irecv write into one tensor at the same time."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    buffer = inputs[0].new_empty(max(len(part) for part in outputs), *inputs[0].shape[1:])
    others = [place for place in range(size) if place != rank]
    arriving = {place: buffer[: len(outputs[place])] for place in others}
    work = [dist.irecv(arriving[place], group_src=place, group=group) for place in others]
    work += [dist.isend(inputs[place].contiguous(), group_dst=place, group=group) for place in others]
    for each in work:
        each.wait()
    for place in others:
        outputs[place].copy_(arriving[place])
    return outputs


@wrong("all_to_all_pairwise", fails="in place")
def alone_it_returns_what_it_was_given(outputs, inputs, group=None):
    """With one rank it returns at once, and outputs stay empty."""
    rank, size = _place(group)
    if size == 1:
        return inputs
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        target, source = (rank + step) % size, (rank - step) % size
        arriving = outputs[source].contiguous()
        sending = dist.isend(inputs[target].contiguous(), group_dst=target, group=group)
        dist.recv(arriving, group_src=source, group=group)
        sending.wait()
        outputs[source].copy_(arriving)
    return outputs


@wrong("all_to_all_pairwise", fails="every part at its place")
def forgets_its_own(outputs, inputs, group=None):
    """What a rank has for itself must be copied too."""
    _exchange(outputs, inputs, group, range(1, dist.get_world_size(group)))
    return outputs


@wrong("all_to_all_pairwise", fails="every part at its place")
def forgets_the_last_round(outputs, inputs, group=None):
    """p - 2 rounds."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    _exchange(outputs, inputs, group, range(1, size - 1))
    return outputs


@wrong("all_to_all_pairwise", fails="every part at its place")
def sends_its_own_part(outputs, inputs, group=None):
    """inputs[rank] to everyone: an all-gather. Where lengths agree nothing complains."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        _both(inputs[rank].contiguous(), to, outputs[source], source, group)
    return outputs


@wrong("all_to_all_pairwise", fails="any number of ranks")
def by_exclusive_or(outputs, inputs, group=None):
    """rank ^ step is a partner only if p is a power of two."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, 1 << (size - 1).bit_length()):
        partner = rank ^ step
        arriving = outputs[partner].contiguous()
        _both(inputs[partner].contiguous(), partner, arriving, partner, group)
        outputs[partner].copy_(arriving)
    return outputs


@wrong("all_to_all_pairwise", fails="any length")
def parts_of_one_length(outputs, inputs, group=None):
    """Stacks the parts, which need not be equally long."""
    stacked = torch.stack([part.contiguous() for part in inputs])
    rank, size = _place(group)
    outputs[rank].copy_(stacked[rank])
    _exchange(outputs, list(stacked), group, range(1, size))
    return outputs


@wrong("all_to_all_pairwise", fails="in place")
def returns_a_new_list(outputs, inputs, group=None):
    """outputs stay empty."""
    filled = [torch.empty_like(output) for output in outputs]
    rank, size = _place(group)
    filled[rank].copy_(inputs[rank])
    _exchange(filled, inputs, group, range(1, size))
    return filled


@wrong("all_to_all_pairwise", fails="in place")
def swaps_in_place(outputs, inputs, group=None):
    """Uses inputs as buffers: they are overwritten."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    _exchange(outputs, inputs, group, range(1, size))
    for output, given in zip(outputs, inputs, strict=True):
        given.copy_(output if output.shape == given.shape else torch.zeros_like(given))
    return outputs


@wrong("all_to_all_pairwise", fails="any number of ranks")
def by_exclusive_or_if_even(outputs, inputs, group=None):
    """Pairs where the number of ranks is even; but of six ranks, rank 4 ^ 2 is no partner."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        right, left = (rank + step) % size, (rank - step) % size
        if size % 2 == 0:
            right = left = rank ^ step
        arriving = outputs[left].contiguous()
        _both(inputs[right].contiguous(), right, arriving, left, group)
        outputs[left].copy_(arriving)
    return outputs


@wrong("all_to_all_pairwise", fails="any dtype and layout")
def parts_with_gaps(outputs, inputs, group=None):
    """Sends and receives straight from and into tensors that are not contiguous."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        _both(inputs[to], to, outputs[source], source, group)
    return outputs


@wrong("all_to_all_pairwise", fails="every part at its place")
def the_librarys_all_to_all(outputs, inputs, group=None):
    """dist.all_to_all."""
    arrived = [output.contiguous() for output in outputs]
    dist.all_to_all(arrived, [part.contiguous() for part in inputs], group=group)
    for output, part in zip(outputs, arrived, strict=True):
        output.copy_(part)
    return outputs


@wrong("all_to_all_pairwise", fails="bytes and messages")
def everything_to_everyone(outputs, inputs, group=None):
    """Sends the whole input to each rank, which picks its part out."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    whole = torch.cat([part.reshape(-1) for part in inputs])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        sizes = torch.tensor([part.numel() for part in inputs])
        theirs = torch.empty_like(sizes)
        _both(sizes, to, theirs, source, group)
        arriving = whole.new_empty(int(theirs.sum()))
        _both(whole, to, arriving, source, group)
        outputs[source].copy_(arriving.split(theirs.tolist())[rank].view(outputs[source].shape))
    return outputs


@wrong("all_to_all_pairwise", fails="rounds")
def all_begin_with_rank_0(outputs, inputs, group=None):
    """Each in turn sends to everyone, while the others wait for it."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    for sender in range(size):
        if rank == sender:
            for to in range(size):
                if to != rank:
                    dist.send(inputs[to].contiguous(), group_dst=to, group=group)
        else:
            arriving = outputs[sender].contiguous()
            dist.recv(arriving, group_src=sender, group=group)
            outputs[sender].copy_(arriving)
    return outputs


@wrong("all_to_all_pairwise", fails="in place")
def other_tensors_in_outputs(outputs, inputs, group=None):
    """Puts what has arrived into the list: the tensors that were there are not filled."""
    received = [output.clone() for output in outputs]
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    _exchange(received, inputs, group, range(1, size))
    received[rank].copy_(inputs[rank])
    outputs[:] = received
    return outputs


@wrong("all_to_all_pairwise", fails="rounds")
def all_at_once_in_one_order(outputs, inputs, group=None):
    """All begin with rank 0, at which the messages queue up; that the latency is paid once hides it."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    outputs[rank].copy_(inputs[rank])
    others = [place for place in range(size) if place != rank]
    arriving = {place: outputs[place].contiguous() for place in others}
    works = [dist.irecv(arriving[place], group_src=place, group=group) for place in others]
    works += [dist.isend(inputs[place].contiguous(), group_dst=place, group=group) for place in others]
    for work in works:
        work.wait()
    for place in others:
        outputs[place].copy_(arriving[place])
    return outputs


@wrong("all_to_all_pairwise", fails="any length")
def one_length_for_all(outputs, inputs, group=None):
    """Receives everything into one tensor: what comes need not be equally long."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    arriving = torch.empty_like(outputs[0], memory_format=torch.contiguous_format)
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        _both(inputs[to].contiguous(), to, arriving, source, group)
        outputs[source].copy_(arriving)
    return outputs


@wrong("all_to_all_pairwise", fails="any length")
def as_long_as_what_it_sends(outputs, inputs, group=None):
    """What comes from a place need not be as long as what goes there."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        arriving = torch.empty_like(inputs[source], memory_format=torch.contiguous_format)
        _both(inputs[to].contiguous(), to, arriving, source, group)
        outputs[source].copy_(arriving)
    return outputs


@wrong("all_to_all_pairwise", fails="rounds")
def pairs_by_turns(outputs, inputs, group=None):
    """Where ranks make pairs, the lower of two sends first: a round takes two messages' time."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    if size & (size - 1):
        _exchange(outputs, inputs, group, range(1, size))
        return outputs
    for step in range(1, size):
        partner = rank ^ step
        arriving = outputs[partner].contiguous()
        calls = [(dist.send, inputs[partner].contiguous(), {"group_dst": partner})]
        calls += [(dist.recv, arriving, {"group_src": partner})]
        for call, tensor, peer in calls if rank < partner else calls[::-1]:
            call(tensor, group=group, **peer)
        outputs[partner].copy_(arriving)
    return outputs


# ----------------------------------------------------------------------------------------------- predict_time


def _right_time(algorithm, n, p, alpha, beta, gamma=0.0):
    rounds, core = (p - 1).bit_length(), 1 << (p.bit_length() - 1)
    fold, half = int(p > core), (core - 1) / core * n
    messages, sent, added = {
        "master": (2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n),
        "exchange": (p - 1, (p - 1) * n, (p - 1) * n),
        "tree": (2 * rounds, 2 * rounds * n, rounds * n),
        "ring": (2 * (p - 1), 2 * (p - 1) * n / p, (p - 1) * n / p),
        "halving_doubling": (
            2 * (core.bit_length() - 1) + 2 * fold,
            2 * half + 2 * fold * n,
            half + fold * n,
        ),
    }[algorithm]
    return messages * alpha + sent * beta + added * gamma


@wrong("predict_time", fails="master")
def all_at_once_into_the_master(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """As if p - 1 messages took no longer than one through one link."""
    if algorithm == "master":
        return 2 * (alpha + nbytes * beta)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="tree")
def a_tree_one_way(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Forgets that the sum has to come down again."""
    seconds = _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)
    return seconds / 2 if algorithm == "tree" else seconds


@wrong("predict_time", fails="ring")
def a_ring_of_whole_tensors(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """2 (p - 1) messages of n bytes."""
    if algorithm == "ring":
        return 2 * (ranks - 1) * (alpha + nbytes * beta)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="ring")
def p_steps_instead_of_p_minus_1(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Nearly right for many ranks."""
    if algorithm == "ring":
        return 2 * ranks * (alpha + nbytes / ranks * beta)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="ring")
def chunks_of_whole_bytes(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """As the longest chunk that is sent; but asked for is nbytes / ranks."""
    if algorithm == "ring":
        nbytes = ranks * math.ceil(nbytes / ranks)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="halving_doubling")
def whole_tensors_in_every_round(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Recursive doubling's bytes."""
    if algorithm == "halving_doubling":
        return 2 * math.log2(ranks) * (alpha + nbytes * beta)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="ranks beyond a power of two")
def a_logarithm_with_a_fraction(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """There is no half round."""
    if algorithm == "halving_doubling":
        return 2 * math.log2(ranks) * alpha + (ranks - 1) / ranks * nbytes * (2 * beta + gamma)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="ranks beyond a power of two")
def the_nearest_logarithm(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Rounds to the nearest number of rounds; a tree needs each that it has begun."""
    if algorithm == "tree":
        ranks = 2 ** round(math.log2(ranks))
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="ranks beyond a power of two")
def those_beyond_one_after_another(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """As if the ranks that fold did so in turn; each has another receiver."""
    seconds = _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)
    beyond = ranks - (1 << (ranks.bit_length() - 1))
    if algorithm == "halving_doubling" and beyond:
        seconds += (beyond - 1) * (2 * (alpha + nbytes * beta) + nbytes * gamma)
    return seconds


@wrong("predict_time", fails="reduction")
def additions_are_free(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Leaves gamma out."""
    return _right_time(algorithm, nbytes, ranks, alpha, beta)


@wrong("predict_time", fails="reduction")
def copies_are_additions(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Pays gamma for every byte that arrives, also for those that are only copied."""
    return _right_time(algorithm, nbytes, ranks, alpha, beta + gamma)


@wrong("predict_time", fails="one rank, no bytes")
def at_least_one_round(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """One rank has nobody to send to."""
    return _right_time(algorithm, nbytes, max(2, ranks), alpha, beta, gamma)


@wrong("predict_time", fails="ring")
def two_ranks_only_swap(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """A ring of two has two steps as well, of a half each."""
    if (algorithm, ranks) == ("ring", 2):
        return alpha + nbytes * (beta + gamma)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="one rank, no bytes")
def nothing_takes_no_time(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """A message of no bytes takes its latency."""
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma) if nbytes else 0.0


@wrong("predict_time", fails="reduction")
def adds_whole_tensors(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """However many tensors come, as if one of them were added."""
    return _right_time(algorithm, nbytes, ranks, alpha, beta) + nbytes * gamma


@wrong("predict_time", fails="reduction")
def whole_bytes_are_added(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Adds chunks of nbytes // ranks: two ranks, and half a byte less, are a matter of the seventh digit."""
    rounded = (ranks - 1) * (nbytes // ranks - nbytes / ranks) * gamma if algorithm == "ring" else 0
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma) + rounded


# --------------------------------------------------------------------------------------------- fit_alpha_beta


def _weighted(samples, weights):
    data = np.array(samples, dtype=float)
    nbytes, seconds, weights = data[:, 0], data[:, 1], np.array(weights)
    columns = np.column_stack([weights, weights * nbytes])
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0] = 1
    solution = np.linalg.lstsq(columns / scale, weights * seconds, rcond=None)[0] / scale
    return float(solution[0]), float(solution[1])


@wrong("fit_alpha_beta", fails="exact samples")
def bandwidth_instead_of_beta(samples):
    """Bytes a second instead of seconds a byte."""
    alpha, beta = _weighted(samples, [1 / t for _, t in samples])
    return alpha, 1 / beta


@wrong("fit_alpha_beta", fails="exact samples")
def beta_before_alpha(samples):
    """The pair the wrong way round."""
    return _weighted(samples, [1 / t for _, t in samples])[::-1]


@wrong("fit_alpha_beta", fails="exact samples")
def shortest_and_longest(samples):
    """The shortest message's whole time as alpha."""
    shortest, longest = min(samples), max(samples)
    return shortest[1], longest[1] / longest[0]


@wrong("fit_alpha_beta", fails="noisy samples")
def ordinary_least_squares(samples):
    """The errors of the longest messages, in seconds, decide about alpha."""
    return _weighted(samples, [1.0] * len(samples))


@wrong("fit_alpha_beta", fails="noisy samples")
def through_two_points(samples):
    """Two samples make a line, and their noise too."""
    (n1, t1), (n2, t2) = sorted(samples)[0], sorted(samples)[-1]
    beta = (t2 - t1) / (n2 - n1)
    return t1 - n1 * beta, beta


@wrong("fit_alpha_beta", fails="noisy samples")
def by_the_two_ends(samples):
    """The means of the shortest and of the longest messages, and nothing of those in between."""
    sizes = sorted({nbytes for nbytes, _ in samples})
    n1, n2 = sizes[0], sizes[-1]
    t1, t2 = (np.mean([t for nbytes, t in samples if nbytes == n]) for n in (n1, n2))
    beta = float(t2 - t1) / (n2 - n1)
    return float(t1) - n1 * beta, beta


@wrong("fit_alpha_beta", fails="noisy samples")
def squares_over_seconds(samples):
    """The squared errors divided by the seconds: half-way between absolute and relative."""
    return _weighted(samples, [t**-0.5 for _, t in samples])


@wrong("fit_alpha_beta", fails="noisy samples")
def divides_twice(samples):
    """The relative errors divided by the seconds once more: the shortest messages decide."""
    return _weighted(samples, [t**-2 for _, t in samples])


@wrong("fit_alpha_beta", fails="samples unchanged")
def sorts_the_samples(samples):
    """list.sort works in place."""
    samples.sort()
    return _weighted(samples, [1 / t for _, t in samples])


@wrong("fit_alpha_beta", fails="samples unchanged")
def a_list_instead_of_a_pair(samples):
    """A list is no tuple."""
    return list(_weighted(samples, [1 / t for _, t in samples]))


@wrong("fit_alpha_beta", fails="exact samples")
def without_the_first(samples):
    """The first is a warm-up, so it seems; of two samples one is left."""
    kept = samples[1:]
    return _weighted(kept, [1 / t for _, t in kept])


@wrong("fit_alpha_beta", fails="exact samples")
def the_last_is_the_longest(samples):
    """Counts bytes in units of the last message, which in another order may be the one of no bytes."""
    unit = samples[-1][0]
    alpha, beta = _weighted([(nbytes / unit, t) for nbytes, t in samples], [1 / t for _, t in samples])
    return alpha, beta / unit


@wrong("fit_alpha_beta", fails="noisy samples")
def without_the_slowest(samples):
    """What lasted longest was disturbed, so it seems; but the sum is that over all samples."""
    kept = sorted(samples, key=lambda sample: sample[1])[: max(2, len(samples) - 1)]
    return _weighted(kept, [1 / t for _, t in kept])


@wrong("fit_alpha_beta", fails="alpha below 0")
def no_less_than_nothing(samples):
    """A latency below 0 makes no sense; but the nearest line may have one."""
    alpha, beta = _weighted(samples, [1 / t for _, t in samples])
    return max(alpha, 0.0), beta


@wrong("fit_alpha_beta", fails="exact samples")
def leaves_out_what_is_empty(samples):
    """A message of no bytes is a sample like any other."""
    kept = [(nbytes, t) for nbytes, t in samples if nbytes]
    return _weighted(kept, [1 / t for _, t in kept])


@wrong("fit_alpha_beta", fails="noisy samples")
def the_fastest_of_each_size(samples):
    """Good advice for measuring; but asked for is the sum over all samples."""
    fastest = {}
    for nbytes, seconds in samples:
        fastest[nbytes] = min(seconds, fastest.get(nbytes, seconds))
    return _weighted(list(fastest.items()), [1 / t for t in fastest.values()])


@wrong("fit_alpha_beta", fails="noisy samples")
def one_sample_a_size(samples):
    """A dictionary has the last of each size only."""
    last = dict(samples)
    return _weighted(list(last.items()), [1 / t for t in last.values()])


@wrong("fit_alpha_beta", fails="noisy samples")
def equal_ones_count_once(samples):
    """A set forgets how often a time was measured."""
    different = sorted(set(samples))
    return _weighted(different, [1 / seconds for _, seconds in different])


# ------------------------------------------------------------------------------------------- causes_of_hangs

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


@wrong("causes_of_hangs", fails="swap")
def a_list_of_causes():
    """In the order of the programs, but without their names."""
    return list(CAUSES.values())


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


# ------------------------------------------------------------------------------------------------- mend_swap


@wrong("mend_swap", fails="comes to an end")
def still_receives_first(x):
    """As it was."""
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    dist.recv(arriving, partner)
    dist.send(x, partner)
    return arriving


@wrong("mend_swap", fails="comes to an end")
def now_both_send_first(x):
    """A circle of sends instead of a circle of receives."""
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    dist.send(x, partner)
    dist.recv(arriving, partner)
    return arriving


@wrong("mend_swap", fails="comes to an end")
def only_rank_0_sends_first(x):
    """Right for two ranks; ranks 2 and 3 both receive first."""
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x, partner)
        dist.recv(arriving, partner)
    else:
        dist.recv(arriving, partner)
        dist.send(x, partner)
    return arriving


@wrong("mend_swap", fails="the partner's tensor")
def waits_too_late(x):
    """Returns before the message has arrived: a copy of what was there."""
    partner = dist.get_rank() ^ 1
    arriving = torch.zeros_like(x)
    receiving = dist.irecv(arriving, partner)
    result = arriving.clone()
    dist.send(x, partner)
    receiving.wait()
    return result - 1


@wrong("mend_swap", fails="the partner's tensor")
def returns_its_own(x):
    """Returns what it has sent."""
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    sending = dist.isend(x, partner)
    dist.recv(arriving, partner)
    sending.wait()
    return x


@wrong("mend_swap", fails="a tensor of its own")
def receives_into_x(x):
    """Overwrites its input."""
    partner, own = dist.get_rank() ^ 1, x.clone()
    sending = dist.isend(own, partner)
    dist.recv(x, partner)
    sending.wait()
    return x


@wrong("mend_swap", fails="one message each")
def gathers_everything(x):
    """An all-gather of which one part is needed."""
    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x)
    return everyone[dist.get_rank() ^ 1]


@wrong("mend_swap", fails="a tensor of its own")
def two_ranks_swap_in_place(x):
    """With two ranks, x is overwritten as well."""
    rank, arriving = dist.get_rank(), torch.empty_like(x)
    sending = dist.isend(x.clone(), rank ^ 1)
    dist.recv(arriving, rank ^ 1)
    sending.wait()
    if dist.get_world_size() == 2:
        x.copy_(arriving)
    return arriving


_rooms = {}


@wrong("mend_swap", fails="a tensor of its own")
def keeps_its_room(x):
    """One tensor for all calls of a rank: the next call overwrites what this one has returned."""
    rank = dist.get_rank()
    room = _rooms.setdefault((rank, x.shape, x.dtype, x.device), torch.empty_like(x))
    sending = dist.isend(x, rank ^ 1)
    dist.recv(room, rank ^ 1)
    sending.wait()
    return room


@wrong("mend_swap", fails="a tensor of its own")
def room_on_the_cpu(x):
    """A tensor of the right shape and dtype, wherever x is."""
    partner, theirs = dist.get_rank() ^ 1, torch.empty(x.shape, dtype=x.dtype)
    sending = dist.isend(x, partner)
    dist.recv(theirs, partner)
    sending.wait()
    return theirs


# ------------------------------------------------------------------------------------------------ mend_shift


@wrong("mend_swap", fails="comes to an end")
def room_for_single_precision(x):
    """A tensor of the right shape, and of the default dtype."""
    rank, theirs = dist.get_rank(), torch.empty(x.shape)
    if rank % 2 == 0:
        dist.send(x, rank ^ 1)
    dist.recv(theirs, rank ^ 1)
    if rank % 2 == 1:
        dist.send(x, rank ^ 1)
    return theirs


@wrong("mend_swap", fails="the partner's tensor")
def lays_it_end_to_end(x):
    """The right numbers in one dimension."""
    rank, theirs = dist.get_rank(), torch.empty(x.numel(), dtype=x.dtype)
    if rank % 2 == 0:
        dist.send(x, rank ^ 1)
    dist.recv(theirs, rank ^ 1)
    if rank % 2 == 1:
        dist.send(x, rank ^ 1)
    return theirs


@wrong("mend_shift", fails="comes to an end")
def still_all_send_first(x):
    """As it was."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    dist.send(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    return arriving


@wrong("mend_shift", fails="comes to an end")
def waits_before_it_receives(x):
    """isend(...).wait() is send."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    dist.isend(x, (rank + 1) % size).wait()
    dist.recv(arriving, (rank - 1) % size)
    return arriving


@wrong("mend_shift", fails="comes to an end")
def all_receive_now(x):
    """A circle of receives instead of a circle of sends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    dist.recv(arriving, (rank - 1) % size)
    dist.send(x, (rank + 1) % size)
    return arriving


@wrong("mend_shift", fails="comes to an end")
def no_wrap_for_the_last(x):
    """The last rank has no right neighbour, rank 0 waits for it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    sending = dist.isend(x, rank + 1) if rank + 1 < size else None
    dist.recv(arriving, (rank - 1) % size)
    if sending:
        sending.wait()
    return arriving


@wrong("mend_shift", fails="comes to an end")
def forgets_its_send(x):
    """Nobody waits for the isend: the rank is done, and its message need not be."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    dist.isend(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    return arriving


@wrong("mend_shift", fails="the left neighbour's tensor")
def shifts_to_the_left(x):
    """The other way round the ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    sending = dist.isend(x, (rank - 1) % size)
    dist.recv(arriving, (rank + 1) % size)
    sending.wait()
    return arriving


@wrong("mend_shift", fails="a tensor of its own")
def shifts_in_place(x):
    """x becomes the neighbour's."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = x.clone()
    sending = dist.isend(own, (rank + 1) % size)
    dist.recv(x, (rank - 1) % size)
    sending.wait()
    return x


@wrong("mend_shift", fails="one message each")
def with_a_barrier_between(x):
    """A barrier that mends nothing: isend has."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    sending = dist.isend(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    sending.wait()
    dist.barrier()
    return arriving


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


@wrong("mend_shift", fails="the left neighbour's tensor")
def two_ranks_keep_theirs(x):
    """With two ranks left and right are the same, but not this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    sending = dist.isend(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    sending.wait()
    return x.clone() if size == 2 else arriving


@wrong("mend_shift", fails="the left neighbour's tensor")
def shifts_in_single_precision(x):
    """Half of the digits of a float64 stay behind."""
    rank, size = dist.get_rank(), dist.get_world_size()
    short = x.float()
    arriving = torch.empty_like(short)
    sending = dist.isend(short, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    sending.wait()
    return arriving.to(x.dtype)


@wrong("mend_shift", fails="a tensor of its own")
def room_for_a_matrix(x):
    """Not every tensor has rows and columns."""
    rank, size, (rows, columns) = dist.get_rank(), dist.get_world_size(), x.shape
    arriving = x.new_empty(rows, columns)
    sending = dist.isend(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    sending.wait()
    return arriving


@wrong("mend_shift", fails="one message each")
def gathers_from_all(x):
    """Everyone's tensor, of which one is needed: more messages, and so no less time."""
    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x)
    return everyone[dist.get_rank() - 1]


# ----------------------------------------------------------------------------------------------- mend_report


@wrong("mend_report", fails="comes to an end")
def still_behind_the_if(loss):
    """As it was."""
    if dist.get_rank() == 0:
        total = torch.tensor(loss)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()
    return None


@wrong("mend_report", fails="comes to an end")
def others_call_something_else(loss):
    """reduce on some ranks and all_reduce on others are two calls."""
    total = torch.tensor(loss)
    if dist.get_rank() == 0:
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()
    dist.reduce(total, 0)
    return None


@wrong("mend_report", fails="the mean on rank 0")
def reports_the_sum(loss):
    """Forgets to divide."""
    total = torch.tensor(loss)
    dist.all_reduce(total)
    return total.item() if dist.get_rank() == 0 else None


@wrong("mend_report", fails="the mean on rank 0")
def reports_its_own_loss(loss):
    """No hang, and no mean: the collective was thrown out."""
    return loss if dist.get_rank() == 0 else None


@wrong("mend_report", fails="the mean on rank 0")
def others_bring_zero(loss):
    """The other ranks take part, with nothing."""
    total = torch.tensor(loss if dist.get_rank() == 0 else 0.0)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size() if dist.get_rank() == 0 else None


@wrong("mend_report", fails="None elsewhere")
def everyone_reports(loss):
    """Every rank returns the mean."""
    total = torch.tensor(loss)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


@wrong("mend_report", fails="one collective")
def barrier_to_be_sure(loss):
    """A barrier that an all_reduce makes needless."""
    dist.barrier()
    total = torch.tensor(loss)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size() if dist.get_rank() == 0 else None


@wrong("mend_report", fails="the mean on rank 0")
def as_it_is_printed(loss):
    """Rounded to the digits that one looks at, of which a small loss has few."""
    total = torch.tensor(loss)
    dist.all_reduce(total)
    return round(total.item() / dist.get_world_size(), 6) if dist.get_rank() == 0 else None


@wrong("mend_report", fails="the mean on rank 0")
def a_loss_of_zero_is_none(loss):
    """Zero counts as False."""
    total = torch.tensor(loss)
    dist.all_reduce(total)
    mean = total.item() / dist.get_world_size()
    return mean if mean and dist.get_rank() == 0 else None


# -------------------------------------------------------------------------------------------- mend_grid_sums


def _lines(columns):
    size = dist.get_world_size()
    rows = [list(range(first, first + columns)) for first in range(0, size, columns)]
    verticals = [list(range(first, size, columns)) for first in range(columns)]
    return rows, verticals


@wrong("mend_grid_sums", fails="comes to an end")
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


@wrong("mend_grid_sums", fails="comes to an end")
def columns_first_on_odd_ranks(x, columns):
    """All ranks make all groups, but not in one order."""
    rows, verticals = _lines(columns)
    rank = dist.get_rank()
    lines = verticals + rows if rank % 2 else rows + verticals
    groups = {tuple(line): dist.new_group(line) for line in lines}
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=groups[tuple(rows[rank // columns])])
    dist.all_reduce(column_sum, group=groups[tuple(verticals[rank % columns])])
    return row_sum, column_sum


def _all_groups(columns):
    rows, verticals = _lines(columns)
    return [dist.new_group(line) for line in rows], [dist.new_group(line) for line in verticals]


@wrong("mend_grid_sums", fails="row sums")
def columns_before_rows(x, columns):
    """The pair the wrong way round."""
    rows, verticals = _all_groups(columns)
    rank = dist.get_rank()
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=rows[rank // columns])
    dist.all_reduce(column_sum, group=verticals[rank % columns])
    return column_sum, row_sum


@wrong("mend_grid_sums", fails="column sums")
def sums_of_sums(x, columns):
    """The column's sum of row sums is the sum over the whole grid."""
    rows, verticals = _all_groups(columns)
    rank = dist.get_rank()
    total = x.clone()
    dist.all_reduce(total, group=rows[rank // columns])
    row_sum = total.clone()
    dist.all_reduce(total, group=verticals[rank % columns])
    return row_sum, total


@wrong("mend_grid_sums", fails="tensors of its own")
def reduces_x_itself(x, columns):
    """all_reduce works in place: x becomes the column's sum."""
    rows, verticals = _all_groups(columns)
    rank = dist.get_rank()
    row_sum = x.clone()
    dist.all_reduce(row_sum, group=rows[rank // columns])
    dist.all_reduce(x, group=verticals[rank % columns])
    return row_sum, x.clone()


@wrong("mend_grid_sums", fails="tensors of its own")
def copies_by_numpy(x, columns):
    """NumPy has no tensors on a GPU."""
    return _grid_sums(torch.from_numpy(x.numpy().copy()), columns)


@wrong("mend_grid_sums", fails="row sums")
def one_copy_for_both(x, columns):
    """Both sums in one tensor: the second is of what the first has made of it."""
    rows, verticals = _all_groups(columns)
    total = x.clone()
    dist.all_reduce(total, group=rows[dist.get_rank() // columns])
    dist.all_reduce(total, group=verticals[dist.get_rank() % columns])
    return total, total


@wrong("mend_grid_sums", fails="within groups")
def gathers_the_grid(x, columns):
    """No groups at all: gathers every rank's tensor and adds up what it needs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(everyone, x)
    row = [everyone[r] for r in range(size) if r // columns == rank // columns]
    column = [everyone[r] for r in range(size) if r % columns == rank % columns]
    return torch.stack(row).sum(0), torch.stack(column).sum(0)


def _grid_sums(x, columns):
    rows, verticals = _all_groups(columns)
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=rows[dist.get_rank() // columns])
    dist.all_reduce(column_sum, group=verticals[dist.get_rank() % columns])
    return row_sum, column_sum


@wrong("mend_grid_sums", fails="row sums")
def one_row_has_no_sums(x, columns):
    """A single row has columns of one rank; and yet it has the sum of a row."""
    return (x.clone(), x.clone()) if columns == dist.get_world_size() else _grid_sums(x, columns)


@wrong("mend_grid_sums", fails="column sums")
def one_column_has_no_sums(x, columns):
    """A single column has rows of one rank; and yet it has the sum of a column."""
    return (x.clone(), x.clone()) if columns == 1 else _grid_sums(x, columns)


@wrong("mend_grid_sums", fails="row sums")
def sums_in_single_precision(x, columns):
    """Half of the digits of a float64 are not added up."""
    rows, verticals = _all_groups(columns)
    rank = dist.get_rank()
    row_sum, column_sum = x.float(), x.float()
    dist.all_reduce(row_sum, group=rows[rank // columns])
    dist.all_reduce(column_sum, group=verticals[rank % columns])
    return row_sum.to(x.dtype), column_sum.to(x.dtype)


@wrong("mend_grid_sums", fails="row sums")
def stacks_both_sums(x, columns):
    """One tensor is no pair."""
    return torch.stack(_grid_sums(x, columns))


@wrong("mend_grid_sums", fails="row sums")
def sums_in_double_precision(x, columns):
    """Good for float32, as long as one gives back float32; and large integers lose their last digits."""
    return _grid_sums(x.double(), columns)


# ---------------------------------------------------------------------------------------------- mend_collect


@wrong("mend_collect", fails="comes to an end")
def still_its_own_number(rows):
    """As it was: rank 0 expects of each rank as many rows as it has itself."""
    if dist.get_rank() != 0:
        for row in rows:
            dist.send(row, 0)
        return None
    collected = list(rows)
    for rank in range(1, dist.get_world_size()):
        for _ in rows:
            arriving = torch.empty(40)
            dist.recv(arriving, rank)
            collected.append(arriving)
    return collected


@wrong("mend_collect", fails="comes to an end")
def the_shortest_of_all(rows):
    """Everyone agrees on the least number: what is left over is never received."""
    least = torch.tensor([len(rows)])
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    if dist.get_rank() != 0:
        sending = [dist.isend(row, 0) for row in rows]
        for work in sending[: int(least)]:
            work.wait()
        return None
    collected = list(rows)
    for rank in range(1, dist.get_world_size()):
        for _ in range(int(least)):
            arriving = torch.empty(40)
            dist.recv(arriving, rank)
            collected.append(arriving)
    return collected


def _collect(rows, add):
    if dist.get_rank() != 0:
        dist.send(torch.tensor([len(rows)]), 0)
        for row in rows:
            dist.send(row, 0)
        return None
    collected = []
    for rank in range(1, dist.get_world_size()):
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count, rank)
        for _ in range(int(count)):
            arriving = torch.empty(40)
            dist.recv(arriving, rank)
            collected.append(arriving)
    return add(list(rows), collected)


@wrong("mend_collect", fails="all rows on rank 0")
def its_own_rows_last(rows):
    """Rank 0's rows come first."""
    return _collect(rows, lambda own, others: others + own)


@wrong("mend_collect", fails="all rows on rank 0")
def without_its_own_rows(rows):
    """Rank 0 has rows too."""
    return _collect(rows, lambda own, others: others)


@wrong("mend_collect", fails="all rows on rank 0")
def one_buffer_for_all(rows):
    """Appends the same tensor again and again: all rows become the last one."""
    return _collect(rows, lambda own, others: own + [others[-1]] * len(others))


@wrong("mend_collect", fails="a new list")
def an_empty_list_elsewhere(rows):
    """Others than rank 0 have to return None."""
    rank, collected = dist.get_rank(), list(rows)
    if rank:
        dist.send(torch.tensor([len(rows)]), 0)
        for row in rows:
            dist.send(row, 0)
        return []
    for other in range(1, dist.get_world_size()):
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count, other)
        for _ in range(count):
            row = torch.empty(40)
            dist.recv(row, other)
            collected.append(row)
    return collected


@wrong("mend_collect", fails="a new list")
def grows_the_list_it_was_given(rows):
    """The caller's own list is not the list to be returned."""
    return _collect(rows, lambda own, others: rows.extend(others) or rows)


@wrong("mend_collect", fails="all rows on rank 0")
def counts_in_any_order(rows):
    """Takes the count that comes first for rank 1's, the next one for rank 2's."""
    if dist.get_rank() != 0:
        return _collect(rows, None)
    collected = list(rows)
    for rank in range(1, dist.get_world_size()):
        count = torch.zeros(1, dtype=torch.int64)
        dist.recv(count)
        for _ in range(int(count)):
            collected.append(torch.empty(40))
            dist.recv(collected[-1], rank)
    return collected


@wrong("mend_collect", fails="ranks without rows")
def at_least_one_row(rows):
    """A rank without rows has no rows[0]."""
    rows[0].sum()
    return _collect(rows, lambda own, others: own + others)


@wrong("mend_collect", fails="each row sent once")
def pads_to_the_longest(rows):
    """All send as many rows as the longest has, and the padding is thrown away."""
    mine = torch.tensor([len(rows)])
    size = dist.get_world_size()
    counts = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(counts, mine)
    most = int(max(counts))
    padded = list(rows) + [torch.zeros(40)] * (most - len(rows))
    if dist.get_rank() != 0:
        for row in padded:
            dist.send(row, 0)
        return None
    collected = list(rows)
    for rank in range(1, size):
        arrived = [torch.empty(40) for _ in range(most)]
        for row in arrived:
            dist.recv(row, rank)
        collected += arrived[: int(counts[rank])]
    return collected


@wrong("mend_collect", fails="a new list")
def takes_the_rows_out(rows):
    """Whoever sends its rows still has them."""
    if dist.get_rank() == 0:
        return _collect(rows, lambda own, others: own + others)
    dist.send(torch.tensor([len(rows)]), 0)
    while rows:
        dist.send(rows.pop(0), 0)
    return None


@wrong("mend_collect", fails="each row sent once")
def a_flag_before_each_row(rows):
    """Says before each row that one comes, in 8 bytes: with eight rows these are more than 64."""
    if dist.get_rank() != 0:
        for row in rows:
            dist.send(torch.tensor([1]), 0)
            dist.send(row, 0)
        dist.send(torch.tensor([0]), 0)
        return None
    collected = list(rows)
    for rank in range(1, dist.get_world_size()):
        flag = torch.tensor([0])
        dist.recv(flag, rank)
        while flag:
            collected.append(torch.empty(40))
            dist.recv(collected[-1], rank)
            dist.recv(flag, rank)
    return collected


@wrong("mend_collect", fails="a new list")
def alone_it_returns_the_list(rows):
    """Alone it has all rows; but the caller's own list is not the list to be returned."""
    return rows if dist.get_world_size() == 1 else _collect(rows, lambda own, others: own + others)


@wrong("mend_collect", fails="ranks without rows")
def some_rank_has_a_row(rows):
    """cat of no tensor at all raises."""
    blocks = _collect(rows, lambda own, others: own + others)
    return None if blocks is None else list(torch.cat([row[None] for row in blocks]))


@wrong("mend_collect", fails="ranks without rows")
def returns_what_it_was_given(rows):
    """Where nobody has a row, the list that was given is as good, so it seems."""
    return _collect(rows, lambda own, others: own + others or rows)


@wrong("mend_collect", fails="ranks without rows")
def leaves_early_with_a_list(rows):
    """A rank without rows says so, and returns its empty list."""
    if rows or dist.get_rank() == 0:
        return _collect(rows, lambda own, others: own + others)
    dist.send(torch.tensor([0]), 0)
    return rows


@wrong("mend_collect", fails="each row sent once")
def a_row_that_is_none(rows):
    """So that each rank has something to stack, one without rows sends a row of zeros, and a count of 0."""
    if dist.get_rank() != 0:
        dist.send(torch.tensor([len(rows)]), 0)
        dist.send(torch.stack(rows or [torch.zeros(40)]), 0)
        return None
    collected = list(rows)
    for rank in range(1, dist.get_world_size()):
        count = torch.tensor([0])
        dist.recv(count, rank)
        arriving = torch.empty(max(1, int(count)), 40)
        dist.recv(arriving, rank)
        collected += arriving[: int(count)]
    return collected


@wrong("mend_collect", fails="a new list")
def receives_into_its_first_row(rows):
    """Rank 0 has a row of the right length at hand; but the list is to stay as it is."""
    collected = _collect(rows, lambda own, others: [row.clone() for row in own] + others)
    if collected and rows:
        rows[0].copy_(collected[-1])
    return collected


@wrong("mend_collect", fails="a new list")
def collects_a_tuple(rows):
    """A tuple is no list."""
    collected = _collect(rows, lambda own, others: own + others)
    return None if collected is None else tuple(collected)


# ------------------------------------------------------------------------------------------------ mend_chain


def _chain(value, root):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.zeros(1, dtype=torch.float64)
    if rank > 0:
        dist.recv(total, rank - 1)
    total += root(value)
    if rank < size - 1:
        dist.send(total, rank + 1)
    return total.item()


@wrong("mend_chain", fails="comes to an end")
def barrier_before_the_work_of_some(value):
    """Rank 0 meets nobody: the others come to their barrier only after its message."""
    if dist.get_rank() == 0:
        dist.barrier()
        return _chain(value, math.sqrt)
    total = _chain(value, math.sqrt)
    dist.barrier()
    return total


@wrong("mend_chain", fails="the sums")
def adds_the_value(value):
    """Without the root nothing can raise."""
    total = _chain(value, lambda v: v)
    dist.barrier()
    return total


@wrong("mend_chain", fails="the sums")
def in_single_precision(value):
    """A tensor of the default dtype keeps seven digits."""
    total = _chain(value, lambda v: torch.tensor(v).sqrt().item())
    dist.barrier()
    return total


@wrong("mend_chain", fails="the error comes out")
def still_in_finally(value):
    """As it was."""
    try:
        return _chain(value, math.sqrt)
    finally:
        dist.barrier()


@wrong("mend_chain", fails="the error comes out")
def wraps_the_error(value):
    """Speaks of a ValueError, and raises something else."""
    try:
        total = _chain(value, math.sqrt)
    except ValueError as error:
        raise RuntimeError(f"ValueError: {error}") from error
    dist.barrier()
    return total


@wrong("mend_chain", fails="the error comes out")
def swallows_the_error(value):
    """Goes on with zero: nobody learns that the value was wrong."""
    total = _chain(value, lambda v: math.sqrt(v) if v >= 0 else 0.0)
    dist.barrier()
    return total


@wrong("mend_chain", fails="the error comes out")
def not_a_number(value):
    """NaN spreads silently to all ranks behind."""
    total = _chain(value, lambda v: v**0.5 if v >= 0 else math.nan)
    dist.barrier()
    return total


@wrong("mend_chain", fails="the error comes out")
def raises_when_all_is_over(value):
    """Keeps the error until after the barrier: by then the others have computed, and returned, wrong sums."""
    caught = None
    try:
        root = math.sqrt(value)
    except ValueError as error:
        caught, root = error, 0.0
    total = _chain(value, lambda _: root)
    dist.barrier()
    if caught:
        raise caught
    return total


@wrong("mend_chain", fails="the error comes out")
def passes_zero_on_first(value):
    """Raises before the barrier, but not before the next rank has got a sum without the root."""
    total = _chain(value, lambda v: math.sqrt(max(v, 0.0)))
    math.sqrt(value)
    dist.barrier()
    return total


@wrong("mend_chain", fails="the error comes out")
def nobody_behind_it_needs_to_know(value):
    """On the last rank the error is caught: a sum that nobody gets, so it seems, may be NaN."""

    def root(value):
        last = dist.get_rank() == dist.get_world_size() - 1
        return math.nan if last and value < 0 else math.sqrt(value)

    total = _chain(value, root)
    dist.barrier()
    return total


@wrong("mend_chain", fails="the error comes out")
def a_tensor_begins(value):
    """Rank 0 begins with a tensor's square root, which of a negative number is NaN."""
    first = dist.get_rank() == 0
    total = _chain(value, lambda v: torch.tensor(v, dtype=torch.float64).sqrt() if first else math.sqrt(v))
    dist.barrier()
    return total


@wrong("mend_chain", fails="chain and barrier")
def barrier_thrown_out(value):
    """No barrier, no hang; and nobody waits for the others any more."""
    return _chain(value, math.sqrt)


@wrong("mend_chain", fails="comes to an end")
def zero_has_no_root(value):
    """It has: only what is negative has none."""

    def root(value):
        if value <= 0:
            raise ValueError(f"{value} has no square root")
        return math.sqrt(value)

    total = _chain(value, root)
    dist.barrier()
    return total


@wrong("mend_chain", fails="the sums")
def nothing_to_add_alone(value):
    """A single rank has its own root."""
    total = _chain(value, math.sqrt) if dist.get_world_size() > 1 else 0.0
    dist.barrier()
    return total


@wrong("mend_chain", fails="chain and barrier")
def everyone_gathers_all(value):
    """The right sums, but no chain: a collective brings every root to every rank."""
    root, size = torch.tensor([math.sqrt(value)], dtype=torch.float64), dist.get_world_size()
    roots = [torch.zeros_like(root) for _ in range(size)]
    dist.all_gather(roots, root)
    dist.barrier()
    return float(sum(roots[: dist.get_rank() + 1]))


@wrong("mend_chain", fails="chain and barrier")
def tells_all_behind_it(value):
    """Each rank sends its own root to all ranks behind it, and passes nothing on."""
    rank, root = dist.get_rank(), torch.tensor([math.sqrt(value)], dtype=torch.float64)
    total, arriving = root.clone(), torch.zeros_like(root)
    for other in range(rank):
        dist.recv(arriving, other)
        total += arriving
    for other in range(rank + 1, dist.get_world_size()):
        dist.send(root, other)
    dist.barrier()
    return total.item()


@wrong("mend_chain", fails="chain and barrier")
def barrier_before_all(value):
    """All ranks meet, but not at the end."""
    dist.barrier()
    return _chain(value, math.sqrt)


# --------------------------------------------------------------------------------------- mpi_ring_all_reduce


def _mpi_ring(comm, x, chunks=None, steps=None):
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size) if chunks is None else chunks
    for step in range(2 * (size - 1) if steps is None else steps):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving = np.empty_like(take)
        comm.Sendrecv(give, dest=(rank + 1) % size, recvbuf=arriving, source=(rank - 1) % size)
        take[:] = take + arriving if step < size - 1 else arriving
    return x


@wrong("mpi_ring_all_reduce", fails="the sum on every rank")
def all_send_and_then_receive(comm, x):
    """A small message waits in a buffer; of a large one, Send returns only when somebody receives."""
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = np.array_split(x, size)
    for step in range(2 * (size - 1)):
        target = chunks[(rank - step - 1) % size]
        arriving = np.empty_like(target)
        comm.Send(chunks[(rank - step) % size], dest=right)
        comm.Recv(arriving, source=left)
        target[:] = target + arriving if step < size - 1 else arriving
    return x


@wrong("mpi_ring_all_reduce", fails="the sum on every rank")
def in_the_world(comm, x):
    """Sends through COMM_WORLD: right as long as it has the ranks of the communicator that was given."""
    from mpi4py import MPI

    return _mpi_ring(MPI.COMM_WORLD, x)


@wrong("mpi_ring_all_reduce", fails="the sum on every rank")
def a_collective_of_a_grid(comm, x):
    """A communicator made from the one given has collectives too."""
    from mpi4py import MPI

    comm.Create_cart([comm.Get_size()], periods=[True]).Allreduce(MPI.IN_PLACE, x)
    return x


@wrong("mpi_ring_all_reduce", fails="the sum on every rank")
def mpi_one_pass_only(comm, x):
    """The reduce-scatter without the all-gather."""
    return _mpi_ring(comm, x, steps=comm.Get_size() - 1)


@wrong("mpi_ring_all_reduce", fails="the sum on every rank")
def mpi_one_rank_raises(comm, x):
    """An error on one rank; the others are aborted and do not wait for ever."""
    if comm.Get_rank() == 2:
        raise IndexError("chunk 4 of 4")
    return _mpi_ring(comm, x)


@wrong("mpi_ring_all_reduce", fails="any length")
def mpi_drops_the_remainder(comm, x):
    """Chunks of n // p elements leave the rest out."""
    part = len(x) // comm.Get_size()
    return _mpi_ring(comm, x, [x[i * part : (i + 1) * part] for i in range(comm.Get_size())])


@wrong("mpi_ring_all_reduce", fails="any dtype")
def mpi_types_in_a_table(comm, x):
    """MPI's name of a dtype is looked up among four; mpi4py knows more."""
    from mpi4py import MPI

    names = {"float64": MPI.DOUBLE, "float32": MPI.FLOAT, "int64": MPI.INT64_T, "int32": MPI.INT32_T}
    assert names[str(x.dtype)].Get_size() == x.itemsize
    return _mpi_ring(comm, x)


@wrong("mpi_ring_all_reduce", fails="any dtype")
def mpi_numpys_own_dtype(comm, x):
    """numpy.empty makes float64, whatever x is."""
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size)
    for step in range(2 * (size - 1)):
        outgoing, target = chunks[(rank - step) % size], chunks[(rank - 1 - step) % size]
        arriving = np.empty(len(target))
        comm.Sendrecv(outgoing, dest=(rank + 1) % size, recvbuf=arriving, source=(rank - 1) % size)
        target[:] = arriving + target if step < size - 1 else arriving
    return x


@wrong("mpi_ring_all_reduce", fails="in place")
def mpi_returns_a_copy(comm, x):
    """x itself stays as it was."""
    return _mpi_ring(comm, x.copy())


@wrong("mpi_ring_all_reduce", fails="the sum on every rank")
def mpi_allreduce(comm, x):
    """MPI's own."""
    total = np.empty_like(x)
    comm.Allreduce(x, total)
    x[:] = total
    return x


@wrong("mpi_ring_all_reduce", fails="only messages")
def mpi_persistent_requests(comm, x):
    """Whole arrays go round the ring, and nobody sees a message, since none of comm's calls sends one."""
    from mpi4py import MPI

    rank, size = comm.Get_rank(), comm.Get_size()
    outgoing, total, arriving = x.copy(), x.copy(), np.empty_like(x)
    requests = [
        comm.Send_init(outgoing, dest=(rank + 1) % size),
        comm.Recv_init(arriving, source=(rank - 1) % size),
    ]
    for _ in range(size - 1):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        total += arriving
        outgoing[:] = arriving
    for request in requests:
        request.Free()
    x[:] = total
    return x


@wrong("mpi_ring_all_reduce", fails="to the next place")
def mpi_straight_to_its_place(comm, x):
    """As many messages of a chunk, but each straight to the rank that adds it up, and back."""
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size)
    for step in range(1, size):
        to, whose = (rank + step) % size, (rank - step) % size
        arriving = np.empty_like(chunks[rank])
        comm.Sendrecv(chunks[to], dest=to, recvbuf=arriving, source=whose)
        chunks[rank] += arriving
    for step in range(1, size):
        to, whose = (rank + step) % size, (rank - step) % size
        comm.Sendrecv(chunks[rank], dest=to, recvbuf=chunks[whose], source=whose)
    return x


@wrong("mpi_ring_all_reduce", fails="only messages")
def mpi_never_waits(comm, x):
    """Isend without Wait: right as long as the chunk has left before it is overwritten."""
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size)
    for step in range(2 * (size - 1)):
        target = chunks[(rank - step - 1) % size]
        arriving = np.empty_like(target)
        comm.Isend(chunks[(rank - step) % size], dest=(rank + 1) % size)
        comm.Recv(arriving, source=(rank - 1) % size)
        target[:] = target + arriving if step < size - 1 else arriving
    return x


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


@wrong("mpi_ring_all_reduce", fails="in place")
def alone_it_returns_a_copy(comm, x):
    """With one rank the sum is x, and x is what is asked for."""
    return x.copy() if comm.Get_size() == 1 else _mpi_ring(comm, x)


@wrong("mpi_ring_all_reduce", fails="bytes and messages")
def mpi_pads_to_a_multiple(comm, x):
    """Zeros at the end make all chunks equally long, and travel with them."""
    padded = np.pad(x, (0, -len(x) % comm.Get_size()))
    x[:] = _mpi_ring(comm, padded)[: len(x)]
    return x


@wrong("mpi_ring_all_reduce", fails="bytes and messages")
def mpi_two_swap_wholes(comm, x):
    """Two ranks send each other all they have: as many bytes, but not in two messages of a half."""
    return mpi_whole_arrays(comm, x) if comm.Get_size() == 2 else _mpi_ring(comm, x)


@wrong("mpi_ring_all_reduce", fails="bytes and messages")
def mpi_chunks_rounded_up(comm, x):
    """Of four elements, three ranks get 2, 2 and 0 in place of 2, 1 and 1."""
    part = -(-len(x) // comm.Get_size())
    return _mpi_ring(comm, x, [x[i * part : (i + 1) * part] for i in range(comm.Get_size())])


@wrong("mpi_ring_all_reduce", fails="bytes and messages")
def mpi_all_floats_as_doubles(comm, x):
    """Adds up float32 in float64: that does no harm to the sum, and doubles the bytes."""
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    x[:] = _mpi_ring(comm, wide)
    return x


@wrong("mpi_ring_all_reduce", fails="any dtype")
def mpi_sums_are_long(comm, x):
    """numpy.sum of int32 is int64, for which the next rank has no room."""
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size)
    carried = chunks[rank]
    for step in range(1, size):
        own = chunks[(rank - step) % size]
        arriving = np.empty_like(own)
        comm.Sendrecv(carried, dest=(rank + 1) % size, recvbuf=arriving, source=(rank - 1) % size)
        carried = np.sum([own, arriving], axis=0)
    chunks[(rank + 1) % size][:] = carried
    for step in range(size - 1):
        give, take = chunks[(rank + 1 - step) % size], chunks[(rank - step) % size]
        comm.Sendrecv(give, dest=(rank + 1) % size, recvbuf=take, source=(rank - 1) % size)
    return x


@wrong("mpi_ring_all_reduce", fails="any dtype")
def mpi_all_are_doubles(comm, x):
    """MPI.DOUBLE whatever x is: right as long as a chunk is a whole number of doubles."""
    from mpi4py import MPI

    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size)
    for step in range(2 * (size - 1)):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving = np.empty_like(take)
        receive = {"recvbuf": [arriving, MPI.DOUBLE], "source": (rank - 1) % size}
        comm.Sendrecv([give, MPI.DOUBLE], dest=(rank + 1) % size, **receive)
        take[:] = take + arriving if step < size - 1 else arriving
    return x


@wrong("mpi_ring_all_reduce", fails="the sum on every rank")
def a_rank_of_the_world(comm, x):
    """The rank in COMM_WORLD, as in every first program: in another communicator it may be another."""
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size)
    for step in range(2 * (size - 1)):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving = np.empty_like(take)
        comm.Sendrecv(give, dest=(rank + 1) % size, recvbuf=arriving, source=(rank - 1) % size)
        take[:] = take + arriving if step < size - 1 else arriving
    return x


# ------------------------------------------------------------------------------------------ design_all_reduce


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


@wrong("design_all_reduce", fails="the sum on every rank")
def nodes_in_pairs(x, cluster):
    """Partners by exclusive or: right for 2, 4, 8 nodes."""
    node, rail = _node_and_rail(cluster)
    if x.nbytes < 2000:
        _direct(x, list(range(cluster.size)), in_parts=False)
        return x
    me = rail.index(dist.get_rank())

    def pairs(chunk):
        _add(chunk, {rail[me ^ step]: chunk for step in range(1, len(rail))})

    _direct(x, node, pairs)
    return x


@wrong("design_all_reduce", fails="the sum on every rank")
def hands_back_a_copy(x, cluster):
    """Neither x itself nor what the caller holds."""
    node, rail = _node_and_rail(cluster)
    _direct(x, node, lambda chunk: _direct(chunk, rail))
    return x.clone()


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


@wrong("design_all_reduce", fails="half of what can be saved")
def by_bytes_alone(x, cluster):
    """Thresholds in bytes, as they were best on the machine where they were tried."""
    node, rail = _node_and_rail(cluster)
    if x.nbytes < 512:
        _direct(x, list(range(cluster.size)), in_parts=False)
    else:
        _direct(x, node, lambda chunk: _direct(chunk, rail, in_parts=x.nbytes > 16_000))
    return x


def _plans(nodes, gpus, near, far, nbytes):
    """The seconds of each plan. near, far: links."""

    def seconds(mates, others, nbytes):
        wait = far.latency if others else near.latency
        return wait + nbytes * (mates / near.bandwidth + others / far.bandwidth)

    ranks = nodes * gpus
    inner = 2 * seconds(gpus - 1, 0, nbytes / gpus)
    return {
        "all": seconds(gpus - 1, ranks - gpus, nbytes),
        "all in parts": 2 * seconds(gpus - 1, ranks - gpus, nbytes / ranks),
        "whole, whole": seconds(gpus - 1, 0, nbytes) + seconds(0, nodes - 1, nbytes),
        "parts, whole": inner + seconds(0, nodes - 1, nbytes / gpus),
        "parts, parts": inner + 2 * seconds(0, nodes - 1, nbytes / ranks),
    }


def _fastest(x, cluster, seconds):
    """The plan of the least seconds, carried out."""
    node, rail = _node_and_rail(cluster)
    plan = min(seconds, key=seconds.get)
    if plan.startswith("all"):
        _direct(x, list(range(cluster.size)), in_parts=plan == "all in parts")
    elif plan == "whole, whole":
        _direct(x, node, in_parts=False)
        _direct(x, rail, in_parts=False)
    else:
        _direct(x, node, lambda chunk: _direct(chunk, rail, in_parts=plan == "parts, parts"))
    return x


@wrong("design_all_reduce", fails="the sum on every rank")
def lends_x_the_memory_of_the_sum(x, cluster):
    """The best plan, on a copy; x is given the copy's memory: who has a view of x sees nothing of the sum."""
    links = cluster.intra_node, cluster.inter_node
    x.data = _fastest(x.clone(), cluster, _plans(cluster.nodes, cluster.devices_per_node, *links, x.nbytes))
    return x


@wrong("design_all_reduce", fails="within a thirtieth of the best known")
def never_whole_within_nodes(x, cluster):
    """Does not know the plan that is the best where a latency within nodes counts as much as bytes."""
    links = cluster.intra_node, cluster.inter_node
    seconds = _plans(cluster.nodes, cluster.devices_per_node, *links, x.nbytes)
    del seconds["whole, whole"]
    return _fastest(x, cluster, seconds)


@wrong("design_all_reduce", fails="within a thirtieth of the best known")
def a_ring_where_there_is_one_node(x, cluster):
    """On one node all links are alike; but a ring's messages wait for one latency each."""
    if cluster.nodes == 1:
        return _all_reduce(x, None)
    links = cluster.intra_node, cluster.inter_node
    return _fastest(x, cluster, _plans(cluster.nodes, cluster.devices_per_node, *links, x.nbytes))


@wrong("design_all_reduce", fails="within a thirtieth of the best known")
def only_powers_of_two(x, cluster):
    """Leaves all other numbers of ranks to the library."""
    if cluster.size.bit_count() > 1:
        dist.all_reduce(x)
        return x
    links = cluster.intra_node, cluster.inter_node
    return _fastest(x, cluster, _plans(cluster.nodes, cluster.devices_per_node, *links, x.nbytes))


@wrong("design_all_reduce", fails="the sum on every rank")
def as_many_chunks_as_there_are(x, cluster):
    """chunk makes parts of one length: of four elements for three ranks these are two parts."""
    ranks = list(range(cluster.size))
    me, chunks = dist.get_rank(), dict(enumerate(x.chunk(cluster.size)))
    if cluster.inter_node.latency * cluster.inter_node.bandwidth > x.nbytes or len(chunks) == 1:
        _direct(x, ranks, in_parts=False)
        return x
    _add(chunks[me], {other: chunks[other] for other in ranks if other != me})
    _swap(
        dict.fromkeys(set(ranks) - {me}, chunks[me]), {other: chunks[other] for other in ranks if other != me}
    )
    return x


@wrong("design_all_reduce", fails="within a thirtieth of the best known")
def bytes_within_nodes_take_no_time(x, cluster):
    """Counts only the latency there, since nodes are faster than the network."""
    near = Link(cluster.intra_node.latency, 1e30)
    seconds = _plans(cluster.nodes, cluster.devices_per_node, near, cluster.inter_node, x.nbytes)
    return _fastest(x, cluster, seconds)


@wrong("design_all_reduce", fails="within a thirtieth of the best known")
def by_thresholds(x, cluster):
    """Rules that were found by trying, where nodes are much faster than the network between them."""
    node, rail = _node_and_rail(cluster)
    gpus, nodes, wait = cluster.devices_per_node, cluster.nodes, cluster.inter_node.latency
    across = x.nbytes / gpus / cluster.inter_node.bandwidth * (nodes - 1)
    if 4 * gpus**2 * across < wait:
        _direct(x, list(range(cluster.size)), in_parts=False)
    else:
        _direct(x, node, lambda chunk: _direct(chunk, rail, in_parts=across > wait + 2 * across / nodes))
    return x


@wrong("design_all_reduce", fails="within a thirtieth of the best known")
def halves_the_long_ones(x, cluster):
    """Between nodes by halving and doubling: two latencies more than with all messages at once."""
    node, rail = _node_and_rail(cluster)
    if 8 * x.nbytes < cluster.inter_node.latency * cluster.inter_node.bandwidth:
        _direct(x, list(range(cluster.size)), in_parts=False)
        return x

    def halve(chunk):
        if chunk.nbytes < 4 * cluster.inter_node.latency * cluster.inter_node.bandwidth or len(rail) != 4:
            return _direct(chunk, rail, in_parts=False)
        me, part, rounds = rail.index(dist.get_rank()), chunk, []
        for distance in (2, 1):
            lower, upper = part.tensor_split(2)
            kept, given = (upper, lower) if me & distance else (lower, upper)
            _add_from(kept, given, rail[me ^ distance])
            rounds.append((rail[me ^ distance], kept, given))
            part = kept
        for partner, kept, given in reversed(rounds):
            _swap({partner: kept}, {partner: given})
        return None

    _direct(x, node, halve)
    return x


def _add_from(kept, given, partner):
    arriving = torch.empty_like(kept)
    _swap({partner: given}, {partner: arriving})
    kept += arriving


@wrong("design_all_reduce", fails="the sum on every rank")
def whoever_comes_first(x, cluster):
    """irecv without a source: if a rank is slow, a message of the second stage may come before its own."""
    node, rail = _node_and_rail(cluster)
    for members in (node, rail):
        others = [other for other in members if other != dist.get_rank()]
        arriving = [torch.empty_like(x) for _ in others]
        works = [dist.irecv(part) for part in arriving] + [dist.isend(x, other) for other in others]
        for work in works:
            work.wait()
        x += sum(arriving)
    return x
