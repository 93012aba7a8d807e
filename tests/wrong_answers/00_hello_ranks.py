"""Mistakes that people make in unit 00."""

import torch
import torch.distributed as dist

from tests.answers import wrong

# ---------------------------------------------------------------------------------------- rank_coordinates


def _sorted(gpus, key):
    return sorted(((node, local) for node, count in enumerate(gpus) for local in range(count)), key=key)


def _in_turn(rank, gpus):
    return _sorted(gpus, lambda place: place[::-1])[rank]


def _blocks(rank, gpus):
    return _sorted(gpus, None)[rank]


@wrong("rank_coordinates", fails="node after node")
def column_before_row(rank, gpus, cyclic):
    """(local rank, node)."""
    return (_in_turn if cyclic else _blocks)(rank, gpus)[::-1]


@wrong("rank_coordinates", fails="gpus unchanged")
def takes_the_nodes_away(rank, gpus, cyclic):
    """The right place; the list that it was given is shorter afterwards."""
    if cyclic:
        return _in_turn(rank, gpus)
    node = 0
    while gpus and rank >= gpus[0]:
        rank -= gpus.pop(0)
        node += 1
    return node, rank


@wrong("rank_coordinates", fails="nodes of unlike sizes")
def as_many_as_the_first(rank, gpus, cyclic):
    """Divides by the first node's number."""
    return _in_turn(rank, gpus) if cyclic else divmod(rank, gpus[0])


@wrong("rank_coordinates", fails="in turn")
def always_in_blocks(rank, gpus, cyclic):
    """Does not read its third argument."""
    return _blocks(rank, gpus)


@wrong("rank_coordinates", fails="full nodes are passed over")
def waits_at_full_nodes(rank, gpus, cyclic):
    """Deals to all nodes, as if they had places without end."""
    return (rank % len(gpus), rank // len(gpus)) if cyclic else _blocks(rank, gpus)


# ------------------------------------------------------------------------------------------ pass_the_token


def _me():
    return dist.get_rank(), dist.get_world_size()


@wrong("pass_the_token", fails="every rank returns what it held")
def reads_before_it_has_arrived(token):
    """Calls irecv, never waits, and uses what may not be there yet."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
    dist.irecv(token, (rank - 1) % size)
    if rank > 0:
        token += rank
        dist.send(token, (rank + 1) % size)
    return token


def _pass(token, send, rank=None):
    """The right way round; send(tensor, target) sends, or begins to. rank: what is taken for this rank's."""
    own, size = _me()
    rank = own if rank is None else rank
    if size == 1:
        return token
    if rank == 0:
        handle = send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token += rank
        handle = send(token, (rank + 1) % size)
    if handle is not None:
        handle.wait()
    return token


@wrong("pass_the_token", fails="any world and token")
def buffer_of_another_dtype(token):
    """Receives into float32, whatever is sent."""
    rank, size = _me()
    if size == 1:
        return token
    buffer = torch.zeros(token.shape)
    if rank == 0:
        dist.send(token, 1)
        dist.recv(buffer, size - 1)
    else:
        dist.recv(buffer, rank - 1)
        buffer += rank
        dist.send(buffer, (rank + 1) % size)
    return buffer


@wrong("pass_the_token", fails="one message a rank, to the next")
def sends_in_double_precision(token):
    """The next rank, in a tensor of the token's dtype, could not receive it."""
    wide = token.double() if token.is_floating_point() else token
    return _pass(wide, dist.send).to(token.dtype)


@wrong("pass_the_token", fails="one message a rank, to the next")
def rank_0_in_the_middle(token):
    """A star: rank 0 hands the token to each rank and takes it back."""
    rank, size = _me()
    if rank == 0:
        for other in range(1, size):
            dist.send(token, other)
            dist.recv(token, other)
    else:
        dist.recv(token, 0)
        token += rank
        dist.send(token, 0)
    return token


@wrong("pass_the_token", fails="a world of one")
def sends_to_itself(token):
    """Right with two ranks or more."""
    rank, size = _me()
    if rank == 0:
        dist.send(token, 1 % size)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token += rank
        dist.send(token, (rank + 1) % size)
    return token


# ------------------------------------------------------------------------------------------ amdahl_speedup


@wrong("amdahl_speedup", fails="partly serial")
def the_limit_for_many(parallel_fraction, workers):
    """With hundreds of workers takes the speedup for its limit."""
    if workers > 300 and parallel_fraction < 1:
        return 1 / (1 - parallel_fraction)
    return 1 / ((1 - parallel_fraction) + parallel_fraction / workers)


@wrong("amdahl_speedup", fails="partly serial")
def linear_in_the_fraction(parallel_fraction, workers):
    """The parallel share of perfect speedup."""
    return parallel_fraction * workers


@wrong("amdahl_speedup", fails="partly serial")
def percent(parallel_fraction, workers):
    """Takes the fraction for percent, and with it loses a part of the work."""
    return 1 / ((1 - parallel_fraction) + parallel_fraction / 100 / workers)


@wrong("amdahl_speedup", fails="partly serial")
def serial_fraction(parallel_fraction, workers):
    """Takes the parallel fraction for the serial one."""
    return 1 / (parallel_fraction + (1 - parallel_fraction) / workers)


@wrong("amdahl_speedup", fails="partly serial")
def time_instead_of_speedup(parallel_fraction, workers):
    """The new time, as a share of the old."""
    return (1 - parallel_fraction) + parallel_fraction / workers


# ------------------------------------------------------------------------------------------- mend_statistics


def _over_all(value, op=dist.ReduceOp.SUM):
    """One number of all ranks."""
    dist.all_reduce(value, op=op)
    return value.item()


def _mean(mine):
    return _over_all(mine.sum()) / _over_all(torch.tensor(len(mine)))


@wrong("mend_statistics", fails="the mean and the largest")
def leaves_it_as_it_is(mine):
    """The colleague's program."""
    if len(mine) == 0:
        return 0.0, 0.0
    total, largest = mine.sum(), mine.max()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        count = torch.tensor(len(mine))
        dist.all_reduce(count)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return total.item() / count.item(), largest.item()


@wrong("mend_statistics", fails="the mean and the largest")
def counts_only_here(mine):
    """Takes the faulty call out: this rank's count is not that of all."""
    return _over_all(mine.sum()) / max(len(mine), 1), _over_all(mine.max(), dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="a rank without numbers")
def still_leaves_early(mine):
    """Mends the first mistake only."""
    if len(mine) == 0:
        return 0.0, 0.0
    return _mean(mine), _over_all(mine.max(), dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="a rank without numbers")
def leaves_out_one_call(mine):
    """A rank without numbers takes part in the sums, and not in the maximum."""
    mean = _mean(mine)
    return mean, _over_all(mine.max(), dist.ReduceOp.MAX) if len(mine) else 0.0


@wrong("mend_statistics", fails="three small calls that all ranks make")
def sends_all_numbers(mine):
    """Gathers the numbers themselves."""
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([len(mine)]))
    padded = torch.full([int(max(counts))], float("-inf"))
    padded[: len(mine)] = mine
    rows = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(rows, padded)
    everything = torch.cat([row[: int(count)] for row, count in zip(rows, counts, strict=True)])
    return everything.mean().item(), everything.max().item()
