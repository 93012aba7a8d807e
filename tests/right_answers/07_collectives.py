"""Right answers to unit 07, written in other ways than the solutions."""

import math

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce

from tests.answers import right


def _members(group):
    return dist.get_process_group_ranks(group or dist.group.WORLD)


def _place(group):
    return dist.get_rank(group), dist.get_world_size(group)


def _both(outgoing, to, incoming, source, group):
    """Send and receive at once, as one batch, with global ranks."""
    members = _members(group)
    ops = [
        dist.P2POp(dist.isend, outgoing, members[to], group),
        dist.P2POp(dist.irecv, incoming, members[source], group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


# ---------------------------------------------------------------------------------- scatter_from, gather_to


@right("scatter_from")
def all_sends_at_once(x, parts=None, src=0, group=None):
    if dist.get_rank() == src:
        works = []
        for member, part in zip(_members(group), parts, strict=True):
            if member == src:
                x.copy_(part)
            else:
                works.append(dist.isend(part.contiguous(), member, group=group))
        for work in works:
            work.wait()
        return x
    buffer = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dist.recv(buffer, src, group=group)
    x[...] = buffer
    return x


@right("scatter_from")
def last_place_first(x, parts=None, src=0, group=None):
    members = _members(group)
    if parts is None:
        buffer = x.new_zeros(x.shape)
        dist.irecv(buffer, src, group=group).wait()
        return x.copy_(buffer)
    for place in reversed(range(len(members))):
        if members[place] != src:
            dist.send(parts[place].clone(memory_format=torch.contiguous_format), members[place], group=group)
    return x.copy_(parts[members.index(src)])


@right("gather_to")
def all_receives_at_once(x, parts=None, dst=0, group=None):
    if parts is None:
        dist.send(x.contiguous(), dst, group=group)
        return None
    buffers = [torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in parts]
    works = []
    for member, buffer in zip(_members(group), buffers, strict=True):
        if member == dst:
            buffer.copy_(x)
        else:
            works.append(dist.irecv(buffer, member, group=group))
    for work in works:
        work.wait()
    for part, buffer in zip(parts, buffers, strict=True):
        part.copy_(buffer)
    return parts


@right("gather_to")
def with_isend(x, parts=None, dst=0, group=None):
    members = _members(group)
    if dist.get_rank() != dst:
        dist.isend(x.clone(memory_format=torch.contiguous_format), dst, group=group).wait()
        return None
    for place in reversed(range(len(members))):
        if members[place] == dst:
            parts[place].copy_(x)
            continue
        buffer = x.new_zeros(parts[place].shape)
        dist.recv(buffer, members[place], group=group)
        parts[place].copy_(buffer)
    return parts


# ----------------------------------------------------------------------------------------------------- trees


@right("broadcast_tree")
def all_children_at_once(x, src=0, group=None):
    """The same tree; all sends begin before one is waited for, that to the largest subtree first."""
    rank, size = _place(group)
    root = _members(group).index(src)
    place = (rank - root) % size
    data, span = x.contiguous(), 1
    while span < size and not place & span:
        span *= 2
    if place:
        dist.recv(data, group_src=(place - span + root) % size, group=group)
    children = [place + (span >> step) for step in range(1, span.bit_length())]
    works = [
        dist.isend(data, group_dst=(child + root) % size, group=group) for child in children if child < size
    ]
    for work in works:
        work.wait()
    return x.copy_(data)


@right("reduce_tree")
def binomial_tree(x, dst=0, group=None):
    """In rounds of distances 1, 2, 4, ...: whose bit is set sends, and is done."""
    rank, size = _place(group)
    root = _members(group).index(dst)
    place, total, distance = (rank - root) % size, x.contiguous().clone(), 1
    while distance < size:
        if place & distance:
            dist.send(total, group_dst=(place - distance + root) % size, group=group)
            break
        if place + distance < size:
            arriving = torch.empty_like(total)
            dist.recv(arriving, group_src=(place + distance + root) % size, group=group)
            total += arriving
        distance *= 2
    return x.copy_(total) if place == 0 else x


@right("reduce_tree")
def halving_the_world(x, dst=0, group=None):
    """The upper half of the places sends to the lower half, until one is left."""
    rank, size = _place(group)
    root = _members(group).index(dst)
    place = (rank - root) % size
    total = x.contiguous().clone()
    left = size
    while left > 1:
        half = (left + 1) // 2
        if place >= half:
            dist.send(total, group_dst=(place - half + root) % size, group=group)
            break
        if place + half < left:
            arriving = torch.empty_like(total)
            dist.recv(arriving, group_src=(place + half + root) % size, group=group)
            total = total + arriving
        left = half
    return x.copy_(total) if place == 0 else x


# ----------------------------------------------------------------------------------------------------- rings


@right("ring_reduce_scatter")
def carries_a_partial_sum(x, group=None):
    """Keeps x whole and carries one partial sum round."""
    rank, size = _place(group)
    chunks = torch.tensor_split(x.reshape(-1), size)
    carried = chunks[(rank - 1) % size].clone(memory_format=torch.contiguous_format)
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        arriving = own.new_empty(len(own))
        _both(carried, (rank + 1) % size, arriving, (rank - 1) % size, group)
        carried = arriving + own
    return carried


@right("ring_reduce_scatter")
def receives_posted_first(x, group=None):
    rank, size = _place(group)
    work = [chunk.clone() for chunk in torch.tensor_split(x.flatten(), size)]
    for step in range(1, size):
        give, take = (rank - step) % size, (rank - step - 1) % size
        arriving = torch.zeros_like(work[take])
        receiving = dist.irecv(arriving, group_src=(rank - 1) % size, group=group)
        sending = dist.isend(work[give], group_dst=(rank + 1) % size, group=group)
        receiving.wait()
        sending.wait()
        work[take] = work[take] + arriving
    return work[rank]


@right("ring_all_gather")
def carries_a_chunk(x, group=None):
    rank, size = _place(group)
    chunks = [chunk.clone() for chunk in torch.tensor_split(x.flatten(), size)]
    for step in range(size - 1):
        take = (rank - 1 - step) % size
        _both(chunks[(take + 1) % size], (rank + 1) % size, chunks[take], (rank - 1) % size, group)
    x.copy_(torch.cat(chunks).view(x.shape))
    return x


@right("ring_all_gather")
def by_bounds(x, group=None):
    rank, size = _place(group)
    flat = x.reshape(-1).clone()
    bounds = np.cumsum([0, *(len(part) for part in torch.tensor_split(flat, size))]).tolist()
    current = rank
    for _ in range(size - 1):
        previous = (current - 1) % size
        sending = dist.isend(
            flat[bounds[current] : bounds[current + 1]], group_dst=(rank + 1) % size, group=group
        )
        dist.irecv(
            flat[bounds[previous] : bounds[previous + 1]], group_src=(rank - 1) % size, group=group
        ).wait()
        sending.wait()
        current = previous
    return x.copy_(flat.view_as(x))


def _ring(chunks, group):
    rank, size = _place(group)
    for step in range(2 * (size - 1)):
        adding = step < size - 1
        give, take = (rank - step) % size, (rank - step - 1) % size
        arriving = torch.empty_like(chunks[take])
        _both(chunks[give], (rank + 1) % size, arriving, (rank - 1) % size, group)
        if adding:
            chunks[take] += arriving
        else:
            chunks[take].copy_(arriving)


@right("ring_all_reduce")
def one_loop(x, group=None):
    """Both passes in one loop; the chunks end one place further than usual."""
    data = x.contiguous()
    _ring(list(torch.tensor_split(data.view(-1), dist.get_world_size(group))), group)
    return x.copy_(data)


# ------------------------------------------------------------------------------------ hypercubes, hierarchies


@right("recursive_doubling_all_reduce")
def doubling_with_a_new_tensor_a_round(x, group=None):
    """Receives first, and leaves what was sent alone."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    rounds = size.bit_length() - 1
    extra = size - 2**rounds
    total = x.clone(memory_format=torch.contiguous_format)
    if rank >= 2**rounds:
        dist.send(total, group_dst=rank - 2**rounds, group=group)
    elif rank < extra:
        total = total + _received(total, rank + 2**rounds, group)
    for bit in range(rounds if rank < 2**rounds else 0):
        arriving = torch.empty_like(total)
        receiving = dist.irecv(arriving, group_src=rank ^ (1 << bit), group=group)
        dist.isend(total, group_dst=rank ^ (1 << bit), group=group).wait()
        receiving.wait()
        total = total + arriving
    if rank >= 2**rounds:
        total = _received(total, rank - 2**rounds, group)
    elif rank < extra:
        dist.send(total, group_dst=rank + 2**rounds, group=group)
    return x.copy_(total)


def _received(like, source, group):
    arriving = torch.empty_like(like)
    dist.recv(arriving, group_src=source, group=group)
    return arriving


@right("recursive_doubling_all_reduce")
def doubling_by_recursion(x, group=None):
    """A block of 2n ranks has its sum when both its halves have theirs and have swapped them."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    core = 2 ** (len(bin(size)) - 3)
    data = x.contiguous().flatten()

    def block(width):
        if width == 1:
            return data
        mine = block(width // 2)
        other = torch.empty_like(mine)
        work = dist.isend(mine, group_dst=rank ^ (width // 2), group=group)
        dist.recv(other, group_src=rank ^ (width // 2), group=group)
        work.wait()
        return mine.add_(other)

    if rank >= core:
        dist.send(data, group_dst=rank - core, group=group)
        dist.recv(data, group_src=rank - core, group=group)
    else:
        if rank + core < size:
            data = data + _received(data, rank + core, group)
        data = block(core)
        if rank + core < size:
            dist.send(data, group_dst=rank + core, group=group)
    return x.copy_(data.view(x.shape))


@right("halving_doubling_all_reduce")
def on_chunks(x, group=None):
    """Chunks of tensor_split and ranges of them, instead of bounds."""
    rank, size = _place(group)
    core = 2 ** int(math.log2(size))
    flat = x.reshape(-1).clone()
    if rank >= core:
        dist.send(flat, group_dst=rank - core, group=group)
        dist.recv(flat, group_src=rank - core, group=group)
        return x.copy_(flat.view_as(x))
    if rank + core < size:
        extra = torch.empty_like(flat)
        dist.recv(extra, group_src=rank + core, group=group)
        flat += extra
    ends = [0, *torch.tensor([len(c) for c in torch.tensor_split(flat, core)]).cumsum(0).tolist()]
    first, count = 0, core
    while count > 1:
        count //= 2
        partner = rank ^ count
        keep = first + (count if rank & count else 0)
        give = first + (0 if rank & count else count)
        kept = flat[ends[keep] : ends[keep + count]]
        arriving = torch.empty_like(kept)
        _both(flat[ends[give] : ends[give + count]], partner, arriving, partner, group)
        kept += arriving
        first = keep
    while count < core:
        partner = rank ^ count
        other = first ^ count
        _both(
            flat[ends[first] : ends[first + count]],
            partner,
            flat[ends[other] : ends[other + count]],
            partner,
            group,
        )
        first, count = min(first, other), count * 2
    if rank + core < size:
        dist.send(flat, group_dst=rank + core, group=group)
    return x.copy_(flat.view_as(x))


@right("halving_doubling_all_reduce")
def recursively_halved(x, group=None):
    rank, size = _place(group)
    core = 1
    while 2 * core <= size:
        core *= 2
    data = x.contiguous()

    def reduce_among(part, distance):
        if not distance:
            return
        lower, upper = part[: len(part) // 2], part[len(part) // 2 :]
        mine, other = (upper, lower) if rank & distance else (lower, upper)
        arriving = torch.empty_like(mine)
        _both(other, rank ^ distance, arriving, rank ^ distance, group)
        mine += arriving
        reduce_among(mine, distance // 2)
        _both(mine, rank ^ distance, other, rank ^ distance, group)

    flat = data.view(-1)
    if rank >= core:
        dist.isend(flat, group_dst=rank - core, group=group).wait()
        dist.irecv(flat, group_src=rank - core, group=group).wait()
    else:
        guest = rank + core if rank + core < size else None
        if guest is not None:
            arriving = torch.empty_like(flat)
            dist.recv(arriving, group_src=guest, group=group)
            flat += arriving
        reduce_among(flat, core // 2)
        if guest is not None:
            dist.send(flat, group_dst=guest, group=group)
    return x.copy_(data)


def _ring_among(chunks, members, rank, group, passes=("add", "copy")):
    """Ring passes among some places of the group; chunk i belongs to members[i]."""
    me, count = members.index(rank), len(members)
    right_rank, left_rank = members[(me + 1) % count], members[me - 1]
    for name in passes:
        shift = 1 if name == "add" else 0
        for step in range(count - 1):
            give, take = (me - shift - step) % count, (me - shift - step - 1) % count
            arriving = torch.empty_like(chunks[take])
            _both(chunks[give], right_rank, arriving, left_rank, group)
            if name == "add":
                chunks[take] += arriving
            else:
                chunks[take].copy_(arriving)


@right("hierarchical_all_reduce")
def three_stages(x, gpus_per_node, group=None):
    rank, size = _place(group)
    first = rank - rank % gpus_per_node
    flat = x.flatten().clone()
    node = list(range(first, first + gpus_per_node))
    rail = [r for r in range(size) if r % gpus_per_node == rank % gpus_per_node]
    chunks = list(torch.tensor_split(flat, gpus_per_node))
    _ring_among(chunks, node, rank, group, ("add",))
    _ring_among(list(torch.tensor_split(chunks[rank % gpus_per_node], len(rail))), rail, rank, group)
    _ring_among(chunks, node, rank, group, ("copy",))
    return x.copy_(flat.view_as(x))


@right("all_to_all_pairwise")
def receive_posted_first(outputs, inputs, group=None):
    rank, size = _place(group)
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        arriving = outputs[source].new_zeros(outputs[source].shape)
        receiving = dist.irecv(arriving, group_src=source, group=group)
        dist.send(inputs[to].clone(memory_format=torch.contiguous_format), group_dst=to, group=group)
        receiving.wait()
        outputs[source].copy_(arriving)
    outputs[rank].copy_(inputs[rank])
    return outputs


@right("all_to_all_pairwise")
def all_rounds_begun_at_once(outputs, inputs, group=None):
    """All receives and sends begin, in the order of their rounds, before one is waited for."""
    rank, size = _place(group)
    outputs[rank].copy_(inputs[rank])
    sources = [(rank - step) % size for step in range(1, size)]
    arriving = [outputs[source].contiguous() for source in sources]
    works = [
        dist.irecv(part, group_src=source, group=group)
        for source, part in zip(sources, arriving, strict=True)
    ]
    for step in range(1, size):
        place = (rank + step) % size
        works.append(dist.isend(inputs[place].contiguous(), group_dst=place, group=group))
    for work in works:
        work.wait()
    for source, part in zip(sources, arriving, strict=True):
        outputs[source].copy_(part)
    return outputs


@right("ring_all_reduce")
def without_empty_messages(x, group=None):
    """Sends no chunk that has nothing in it; its receiver knows that it is empty."""
    rank, size = _place(group)
    data = x.contiguous()
    chunks = torch.tensor_split(data.view(-1), size)
    for step in range(2 * (size - 1)):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        arriving, sending = torch.empty_like(take), None
        if give.numel():
            sending = dist.isend(give, group_dst=(rank + 1) % size, group=group)
        if take.numel():
            dist.recv(arriving, group_src=(rank - 1) % size, group=group)
        if sending:
            sending.wait()
        take.copy_(take + arriving if step < size - 1 else arriving)
    return x.copy_(data)


@right("hierarchical_all_reduce")
def groups_of_its_own(x, gpus_per_node, group=None):
    """A group for the node and one for the ranks with the same place, made by their own ranks alone."""
    rank, size = _place(group)
    node, local = divmod(rank, gpus_per_node)
    members = _members(group)
    near = members[node * gpus_per_node : (node + 1) * gpus_per_node]
    mates, rail = (
        dist.new_group(ranks, use_local_synchronization=True)
        for ranks in (near, members[local::gpus_per_node])
    )
    flat = x.flatten().clone()
    chunks = list(torch.tensor_split(flat, gpus_per_node))
    pieces = list(torch.tensor_split(chunks[local], size // gpus_per_node))
    mine, theirs = list(range(len(chunks))), list(range(len(pieces)))
    _ring_among(chunks, mine, local, mates, ("add",))
    _ring_among(pieces, theirs, node, rail)
    _ring_among(chunks, mine, local, mates, ("copy",))
    return x.copy_(flat.view_as(x))


# ---------------------------------------------------------------------------------------------- cost models


@right("predict_time")
def case_by_case(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    message = alpha + nbytes * beta
    add = nbytes * gamma
    if algorithm == "master":
        return (ranks - 1) * (2 * message + add)
    if algorithm == "exchange":
        return (ranks - 1) * (message + add)
    if algorithm == "tree":
        return math.ceil(math.log2(ranks)) * (2 * message + add)
    if algorithm == "ring":
        return (ranks - 1) * (2 * alpha + nbytes / ranks * (2 * beta + gamma))
    core = 2 ** math.floor(math.log2(ranks))
    seconds = 2 * message + add if core < ranks else 0.0
    part = nbytes
    for _ in range(round(math.log2(core))):
        part /= 2
        seconds += 2 * (alpha + part * beta) + part * gamma
    return seconds


@right("predict_time")
def step_by_step(algorithm, nbytes, ranks, alpha, beta, gamma=0.0):
    seconds = 0.0
    if algorithm in ("master", "exchange"):
        for _ in range(ranks - 1):
            seconds += alpha + nbytes * (beta + gamma)
            if algorithm == "master":
                seconds += alpha + nbytes * beta
    elif algorithm == "ring":
        for _ in range(ranks - 1):
            seconds += alpha + nbytes / ranks * (beta + gamma)
            seconds += alpha + nbytes / ranks * beta
    else:
        reached = 1
        while reached * (1 if algorithm == "tree" else 2) < (ranks if algorithm == "tree" else ranks + 1):
            reached *= 2
            part = nbytes if algorithm == "tree" else nbytes / reached
            seconds += 2 * (alpha + part * beta) + part * gamma
        if algorithm != "tree" and reached < ranks:
            seconds += 2 * (alpha + nbytes * beta) + nbytes * gamma
    return seconds


@right("fit_alpha_beta")
def with_numpy(samples):
    data = np.array(samples, dtype=float)
    nbytes, seconds = data[:, 0], data[:, 1]
    top = nbytes.max()
    columns = np.column_stack([np.ones_like(seconds), nbytes / top]) / seconds[:, None]
    scale = np.linalg.norm(columns, axis=0)
    solution = np.linalg.lstsq(columns / scale, np.ones(len(seconds)), rcond=None)[0] / scale
    return float(solution[0]), float(solution[1] / top)


# ------------------------------------------------------------------------------------------- the deadlock lab


@right("causes_of_hangs")
def in_another_order():
    return {
        "chain": "a barrier after an error",
        "collect": "more receives than sends",
        "grid_sums": "groups made in different orders",
        "report": "a collective that some ranks skip",
        "shift": "all send first",
        "swap": "all receive first",
    }


@right("causes_of_hangs")
def with_a_note_of_its_own():
    """A key more, which is not looked at."""
    return in_another_order() | {"shift, with 12 bytes": "does not hang"}


@right("mend_swap")
def swap_with_isend(x):
    partner = dist.get_rank() ^ 1
    arriving = torch.empty_like(x)
    sending = dist.isend(x, partner)
    dist.recv(arriving, partner)
    sending.wait()
    return arriving


@right("mend_swap")
def swap_with_irecv(x):
    rank = dist.get_rank()
    partner = rank + 1 if rank % 2 == 0 else rank - 1
    arriving = torch.zeros_like(x)
    receiving = dist.irecv(arriving, partner)
    dist.send(x, partner)
    receiving.wait()
    return arriving


@right("mend_shift")
def shift_with_irecv(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(x)
    receiving = dist.irecv(arriving, (rank - 1) % size)
    dist.send(x, (rank + 1) % size)
    receiving.wait()
    return arriving


@right("mend_report")
def averages_first(loss):
    mean = torch.tensor([loss / dist.get_world_size()], dtype=torch.float64)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        return float(mean)
    return None


@right("mend_report")
def with_a_handle(loss):
    total = torch.tensor(loss)
    dist.all_reduce(total, async_op=True).wait()
    if dist.get_rank():
        return None
    return (total / dist.get_world_size()).item()


@right("mend_grid_sums")
def with_a_mesh(x, columns):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size() // columns, columns), mesh_dim_names=("y", "x"))
    row_sum, column_sum = x.clone(), x.clone()
    dist.all_reduce(row_sum, group=mesh["x"].get_group())
    dist.all_reduce(column_sum, group=mesh["y"].get_group())
    return row_sum, column_sum


@right("mend_grid_sums")
def with_functional_collectives(x, columns):
    """They leave x as it is, and return tensors that are waited for when they are first used."""
    rank, grid = dist.get_rank(), np.arange(dist.get_world_size()).reshape(-1, columns)
    rows, verticals = ([dist.new_group(line.tolist()) for line in lines] for lines in (grid, grid.T))
    return all_reduce(x, "sum", rows[rank // columns]), all_reduce(x, "sum", verticals[rank % columns])


@right("mend_collect")
def counts_by_gather(rows):
    mine = torch.tensor([len(rows)])
    size = dist.get_world_size()
    counts = [torch.zeros_like(mine) for _ in range(size)] if dist.get_rank() == 0 else None
    dist.gather(mine, counts)
    if counts is None:
        for row in rows:
            dist.send(row, 0)
        return None
    collected = list(rows)
    for rank in range(1, size):
        for _ in range(int(counts[rank])):
            row = torch.empty(40)
            dist.recv(row, rank)
            collected.append(row)
    return collected


@right("mend_chain")
def barrier_in_else(value):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.zeros(1, dtype=torch.float64)
    try:
        if rank > 0:
            dist.recv(total, rank - 1)
        total += math.sqrt(value)
        if rank < size - 1:
            dist.send(total, rank + 1)
    except ValueError:
        raise
    else:
        dist.barrier()
    return total.item()


@right("mend_chain")
def computes_first(value):
    root = math.sqrt(value)
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([root], dtype=torch.float64)
    if rank > 0:
        before = torch.zeros_like(total)
        dist.recv(before, rank - 1)
        total += before
    if rank + 1 < size:
        dist.send(total, rank + 1)
    dist.barrier()
    return float(total)


# ------------------------------------------------------------------------------------------------------- MPI


@right("mpi_ring_all_reduce")
def on_a_copy_of_the_communicator(comm, x):
    """Dup keeps the messages apart from those of the caller."""
    ring = comm.Dup()
    rank, size = ring.Get_rank(), ring.Get_size()
    left, right_rank = (rank - 1) % size, (rank + 1) % size
    chunks = np.array_split(x, size)
    for step in range(2 * (size - 1)):
        target = chunks[(rank - step - 1) % size]
        arriving = np.empty_like(target)
        ring.Sendrecv(chunks[(rank - step) % size], dest=right_rank, recvbuf=arriving, source=left)
        target[:] = target + arriving if step < size - 1 else arriving
    return x


@right("mpi_ring_all_reduce")
def with_isend_and_recv(comm, x):
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(x, size)
    for step in range(2 * (size - 1)):
        give, take = (rank - step) % size, (rank - step - 1) % size
        arriving = np.empty_like(chunks[take])
        request = comm.Isend(chunks[give], dest=(rank + 1) % size, tag=step)
        comm.Recv(arriving, source=(rank - 1) % size, tag=step)
        request.Wait()
        if step < size - 1:
            chunks[take] += arriving
        else:
            chunks[take][:] = arriving
    return x


# ------------------------------------------------------------------------------------------ design_all_reduce


def _exchange_with(parts, own):
    """Sends parts[rank] to each rank and adds up what they send; begins with the rank after this one."""
    me, ranks = dist.get_rank(), dist.get_world_size()
    order = sorted(parts, key=lambda rank: (rank - me) % ranks)
    works = [dist.isend(parts[rank], rank) for rank in order]
    arriving = {rank: torch.empty_like(own) for rank in order}
    works += [dist.irecv(arriving[rank], rank) for rank in order]
    for work in works:
        work.wait()
    own += sum(arriving.values())


def _spread(own, parts):
    """Each rank's part to the others."""
    me, ranks = dist.get_rank(), dist.get_world_size()
    order = sorted(parts, key=lambda rank: (rank - me) % ranks)
    works = [work for rank in order for work in (dist.irecv(parts[rank], rank), dist.isend(own, rank))]
    for work in works:
        work.wait()


@right("design_all_reduce")
def five_formulas(x, cluster):
    """The seconds of each plan as a formula; each plan a row of calls."""
    me, gpus, nodes = dist.get_rank(), cluster.devices_per_node, cluster.nodes
    home, place = divmod(me, gpus)
    near, far = (gpus - 1) / cluster.intra_node.bandwidth, (nodes - 1) / cluster.inter_node.bandwidth
    wait, short_wait = cluster.inter_node.latency, cluster.intra_node.latency
    first_wait = wait if nodes > 1 else short_wait
    ranks, b = nodes * gpus, x.nbytes
    seconds = {
        "all": first_wait + b * (near + gpus * far),
        "all in parts": 2 * (first_wait + b / ranks * (near + gpus * far)),
        "whole, whole": short_wait + b * near + wait + b * far,
        "parts, whole": 2 * (short_wait + b / gpus * near) + wait + b / gpus * far,
        "parts, parts": 2 * (short_wait + b / gpus * near) + 2 * (wait + b / ranks * far),
    }
    plan = min(seconds, key=seconds.get)
    mates = [home * gpus + other for other in range(gpus) if other != place]
    rail = [other * gpus + place for other in range(nodes) if other != home]
    others = [rank for rank in range(ranks) if rank != me]
    if plan == "all":
        _exchange_with(dict.fromkeys(others, x), x)
    elif plan == "all in parts":
        _in_parts(x.tensor_split(ranks), me, {rank: rank for rank in others})
    elif plan == "whole, whole":
        _exchange_with(dict.fromkeys(mates, x), x)
        _exchange_with(dict.fromkeys(rail, x), x)
    else:
        chunks = x.tensor_split(gpus)
        own = chunks[place]
        _exchange_with({rank: chunks[rank % gpus] for rank in mates}, own)
        if plan == "parts, whole":
            _exchange_with(dict.fromkeys(rail, own), own)
        else:
            _in_parts(own.tensor_split(nodes), home, {rank: rank // gpus for rank in rail})
        _spread(own, {rank: chunks[rank % gpus] for rank in mates})
    return x


def _in_parts(chunks, place, places):
    """Each at its place adds up its chunk of all, and sends it to all. places: of the other ranks."""
    theirs = {rank: chunks[other] for rank, other in places.items()}
    _exchange_with(theirs, chunks[place])
    _spread(chunks[place], theirs)


def _batch(outgoing, incoming):
    works = [dist.P2POp(dist.irecv, part, rank) for rank, part in incoming.items()]
    works += [dist.P2POp(dist.isend, part, rank) for rank, part in outgoing.items()]
    for work in dist.batch_isend_irecv(works) if works else []:
        work.wait()


@right("design_all_reduce")
def the_least_of_all_plans(x, cluster):
    """Groups of ranks one after another, each at once or in parts, reckoned by the model; batches."""
    me, gpus, nodes = dist.get_rank(), cluster.devices_per_node, cluster.nodes
    node = [rank for rank in range(cluster.size) if rank // gpus == me // gpus]
    rail = [rank for rank in range(cluster.size) if rank % gpus == me % gpus]

    def reckon(members, nbytes):
        far = sum(rank // gpus != me // gpus for rank in members)
        near = len(members) - 1 - far
        link = cluster.inter_node if far else cluster.intra_node
        return link.latency + nbytes * (
            near / cluster.intra_node.bandwidth + far / cluster.inter_node.bandwidth
        )

    def plans(groups, nbytes):
        if not groups:
            yield 0.0, ()
            return
        members, rest = groups[0], groups[1:]
        for seconds, ways in plans(rest, nbytes):
            yield seconds + reckon(members, nbytes), ("whole", *ways)
        for seconds, ways in plans(rest, nbytes / len(members)):
            yield seconds + 2 * reckon(members, nbytes / len(members)), ("parts", *ways)

    def work(data, groups, ways):
        if not groups:
            return
        place = groups[0].index(me)
        others = groups[0][place + 1 :] + groups[0][:place]
        whole = ways[0] == "whole"
        parts = [data] * len(groups[0]) if whole else data.tensor_split(len(groups[0]))
        by_rank, own = dict(zip(groups[0], parts, strict=True)), parts[place]
        arriving = {rank: torch.empty_like(own) for rank in others}
        _batch({rank: by_rank[rank] for rank in others}, arriving)
        own += sum(arriving.values())
        work(own, groups[1:], ways[1:])
        if not whole:
            _batch(dict.fromkeys(others, own), {rank: by_rank[rank] for rank in others})

    ways = [
        (plan, groups)
        for groups in ([node, rail], [list(range(nodes * gpus))])
        for plan in plans(groups, x.nbytes)
    ]
    (_, chosen), groups = min(ways)
    work(x, groups, chosen)
    return x
