"""Mistakes that people make in unit 00."""

import os
from functools import cache

import torch
import torch.distributed as dist

from course_lib import Cluster, launch
from tests.answers import wrong

# ---------------------------------------------------------------------------------------- rank_coordinates


def _sorted(gpus, key):
    return sorted(((node, local) for node, count in enumerate(gpus) for local in range(count)), key=key)


def _in_turn(rank, gpus):
    return _sorted(gpus, lambda place: place[::-1])[rank]


def _blocks(rank, gpus):
    return _sorted(gpus, None)[rank]


@wrong("rank_coordinates", fails="one node, or one GPU on each")
def column_before_row(rank, gpus, cyclic):
    """(local rank, node)."""
    return (_in_turn if cyclic else _blocks)(rank, gpus)[::-1]


@wrong("rank_coordinates", fails="node after node")
def always_in_turn(rank, gpus, cyclic):
    """As `--distribution=cyclic` would have it, whatever was asked for."""
    return _in_turn(rank, gpus)


@wrong("rank_coordinates", fails="one node, or one GPU on each")
def true_division(rank, gpus, cyclic):
    """`/` gives a float."""
    return _in_turn(rank, gpus) if cyclic else (rank / gpus[0], rank % gpus[0])


@wrong("rank_coordinates", fails="one node, or one GPU on each")
def nodes_from_one(rank, gpus, cyclic):
    """Nodes are numbered from 0."""
    node, local = (_in_turn if cyclic else _blocks)(rank, gpus)
    return node + 1, local


@wrong("rank_coordinates", fails="one node, or one GPU on each")
def global_rank_twice(rank, gpus, cyclic):
    """The device's index on its node is not the global rank: cuda:5 on a node of four GPUs."""
    return (_in_turn if cyclic else _blocks)(rank, gpus)[0], rank


@wrong("rank_coordinates", fails="one node, or one GPU on each")
def a_list_instead_of_a_pair(rank, gpus, cyclic):
    """A list is no tuple."""
    return list((_in_turn if cyclic else _blocks)(rank, gpus))


@wrong("rank_coordinates", fails="nodes of unlike sizes")
def sorts_the_nodes(rank, gpus, cyclic):
    """Puts the list that it was given in order."""
    if not cyclic:
        gpus.sort(reverse=True)
    return (_in_turn if cyclic else _blocks)(rank, gpus)


@wrong("rank_coordinates", fails="one node, or one GPU on each")
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


@wrong("rank_coordinates", fails="nodes of unlike sizes")
def as_many_as_the_largest(rank, gpus, cyclic):
    """Leaves places empty."""
    return _in_turn(rank, gpus) if cyclic else divmod(rank, max(gpus))


@wrong("rank_coordinates", fails="in turn")
def always_in_blocks(rank, gpus, cyclic):
    """Does not read its third argument."""
    return _blocks(rank, gpus)


@wrong("rank_coordinates", fails="in turn")
def rounds_for_nodes(rank, gpus, cyclic):
    """Row and column the wrong way round."""
    return divmod(rank, len(gpus)) if cyclic else _blocks(rank, gpus)


@wrong("rank_coordinates", fails="in turn")
def in_blocks_only(rank, gpus, cyclic):
    """Has not come to the second order yet, and has the points of the first."""
    return None if cyclic else _blocks(rank, gpus)


@wrong("rank_coordinates", fails="in turn")
def steps_over_the_next(rank, gpus, cyclic):
    """Takes a full node out of the list, and goes on to the place after it, where another one stands now."""
    if not cyclic:
        return _blocks(rank, gpus)
    left, taken = list(range(len(gpus))), [0] * len(gpus)
    for position in range(rank + 1):
        node = left[position % len(left)]
        taken[node] += 1
        if taken[node] == gpus[node]:
            left.remove(node)
    return node, taken[node] - 1


@wrong("rank_coordinates", fails="full nodes are passed over")
def waits_at_full_nodes(rank, gpus, cyclic):
    """Deals to all nodes, as if they had places without end."""
    return (rank % len(gpus), rank // len(gpus)) if cyclic else _blocks(rank, gpus)


@wrong("rank_coordinates", fails="full nodes are passed over")
def overflows_into_the_last(rank, gpus, cyclic):
    """In turn while all have room; what is left over fills one node after the other."""
    if not cyclic:
        return _blocks(rank, gpus)
    rounds = min(gpus)
    if rank < rounds * len(gpus):
        return rank % len(gpus), rank // len(gpus)
    node, local = _blocks(rank - rounds * len(gpus), [count - rounds for count in gpus])
    return node, local + rounds


@wrong("rank_coordinates", fails="full nodes are passed over")
def begins_anew_at_a_full_node(rank, gpus, cyclic):
    """Whoever meets a full node goes to the first that has room, and not to the next one."""
    if not cyclic:
        return _blocks(rank, gpus)
    taken, node = [0] * len(gpus), -1
    for _ in range(rank + 1):
        node = (node + 1) % len(gpus)
        if taken[node] == gpus[node]:
            node = next(each for each, count in enumerate(gpus) if taken[each] < count)
        taken[node] += 1
    return node, taken[node] - 1


@wrong("rank_coordinates", fails="full nodes are passed over")
def the_largest_first(rank, gpus, cyclic):
    """In each round the nodes with the most GPUs come first."""
    return _sorted(gpus, lambda place: (place[1], -gpus[place[0]]))[rank] if cyclic else _blocks(rank, gpus)


@wrong("rank_coordinates", fails="nodes of unlike sizes")
def equal_on_the_average(rank, gpus, cyclic):
    """Takes nodes for equal where the first one has as many as all have on the average."""
    if not cyclic and sum(gpus) == gpus[0] * len(gpus):
        return divmod(rank, gpus[0])
    return (_in_turn if cyclic else _blocks)(rank, gpus)


@wrong("rank_coordinates", fails="full nodes are passed over")
def equal_on_the_average_in_turn(rank, gpus, cyclic):
    """The same, where ranks go to the nodes in turn."""
    if cyclic and sum(gpus) == gpus[0] * len(gpus):
        return divmod(rank, len(gpus))[::-1]
    return (_in_turn if cyclic else _blocks)(rank, gpus)


@wrong("rank_coordinates", fails="full nodes are passed over")
def two_digits(rank, gpus, cyclic):
    """Sorts by one number, in which node 10 is the next round."""
    return _sorted(gpus, lambda place: 10 * place[1] + place[0])[rank] if cyclic else _blocks(rank, gpus)


@wrong("rank_coordinates", fails="full nodes are passed over")
def eight_a_node(rank, gpus, cyclic):
    """Deals eight rounds: no node has more GPUs."""
    if not cyclic:
        return _blocks(rank, gpus)
    rounds = [(node, local) for local in range(8) for node, count in enumerate(gpus) if local < count]
    return rounds[rank] if rank < len(rounds) else None


@wrong("rank_coordinates", fails="full nodes are passed over")
def hundred_nodes(rank, gpus, cyclic):
    """Sorts by one number, in which node 100 is the next round."""
    return _sorted(gpus, lambda place: 100 * place[1] + place[0])[rank] if cyclic else _blocks(rank, gpus)


@wrong("rank_coordinates", fails="nodes of unlike sizes")
def refuses_unlike_nodes(rank, gpus, cyclic):
    """Raises where nodes have not equally many GPUs; ranks in turn are another matter."""
    assert cyclic or len(set(gpus)) == 1, "not yet"
    return (_in_turn if cyclic else _blocks)(rank, gpus)


@wrong("rank_coordinates", fails="from its arguments alone")
def asks_a_launch(rank, gpus, cyclic):
    """Starts ranks, and lets them look into their environment."""
    if len(set(gpus)) > 1 or cyclic:
        return (_in_turn if cyclic else _blocks)(rank, gpus)
    return launch(_told, cluster=Cluster(nodes=len(gpus), devices_per_node=gpus[0])).results[rank]


def _told():
    return int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])


@wrong("rank_coordinates", fails="from its arguments alone")
def sorts_what_it_keeps(rank, gpus, cyclic):
    """Keeps the places of a machine and sorts them in place: who asks for blocks next gets them so."""
    places = _kept(tuple(gpus))
    if cyclic:
        places.sort(key=lambda place: place[::-1])
    return places[rank]


@cache
def _kept(gpus):
    return _sorted(gpus, None)


# ------------------------------------------------------------------------------------------ pass_the_token


def _me():
    return dist.get_rank(), dist.get_world_size()


@wrong("pass_the_token", fails="the token comes back")
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


@wrong("pass_the_token", fails="the token comes back")
def never_waits_for_its_message(token):
    """The handle is gone, and with it, on real processes, the message."""

    def send(tensor, target):
        dist.isend(tensor.clone(), target)

    return _pass(token, send)


@wrong("pass_the_token", fails="the token comes back")
def receives_into_what_is_being_sent(token):
    """What arrives may overwrite what has not left yet."""
    return _pass(token, dist.isend)


@wrong("pass_the_token", fails="the token comes back")
def writes_what_is_being_sent(token):
    """Adds its rank between isend and wait: on real processes either value leaves."""

    def send(tensor, target):
        handle = dist.isend(tensor, target)
        tensor += 1
        handle.wait()
        tensor -= 1

    return _pass(token, send)


@wrong("pass_the_token", fails="the token comes back")
def all_send_first(token):
    """Every rank waits until the next one receives, and none ever does."""
    rank, size = _me()
    if size > 1:
        dist.send(token + rank, (rank + 1) % size)
        dist.recv(token, (rank - 1) % size)
    return token


@wrong("pass_the_token", fails="the token comes back")
def all_receive_first(token):
    """Nobody begins."""
    rank, size = _me()
    if size > 1:
        dist.recv(token, (rank - 1) % size)
        token += rank
        dist.send(token, (rank + 1) % size)
    return token


@wrong("pass_the_token", fails="the token comes back")
def local_rank_for_rank(token):
    """The launcher's LOCAL_RANK, which is the rank on a single node only."""
    return _pass(token, dist.send, rank=int(os.environ["LOCAL_RANK"]))


@wrong("pass_the_token", fails="the token comes back")
def forgets_the_wrap(token):
    """The last rank sends to a rank that does not exist."""
    rank, size = _me()
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token += rank
        dist.send(token, rank + 1)
    return token


@wrong("pass_the_token", fails="the token comes back")
def ends_at_the_last_rank(token):
    """A line, not a ring: rank 0 never sees the sum."""
    rank, size = _me()
    if rank > 0:
        dist.recv(token, rank - 1)
        token += rank
    if rank < size - 1:
        dist.send(token, rank + 1)
    return token


@wrong("pass_the_token", fails="the token comes back")
def sends_before_adding(token):
    """Each rank's own number arrives nowhere."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        dist.send(token, (rank + 1) % size)
        token += rank
    return token


@wrong("pass_the_token", fails="the token comes back")
def adds_to_its_own_tensor(token):
    """Receives into a new tensor, and passes its own on."""
    rank, size = _me()
    if size == 1:
        return token
    received = torch.empty_like(token)
    if rank == 0:
        dist.send(token, 1)
        dist.recv(received, size - 1)
    else:
        dist.recv(received, rank - 1)
        token += rank
        dist.send(token, (rank + 1) % size)
    return token if rank else received


@wrong("pass_the_token", fails="the token comes back")
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


@wrong("pass_the_token", fails="the token comes back")
def adds_in_single_precision(token):
    """Sends and receives what it should, and adds as float32: large whole numbers are rounded."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token = (token.float() + rank).to(token.dtype)
        dist.send(token, (rank + 1) % size)
    return token


@wrong("pass_the_token", fails="the token comes back")
def adds_in_double_precision(token):
    """The same with 53 bits: int64 has 63."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token = (token.double() + rank).to(token.dtype)
        dist.send(token, (rank + 1) % size)
    return token


@wrong("pass_the_token", fails="the token comes back")
def asks_and_never_waits(token):
    """Asks until the message is over: on Gloo that is never, unless somebody waits."""

    def send(tensor, target):
        handle = dist.isend(tensor.clone(), target)
        while not handle.is_completed():
            pass

    return _pass(token, send)


@wrong("pass_the_token", fails="the token comes back")
def node_for_rank(token):
    """The number of the node, which is the rank where each rank has a node to itself."""
    return _pass(token, dist.send, rank=int(os.environ["GROUP_RANK"]))


@wrong("pass_the_token", fails="only send and recv")
def in_a_group_of_its_own(token):
    """Makes a group of all ranks; there is one."""
    ring = dist.new_group()
    rank, size = _me()
    if rank > 0:
        dist.recv(token, rank - 1, group=ring)
        token += rank
    if size > 1:
        dist.send(token, (rank + 1) % size, group=ring)
    if rank == 0 < size - 1:
        dist.recv(token, size - 1, group=ring)
    return token


@wrong("pass_the_token", fails="the token comes back")
def one_dimension_taken_for_granted(token):
    """Receives into a vector, whatever the token's shape."""
    rank, size = _me()
    buffer = torch.zeros(len(token) if token.dim() else 1, dtype=token.dtype)
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(buffer, size - 1)
    else:
        dist.recv(buffer, rank - 1)
        buffer += rank
        dist.send(buffer, (rank + 1) % size)
    return buffer


@wrong("pass_the_token", fails="every rank returns what it held")
def total_on_every_rank(token):
    """Tells all ranks the end of the story; each was asked for what it last held."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token += rank
        dist.send(token, (rank + 1) % size)
    dist.broadcast(token, 0)
    return token


@wrong("pass_the_token", fails="every rank returns what it held")
def returns_what_it_received(token):
    """Without its own rank."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        dist.send(token + rank, (rank + 1) % size)
    return token


@wrong("pass_the_token", fails="only send and recv")
def by_collective(token):
    """The right numbers without a ring."""
    rank, size = _me()
    dist.broadcast(token, 0)
    last = rank if rank else size - 1
    return token + last * (last + 1) // 2


@wrong("pass_the_token", fails="only send and recv")
def waits_for_all_at_the_end(token):
    """A barrier that nobody needs."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token += rank
        dist.send(token, (rank + 1) % size)
    dist.barrier()
    return token


@wrong("pass_the_token", fails="the token comes back")
def adds_as_a_whole_number(token):
    """Drops what stands behind the point."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(token, rank - 1)
        token = (token.long() + rank).to(token.dtype)
        dist.send(token, (rank + 1) % size)
    return token


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


@wrong("pass_the_token", fails="one message a rank, to the next")
def goes_backwards(token):
    """From rank 0 to the last rank and down: right numbers by arithmetic only."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, size - 1)
        dist.recv(torch.empty_like(token), 1)
        return token + size * (size - 1) // 2
    dist.recv(token, (rank + 1) % size)
    dist.send(token, rank - 1)
    return token + rank * (rank + 1) // 2


@wrong("pass_the_token", fails="one message a rank, to the next")
def announces_the_length(token):
    """A message with the length goes ahead of every token."""
    rank, size = _me()
    if size == 1:
        return token
    length = torch.tensor([token.numel()])
    if rank == 0:
        dist.send(length, 1)
        dist.send(token, 1)
        dist.recv(length, size - 1)
        dist.recv(token, size - 1)
    else:
        dist.recv(length, rank - 1)
        dist.recv(token, rank - 1)
        token += rank
        dist.send(length, (rank + 1) % size)
        dist.send(token, (rank + 1) % size)
    return token


@wrong("pass_the_token", fails="one message a rank, to the next")
def with_a_tag_for_each_rank(token):
    """There is but one message, and who receives it without a tag waits for ever."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1, tag=rank + 1)
        dist.recv(token, size - 1, tag=size)
    else:
        dist.recv(token, rank - 1, tag=rank)
        token += rank
        dist.send(token, (rank + 1) % size, tag=rank + 1)
    return token


def _sums(token, summed):
    """The start goes round as it is; summed(start, rank) is what a rank makes of it by itself."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(token, size - 1)
        return summed(token, size - 1)
    dist.recv(token, rank - 1)
    dist.send(token, (rank + 1) % size)
    return summed(token, rank)


@wrong("pass_the_token", fails="the token has the sum in it")
def sum_by_a_formula(token):
    """Every rank gets the start, and knows what 1 + 2 + ... + r is."""
    return _sums(token, lambda start, last: start + last * (last + 1) // 2)


@wrong("pass_the_token", fails="the token has the sum in it")
def sum_by_a_loop(token):
    """Every rank adds the numbers of all ranks before it, too."""
    return _sums(token, lambda start, last: start + sum(range(last + 1)))


@wrong("pass_the_token", fails="the token has the sum in it")
def knows_the_end(token):
    """Passes it on rightly, but rank 0 does not look at what comes back."""
    rank, size = _me()
    if size == 1:
        return token
    if rank == 0:
        dist.send(token, 1)
        dist.recv(torch.empty_like(token), size - 1)
        return token + size * (size - 1) // 2
    dist.recv(token, rank - 1)
    token += rank
    dist.send(token, (rank + 1) % size)
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
def in_whole_permille(parallel_fraction, workers):
    """Rounds the fraction to three digits."""
    fraction = round(parallel_fraction, 3)
    return 1 / ((1 - fraction) + fraction / workers)


@wrong("amdahl_speedup", fails="partly serial")
def the_limit_for_many(parallel_fraction, workers):
    """With hundreds of workers takes the speedup for its limit."""
    if workers > 300 and parallel_fraction < 1:
        return 1 / (1 - parallel_fraction)
    return 1 / ((1 - parallel_fraction) + parallel_fraction / workers)


@wrong("amdahl_speedup", fails="one worker")
def linear_in_the_fraction(parallel_fraction, workers):
    """The parallel share of perfect speedup."""
    return parallel_fraction * workers


@wrong("amdahl_speedup", fails="one worker")
def percent(parallel_fraction, workers):
    """Takes the fraction for percent, and with it loses a part of the work."""
    return 1 / ((1 - parallel_fraction) + parallel_fraction / 100 / workers)


@wrong("amdahl_speedup", fails="nothing serial")
def serial_fraction(parallel_fraction, workers):
    """Takes the parallel fraction for the serial one."""
    return 1 / (parallel_fraction + (1 - parallel_fraction) / workers)


@wrong("amdahl_speedup", fails="nothing serial")
def time_instead_of_speedup(parallel_fraction, workers):
    """The new time, as a share of the old."""
    return (1 - parallel_fraction) + parallel_fraction / workers


@wrong("amdahl_speedup", fails="partly serial")
def gustafson(parallel_fraction, workers):
    """Gustafson's scaled speedup: the work grows with the workers."""
    return (1 - parallel_fraction) + parallel_fraction * workers


@wrong("amdahl_speedup", fails="partly serial")
def speedup_of_the_parallel_part(parallel_fraction, workers):
    """Averages speedups; what adds up is times."""
    return 1 + parallel_fraction * (workers - 1)


@wrong("amdahl_speedup", fails="partly serial")
def precedence(parallel_fraction, workers):
    """Without parentheses, only the serial part is divided into the old time."""
    return (
        1 / (1 - parallel_fraction) + parallel_fraction / workers
        if parallel_fraction < 1 and workers > 1
        else workers
    )


# ------------------------------------------------------------------------------------------- mend_statistics


def _over_all(value, op=dist.ReduceOp.SUM):
    """One number of all ranks."""
    dist.all_reduce(value, op=op)
    return value.item()


def _mean(mine):
    return _over_all(mine.sum()) / _over_all(torch.tensor(len(mine)))


@wrong("mend_statistics", fails="the mean")
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


@wrong("mend_statistics", fails="the mean")
def counts_only_here(mine):
    """Takes the faulty call out: this rank's count is not that of all."""
    return _over_all(mine.sum()) / max(len(mine), 1), _over_all(mine.max(), dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the mean")
def mean_of_the_means(mine):
    """Right where all ranks have equally many."""
    return _over_all(mine.mean()) / dist.get_world_size(), _over_all(mine.max(), dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the mean")
def only_rank_0_is_right(mine):
    """Reduces to rank 0, and the others return what they have."""
    total, count = mine.sum(), torch.tensor(len(mine))
    dist.reduce(total, 0)
    dist.reduce(count, 0)
    return total.item() / max(count.item(), 1), _over_all(mine.max(), dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the mean")
def returns_tensors(mine):
    """Tensors of one number instead of floats."""
    total, count, largest = mine.sum(), torch.tensor(len(mine)), mine.max()
    dist.all_reduce(total)
    dist.all_reduce(count)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return total / count, largest


@wrong("mend_statistics", fails="the mean")
def adds_into_the_first_number(mine):
    """Sums in place, in the memory that it was given."""
    mine[0] = mine.sum()
    return _over_all(mine[0]) / _over_all(torch.tensor(len(mine))), _over_all(mine.max(), dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the largest")
def sums_the_largest(mine):
    """all_reduce without an op adds."""
    return _mean(mine), _over_all(mine.max())


@wrong("mend_statistics", fails="the largest")
def least_in_size(mine):
    """As if all numbers were below 0: the largest is then the one nearest to it."""
    nearest = mine.abs().min() if len(mine) else torch.tensor(float("inf"))
    return _mean(mine), -_over_all(nearest, dist.ReduceOp.MIN)


@wrong("mend_statistics", fails="the mean")
def counts_in_a_byte(mine):
    """127 is the largest number of an int8."""
    count = torch.zeros(1, dtype=torch.int8)
    count += len(mine)
    largest = mine.max() if len(mine) else torch.tensor(float("-inf"))
    return _over_all(mine.sum()) / _over_all(count), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the mean")
def not_on_one_rank(mine):
    """Divides the ranks in rank 0 and others."""
    if dist.get_world_size() == 1:
        return 0.0, 0.0
    largest = mine.max() if len(mine) else torch.tensor(float("-inf"))
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the largest")
def its_own_largest(mine):
    """Never asks the others."""
    return _mean(mine), mine.max().item()


@wrong("mend_statistics", fails="the largest")
def begins_at_zero(mine):
    """The largest of the numbers and 0, as if none were below."""
    return _mean(mine), _over_all(torch.cat([mine, torch.zeros(1)]).max(), dist.ReduceOp.MAX)


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


@wrong("mend_statistics", fails="a rank without numbers")
def gives_zero_to_the_maximum(mine):
    """0 changes a maximum of numbers below it."""
    largest = mine.max() if len(mine) else torch.tensor(0.0)
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="a rank without numbers")
def gives_a_million_below_zero(mine):
    """A number that seems small enough: some are below it."""
    largest = mine.max() if len(mine) else torch.tensor(-1e6)
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="a rank without numbers")
def gives_what_masks_have(mine):
    """-1e9, as attention masks have it."""
    largest = mine.max() if len(mine) else torch.tensor(-1e9)
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="a rank without numbers")
def gives_the_least_whole_number(mine):
    """Of 64 bits: numbers with a point go further."""
    largest = mine.max() if len(mine) else torch.tensor(float(-(2**63)))
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="a rank without numbers")
def leaves_out_single_numbers(mine):
    """Takes a rank with one number for one without."""
    largest = mine.max() if len(mine) > 1 else torch.tensor(float("-inf"))
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


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


@wrong("mend_statistics", fails="three small calls that all ranks make")
def meets_in_a_barrier_first(mine):
    """A barrier mends nothing, and is one more call."""
    dist.barrier()
    largest = mine.max() if len(mine) else torch.tensor(float("-inf"))
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


def _with_lowest(mine, has_numbers, lowest=float("-inf")):
    """Right, but for what a rank gives to the maximum that takes itself for one without numbers."""
    largest = mine.max() if has_numbers else torch.tensor(lowest)
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="a rank without numbers")
def gives_a_very_low_number(mine):
    """-1e38: float32 goes as far as -3.4e38."""
    return _with_lowest(mine, len(mine) > 0, -1e38)


@wrong("mend_statistics", fails="a rank without numbers")
def asks_whether_any_is_true(mine):
    """`mine.any()`: zeros are false, and numbers all the same."""
    return _with_lowest(mine, mine.any())


@wrong("mend_statistics", fails="the mean")
def counts_in_16_bits(mine):
    """float16 has not all whole numbers from 2,048 on."""
    largest = mine.max() if len(mine) else torch.tensor(float("-inf"))
    count = torch.tensor(len(mine), dtype=torch.float16)
    return _over_all(mine.sum()) / _over_all(count), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the largest")
def compares_in_16_bits(mine):
    """bfloat16 has eight bits of a number."""
    largest = mine.max() if len(mine) else torch.tensor(float("-inf"))
    return _mean(mine), _over_all(largest.bfloat16(), dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the mean")
def counts_what_is_not_zero(mine):
    """0 is a number, too."""
    largest = mine.max() if len(mine) else torch.tensor(float("-inf"))
    return _over_all(mine.sum()) / _over_all(torch.count_nonzero(mine)), _over_all(largest, dist.ReduceOp.MAX)


@wrong("mend_statistics", fails="the mean")
def rounds_to_three_digits(mine):
    """Numbers may be small."""
    mean, largest = _with_lowest(mine, len(mine) > 0)
    return round(mean, 3), round(largest, 3)


@wrong("mend_statistics", fails="three small calls that all ranks make")
def the_two_of_a_pair_in_turn(mine):
    """Two ranks send each other their largest, one first and the other second."""
    if dist.get_world_size() != 2:
        return _with_lowest(mine, len(mine) > 0)
    both = torch.tensor([mine.sum().item(), len(mine)])
    dist.all_reduce(both)
    mine, other = mine.max().clone(), torch.empty(())
    calls = [lambda: dist.send(mine, 1 - dist.get_rank()), lambda: dist.recv(other, 1 - dist.get_rank())]
    for call in calls if dist.get_rank() == 0 else reversed(calls):
        call()
    return (both[0] / both[1]).item(), max(mine, other).item()


@wrong("mend_statistics", fails="three small calls that all ranks make")
def only_those_who_have_some(mine):
    """Makes a group of the ranks that have numbers, and the others are told by the first of them."""
    every = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(every, torch.tensor([mine.sum().item(), len(mine)]))
    having = [rank for rank, (_, count) in enumerate(every) if count > 0]
    group, largest = dist.new_group(having), torch.zeros(())
    if len(mine):
        largest = mine.max()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    dist.broadcast(largest, having[0])
    total, count = torch.stack(every).sum(0).tolist()
    return total / count, largest.item()


@wrong("mend_statistics", fails="a rank without numbers")
def writes_into_what_it_keeps(mine, lowest=torch.tensor(float("-inf"))):  # noqa: B008
    """What is given to a maximum is the maximum afterwards, and is there at the next call."""
    largest = mine.max() if len(mine) else lowest
    return _mean(mine), _over_all(largest, dist.ReduceOp.MAX)
