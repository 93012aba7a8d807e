"""Mistakes that people make in unit 07."""

import math

import numpy as np
import torch
import torch.distributed as dist

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


@wrong("scatter_from", fails="any root, any number of ranks")
def root_is_always_rank_0(x, parts=None, src=0, group=None):
    """Ignores src."""
    return _scatter(x, parts, 0, group)


@wrong("scatter_from", fails="any tensor")
def buffer_of_float32(x, parts=None, src=0, group=None):
    """Sends and receives in PyTorch's default dtype."""
    if parts is not None:
        parts = [part.float() for part in parts]
    arriving = torch.empty(x.shape)
    _scatter(arriving, parts, _root(group, src), group)
    return x.copy_(arriving)


@wrong("scatter_from", fails="on a subgroup")
def alone_by_the_global_rank(x, parts=None, src=0, group=None):
    """Alone it takes parts[src], though src is no place; where there is no group, nobody sees it."""
    if dist.get_world_size(group) == 1:
        return x.copy_(parts[src])
    return _scatter(x, parts, _root(group, src), group)


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


@wrong("gather_to", fails="every part on the root")
def returns_parts_everywhere(x, parts=None, dst=0, group=None):
    """The other ranks return their own tensor."""
    result = _gather(x, parts, _root(group, dst), group)
    return x if result is None else result


@wrong("gather_to", fails="in place")
def a_list_of_its_own(x, parts=None, dst=0, group=None):
    """Returns what has arrived, and leaves parts as they were."""
    if parts is not None:
        parts = [part.clone() for part in parts]
    return _gather(x, parts, _root(group, dst), group)


@wrong("gather_to", fails="any tensor")
def sends_x_with_gaps(x, parts=None, dst=0, group=None):
    """A message needs a contiguous tensor."""
    if parts is None:
        dist.send(x, dst, group=group)
        return None
    return _gather(x, parts, _root(group, dst), group)


@wrong("gather_to", fails="on a subgroup")
def dst_taken_for_a_place(x, parts=None, dst=0, group=None):
    """A global rank is no place in the group."""
    return _gather(x, parts, dst, group)


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


@wrong("broadcast_tree", fails="any root, any number of ranks")
def root_0_only(x, src=0, group=None):
    """Ignores src."""
    return _tree(x, 0, group)


@wrong("broadcast_tree", fails="any root, any number of ranks")
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


@wrong("broadcast_tree", fails="any tensor")
def through_float64(x, src=0, group=None):
    """Large integers lose their last digits."""
    data = x.double()
    _tree(data, _root(group, src), group)
    return x.copy_(data)


@wrong("broadcast_tree", fails="in place")
def broadcasts_a_copy(x, src=0, group=None):
    """x itself stays as it was."""
    return _tree(x.clone(), _root(group, src), group)


@wrong("broadcast_tree", fails="on a subgroup")
def ranks_of_the_world(x, src=0, group=None):
    """Takes rank and size from the default group."""
    return _tree(x, src, None)


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


@wrong("reduce_tree", fails="any root, any number of ranks")
def sum_on_rank_0(x, dst=0, group=None):
    """Ignores dst."""
    total = _sum_tree(x.clone(), 0, group)
    return x.copy_(total) if dist.get_rank(group) == 0 else x


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


@wrong("reduce_tree", fails="any root, any number of ranks")
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


@wrong("reduce_tree", fails="in place")
def adds_into_x_and_returns_it(x, dst=0, group=None):
    """contiguous() is x itself where it can be: ranks in the middle of the tree change their x."""
    total = _sum_tree(x.contiguous(), _root(group, dst), group)
    return x.copy_(total) if dist.get_rank() == dst else x


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


@wrong("ring_reduce_scatter", fails="any tensor")
def only_where_p_divides_n(x, group=None):
    """view(p, -1) needs a length that divides."""
    size = dist.get_world_size(group)
    chunks = list(x.clone(memory_format=torch.contiguous_format).view(size, -1))
    return _reduce_scatter(chunks, group)[dist.get_rank(group)].clone()


@wrong("ring_reduce_scatter", fails="bytes and messages")
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


@wrong("ring_all_gather", fails="every chunk on every rank")
def forgets_the_last_chunk(x, group=None):
    """p - 2 steps."""
    data = x.contiguous()
    size = dist.get_world_size(group)
    _all_gather(torch.tensor_split(data.view(-1), size), group, steps=size - 2)
    return x.copy_(data)


@wrong("ring_all_gather", fails="in place")
def leaves_x_alone(x, group=None):
    """Gathers into a copy, and returns that."""
    data = x.clone(memory_format=torch.contiguous_format)
    _all_gather(torch.tensor_split(data.view(-1), dist.get_world_size(group)), group)
    return data


@wrong("ring_all_gather", fails="any tensor")
def flattens_and_forgets(x, group=None):
    """x.flatten() of a tensor with gaps is a copy."""
    _all_gather(torch.tensor_split(x.flatten(), dist.get_world_size(group)), group)
    return x


@wrong("ring_all_gather", fails="bytes and messages")
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


# -------------------------------------------------------------------------------------------- ring_all_reduce


def _all_reduce(data, group):
    chunks = torch.tensor_split(data.view(-1), dist.get_world_size(group))
    _reduce_scatter(chunks, group)
    _all_gather(chunks, group)
    return data


@wrong("ring_all_reduce", fails="the sum on every rank")
def gathers_the_wrong_chunk(x, group=None):
    """After this reduce-scatter rank r has chunk r + 1, and passes on chunk r."""
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), dist.get_world_size(group))
    _reduce_scatter(chunks, group, shift=0)
    _all_gather(chunks, group)
    return x.copy_(data)


@wrong("ring_all_reduce", fails="any tensor")
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


@wrong("ring_all_reduce", fails="any tensor")
def sums_in_float64(x, group=None):
    """Accumulates in the wrong dtype: integers above 2**53 are rounded."""
    return x.copy_(_all_reduce(x.contiguous().double(), group))


@wrong("ring_all_reduce", fails="on a subgroup")
def the_whole_world(x, group=None):
    """Ignores the group."""
    return x.copy_(_all_reduce(x.contiguous(), None))


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
def doubles_with_anybody(x, group=None):
    """recv without a source: if a rank is slow, the next round's message comes before this round's."""

    def swapped(data, partner, group):
        arriving = torch.empty_like(data)
        sending = dist.isend(data, group_dst=partner, group=group)
        dist.recv(arriving, group=group)
        sending.wait()
        return arriving

    return _doubling(x, group, swapped=swapped)


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


@wrong("halving_doubling_all_reduce", fails="any tensor")
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


@wrong("halving_doubling_all_reduce", fails="in place")
def works_on_a_copy(x, group=None):
    """x itself stays as it was."""
    return _folded(x.clone(memory_format=torch.contiguous_format), group, _halving_doubling)


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


@wrong("hierarchical_all_reduce", fails="any number of ranks")
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


@wrong("hierarchical_all_reduce", fails="in place")
def sum_in_a_new_tensor(x, gpus_per_node, group=None):
    """x itself stays as it was."""
    return _hierarchy(x.clone(memory_format=torch.contiguous_format), gpus_per_node, group)


@wrong("hierarchical_all_reduce", fails="any tensor")
def flat_copy_lost(x, gpus_per_node, group=None):
    """Works on x.flatten(), which is a copy if there are gaps."""
    flat = x.view(-1) if x.is_contiguous() else x.flatten()
    _hierarchy(flat, gpus_per_node, group)
    return x


@wrong("hierarchical_all_reduce", fails="bytes and messages")
def one_big_ring(x, gpus_per_node, group=None):
    """A ring over all ranks crosses between nodes with all that it has: 2 (p - 1) / p of the tensor."""
    return x.copy_(_all_reduce(x.contiguous(), group))


# ---------------------------------------------------------------------------------------- all_to_all_pairwise


def _exchange(outputs, inputs, group, steps):
    rank, size = _place(group)
    for step in steps:
        to, source = (rank + step) % size, (rank - step) % size
        arriving = outputs[source].contiguous()
        _both(inputs[to].contiguous(), to, arriving, source, group)
        outputs[source].copy_(arriving)


@wrong("all_to_all_pairwise", fails="any number of ranks")
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
def forgets_its_own(outputs, inputs, group=None):
    """What a rank has for itself must be copied too."""
    _exchange(outputs, inputs, group, range(1, dist.get_world_size(group)))
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


@wrong("all_to_all_pairwise", fails="any tensor")
def parts_of_one_length(outputs, inputs, group=None):
    """Stacks the parts, which need not be equally long."""
    stacked = torch.stack([part.contiguous() for part in inputs])
    rank, size = _place(group)
    outputs[rank].copy_(stacked[rank])
    _exchange(outputs, list(stacked), group, range(1, size))
    return outputs


@wrong("all_to_all_pairwise", fails="any tensor")
def parts_with_gaps(outputs, inputs, group=None):
    """Sends and receives straight from and into tensors that are not contiguous."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        _both(inputs[to], to, outputs[source], source, group)
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


@wrong("predict_time", fails="any number of ranks")
def a_logarithm_with_a_fraction(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """There is no half round."""
    if algorithm == "halving_doubling":
        return 2 * math.log2(ranks) * alpha + (ranks - 1) / ranks * nbytes * (2 * beta + gamma)
    return _right_time(algorithm, nbytes, ranks, alpha, beta, gamma)


@wrong("predict_time", fails="reduction")
def additions_are_free(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Leaves gamma out."""
    return _right_time(algorithm, nbytes, ranks, alpha, beta)


@wrong("predict_time", fails="reduction")
def copies_are_additions(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    """Pays gamma for every byte that arrives, also for those that are only copied."""
    return _right_time(algorithm, nbytes, ranks, alpha, beta + gamma)


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


@wrong("fit_alpha_beta", fails="noisy samples")
def ordinary_least_squares(samples):
    """The errors of the longest messages, in seconds, decide about alpha."""
    return _weighted(samples, [1.0] * len(samples))


@wrong("fit_alpha_beta", fails="samples unchanged")
def sorts_the_samples(samples):
    """list.sort works in place."""
    samples.sort()
    return _weighted(samples, [1 / t for _, t in samples])


@wrong("fit_alpha_beta", fails="exact samples")
def no_less_than_nothing(samples):
    """A latency below 0 makes no sense; but the nearest line may have one."""
    alpha, beta = _weighted(samples, [1 / t for _, t in samples])
    return max(alpha, 0.0), beta


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


@wrong("mend_swap", fails="the partner's tensor")
def still_receives_first(x):
    """As it was."""
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    dist.recv(arriving, partner)
    dist.send(x, partner)
    return arriving


@wrong("mend_swap", fails="the partner's tensor")
def now_both_send_first(x):
    """A circle of sends instead of a circle of receives."""
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    dist.send(x, partner)
    dist.recv(arriving, partner)
    return arriving


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


@wrong("mend_swap", fails="the partner's tensor")
def gathers_everything(x):
    """An all-gather of which one part is needed."""
    everyone = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, x)
    return everyone[dist.get_rank() ^ 1]


# ------------------------------------------------------------------------------------------------ mend_shift


@wrong("mend_shift", fails="the left neighbour's tensor")
def still_all_send_first(x):
    """As it was."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    dist.send(x, (rank + 1) % size)
    dist.recv(arriving, (rank - 1) % size)
    return arriving


@wrong("mend_shift", fails="the left neighbour's tensor")
def waits_before_it_receives(x):
    """isend(...).wait() is send."""
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    dist.isend(x, (rank + 1) % size).wait()
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


# ----------------------------------------------------------------------------------------------- mend_report


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
def everyone_reports(loss):
    """Every rank returns the mean."""
    total = torch.tensor(loss)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


# -------------------------------------------------------------------------------------------- mend_grid_sums


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


def _all_groups(columns):
    rows, verticals = _lines(columns)
    return [dist.new_group(line) for line in rows], [dist.new_group(line) for line in verticals]


@wrong("mend_grid_sums", fails="row and column sums")
def columns_before_rows(x, columns):
    """The pair the wrong way round."""
    rows, verticals = _all_groups(columns)
    rank = dist.get_rank()
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=rows[rank // columns])
    dist.all_reduce(column_sum, group=verticals[rank % columns])
    return column_sum, row_sum


@wrong("mend_grid_sums", fails="row and column sums")
def sums_of_sums(x, columns):
    """The column's sum of row sums is the sum over the whole grid."""
    rows, verticals = _all_groups(columns)
    rank = dist.get_rank()
    total = x.clone()
    dist.all_reduce(total, group=rows[rank // columns])
    row_sum = total.clone()
    dist.all_reduce(total, group=verticals[rank % columns])
    return row_sum, total


@wrong("mend_grid_sums", fails="a tensor of its own")
def reduces_x_itself(x, columns):
    """all_reduce works in place: x becomes the column's sum."""
    rows, verticals = _all_groups(columns)
    rank = dist.get_rank()
    row_sum = x.clone()
    dist.all_reduce(row_sum, group=rows[rank // columns])
    dist.all_reduce(x, group=verticals[rank % columns])
    return row_sum, x.clone()


@wrong("mend_grid_sums", fails="within groups")
def gathers_the_grid(x, columns):
    """No groups at all: gathers every rank's tensor and adds up what it needs."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(everyone, x)
    row = [everyone[r] for r in range(size) if r // columns == rank // columns]
    column = [everyone[r] for r in range(size) if r % columns == rank % columns]
    return torch.stack(row).sum(0), torch.stack(column).sum(0)


# ---------------------------------------------------------------------------------------------- mend_collect


@wrong("mend_collect", fails="all rows on rank 0")
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


@wrong("mend_collect", fails="a new list")
def grows_the_list_it_was_given(rows):
    """The caller's own list is not the list to be returned."""
    return _collect(rows, lambda own, others: rows.extend(others) or rows)


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


@wrong("mend_chain", fails="the sums")
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


@wrong("mend_chain", fails="chain and barrier")
def barrier_thrown_out(value):
    """No barrier, no hang; and nobody waits for the others any more."""
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


@wrong("mpi_ring_all_reduce", fails="any length")
def mpi_drops_the_remainder(comm, x):
    """Chunks of n // p elements leave the rest out."""
    part = len(x) // comm.Get_size()
    return _mpi_ring(comm, x, [x[i * part : (i + 1) * part] for i in range(comm.Get_size())])


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


@wrong("mpi_ring_all_reduce", fails="bytes and messages")
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


@wrong("design_all_reduce", fails="within a thirtieth of the best known")
def never_whole_within_nodes(x, cluster):
    """Does not know the plan that is the best where a latency within nodes counts as much as bytes."""
    links = cluster.intra_node, cluster.inter_node
    seconds = _plans(cluster.nodes, cluster.devices_per_node, *links, x.nbytes)
    del seconds["whole, whole"]
    return _fastest(x, cluster, seconds)
