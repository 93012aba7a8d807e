"""Mistakes that people make in unit 02, each with the criterion that must find it."""

import os
import random
from collections import defaultdict
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

from tests.answers import wrong

# ---------------------------------------------------------------------------------------- combine_gradients


@wrong("combine_gradients", fails="equal shards")
def sums_means(gradients, counts):
    """Adds the means up and forgets to divide."""
    return sum(gradients)


@wrong("combine_gradients", fails="equal shards")
def divides_twice(gradients, counts):
    """Weighs by m_k / n, and takes the mean over workers of that."""
    n = sum(counts)
    return sum(m / n * g for g, m in zip(gradients, counts, strict=True)) / len(gradients)


@wrong("combine_gradients", fails="unequal shards")
def plain_mean(gradients, counts):
    """Every worker counts alike, however few samples it had."""
    return torch.stack(gradients).mean(0)


@wrong("combine_gradients", fails="unequal shards")
def inverse_weights(gradients, counts):
    """Weighs a worker by one over its samples."""
    weights = torch.tensor([1 / max(m, 1) for m in counts])
    return sum(w * g for g, w in zip(gradients, weights / weights.sum(), strict=True))


@wrong("combine_gradients", fails="unequal shards")
def always_in_single_precision(gradients, counts):
    """Adds up in a tensor of the default dtype."""
    total = torch.zeros(gradients[0].shape)
    for gradient, count in zip(gradients, counts, strict=True):
        if count:
            total += gradient * count / sum(counts)
    return total


@wrong("combine_gradients", fails="unequal shards")
def weights_in_single_precision(gradients, counts):
    """torch.tensor makes the weights float32, and the digits of double precision are gone."""
    weights = torch.tensor([count / sum(counts) for count in counts])
    return sum(w * g for g, w, count in zip(gradients, weights, counts, strict=True) if count)


@wrong("combine_gradients", fails="unequal shards")
def weights_of_a_tensor_in_double_precision(gradients, counts):
    """Elements of a tensor leave the dtype of vectors and matrices alone, and not that of a scalar."""
    weights = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    return sum(weight * g for weight, g in zip(weights, gradients, strict=True) if weight > 0)


@wrong("combine_gradients", fails="unequal shards")
def matrices_taken_for_granted(gradients, counts):
    """Weights in a shape that fits gradients of two dimensions only."""
    used = [(gradient, count) for gradient, count in zip(gradients, counts, strict=True) if count]
    weights = torch.tensor([count for _, count in used]).view(-1, 1, 1) / sum(counts)
    return (torch.stack([gradient for gradient, _ in used]) * weights).sum(0)


@wrong("combine_gradients", fails="unequal shards")
def needs_two_samples(gradients, counts):
    """Leaves out a worker with one sample as if it had none."""
    pairs = zip(gradients, counts, strict=True)
    return sum(count / sum(counts) * gradient for gradient, count in pairs if count > 1)


@wrong("combine_gradients", fails="unequal shards")
def whole_weights_in_single_precision(gradients, counts):
    """Weights that are whole lose nothing of double precision, and make single of half precision."""
    used = [(gradient, count) for gradient, count in zip(gradients, counts, strict=True) if count]
    stacked = torch.stack([gradient for gradient, _ in used])
    weights = torch.tensor([float(count) for _, count in used]).view(-1, *[1] * (stacked.dim() - 1))
    return (weights * stacked).sum(0) / sum(counts)


@wrong("combine_gradients", fails="empty shards")
def hides_nan_beside_empty_shards(gradients, counts):
    """Makes numbers of every NaN as soon as one worker has no samples."""
    if 0 in counts:
        gradients = [gradient.nan_to_num(posinf=0) for gradient in gradients]
    return sum(count / sum(counts) * each for each, count in zip(gradients, counts, strict=True))


@wrong("combine_gradients", fails="gradients unchanged")
def adds_in_place_where_all_are_equal(gradients, counts):
    """The plain mean is taken in worker 0's gradient."""
    if len(set(counts)) == 1 < len(counts):
        for gradient in gradients[1:]:
            gradients[0] += gradient
        return gradients[0] / len(counts)
    used = [(gradient, count) for gradient, count in zip(gradients, counts, strict=True) if count]
    return sum(count / sum(counts) * gradient for gradient, count in used)


@wrong("combine_gradients", fails="empty shards")
def hides_every_nan(gradients, counts):
    """Makes zeros of any NaN, so that nobody sees when training has diverged."""
    n = sum(counts)
    return sum(m / n * g.nan_to_num() for g, m in zip(gradients, counts, strict=True))


@wrong("combine_gradients", fails="empty shards")
def multiplies_nan_by_zero(gradients, counts):
    """Counts on 0 * NaN being 0."""
    n = sum(counts)
    return sum(m / n * g for g, m in zip(gradients, counts, strict=True))


@wrong("combine_gradients", fails="gradients unchanged")
def clears_empty_shards_in_place(gradients, counts):
    """Writes zeros into the gradient of a worker without samples."""
    n = sum(counts)
    pairs = zip(gradients, counts, strict=True)
    return sum((m / n * g) if m else g.zero_() for g, m in pairs)


@wrong("combine_gradients", fails="gradients unchanged")
def makes_weights_of_the_counts(gradients, counts):
    """Divides the counts in the list that it was given."""
    total = sum(counts)
    for worker, count in enumerate(counts):
        counts[worker] = count / total
    return sum(weight * g for g, weight in zip(gradients, counts, strict=True) if weight)


@wrong("combine_gradients", fails="empty shards")
def only_the_ends_may_be_empty(gradients, counts):
    """Takes empty workers off at both ends, and none between."""
    used = [worker for worker, count in enumerate(counts) if count]
    part = slice(used[0], used[-1] + 1)
    return sum(c / sum(counts) * g for g, c in zip(gradients[part], counts[part], strict=True))


@wrong("combine_gradients", fails="gradients unchanged")
def hands_a_single_gradient_on(gradients, counts):
    """With one worker, returns the very tensor that it was given."""
    if len(gradients) == 1:
        return gradients[0]
    n = sum(counts)
    return sum(m / n * g for g, m in zip(gradients, counts, strict=True) if m)


@wrong("combine_gradients", fails="gradients unchanged")
def accumulates_in_the_first(gradients, counts):
    """Scales the given gradients in place."""
    n = sum(counts)
    total = torch.zeros_like(gradients[0])
    for gradient, count in zip(gradients, counts, strict=True):
        if count:
            total += gradient.mul_(count / n)
    return total


@wrong("combine_gradients", fails="empty shards")
def clears_nan_only(gradients, counts):
    """NaN becomes 0 where there are no samples; infinity times 0 is NaN."""
    total = 0
    for gradient, count in zip(gradients, counts, strict=True):
        if count == 0:
            gradient = torch.where(gradient.isnan(), 0.0, gradient)
        total = total + count / sum(counts) * gradient
    return total


@wrong("combine_gradients", fails="empty shards")
def only_the_first_may_be_empty(gradients, counts):
    """Leaves out worker 0, and nobody behind it."""
    if counts[0] == 0:
        gradients, counts = gradients[1:], counts[1:]
    return sum(count / sum(counts) * gradient for gradient, count in zip(gradients, counts, strict=True))


@wrong("combine_gradients", fails="empty shards")
def leaves_out_what_is_all_nan(gradients, counts):
    """Leaves out a worker whose gradient is NaN throughout, though it had samples."""
    pairs = zip(gradients, counts, strict=True)
    used = [(gradient, count) for gradient, count in pairs if count and not gradient.isnan().all()]
    return sum(count / sum(counts) * gradient for gradient, count in used)


@wrong("combine_gradients", fails="empty shards")
def looks_for_nan_in_empty_ones(gradients, counts):
    """Of the empty shards leaves out those with NaN; infinity times 0 is NaN too."""
    pairs = zip(gradients, counts, strict=True)
    return sum(count / sum(counts) * each for each, count in pairs if count or not each.isnan().any())


@wrong("combine_gradients", fails="unequal shards")
def takes_them_for_contiguous(gradients, counts):
    """view(-1) exists for contiguous tensors only."""
    used = [(gradient.view(-1), count) for gradient, count in zip(gradients, counts, strict=True) if count]
    return sum(count / sum(counts) * gradient for gradient, count in used).view(gradients[0].shape)


# -------------------------------------------------------------------------------------------- shard_indices


def _generator(seed):
    return torch.Generator().manual_seed(seed)


@wrong("shard_indices", fails="disjoint and complete")
def pads(length, epoch, seed):
    """Gives samples out twice until all ranks have equally many, as DistributedSampler does."""
    ranks = dist.get_world_size()
    order = torch.randperm(length, generator=_generator(seed + epoch))
    padded = torch.cat([order, order.repeat(ranks)[: -length % ranks]])
    return padded[dist.get_rank() :: ranks]


@wrong("shard_indices", fails="disjoint and complete")
def drops_the_remainder(length, epoch, seed):
    """Loses the samples that do not divide."""
    share = length // dist.get_world_size()
    order = torch.randperm(length, generator=_generator(seed + epoch))
    return order[dist.get_rank() * share : (dist.get_rank() + 1) * share]


@wrong("shard_indices", fails="disjoint and complete")
def seeds_with_the_rank(length, epoch, seed):
    """Cuts another permutation on every rank."""
    order = torch.randperm(length, generator=_generator(seed + epoch + dist.get_rank()))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="disjoint and complete")
def uses_the_global_state(length, epoch, seed):
    """Draws from the rank's own random state, which is not the other ranks'."""
    return torch.randperm(length)[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="disjoint and complete")
def seeds_with_a_salted_hash(length, epoch, seed):
    """Every process hashes a text with a salt of its own."""
    order = torch.randperm(length, generator=_generator(hash(f"{seed}-{epoch}") % 2**63))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="disjoint and complete")
def takes_the_number_on_its_node(length, epoch, seed):
    """Right on one node: on several, ranks of one number get the same samples."""
    order = torch.randperm(length, generator=_generator(seed + epoch))
    return order[dist.get_node_local_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="balanced")
def last_takes_the_rest(length, epoch, seed):
    """Everyone gets length // ranks, and the last rank what is left too."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = length // ranks
    order = torch.randperm(length, generator=_generator(seed + epoch))
    return order[rank * share :] if rank == ranks - 1 else order[rank * share : (rank + 1) * share]


@wrong("shard_indices", fails="balanced")
def rounds_parts_up(length, epoch, seed):
    """Everyone takes length / ranks, rounded up, as long as there are some: too few are left for the last."""
    share = -(-length // dist.get_world_size())
    order = torch.randperm(length, generator=_generator(seed + epoch))
    return order[dist.get_rank() * share : (dist.get_rank() + 1) * share]


@wrong("shard_indices", fails="balanced")
def lists_that_may_be_empty(length, epoch, seed):
    """What torch.tensor makes of no numbers at all is float32."""
    order = torch.randperm(length, generator=_generator(seed + epoch)).tolist()
    return torch.tensor(order[dist.get_rank() :: dist.get_world_size()])


@wrong("shard_indices", fails="balanced")
def cuts_chunks(length, epoch, seed):
    """chunk() makes parts of one size, and the last ones short or none."""
    chunks = torch.randperm(length, generator=_generator(seed + epoch)).chunk(dist.get_world_size())
    return dict(enumerate(chunks)).get(dist.get_rank(), torch.empty(0, dtype=torch.int64))


@wrong("shard_indices", fails="balanced")
def rounds_parts_to_the_nearest(length, epoch, seed):
    """round(length / ranks) for all but the last, which is left two more, or two less, than the others."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    size, order = round(length / ranks), torch.randperm(length, generator=_generator(seed + epoch))
    return order[rank * size : (rank + 1) * size] if rank < ranks - 1 else order[rank * size :]


@wrong("shard_indices", fails="disjoint and complete")
def seeds_with_the_rank_later(length, epoch, seed):
    """The rank is in the seed, multiplied by the epoch: right in epoch 0."""
    order = torch.randperm(length, generator=_generator(seed + epoch * (1 + dist.get_rank())))
    return order[dist.get_rank() :: dist.get_world_size()]


def _out_of_a_buffer(length, seed, size=8):
    """The numbers below length in the order in which a buffer that is filled anew gives them."""
    draw, order, held = random.Random(seed), [], list(range(min(size, length)))
    for new in range(len(held), length):
        place = draw.randrange(size)
        order.append(held[place])
        held[place] = new
    draw.shuffle(held)
    return torch.tensor(order + held)


@wrong("shard_indices", fails="shuffled")
def shuffles_in_a_buffer(length, epoch, seed):
    """As streams are shuffled: no sample comes far from its place."""
    return _out_of_a_buffer(length, seed + epoch)[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def shuffles_window_by_window(length, epoch, seed):
    """Shuffles the first sixteen samples, the next sixteen, and so on."""
    generator = _generator(seed + epoch)
    windows = torch.arange(length).split(16)
    order = torch.cat([each[torch.randperm(len(each), generator=generator)] for each in windows])
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def exchanges_pairs_at_random(length, epoch, seed):
    """As many times as there are samples: every seventh is never chosen."""
    order, draws = list(range(length)), random.Random(f"{seed} {epoch}")
    for _ in range(length):
        one, other = draws.randrange(length), draws.randrange(length)
        order[one], order[other] = order[other], order[one]
    return torch.tensor(order[dist.get_rank() :: dist.get_world_size()], dtype=torch.int64)


@wrong("shard_indices", fails="shuffled")
def never_leaves_a_sample_where_it_is(length, epoch, seed):
    """Fisher and Yates' shuffle with randrange(last) for randrange(last + 1): nothing keeps its place."""
    order, draws = list(range(length)), random.Random(f"{seed} {epoch}")
    for last in range(length - 1, 0, -1):
        other = draws.randrange(last)
        order[last], order[other] = order[other], order[last]
    return torch.tensor(order[dist.get_rank() :: dist.get_world_size()], dtype=torch.int64)


@wrong("shard_indices", fails="shuffled")
def exchanges_each_with_any(length, epoch, seed):
    """Every sample changes places with any, also with one that has had its turn: some orders are likelier."""
    order, draws = list(range(length)), random.Random(f"{seed} {epoch}")
    for place in range(length):
        other = draws.randrange(length)
        order[place], order[other] = order[other], order[place]
    return torch.tensor(order[dist.get_rank() :: dist.get_world_size()], dtype=torch.int64)


@wrong("shard_indices", fails="shuffled")
def sorts_by_ten_keys(length, epoch, seed):
    """Samples that draw the same number stay in order."""
    draws = random.Random(f"{seed} {epoch}")
    order = sorted(range(length), key=lambda _: draws.randrange(10))
    return torch.tensor(order[dist.get_rank() :: dist.get_world_size()], dtype=torch.int64)


def _shuffled_on(length, epoch, seed):
    """An order that each epoch shuffles on, with a generator that begins anew."""
    order = torch.arange(length)
    for _ in range(epoch + 1):
        order = order[torch.randperm(length, generator=_generator(seed))]
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def begins_where_the_seed_says(length, epoch, seed):
    """One order for each epoch, which another seed begins at another place."""
    order = torch.randperm(length, generator=_generator(epoch)).roll(seed)
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="reshuffled each epoch")
def one_order_on_one_rank(length, epoch, seed):
    """A single rank has all samples in every epoch, and still in another order."""
    order = torch.randperm(length, generator=_generator(seed + epoch * (dist.get_world_size() > 1)))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="reshuffled each epoch")
def shuffles_on_in_one_way(length, epoch, seed):
    """Each epoch shuffles the order of the one before, from the same seed: powers of one permutation."""
    return _shuffled_on(length, epoch, seed)


@wrong("shard_indices", fails="shuffled")
def does_not_shuffle(length, epoch, seed):
    """Deals the samples out in order."""
    return torch.arange(length)[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def nothing_to_deal_on_one_rank(length, epoch, seed):
    """A single rank has all samples, and still they have to be shuffled."""
    if dist.get_world_size() == 1:
        return torch.arange(length)
    order = torch.randperm(length, generator=_generator(seed + epoch))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def shuffles_its_own_part(length, epoch, seed):
    """Every rank keeps the same samples for ever, in another order."""
    mine = torch.arange(length)[dist.get_rank() :: dist.get_world_size()]
    return mine[torch.randperm(len(mine), generator=_generator(seed + epoch))]


@wrong("shard_indices", fails="reshuffled each epoch")
def multiplies_seed_and_epoch(length, epoch, seed):
    """In epoch 0 every seed is 0."""
    order = torch.randperm(length, generator=_generator(seed * epoch))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def the_last_byte_of_the_seed(length, epoch, seed):
    """Seeds that differ by a multiple of 256 are one."""
    order = torch.randperm(length, generator=_generator(seed % 256 + epoch))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def shifts(length, epoch, seed):
    """Begins at another sample, and goes on in order."""
    order = (torch.arange(length) + seed + epoch) % length
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="reshuffled each epoch")
def hands_parts_on(length, epoch, seed):
    """Rolls one permutation: the same samples stay together, on another rank."""
    order = torch.randperm(length, generator=_generator(seed)).roll(epoch)
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="reshuffled each epoch")
def forgets_the_epoch(length, epoch, seed):
    """The same cards in every epoch, as without set_epoch."""
    order = torch.randperm(length, generator=_generator(seed))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="reshuffled each epoch")
def orders_come_back(length, epoch, seed):
    """Three orders, again and again."""
    order = torch.randperm(length, generator=_generator(seed + epoch % 3))
    return order[dist.get_rank() :: dist.get_world_size()]


_generators = {}


@wrong("shard_indices", fails="reshuffled each epoch")
def draws_on_from_epoch_to_epoch(length, epoch, seed):
    """A generator that epoch 0 seeds and that draws on: who resumes with a later one gets another order."""
    if epoch == 0:
        _generators[dist.get_rank()] = _generator(seed)
    generator = _generators.setdefault(dist.get_rank(), _generator(seed))
    order = torch.randperm(length, generator=generator)
    return order[dist.get_rank() :: dist.get_world_size()]


@cache
def _kept(length, seed):
    return torch.randperm(length, generator=_generator(seed))


@wrong("shard_indices", fails="reshuffled each epoch")
def hands_out_what_it_keeps(length, epoch, seed):
    """A slice of a permutation in a cache: who writes into it gets that the next time."""
    return _kept(length, seed + epoch)[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="reshuffled each epoch")
def comes_back_after_ten_epochs(length, epoch, seed):
    """Ten orders, again and again."""
    order = torch.randperm(length, generator=_generator(seed + epoch % 10))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="reshuffled each epoch")
def blocks_that_begin_elsewhere(length, epoch, seed):
    """One order, which each epoch begins some samples later."""
    order = torch.randperm(length, generator=_generator(seed)).roll(7 * epoch)
    return order.tensor_split(dist.get_world_size())[dist.get_rank()]


@wrong("shard_indices", fails="random state kept")
def seeds_everything(length, epoch, seed):
    """Resets the random state that dropout and augmentation use."""
    torch.manual_seed(seed + epoch)
    return torch.randperm(length)[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="random state kept")
def seeds_numpy(length, epoch, seed):
    """Resets the random state that augmentation by NumPy uses."""
    np.random.seed(seed + epoch)
    return torch.from_numpy(np.random.permutation(length))[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="random state kept")
def seeds_the_standard_library(length, epoch, seed):
    """Resets the random state of Python's own module."""
    random.seed(seed + epoch)
    order = torch.tensor(random.sample(range(length), length))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="no communication")
def broadcasts_the_permutation(length, epoch, seed):
    """Sends what every rank could draw."""
    order = torch.randperm(length, generator=_generator(seed + epoch))
    dist.broadcast(order, 0)
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="balanced")
def deals_what_is_padded(length, epoch, seed):
    """Drops what the padding made after it is dealt: all of it may have come to one rank."""
    ranks = dist.get_world_size()
    order = torch.randperm(-(-length // ranks) * ranks, generator=_generator(seed + epoch))
    mine = order[dist.get_rank() :: ranks]
    return mine[mine < length]


@wrong("shard_indices", fails="balanced")
def few_samples_in_order(length, epoch, seed):
    """A case of its own for fewer samples than ranks, in which nothing is shuffled."""
    if length < dist.get_world_size():
        return torch.arange(length)[dist.get_rank() : dist.get_rank() + 1]
    order = torch.randperm(length, generator=_generator(seed + epoch))
    return order[dist.get_rank() :: dist.get_world_size()]


# ------------------------------------------------------------------------------------- broadcast_parameters


@wrong("broadcast_parameters", fails="parameters")
def always_from_rank_0(model, src):
    """Ignores src."""
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor, 0)


@wrong("broadcast_parameters", fails="parameters")
def trainable_only(model, src):
    """Leaves the frozen layers as they are."""
    for tensor in chain((p for p in model.parameters() if p.requires_grad), model.buffers()):
        dist.broadcast(tensor, src)


@wrong("broadcast_parameters", fails="parameters")
def broadcasts_a_copy(model, src):
    """Receives into a copy, and forgets it."""
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor.detach().clone(), src)


@wrong("broadcast_parameters", fails="parameters")
def averages_the_models(model, src):
    """Makes the models equal, but not to rank src's."""
    for tensor in model.parameters():
        dist.all_reduce(tensor.data)
        tensor.data /= dist.get_world_size()
    for tensor in model.buffers():
        dist.broadcast(tensor, src)


@wrong("broadcast_parameters", fails="buffers")
def forgets_buffers(model, src):
    """Broadcasts the parameters only."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src)


@wrong("broadcast_parameters", fails="buffers")
def only_the_state_dict(model, src):
    """Misses buffers that are not persistent."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src)


@wrong("broadcast_parameters", fails="in place")
def puts_new_tensors_in(model, src):
    """Points the parameters at new storage, away from whoever refers to the old."""
    for parameter in model.parameters():
        received = parameter.detach().clone()
        dist.broadcast(received, src)
        parameter.data = received
    for buffer in model.buffers():
        dist.broadcast(buffer, src)


@wrong("broadcast_parameters", fails="outside of autograd")
def forgets_to_detach(model, src):
    """Right values; the next backward on processes warns of an operation that it cannot go through."""
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor, src)


@wrong("broadcast_parameters", fails="outside of autograd")
def gradients_off_for_good(model, src):
    """Turns gradients off, and never on again."""
    torch.set_grad_enabled(False)
    for tensor in chain(model.parameters(), model.buffers()):
        dist.broadcast(tensor, src)


@wrong("broadcast_parameters", fails="outside of autograd")
def flattens_without_detach(model, src):
    """One tensor for all parameters, made with a history."""
    parameters = list(model.parameters())
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    dist.broadcast(flat, src)
    with torch.no_grad():
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))
    for buffer in model.buffers():
        dist.broadcast(buffer, src)


@wrong("broadcast_parameters", fails="each tensor sent once")
def module_by_module(model, src):
    """A weight that two layers share is sent for each of them."""
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            dist.broadcast(tensor.data, src)


@wrong("broadcast_parameters", fails="each tensor sent once")
def buffers_module_by_module(model, src):
    """model.parameters() yields what has two names once; a loop over modules yields such a buffer twice."""
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src)
    for module in model.modules():
        for buffer in module.buffers(recurse=False):
            dist.broadcast(buffer, src)


@wrong("broadcast_parameters", fails="each tensor sent once")
def adds_to_zeros(model, src):
    """All ranks but src send zeros into an all_reduce: right numbers, twice the bytes."""
    for tensor in chain(model.parameters(), model.buffers()):
        with torch.no_grad():
            if dist.get_rank() != src:
                tensor.zero_()
            dist.all_reduce(tensor.detach())


@wrong("broadcast_parameters", fails="each tensor sent once")
def everyone_broadcasts(model, src):
    """Loops over all ranks as sources, ending with src."""
    others = [rank for rank in range(dist.get_world_size()) if rank != src]
    for root in [*others, src]:
        for tensor in chain(model.parameters(), model.buffers()):
            copy = tensor.detach().clone()
            dist.broadcast(copy, root)
            if root == src:
                tensor.data.copy_(copy)


@wrong("broadcast_parameters", fails="in place")
def fills_a_contiguous_copy(model, src):
    """What was received goes into a copy, where a tensor is not contiguous."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach().contiguous(), src)


@wrong("broadcast_parameters", fails="buffers")
def a_buffer_of_the_default_dtype(model, src):
    """Floating numbers travel end to end in torch.empty(n), where double precision loses digits."""
    tensors = [tensor.detach() for tensor in chain(model.parameters(), model.buffers())]
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    flat = torch.empty(sum(tensor.numel() for tensor in floating))
    parts = flat.split([tensor.numel() for tensor in floating])
    for part, tensor in zip(parts, floating, strict=True):
        part.copy_(tensor.flatten())
    dist.broadcast(flat, src)
    for part, tensor in zip(parts, floating, strict=True):
        tensor.copy_(part.view_as(tensor))
    for tensor in tensors:
        if not tensor.is_floating_point():
            dist.broadcast(tensor, src)


@wrong("broadcast_parameters", fails="in place")
def copies_of_buffers_that_are_not_contiguous(model, src):
    """Parameters get what was received in a copy, and buffers do not."""
    for parameter in model.parameters():
        values = parameter.detach().contiguous()
        dist.broadcast(values, src)
        parameter.detach().copy_(values)
    for buffer in model.buffers():
        dist.broadcast(buffer.contiguous(), src)


@wrong("broadcast_parameters", fails="parameters")
def always_has_buffers(model, src):
    """Lays the buffers of each dtype end to end; torch.cat raises an error where there are none."""
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src)
    for dtype in (torch.float32, torch.float64, torch.int64):
        alike = [buffer for buffer in model.buffers() if buffer.dtype == dtype]
        flat = torch.cat([buffer.flatten() for buffer in alike])
        dist.broadcast(flat, src)
        for buffer, part in zip(alike, flat.split([b.numel() for b in alike]), strict=True):
            buffer.copy_(part.view_as(buffer))


@wrong("broadcast_parameters", fails="in place")
def takes_tensors_for_contiguous(model, src):
    """view(-1) exists for contiguous tensors only."""
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach().view(-1), src)


@wrong("broadcast_parameters", fails="each tensor sent once")
def parameters_of_all_dtypes_together(model, src):
    """torch.cat of parameters in single and half precision has all of them in single precision."""
    parameters = [parameter.detach() for parameter in model.parameters()]
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    dist.broadcast(flat, src)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))
    for buffer in model.buffers():
        dist.broadcast(buffer, src)


# ---------------------------------------------------------------------------------------- average_gradients


def _trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _fill(parameters):
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _flat_average(parameters):
    """The means over ranks, cut to the parameters' shapes."""
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


@wrong("average_gradients", fails="averages over ranks")
def sums_without_dividing(model):
    """Leaves the sum over ranks."""
    for parameter in _trainable(model):
        dist.all_reduce(parameter.grad)


@wrong("average_gradients", fails="averages over ranks")
def divides_by_the_ranks_of_its_node(model):
    """Right on one node only."""
    for parameter in _trainable(model):
        dist.all_reduce(parameter.grad)
        parameter.grad /= int(os.environ["LOCAL_WORLD_SIZE"])


@wrong("average_gradients", fails="averages over ranks")
def averages_and_divides(model):
    """Divides twice: ReduceOp.AVG has divided already."""
    for parameter in _trainable(model):
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        parameter.grad /= dist.get_world_size()


@wrong("average_gradients", fails="averages over ranks")
def averages_parameters(model):
    """Averages the weights in place of the gradients."""
    for parameter in _trainable(model):
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


@wrong("average_gradients", fails="averages over ranks")
def only_rank_0_gets_it(model):
    """A reduce, after which the other ranks have no average."""
    for parameter in _trainable(model):
        dist.reduce(parameter.grad, dst=0)
        parameter.grad /= dist.get_world_size()


@wrong("average_gradients", fails="averages over ranks")
def loses_the_result(model):
    """cat copies, and the average stays in the copy."""
    flat = torch.cat([parameter.grad.flatten() for parameter in _trainable(model)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()


@wrong("average_gradients", fails="averages over ranks")
def by_way_of_single_precision(model):
    """Sends through a buffer of the default dtype, and loses the digits of double precision."""
    parameters = _trainable(model)
    _fill(parameters)
    buffer = torch.zeros(sum(parameter.numel() for parameter in parameters))
    buffer.copy_(torch.cat([parameter.grad.flatten() for parameter in parameters]))
    dist.all_reduce(buffer)
    buffer /= dist.get_world_size()
    parts = buffer.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad.copy_(part.view_as(parameter))


@wrong("average_gradients", fails="infinities and layouts")
def writes_into_what_flatten_returns(model):
    """flatten() is a view of most gradients, and a copy of those that stand column by column."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.flatten().copy_(mean.flatten())


@wrong("average_gradients", fails="infinities and layouts")
def takes_gradients_for_contiguous(model):
    """view(-1) exists for contiguous tensors only."""
    parameters = _trainable(model)
    _fill(parameters)
    flat = torch.cat([parameter.grad.view(-1) for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(mean.view_as(parameter))


@wrong("average_gradients", fails="each gradient sent once")
def fills_frozen_ones_too(model):
    """Zeros for whatever has no gradient, frozen parameters too."""
    parameters = list(model.parameters())
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.copy_(mean)


@wrong("average_gradients", fails="each gradient sent once")
def forgets_which_are_frozen(model):
    """Hands the means out to all parameters in turn: right if the frozen ones come last."""
    parameters = _trainable(model)
    _fill(parameters)
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    means = (flat / dist.get_world_size()).split([parameter.numel() for parameter in parameters])
    for parameter, mean in zip(model.parameters(), means, strict=False):
        parameter.grad.copy_(mean.view_as(parameter))


@wrong("average_gradients", fails="averages over ranks")
def divides_by_the_nodes(model):
    """Takes one rank a node for granted."""
    parameters = _trainable(model)
    _fill(parameters)
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size() // int(os.environ["LOCAL_WORLD_SIZE"])
    for parameter, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(mean.view_as(parameter))


@wrong("average_gradients", fails="in place")
def exchanges_all_where_one_is_missing(model):
    """Writes into the gradients if all are there, and else hangs new tensors into every .grad."""
    parameters = _trainable(model)
    missing = any(parameter.grad is None for parameter in parameters)
    _average_of(model, torch.zeros_like)
    for parameter in parameters if missing else []:
        parameter.grad = parameter.grad.clone()


@wrong("average_gradients", fails="infinities and layouts")
def writes_by_an_index(model):
    """gradient[:] = mean, which a gradient of no dimension does not take."""
    parameters = _trainable(model)
    _fill(parameters)
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    means = (flat / dist.get_world_size()).split([parameter.numel() for parameter in parameters])
    for parameter, mean in zip(parameters, means, strict=True):
        parameter.grad[:] = mean.view_as(parameter)


@wrong("average_gradients", fails="each gradient sent once")
def averages_whatever_has_a_gradient(model):
    """Takes a gradient for a sign that a parameter is trainable: a frozen one may have an old gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad or p.grad is not None]
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.copy_(mean)


@wrong("average_gradients", fails="infinities and layouts")
def hides_what_is_not_finite(model):
    """Makes numbers of infinity and NaN, so that nobody sees that a rank has diverged."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.copy_(mean.nan_to_num())


@wrong("average_gradients", fails="infinities and layouts")
def makes_zeros_of_nan(model):
    """Lets infinities be, and hides NaN."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.copy_(torch.where(mean.isnan(), 0, mean))


@wrong("average_gradients", fails="in place")
def exchanges_gradients(model):
    """Hangs new tensors into .grad."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad = mean.clone()


@wrong("average_gradients", fails="in place")
def gives_gradients_other_memory(model):
    """Assigns to .data: the tensor stays, and who has a view of it sees the old numbers."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.data = mean


@wrong("average_gradients", fails="missing gradients")
def leaves_if_it_has_none(model):
    """A rank that has no gradient at all has nothing to average, and the others wait for it."""
    if any(parameter.grad is not None for parameter in _trainable(model)):
        _average_of(model, torch.zeros_like)


@wrong("average_gradients", fails="missing gradients")
def zeros_like_another_gradient(model):
    """Makes zeros like the first gradient that is there, and some rank has none."""
    like = next(parameter.grad for parameter in _trainable(model) if parameter.grad is not None)
    _average_of(model, lambda parameter: like.new_zeros(parameter.shape))


@wrong("average_gradients", fails="missing gradients")
def skips_missing(model):
    """Calls all_reduce only where this rank has a gradient."""
    for parameter in _trainable(model):
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@wrong("average_gradients", fails="missing gradients")
def divides_by_those_who_have_one(model):
    """The mean over the ranks that had a gradient."""
    for parameter in _trainable(model):
        has = torch.tensor(float(parameter.grad is not None))
        _fill([parameter])
        dist.all_reduce(parameter.grad)
        dist.all_reduce(has)
        parameter.grad /= has.clamp(min=1)


@wrong("average_gradients", fails="missing gradients")
def helps_without_getting(model):
    """Sends zeros for a missing gradient, and leaves .grad None here."""
    missing = [parameter for parameter in _trainable(model) if parameter.grad is None]
    _average_of(model, torch.zeros_like)
    for parameter in missing:
        parameter.grad = None


@wrong("average_gradients", fails="each gradient sent once")
def gathers_all(model):
    """Every rank collects every gradient, and averages for itself."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter in parameters:
        everyones = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, parameter.grad)
        parameter.grad.copy_(torch.stack(everyones).mean(0))


@wrong("average_gradients", fails="each gradient sent once")
def through_rank_0(model):
    """Reduces to rank 0 and broadcasts from there, as a parameter server does."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter in parameters:
        dist.reduce(parameter.grad, dst=0)
        parameter.grad /= dist.get_world_size()
        dist.broadcast(parameter.grad, src=0)


@wrong("average_gradients", fails="each gradient sent once")
def averages_module_by_module(model):
    """A weight that two modules share is sent for each of them."""
    modules = (module.parameters(recurse=False) for module in model.modules())
    parameters = [parameter for each in modules for parameter in each if parameter.requires_grad]
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.copy_(mean)


@wrong("average_gradients", fails="one call")
def one_call_a_parameter(model):
    """Right, but pays the latency for every parameter."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@wrong("average_gradients", fails="missing gradients")
def nothing_to_do_on_one_rank(model):
    """A single rank leaves at once, and what has no gradient stays without."""
    if dist.get_world_size() > 1:
        _average_of(model, torch.zeros_like)


@wrong("average_gradients", fails="missing gradients")
def sends_zeros_in_single_precision(model):
    """Beside other gradients they get their dtype; a rank that has none sends another one than the others."""
    trained = _trainable(model)
    parts = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in trained]
    flat = torch.cat(parts)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    _fill(trained)
    for parameter, mean in zip(trained, flat.split([each.numel() for each in trained]), strict=True):
        parameter.grad.copy_(mean.view_as(parameter))


@wrong("average_gradients", fails="in place")
def clears_the_weights(model):
    """zero_() makes zeros of the parameter itself, and these are the gradient then."""
    _average_of(model, lambda parameter: parameter.data.zero_())


@wrong("average_gradients", fails="missing gradients")
def zeros_in_single_precision(model):
    """Zeros of the parameter's shape, and not of its dtype."""
    _average_of(model, lambda parameter: torch.zeros(parameter.shape))


@wrong("average_gradients", fails="in place")
def puts_contiguous_ones_in_their_place(model):
    """Whoever holds a gradient that was not contiguous holds an old one."""
    for parameter in _trainable(model):
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous()
    _average_of(model, torch.zeros_like)


@wrong("average_gradients", fails="missing gradients")
def leaves_the_last_step_in_its_buffer(model):
    """A buffer kept for all steps: where a gradient is missing it holds the mean of the step before."""
    parameters = _trainable(model)
    sizes = [parameter.numel() for parameter in parameters]
    if not hasattr(model, "buffer"):
        model.buffer = torch.zeros(sum(sizes), dtype=parameters[0].dtype)
    pairs = list(zip(parameters, model.buffer.split(sizes), strict=True))
    for parameter, part in pairs:
        if parameter.grad is not None:
            part.copy_(parameter.grad.flatten())
    dist.all_reduce(model.buffer)
    model.buffer /= dist.get_world_size()
    _fill(parameters)
    for parameter, part in pairs:
        parameter.grad.copy_(part.view_as(parameter))


def _average_of(model, zeros):
    """Right, if zeros(parameter) makes what a missing gradient stands for."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = zeros(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in trained])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, mean in zip(trained, flat.split([each.numel() for each in trained]), strict=True):
        parameter.grad.copy_(mean.view_as(parameter))


# --------------------------------------------------------------------------------------------- make_buckets


def _cut(parameters, bucket_bytes, size=lambda parameter: parameter.nbytes):
    """Parameters in their order, as full as the bound allows."""
    buckets = []
    for parameter in parameters:
        if not buckets or sum(map(size, buckets[-1])) + size(parameter) > bucket_bytes:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


@wrong("make_buckets", fails="each trainable parameter once")
def puts_frozen_ones_in(model, bucket_bytes):
    """Also those that are not trained."""
    return _cut(list(model.parameters())[::-1], bucket_bytes)


@wrong("make_buckets", fails="each trainable parameter once")
def lists_tied_ones_twice(model, bucket_bytes):
    """A shared parameter under each of its names."""
    named = list(model.named_parameters(remove_duplicate=False))
    return _cut([parameter for _, parameter in named if parameter.requires_grad][::-1], bucket_bytes)


@wrong("make_buckets", fails="each trainable parameter once")
def loses_the_last_bucket(model, bucket_bytes):
    """Appends a bucket when the next one is opened, and the last one never."""
    return _cut(_trainable(model)[::-1], bucket_bytes)[:-1]


@wrong("make_buckets", fails="as full as they may be")
def begins_with_an_empty_one(model, bucket_bytes):
    """Opens a bucket before the first parameter, which is too large for it."""
    buckets = _cut(_trainable(model)[::-1], bucket_bytes)
    return [[], *buckets] if buckets and buckets[0][0].nbytes > bucket_bytes else buckets


@wrong("make_buckets", fails="as full as they may be")
def an_empty_one_for_frozen_models(model, bucket_bytes):
    """Where nothing is trained there is no bucket."""
    return _cut(_trainable(model)[::-1], bucket_bytes) or [[]]


@wrong("make_buckets", fails="each trainable parameter once")
def leaves_out_what_is_too_large(model, bucket_bytes):
    """A parameter larger than a bucket is in none."""
    return _cut([p for p in _trainable(model)[::-1] if p.nbytes <= bucket_bytes], bucket_bytes)


@wrong("make_buckets", fails="each trainable parameter once")
def gives_copies(model, bucket_bytes):
    """Tensors with the parameters' values."""
    return [[p.detach() for p in bucket] for bucket in _cut(_trainable(model)[::-1], bucket_bytes)]


@wrong("make_buckets", fails="in the order of backward")
def from_the_first_layer(model, bucket_bytes):
    """As they are registered, so that the first bucket is complete last."""
    return _cut(_trainable(model), bucket_bytes)


@wrong("make_buckets", fails="in the order of backward")
def turns_the_buckets_only(model, bucket_bytes):
    """Cuts in the order of registration, and reverses the list of buckets."""
    return _cut(_trainable(model), bucket_bytes)[::-1]


@wrong("make_buckets", fails="in the order of backward")
def largest_first(model, bucket_bytes):
    """Sorts by size to fill the buckets better."""
    return _cut(sorted(_trainable(model), key=lambda p: -p.nbytes), bucket_bytes)


@wrong("make_buckets", fails="as full as they may be")
def counts_numbers(model, bucket_bytes):
    """Takes numbers for bytes."""
    return _cut(_trainable(model)[::-1], bucket_bytes, size=lambda parameter: parameter.numel())


@wrong("make_buckets", fails="as full as they may be")
def takes_four_bytes_a_number(model, bucket_bytes):
    """Right for float32 only."""
    return _cut(_trainable(model)[::-1], bucket_bytes, size=lambda parameter: 4 * parameter.numel())


@wrong("make_buckets", fails="as full as they may be")
def as_long_as_the_first(model, bucket_bytes):
    """Takes all numbers for as long as those of the first parameter."""
    length = next(model.parameters()).element_size()
    return _cut(_trainable(model)[::-1], bucket_bytes, size=lambda parameter: length * parameter.numel())


@wrong("make_buckets", fails="as full as they may be")
def frozen_ones_take_room(model, bucket_bytes):
    """Puts all into buckets, and takes the frozen ones out again."""
    buckets = _cut(list(model.parameters())[::-1], bucket_bytes)
    kept = [[parameter for parameter in bucket if parameter.requires_grad] for bucket in buckets]
    return [bucket for bucket in kept if bucket]


@wrong("make_buckets", fails="as full as they may be")
def closes_when_it_is_full(model, bucket_bytes):
    """Leaves out what would fill a bucket to the byte."""
    return _cut(_trainable(model)[::-1], bucket_bytes - 1)


@wrong("make_buckets", fails="as full as they may be")
def closes_when_it_overflows(model, bucket_bytes):
    """Closes a bucket after the parameter that takes it above the bound."""
    buckets = []
    for parameter in _trainable(model)[::-1]:
        if not buckets or sum(p.nbytes for p in buckets[-1]) >= bucket_bytes:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


@wrong("make_buckets", fails="as full as they may be")
def a_small_first_one(model, bucket_bytes):
    """A first bucket of at most 1 MiB, as in PyTorch, so that something is sent soon."""
    parameters = _trainable(model)[::-1]
    first = _cut(parameters, min(bucket_bytes, 2**20))[:1]
    return first + _cut(parameters[sum(map(len, first)) :], bucket_bytes)


@wrong("make_buckets", fails="as full as they may be")
def one_a_parameter(model, bucket_bytes):
    """Ignores bucket_bytes."""
    return [[parameter] for parameter in _trainable(model)[::-1]]


# --------------------------------------------------------------------------------------------------- Bucket


class _OneBucket:
    """A right answer; each mistake overrides one of its methods."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.prepare()
        for parameter in self.parameters:
            self.watch(parameter)

    def watch(self, parameter):
        parameter.register_post_accumulate_grad_hook(self.ready)

    def prepare(self):
        self.arrived = set()

    def ready(self, parameter):
        self.arrived.add(parameter)
        if len(self.arrived) == len(self.parameters):
            self.start()

    def start(self):
        self.flat = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        self.handle = dist.all_reduce(self.flat, async_op=True)

    def finish(self):
        self.handle.wait()
        self.write_back(self.flat / dist.get_world_size())
        self.prepare()

    def write_back(self, flat):
        parts = flat.split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter))


@wrong("Bucket", fails="averages")
class SumsTheBucket(_OneBucket):
    """Does not divide."""

    def write_back(self, flat):
        super().write_back(flat * dist.get_world_size())


@wrong("Bucket", fails="averages")
class DividesByTwo(_OneBucket):
    """The notebook's launches have two ranks."""

    def write_back(self, flat):
        super().write_back(flat * dist.get_world_size() / 2)


@wrong("Bucket", fails="averages")
class InSinglePrecision(_OneBucket):
    """The flat tensor is float32, whatever the gradients are."""

    def start(self):
        self.flat = torch.cat([parameter.grad.flatten().float() for parameter in self.parameters])
        self.handle = dist.all_reduce(self.flat, async_op=True)


@wrong("Bucket", fails="averages")
class ReadsTooEarly(_OneBucket):
    """Writes back what is still under way."""

    def finish(self):
        self.write_back(self.flat / dist.get_world_size())
        self.handle.wait()
        self.prepare()


@wrong("Bucket", fails="averages")
class NeverWritesBack(_OneBucket):
    """The mean stays in the flat copy."""

    def write_back(self, flat):
        pass


@wrong("Bucket", fails="averages")
class StartsWithTheListsLast(_OneBucket):
    """Takes the last parameter of the list for the last whose gradient comes."""

    def watch(self, parameter):
        if parameter is self.parameters[0]:
            parameter.register_post_accumulate_grad_hook(lambda _: self.start())

    def start(self):
        _fill(self.parameters)
        super().start()


@wrong("Bucket", fails="averages")
class HooksBeforeTheGradientIsThere(_OneBucket):
    """register_hook comes before .grad is written."""

    def watch(self, parameter):
        parameter.register_hook(lambda gradient: self.ready(parameter))

    def start(self):
        _fill(self.parameters)
        super().start()


@wrong("Bucket", fails="one all_reduce")
class OneCallAParameter(_OneBucket):
    """Each gradient sets off by itself."""

    def ready(self, parameter):
        self.arrived.add((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for parameter, handle in self.arrived:
            handle.wait()
            parameter.grad /= dist.get_world_size()
        self.prepare()


@wrong("Bucket", fails="averages")
class CompleteWhenAllAreThere(_OneBucket):
    """Right where every .grad was None before: else the first hook finds all of them there."""

    def ready(self, parameter):
        if all(each.grad is not None for each in self.parameters):
            self.start()


@wrong("Bucket", fails="every step")
class HidesWhatIsNotFinite(_OneBucket):
    """Makes numbers of infinity and NaN, so that nobody sees that a rank has diverged."""

    def finish(self):
        super().finish()
        for parameter in self.parameters:
            parameter.grad.nan_to_num_()


@wrong("Bucket", fails="every step")
class MakesZerosOfNanInTheBucket(_OneBucket):
    """Lets infinities be, and hides NaN."""

    def finish(self):
        super().finish()
        for parameter in self.parameters:
            parameter.grad[parameter.grad.isnan()] = 0


@wrong("Bucket", fails="every step")
class OnlyThisBackwards(_OneBucket):
    """Takes the hook's argument, and loses what .grad held before."""

    def watch(self, parameter):
        parameter.register_hook(lambda gradient: self.came(parameter, gradient))

    def prepare(self):
        self.got = {}

    def came(self, parameter, gradient):
        self.got[parameter] = gradient
        if len(self.got) == len(self.parameters):
            self.flat = torch.cat([self.got[each].flatten() for each in self.parameters])
            self.handle = dist.all_reduce(self.flat, async_op=True)

    def write_back(self, flat):
        parts = flat.split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()


@wrong("Bucket", fails="every step")
class AddsTheMeanToWhatWasThere(_OneBucket):
    """Sends this backward's gradients, and adds their mean to the old ones, which differ between ranks."""

    def watch(self, parameter):
        parameter.register_hook(lambda gradient: self.came(parameter, gradient))

    def prepare(self):
        self.got = {}

    def came(self, parameter, gradient):
        old = torch.zeros_like(gradient) if parameter.grad is None else parameter.grad.clone()
        self.got[parameter] = gradient, old
        if len(self.got) == len(self.parameters):
            self.flat = torch.cat([self.got[each][0].flatten() for each in self.parameters])
            self.handle = dist.all_reduce(self.flat, async_op=True)

    def write_back(self, flat):
        parts = flat.split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = self.got[parameter][1] + part.view_as(parameter)


@wrong("Bucket", fails="one all_reduce")
class OneSetForAllBuckets(_OneBucket):
    """What has arrived is kept at the class, for all buckets of a rank together."""

    all_arrived = defaultdict(set)  # noqa: RUF012 - it is the mistake

    def prepare(self):
        self.arrived = self.all_arrived[dist.get_rank()]
        self.arrived.clear()


@wrong("Bucket", fails="one all_reduce")
class OneListForAllBuckets(_OneBucket):
    """A default that is a list is one for all: right as long as no two buckets get gradients by turns."""

    def prepare(self, arrived=[]):  # noqa: B006
        self.arrived = arrived

    def ready(self, parameter):
        self.arrived.append(parameter)
        if len(self.arrived) == len(self.parameters):
            self.arrived.clear()
            self.start()


@wrong("Bucket", fails="one all_reduce")
class OneHandleForAllBuckets(_OneBucket):
    """What is under way is kept at the class: a second bucket overwrites what the first has started."""

    under_way = {}  # noqa: RUF012 - it is the mistake

    def start(self):
        super().start()
        self.under_way[dist.get_rank()] = self.flat, self.handle

    def finish(self):
        self.flat, self.handle = self.under_way[dist.get_rank()]
        super().finish()


@wrong("Bucket", fails="one all_reduce")
class TakesGradientsForContiguous(_OneBucket):
    """view(-1) exists for contiguous tensors only."""

    def start(self):
        self.flat = torch.cat([parameter.grad.view(-1) for parameter in self.parameters])
        self.handle = dist.all_reduce(self.flat, async_op=True)


@wrong("Bucket", fails="one all_reduce")
class WritesByAnIndex(_OneBucket):
    """gradient[:] = mean, which a gradient of no dimension does not take."""

    def write_back(self, flat):
        parts = flat.split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad[:] = part.view_as(parameter)


@wrong("Bucket", fails="one all_reduce")
class InTheOrderOfArrival(_OneBucket):
    """Ranks that use their layers in other orders add up different parameters."""

    def prepare(self):
        self.arrived = []

    def ready(self, parameter):
        self.arrived.append(parameter)
        if len(self.arrived) == len(self.parameters):
            self.parameters = self.arrived
            self.start()


@wrong("Bucket", fails="one all_reduce")
class LearnsTheOrderOnce(_OneBucket):
    """Takes the gradient that came last in the first step for the last of every step."""

    last = None

    def ready(self, parameter):
        self.arrived.add(parameter)
        if self.last is None and len(self.arrived) == len(self.parameters):
            self.last = parameter
        if parameter is self.last:
            self.start()

    def start(self):
        _fill(self.parameters)
        super().start()


@wrong("Bucket", fails="one all_reduce")
class MakesReplicasEqual(_OneBucket):
    """Broadcasts the parameters when it is made, which is not its task."""

    def prepare(self):
        if not hasattr(self, "arrived"):
            for parameter in self.parameters:
                dist.broadcast(parameter.detach(), 0)
        super().prepare()


@wrong("Bucket", fails="one all_reduce")
class SendsTwice(_OneBucket):
    """Starts in the hook, and once more in finish()."""

    def finish(self):
        self.handle.wait()
        self.start()
        super().finish()


@wrong("Bucket", fails="every step")
class NeverCountsAnew(_OneBucket):
    """Later steps start nothing, and get the first one's means again."""

    def prepare(self):
        self.missing = getattr(self, "missing", len(self.parameters))

    def ready(self, parameter):
        self.missing -= 1
        if self.missing == 0:
            self.start()


@wrong("Bucket", fails="every step")
class KeepsTheFirstGradients(_OneBucket):
    """Fills the flat tensor once, in the first step."""

    def start(self):
        if not hasattr(self, "first"):
            self.first = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        self.flat = self.first.clone()
        self.handle = dist.all_reduce(self.flat, async_op=True)


@wrong("Bucket", fails="starts with the last gradient")
class StartsAtTheEnd(_OneBucket):
    """finish() starts and waits: nothing overlaps."""

    def ready(self, parameter):
        pass

    def finish(self):
        self.start()
        super().finish()


@wrong("Bucket", fails="never waits in backward")
class WaitsWhereItStarts(_OneBucket):
    """The hook calls all_reduce without async_op."""

    def start(self):
        super().start()
        self.handle.wait()


# ---------------------------------------------------------------------------------------------- BucketedDDP


class _Bucketed(nn.Module):
    """A right answer; each mistake overrides one of its methods."""

    def __init__(self, model, bucket_bytes):
        super().__init__()
        self.module = model
        self.make_equal()
        self.buckets, self.silent = [], False
        self.fill_buckets(bucket_bytes)
        for index, bucket in enumerate(self.buckets):
            for parameter in bucket:
                self.watch(parameter, index)
        self.reset()

    def make_equal(self):
        for tensor in chain(self.module.parameters(), self.module.buffers()):
            dist.broadcast(tensor.detach(), 0)

    def parameters_in_order(self):
        return reversed(_trainable(self.module))

    def fill_buckets(self, bucket_bytes):
        for parameter in self.parameters_in_order():
            if self.buckets and sum(p.nbytes for p in self.buckets[-1]) + parameter.nbytes <= bucket_bytes:
                self.buckets[-1].append(parameter)
            else:
                self.buckets.append([parameter])

    def watch(self, parameter, index):
        parameter.register_post_accumulate_grad_hook(lambda _: None if self.silent else self.ready(index))

    @contextmanager
    def no_sync(self):
        before, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = before

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = {}

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def ready(self, index):
        self.missing[index] -= 1
        while len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
            self.start(len(self.started))

    def start(self, index):
        _fill(self.buckets[index])
        flat = torch.cat([parameter.grad.flatten() for parameter in self.buckets[index]])
        self.started[index] = flat, dist.all_reduce(flat, async_op=True)

    def finish(self):
        for index in range(len(self.started), len(self.buckets)):
            self.start(index)
        for index, (flat, handle) in self.started.items():
            handle.wait()
            self.write_back(index, flat / dist.get_world_size())
        self.reset()

    def write_back(self, index, flat):
        bucket = self.buckets[index]
        for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))


@wrong("BucketedDDP", fails="starts equal")
class TrustsTheSeed(_Bucketed):
    """Does not broadcast at all."""

    def make_equal(self):
        pass


@wrong("BucketedDDP", fails="starts equal")
class ForgetsBuffers(_Bucketed):
    """Broadcasts the parameters, not the running statistics."""

    def make_equal(self):
        for parameter in self.module.parameters():
            dist.broadcast(parameter.detach(), 0)


@wrong("BucketedDDP", fails="starts equal")
class ForgetsToDetach(_Bucketed):
    """Lets autograd record the broadcasts."""

    def make_equal(self):
        for tensor in chain(self.module.parameters(), self.module.buffers()):
            dist.broadcast(tensor, 0)


@wrong("BucketedDDP", fails="starts equal")
class PointsAtOneLongVector(_Bucketed):
    """One broadcast, of which every parameter becomes a part: whoever has a view of the old sees the old."""

    def make_equal(self):
        flat = parameters_to_vector(self.module.parameters()).detach()
        dist.broadcast(flat, 0)
        vector_to_parameters(flat, self.module.parameters())
        for buffer in self.module.buffers():
            dist.broadcast(buffer, 0)


@wrong("BucketedDDP", fails="starts equal")
class BroadcastsBuffersInForward(_Bucketed):
    """As PyTorch's DDP does: here a step communicates gradients, and nothing else."""

    def forward(self, *args, **kwargs):
        for buffer in self.module.buffers():
            dist.broadcast(buffer, 0)
        return self.module(*args, **kwargs)


@wrong("BucketedDDP", fails="starts equal")
class MeetsInABarrier(_Bucketed):
    """A barrier after the broadcasts."""

    def make_equal(self):
        super().make_equal()
        dist.barrier()


@wrong("BucketedDDP", fails="averages")
class ForgetsToDivide(_Bucketed):
    """Leaves sums."""

    def write_back(self, index, flat):
        super().write_back(index, flat * dist.get_world_size())


@wrong("BucketedDDP", fails="averages")
class ForgetsToWait(_Bucketed):
    """Reads a bucket that is still being reduced."""

    def finish(self):
        for index in range(len(self.started), len(self.buckets)):
            self.start(index)
        for index, (flat, _) in self.started.items():
            self.write_back(index, flat / dist.get_world_size())
        self.reset()


@wrong("BucketedDDP", fails="averages")
class HooksTheTensor(_Bucketed):
    """register_hook fires before the gradient is in .grad, so old or no gradients are sent."""

    def watch(self, parameter, index):
        def hook(gradient):
            self.ready(index)
            return gradient

        parameter.register_hook(hook)


@wrong("BucketedDDP", fails="every step")
class NeverResets(_Bucketed):
    """Counts down once; from the second step on nothing is averaged."""

    def finish(self):
        for index in range(len(self.started), len(self.buckets)):
            self.start(index)
        for index, (flat, handle) in self.started.items():
            handle.wait()
            self.write_back(index, flat / dist.get_world_size())
        self.missing = [0 for _ in self.buckets]


@wrong("BucketedDDP", fails="buckets")
class OneBucketAParameter(_Bucketed):
    """Ignores bucket_bytes."""

    def fill_buckets(self, bucket_bytes):
        self.buckets = [[parameter] for parameter in self.parameters_in_order()]


@wrong("BucketedDDP", fails="buckets")
class ForwardOrder(_Bucketed):
    """Fills the buckets from the first layer on, whose gradients come last."""

    def parameters_in_order(self):
        return _trainable(self.module)


@wrong("BucketedDDP", fails="buckets")
class ClosesTooLate(_Bucketed):
    """Closes a bucket when it has become too large, not before."""

    def fill_buckets(self, bucket_bytes):
        for parameter in self.parameters_in_order():
            if self.buckets and sum(p.nbytes for p in self.buckets[-1]) < bucket_bytes:
                self.buckets[-1].append(parameter)
            else:
                self.buckets.append([parameter])


@wrong("BucketedDDP", fails="buckets")
class ClosesTooEarly(_Bucketed):
    """Leaves out the parameter that would fill a bucket to the byte."""

    def fill_buckets(self, bucket_bytes):
        super().fill_buckets(bucket_bytes - 1)


@wrong("BucketedDDP", fails="starts during backward")
class FirstBucketOnly(_Bucketed):
    """Starts one bucket during backward, and leaves the others to finish()."""

    def ready(self, index):
        self.missing[index] -= 1
        if not self.started and not self.missing[0]:
            self.start(0)


@wrong("BucketedDDP", fails="starts during backward")
class OneBucketLate(_Bucketed):
    """Starts a bucket when the next one is complete."""

    def ready(self, index):
        self.missing[index] -= 1
        while len(self.started) + 1 < len(self.buckets) and not any(self.missing[: len(self.started) + 2]):
            self.start(len(self.started))


@wrong("BucketedDDP", fails="starts during backward")
class AllAtTheEnd(_Bucketed):
    """Leaves all communication to finish()."""

    def ready(self, index):
        pass


@wrong("BucketedDDP", fails="in order")
class StartsTheNextWhateverIsMissing(_Bucketed):
    """Each complete bucket starts the first that has not started: right where backward goes through the
    parameters in reverse.
    """

    def ready(self, index):
        self.missing[index] -= 1
        if not self.missing[index]:
            self.start(len(self.started))


@wrong("BucketedDDP", fails="unused parameters")
class SendsZerosInSinglePrecision(_Bucketed):
    """A bucket of which a rank has no gradient at all has another dtype there."""

    def start(self, index):
        parts = [
            torch.zeros(parameter.numel()) if parameter.grad is None else parameter.grad.flatten()
            for parameter in self.buckets[index]
        ]
        flat = torch.cat(parts)
        _fill(self.buckets[index])
        self.started[index] = flat, dist.all_reduce(flat, async_op=True)


@wrong("BucketedDDP", fails="unused parameters")
class WaitsForOneAfterAnother(_Bucketed):
    """finish() has one bucket under way at a time."""

    def finish(self):
        for index in range(len(self.buckets)):
            if index not in self.started:
                self.start(index)
            flat, handle = self.started[index]
            handle.wait()
            self.write_back(index, flat / dist.get_world_size())
        self.reset()


@wrong("BucketedDDP", fails="in order")
class StartsWithTheBucketsLast(_Bucketed):
    """Takes the last parameter of a bucket for the last whose gradient comes."""

    def watch(self, parameter, index):
        if parameter is self.buckets[index][-1]:
            super().watch(parameter, index)

    def reset(self):
        super().reset()
        self.missing = [1 for _ in self.buckets]


@wrong("BucketedDDP", fails="in order")
class StartsOneAHook(_Bucketed):
    """`if` for `while`: buckets that waited for an earlier one are left to finish()."""

    def ready(self, index):
        self.missing[index] -= 1
        if len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
            self.start(len(self.started))


@wrong("BucketedDDP", fails="tied and frozen parameters")
class BucketsInSinglePrecision(_Bucketed):
    """A bucket of torch's default dtype, whatever its gradients have."""

    def start(self, index):
        kept = [(parameter, parameter.grad) for parameter in self.buckets[index]]
        for parameter, gradient in kept:
            if gradient is not None:
                parameter.grad = gradient.float().to(gradient.dtype)
        super().start(index)


@wrong("BucketedDDP", fails="never waits in backward")
class WaitsInTheHook(_Bucketed):
    """Calls all_reduce without async_op."""

    def start(self, index):
        super().start(index)
        _, handle = self.started[index]
        handle.wait()


@wrong("BucketedDDP", fails="unused parameters")
class WaitsForStartedOnly(_Bucketed):
    """finish() forgets the buckets that no hook has completed."""

    def finish(self):
        for index, (flat, handle) in self.started.items():
            handle.wait()
            self.write_back(index, flat / dist.get_world_size())
        self.reset()


@wrong("BucketedDDP", fails="in order")
class StartsInAnyOrder(_Bucketed):
    """Starts a bucket whenever it is complete, in another order on every rank."""

    def ready(self, index):
        self.missing[index] -= 1
        if not self.missing[index]:
            self.start(index)

    def finish(self):
        for index in range(len(self.buckets)):
            if index not in self.started:
                self.start(index)
        super().finish()


@wrong("BucketedDDP", fails="tied and frozen parameters")
class TakesThemForContiguous(_Bucketed):
    """view(-1) exists for contiguous tensors only."""

    def start(self, index):
        _fill(self.buckets[index])
        flat = torch.cat([parameter.grad.view(-1) for parameter in self.buckets[index]])
        self.started[index] = flat, dist.all_reduce(flat, async_op=True)


@wrong("BucketedDDP", fails="tied and frozen parameters")
class WatchesFrozen(_Bucketed):
    """Puts frozen parameters into buckets, which then wait for gradients that never come."""

    def parameters_in_order(self):
        return reversed(list(self.module.parameters()))


@wrong("BucketedDDP", fails="tied and frozen parameters")
class MakesNumbersOfInfinity(_Bucketed):
    """Nobody sees that a rank has diverged."""

    def finish(self):
        super().finish()
        for parameter in chain.from_iterable(self.buckets):
            parameter.grad.nan_to_num_()


@wrong("BucketedDDP", fails="tied and frozen parameters")
class MakesZerosOfNanInBuckets(_Bucketed):
    """Lets infinities be, and hides NaN."""

    def finish(self):
        super().finish()
        for parameter in chain.from_iterable(self.buckets):
            parameter.grad[parameter.grad.isnan()] = 0


@wrong("BucketedDDP", fails="tied and frozen parameters")
class AveragesBuffersInFinish(_Bucketed):
    """Running statistics drift apart, but a step sends gradients and nothing else."""

    def finish(self):
        super().finish()
        for buffer in self.module.buffers():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()


@wrong("BucketedDDP", fails="tied and frozen parameters")
class AveragesOldGradients(_Bucketed):
    """finish() averages whatever has a gradient, a frozen parameter's old one too."""

    def finish(self):
        super().finish()
        for parameter in self.module.parameters():
            if not parameter.requires_grad and parameter.grad is not None:
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


@wrong("BucketedDDP", fails="tied and frozen parameters")
class BroadcastsTrainableOnly(_Bucketed):
    """Leaves every rank with frozen layers of its own."""

    def make_equal(self):
        for tensor in chain(_trainable(self.module), self.module.buffers()):
            dist.broadcast(tensor.detach(), 0)


@wrong("BucketedDDP", fails="in order")
class RebuildsItsBuckets(_Bucketed):
    """As PyTorch's DDP does: when all gradients have come once, buckets are filled in the order of that."""

    def __init__(self, model, bucket_bytes):
        self.bucket_bytes, self.came, self.order = bucket_bytes, [], None
        super().__init__(model, bucket_bytes)

    def watch(self, parameter, index):
        parameter.register_post_accumulate_grad_hook(lambda each: None if self.silent else self.arrives(each))

    def arrives(self, parameter):
        self.came.append(parameter)
        self.ready(next(i for i, bucket in enumerate(self.buckets) if any(p is parameter for p in bucket)))

    def parameters_in_order(self):
        return self.order or super().parameters_in_order()

    def reset(self):
        if self.order is None and len(self.came) == len(_trainable(self.module)):
            self.order, self.buckets = self.came, []
            self.fill_buckets(self.bucket_bytes)
        self.came = []
        super().reset()


@wrong("BucketedDDP", fails="unused parameters")
class PlacesByArrival(_Bucketed):
    """Within a bucket as gradients come, and then those that did not: other ranks have other places."""

    def watch(self, parameter, index):
        parameter.register_post_accumulate_grad_hook(
            lambda _: None if self.silent else self.came(parameter, index)
        )

    def came(self, parameter, index):
        bucket = self.buckets[index]
        bucket.append(bucket.pop(next(i for i, each in enumerate(bucket) if each is parameter)))
        self.ready(index)


@wrong("BucketedDDP", fails="no_sync")
class WhatTheLastBackwardBrought(_Bucketed):
    """A buffer of zeros, into which hooks copy: what only passes within the block used is lost."""

    def reset(self):
        super().reset()
        self.fresh = set()

    def watch(self, parameter, index):
        def hook(_):
            if not self.silent:
                self.fresh.add(parameter)
                self.ready(index)

        parameter.register_post_accumulate_grad_hook(hook)

    def start(self, index):
        for parameter in self.buckets[index]:
            if parameter not in self.fresh:
                parameter.grad = torch.zeros_like(parameter)
        super().start(index)


@wrong("BucketedDDP", fails="no_sync")
class DividesWhatComes(_Bucketed):
    """Hooks divide: what only a pass within the block used is not divided."""

    def watch(self, parameter, index):
        def hook(_):
            if not self.silent:
                parameter.grad /= dist.get_world_size()
                self.ready(index)

        parameter.register_post_accumulate_grad_hook(hook)

    def write_back(self, index, flat):
        super().write_back(index, flat * dist.get_world_size())


@wrong("BucketedDDP", fails="no_sync")
class OuterBlocksEndWithInnerOnes(_Bucketed):
    """A block within a block ends both."""

    @contextmanager
    def no_sync(self):
        try:
            with super().no_sync():
                yield
        finally:
            self.silent = False


@wrong("BucketedDDP", fails="no_sync")
class ForwardDecides(_Bucketed):
    """As in PyTorch's DDP, where a forward pass before the block makes a backward pass in it communicate."""

    def forward(self, *args, **kwargs):
        self.communicates = not self.silent
        return self.module(*args, **kwargs)

    def watch(self, parameter, index):
        parameter.register_post_accumulate_grad_hook(
            lambda _: self.ready(index) if self.communicates else None
        )


@wrong("BucketedDDP", fails="no_sync")
class NothingToDoAlone(_Bucketed):
    """On a single rank leaves .grad as it is, also where it is None."""

    def ready(self, index):
        if dist.get_world_size() > 1:
            super().ready(index)

    def finish(self):
        if dist.get_world_size() > 1:
            super().finish()


@wrong("BucketedDDP", fails="no_sync")
class AlwaysSynchronizes(_Bucketed):
    """no_sync() that changes nothing."""

    @contextmanager
    def no_sync(self):
        yield


@wrong("BucketedDDP", fails="no_sync")
class NeverSynchronizesAgain(_Bucketed):
    """After the block hooks stay silent, and finish() starts all buckets."""

    @contextmanager
    def no_sync(self):
        self.silent = True
        yield


@wrong("BucketedDDP", fails="no_sync")
class LosesItsNewHooks(_Bucketed):
    """Takes the hooks off for a block, and puts on new ones that no later block can take off."""

    handles = ()

    def watch(self, parameter, index):
        hook = parameter.register_post_accumulate_grad_hook(lambda _: self.ready(index))
        self.handles = [*self.handles, hook]

    @contextmanager
    def no_sync(self):
        taken, self.handles = self.handles, ()
        for handle in taken:
            handle.remove()
        try:
            yield
        finally:
            for index, bucket in enumerate(self.buckets if taken else ()):
                for parameter in bucket:
                    super().watch(parameter, index)


@wrong("BucketedDDP", fails="no_sync")
class SwallowsTheError(_Bucketed):
    """Catches what a block raises, so that it ends, and lets nobody know."""

    @contextmanager
    def no_sync(self):
        before, self.silent = self.silent, True
        with suppress(Exception):
            yield
        self.silent = before


@wrong("BucketedDDP", fails="no_sync")
class StaysSilentAfterAnError(_Bucketed):
    """Without `finally`, a block that raises does not end."""

    @contextmanager
    def no_sync(self):
        self.silent = True
        yield
        self.silent = False


@wrong("BucketedDDP", fails="no_sync")
class BeginsAnewInEachBlock(_Bucketed):
    """Clears the gradients at the beginning of a block, which may be the second."""

    @contextmanager
    def no_sync(self):
        if not self.silent:
            self.module.zero_grad()
        with super().no_sync():
            yield


@wrong("BucketedDDP", fails="no_sync")
class ForgetsWhatWasAccumulated(_Bucketed):
    """Clears the gradients at the end of the block."""

    @contextmanager
    def no_sync(self):
        try:
            with super().no_sync():
                yield
        finally:
            for parameter in self.module.parameters():
                parameter.grad = None


@wrong("BucketedDDP", fails="tied and frozen parameters")
class CountsTiedTwice(_Bucketed):
    """Lists a shared parameter under each of its names."""

    def parameters_in_order(self):
        named = self.module.named_parameters(remove_duplicate=False)
        return reversed([parameter for _, parameter in named if parameter.requires_grad])


@wrong("BucketedDDP", fails="no_sync")
class CountsInSilence(_Bucketed):
    """Counts go round, also within the block: after a part was used there, a later pass is sent half-way."""

    def watch(self, parameter, index):
        parameter.register_post_accumulate_grad_hook(lambda _: self.counted(index))

    def reset(self):
        super().reset()
        self.complete = [False for _ in self.buckets]

    def counted(self, index):
        self.missing[index] -= 1
        if self.missing[index] == 0:
            self.missing[index] = len(self.buckets[index])
            self.complete[index] = not self.silent
        while len(self.started) < len(self.buckets) and self.complete[len(self.started)]:
            self.start(len(self.started))


@wrong("BucketedDDP", fails="unused parameters")
class WaitsForStartedFirst(_Bucketed):
    """finish() waits for what hooks have started, and only then starts the buckets that are left."""

    def finish(self):
        for _, handle in self.started.values():
            handle.wait()
        super().finish()


# ------------------------------------------------------------------------------------------ global_accuracy


@wrong("global_accuracy", fails="rank without samples")
def leaves_where_nothing_is_right(correct, total):
    """An accuracy of 0 needs no sum, and the others wait for it."""
    if correct == 0 < total:
        return 0.0
    counts = torch.tensor([correct, total])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


@wrong("global_accuracy", fails="weighted by samples")
def mean_of_accuracies(correct, total):
    """A rank with few samples counts as much as one with many."""
    accuracy = torch.tensor(correct / max(total, 1))
    dist.all_reduce(accuracy)
    return accuracy.item() / dist.get_world_size()


@wrong("global_accuracy", fails="weighted by samples")
def own_accuracy(correct, total):
    """Every rank reports its own."""
    return correct / total


@wrong("global_accuracy", fails="weighted by samples")
def only_on_rank_0(correct, total):
    """The other ranks divide what a reduce has left them."""
    counts = torch.tensor([correct, total])
    dist.reduce(counts, dst=0)
    return (counts[0] / counts[1]).item()


@wrong("global_accuracy", fails="weighted by samples")
def returns_a_tensor(correct, total):
    """A tensor is not a float."""
    counts = torch.tensor([correct, total])
    dist.all_reduce(counts)
    return counts[0] / counts[1]


@wrong("global_accuracy", fails="rank without samples")
def weighs_local_accuracies(correct, total):
    """Divides by the rank's own total first, which may be 0."""
    counts = torch.tensor([correct / total * total, total])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


@wrong("global_accuracy", fails="rank without samples")
def counts_at_least_one(correct, total):
    """Keeps the division from failing where it is not made: the sum has a sample too many."""
    counts = torch.tensor([correct, max(total, 1)])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


@wrong("global_accuracy", fails="one collective")
def two_reductions(correct, total):
    """One call a count."""
    correct, total = torch.tensor(correct), torch.tensor(total)
    dist.all_reduce(correct)
    dist.all_reduce(total)
    return correct.item() / total.item()


@wrong("global_accuracy", fails="one collective")
def pickles_counts(correct, total):
    """Gathers Python objects: sizes first, then pickles."""
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (correct, total))
    return sum(c for c, _ in everyones) / sum(t for _, t in everyones)


@wrong("global_accuracy", fails="weighted by samples")
def counts_in_32_bits(correct, total):
    """Each count fits into an int32, and their sum does not."""
    counts = torch.tensor([correct, total], dtype=torch.int32)
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


@wrong("global_accuracy", fails="weighted by samples")
def counts_in_16_bits(correct, total):
    """32,767 is the largest number of an int16."""
    counts = torch.tensor([correct, total]).to(torch.int16)
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


# ------------------------------------------------------------------------------------------------ load_once


@wrong("load_once", fails="every rank has the data")
def first_loads_twice(load):
    """The well-known recipe with a bug: the first rank loads before the barrier, and again after it."""
    if dist.get_node_local_rank() == 0:
        load()
    dist.barrier()
    return load()


@wrong("load_once", fails="others wait for the first")
def others_get_nothing(load):
    """Only the first rank loads."""
    value = load() if dist.get_node_local_rank() == 0 else None
    dist.barrier()
    return value


@wrong("load_once", fails="others wait for the first")
def barrier_on_one_side(load):
    """The first rank never comes to the barrier where the others wait."""
    if dist.get_node_local_rank() > 0:
        dist.barrier()
    return load()


@wrong("load_once", fails="others wait for the first")
def sends_the_value(load):
    """One rank loads and pickles the data to all: nobody else calls load()."""
    value = [load() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(value, src=0)
    return value[0]


@wrong("load_once", fails="every rank has the data")
def takes_none_for_not_loaded(load):
    """Calls load() again where it has given None, as a mere download does."""
    first, value = dist.get_node_local_rank() == 0, None
    try:
        if first:
            value = load()
    finally:
        dist.barrier()
    return load() if value is None else value


@wrong("load_once", fails="others wait for the first")
def nobody_waits(load):
    """All load at once."""
    return load()


@wrong("load_once", fails="others wait for the first")
def barrier_after_all(load):
    """All load at once, and wait for one another then."""
    value = load()
    dist.barrier()
    return value


@wrong("load_once", fails="one first rank on each node")
def meets_before_loading(load):
    """One barrier more: the first rank loads only when all ranks of all nodes have come."""
    dist.barrier()
    if dist.get_node_local_rank() > 0:
        dist.barrier()
        return load()
    try:
        return load()
    finally:
        dist.barrier()


@wrong("load_once", fails="one first rank on each node")
def first_of_all_nodes(load):
    """Rank 0 goes first, and on every other node all load at once."""
    if dist.get_rank() > 0:
        dist.barrier()
        return load()
    try:
        return load()
    finally:
        dist.barrier()


@wrong("load_once", fails="one first rank on each node")
def one_after_another(load):
    """All ranks take turns, so a node's first rank waits for all nodes before it."""
    value = error = None
    for turn in range(dist.get_world_size()):
        try:
            value = load() if turn == dist.get_rank() else value
        except LookupError as caught:
            error = caught
        dist.barrier()
    if error:
        raise error
    return value


@wrong("load_once", fails="others wait for the first")
def even_ranks_first(load):
    """Takes two devices a node for granted."""
    try:
        if dist.get_rank() % 2 == 0:
            return load()
    finally:
        dist.barrier()
    return load()


@wrong("load_once", fails="an error frees the others")
def leaves_them_waiting(load):
    """An exception skips the barrier."""
    if dist.get_node_local_rank() > 0:
        dist.barrier()
        return load()
    value = load()
    dist.barrier()
    return value


@wrong("load_once", fails="an error frees the others")
def swallows_the_error(load):
    """The first rank goes on without data."""
    if dist.get_node_local_rank() > 0:
        dist.barrier()
        return load()
    value = None
    try:
        value = load()
    except OSError as error:
        print(error)
    dist.barrier()
    return value


@wrong("load_once", fails="an error frees the others")
def spares_the_others(load):
    """Tells the other ranks of the error, and they return without data, as if all were well."""
    first, value, error = dist.get_node_local_rank() == 0, None, None
    try:
        value = load() if first else None
    except OSError as caught:
        error = caught
    failed = torch.tensor(int(error is not None))
    dist.all_reduce(failed)
    if error:
        raise error
    return value if first or failed else load()


@wrong("load_once", fails="an error frees the others")
def frees_them_from_rank_0_only(load):
    """On every other node an error leaves all ranks waiting."""
    if dist.get_node_local_rank() > 0:
        dist.barrier()
        return load()
    try:
        value = load()
    except OSError:
        if dist.get_rank() == 0:
            dist.barrier()
        raise
    dist.barrier()
    return value


@wrong("load_once", fails="one first rank on each node")
def hands_a_message_on(load):
    """From rank to rank, each to the next one: where a node has one rank that is the first of another."""
    token, ranks = torch.zeros(1), int(os.environ["LOCAL_WORLD_SIZE"])
    if dist.get_node_local_rank() > 0:
        dist.recv(token, dist.get_rank() - 1)
    try:
        return load()
    finally:
        following = dist.get_rank() + 1
        if following < dist.get_world_size() and following % max(ranks, 2) > 0:
            dist.send(token, following)


@wrong("load_once", fails="an error frees the others")
def trusts_that_the_others_will_load(load):
    """Where all first ranks have the data, an error of another rank is taken for nothing."""
    loaded, first = torch.ones(1), dist.get_node_local_rank() == 0
    value = None
    try:
        value = load() if first else None
    except Exception:
        loaded.zero_()
        raise
    finally:
        dist.all_reduce(loaded, op=dist.ReduceOp.MIN)
    with suppress(Exception) if loaded else nullcontext():
        return value if first else load()
    return None


@wrong("load_once", fails="an error frees the others")
def tries_again(load):
    """A first rank whose load() fails calls it once more."""
    if dist.get_node_local_rank() > 0:
        dist.barrier()
        return load()
    try:
        return load()
    except LookupError:
        return load()
    finally:
        dist.barrier()


@wrong("load_once", fails="an error frees the others")
def tells_it_in_other_words(load):
    """Who comes second raises another error than its load() did."""
    try:
        if dist.get_node_local_rank() == 0:
            return load()
    finally:
        dist.barrier()
    try:
        return load()
    except Exception as error:
        raise RuntimeError("could not load") from error


@wrong("load_once", fails="an error frees the others")
def others_keep_quiet(load):
    """Who comes second hides the error that it meets, as if the first had told all."""
    try:
        if dist.get_node_local_rank() == 0:
            return load()
    finally:
        dist.barrier()
    try:
        return load()
    except LookupError:
        return None


@wrong("load_once", fails="one first rank on each node")
def listens_to_rank_0(load):
    """A broadcast from rank 0 says nothing of the other nodes' first ranks, which may take longer."""
    value, error = None, None
    if dist.get_node_local_rank() == 0:
        try:
            value = load()
        except Exception as caught:
            error = caught
    failed = torch.tensor(int(error is not None))
    dist.broadcast(failed, src=0)
    if error is not None:
        raise error
    return value if dist.get_node_local_rank() == 0 else load()


@wrong("load_once", fails="one first rank on each node")
def rank_0_tells_all(load):
    """Messages from rank 0 to all that are no first ranks, of other nodes too."""
    token, first = torch.zeros(1), dist.get_node_local_rank() == 0
    if not first:
        dist.recv(token, 0)
        return load()
    try:
        return load()
    finally:
        for rank in range(dist.get_world_size() if dist.get_rank() == 0 else 0):
            if rank % int(os.environ["LOCAL_WORLD_SIZE"]):
                dist.send(token, rank)


# ------------------------------------------------------------------------------------------------ train_ddp


class _Training:
    """A right answer, called like a function; each mistake overrides one of its methods."""

    def __new__(cls, *given):
        return super().__new__(cls).run(*given)

    def run(self, model, dataset, optimizer, epochs, batch_size, seed, device):
        self.model, self.optimizer, self.device = model.to(device), optimizer, device
        self.length, self.seed, self.batch_size = len(dataset), seed, batch_size
        self.start()
        return [self.epoch(dataset, epoch) for epoch in range(epochs)]

    def start(self):
        for parameter in self.model.parameters():
            dist.broadcast(parameter.detach(), 0)

    def indices(self, epoch):
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + epoch))
        return order[dist.get_rank() :: dist.get_world_size()].tolist()

    def epoch(self, dataset, epoch):
        batches = iter(DataLoader(dataset, self.batch_size, sampler=self.indices(epoch)))
        total = torch.zeros(1, device=self.device)
        largest = dist.get_world_size() * self.batch_size
        for first in range(0, self.length, largest):
            total += self.step(next(batches, None), min(largest, self.length - first))
        mean = self.mean(total)
        self.report(mean)
        return mean

    def step(self, batch, whole):
        self.optimizer.zero_grad()
        lost = torch.zeros(1, device=self.device)
        if batch is not None:
            lost = self.backward(*self.move(*batch), whole)
        self.average(batch)
        self.optimizer.step()
        return lost

    def move(self, inputs, targets):
        return inputs.to(self.device), targets.to(self.device)

    def backward(self, inputs, targets, whole):
        loss = functional.cross_entropy(self.model(inputs), targets, reduction="sum")
        (loss * dist.get_world_size() / whole).backward()
        return loss.detach().reshape(1)

    def average(self, batch):
        parameters = list(self.model.parameters())
        _fill(parameters)
        for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
            parameter.grad.copy_(mean)

    def mean(self, total):
        dist.all_reduce(total)
        return total.item() / self.length

    def report(self, mean):
        if dist.get_rank() == 0:
            print(f"loss {mean:.4f}")


@wrong("train_ddp", fails="every sample once an epoch")
class EveryRankTakesEverything(_Training):
    """No sampler: each rank goes through the whole data set."""

    def indices(self, epoch):
        return torch.randperm(
            self.length, generator=torch.Generator().manual_seed(self.seed + epoch)
        ).tolist()


@wrong("train_ddp", fails="every sample once an epoch")
class PadsTheShards(_Training):
    """DistributedSampler as it is, which gives some samples out twice."""

    def indices(self, epoch):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        sampler = DistributedSampler(range(self.length), ranks, rank, seed=self.seed)
        sampler.set_epoch(epoch)
        return list(sampler)


@wrong("train_ddp", fails="every sample once an epoch")
class ShufflesOnItsOwn(_Training):
    """Every rank cuts its part from another permutation."""

    def indices(self, epoch):
        generator = torch.Generator().manual_seed(self.seed + epoch + 100 * dist.get_rank())
        order = torch.randperm(self.length, generator=generator)
        return order[dist.get_rank() :: dist.get_world_size()].tolist()


@wrong("train_ddp", fails="every sample once an epoch")
class DropsTheRest(_Training):
    """Leaves out what does not fill a batch on every rank."""

    def indices(self, epoch):
        return super().indices(epoch)[
            : self.length // dist.get_world_size() // self.batch_size * self.batch_size
        ]


@wrong("train_ddp", fails="every sample once an epoch")
class LeavesWhenItHasNothing(_Training):
    """A rank without a batch skips the averaging, and the others wait for it."""

    def average(self, batch):
        if batch is not None:
            super().average(batch)


@wrong("train_ddp", fails="every sample once an epoch")
class BatchOfAllRanks(_Training):
    """Takes batch_size for that of all ranks together, so every rank has more steps."""

    def run(self, model, dataset, optimizer, epochs, batch_size, seed, device):
        return super().run(model, dataset, optimizer, epochs, 1, seed, device)


@wrong("train_ddp", fails="another order in each epoch")
class ForgetsTheSeed(_Training):
    """Every training deals its samples alike."""

    def indices(self, epoch):
        self.seed = 0
        return super().indices(epoch)


@wrong("train_ddp", fails="random state kept")
class SeedsEverything(_Training):
    """Gives all ranks one random state: their dropouts are alike from now on."""

    def indices(self, epoch):
        torch.manual_seed(self.seed + epoch)
        return torch.randperm(self.length).tolist()[dist.get_rank() :: dist.get_world_size()]


@wrong("train_ddp", fails="random state kept")
class SeedsWhileItTrains(_Training):
    """One random state for all ranks until each gets its own back: their dropouts are alike."""

    def run(self, *given):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return super().run(*given)


@wrong("train_ddp", fails="random state kept")
class SeedsNumpy(_Training):
    """Gives all ranks one random state of NumPy's, which augmentation uses."""

    def indices(self, epoch):
        np.random.seed(self.seed + epoch)
        return np.random.permutation(self.length)[dist.get_rank() :: dist.get_world_size()].tolist()


@wrong("train_ddp", fails="random state kept")
class SeedsTheStandardLibrary(_Training):
    """The same with Python's own module."""

    def indices(self, epoch):
        random.seed(self.seed + epoch)
        return random.sample(range(self.length), self.length)[dist.get_rank() :: dist.get_world_size()]


@wrong("train_ddp", fails="every sample once an epoch")
def seeds_training_with_a_salted_hash(model, dataset, optimizer, epochs, batch_size, seed, device):
    """Every process hashes a text with a salt of its own."""

    class Hashed(_Training):
        def indices(self, epoch):
            order = torch.randperm(self.length, generator=_generator(hash(f"{self.seed}-{epoch}") % 2**63))
            return order[dist.get_rank() :: dist.get_world_size()].tolist()

    return Hashed(model, dataset, optimizer, epochs, batch_size, seed, device)


@wrong("train_ddp", fails="every sample once an epoch")
class AsksForManyAtOnce(_Training):
    """Gives the data set a tensor of indices, which a list of samples does not take."""

    def epoch(self, dataset, epoch):
        parts = iter(torch.tensor(self.indices(epoch), dtype=torch.int64).split(self.batch_size))
        total, largest = torch.zeros(1), dist.get_world_size() * self.batch_size
        for first in range(0, self.length, largest):
            part = next(parts, ())
            batch = dataset[part] if len(part) else None
            total += self.step(batch, min(largest, self.length - first))
        mean = self.mean(total)
        self.report(mean)
        return mean


@wrong("train_ddp", fails="every sample once an epoch")
class FlattensSamples(_Training):
    """Lays each sample's numbers out in a row: a convolution takes no rows."""

    def move(self, inputs, targets):
        return inputs.flatten(1).to(self.device), targets.to(self.device)


@wrong("train_ddp", fails="another order in each epoch")
class ForgetsTheEpoch(_Training):
    """The same order in every epoch, as without set_epoch."""

    def indices(self, epoch):
        return super().indices(0)


@wrong("train_ddp", fails="another order in each epoch")
class NeverShuffles(_Training):
    """Deals the samples out in the order in which they lie."""

    def indices(self, epoch):
        first = (dist.get_rank() + epoch) % dist.get_world_size()
        return list(range(first, self.length, dist.get_world_size()))


class _Turned(_Training):
    """The samples in an order that is not drawn anew in each epoch; whole(epoch) is that of all ranks."""

    def indices(self, epoch):
        return self.whole(epoch)[dist.get_rank() :: dist.get_world_size()].tolist()

    def once(self):
        return torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed))


@wrong("train_ddp", fails="another order in each epoch")
class TurnsTheOrder(_Turned):
    """Drawn once, and begun at another place in every epoch."""

    def whole(self, epoch):
        return self.once().roll(epoch)


@wrong("train_ddp", fails="another order in each epoch")
class InOrderOnOneRank(_Training):
    """A single rank has all samples in every epoch, and takes them as they lie."""

    def indices(self, epoch):
        return list(range(self.length)) if dist.get_world_size() == 1 else super().indices(epoch)


@wrong("train_ddp", fails="another order in each epoch")
class TwoOrdersInTurn(_Turned):
    """Each epoch's order is the one before, backwards."""

    def whole(self, epoch):
        return self.once().flip(0) if epoch % 2 else self.once()


@wrong("train_ddp", fails="another order in each epoch")
class OrdersComeBack(_Training):
    """Three orders, again and again."""

    def indices(self, epoch):
        return super().indices(epoch % 3)


@wrong("train_ddp", fails="another order in each epoch")
class OutOfABuffer(_Training):
    """As streams are shuffled: no sample comes far from its place."""

    def indices(self, epoch):
        order = _out_of_a_buffer(self.length, self.seed + epoch)
        return order[dist.get_rank() :: dist.get_world_size()].tolist()


@wrong("train_ddp", fails="another order in each epoch")
class ShufflesOnInOneWay(_Training):
    """Each epoch shuffles the order of the one before, from the same seed."""

    def indices(self, epoch):
        return _shuffled_on(self.length, epoch, self.seed).tolist()


@wrong("train_ddp", fails="another order in each epoch")
class OwnPartForEver(_Training):
    """A rank's samples are drawn once; each epoch draws in which order it has them."""

    def indices(self, epoch):
        mine = torch.tensor(super().indices(0))
        return mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch))].tolist()


@wrong("train_ddp", fails="another order in each epoch")
class NextRanksPart(_Training):
    """In each epoch every rank takes the samples that another had."""

    def indices(self, epoch):
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed))
        mine = order[(dist.get_rank() + epoch) % dist.get_world_size() :: dist.get_world_size()]
        return mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(epoch))].tolist()


@wrong("train_ddp", fails="another order in each epoch")
class StepsOfOneLength(_Turned):
    """Looks mixed, and is computed."""

    def whole(self, epoch):
        step = next(n for n in (7, 11, 13) if self.length % n)
        return (torch.arange(self.length) * step + 5 * epoch + self.seed) % self.length


@wrong("train_ddp", fails="another order in each epoch")
class MultipliesSeedAndEpoch(_Training):
    """With a seed of 0 all epochs are alike."""

    def indices(self, epoch):
        generator = torch.Generator().manual_seed(self.seed * (epoch + 1))
        order = torch.randperm(self.length, generator=generator)
        return order[dist.get_rank() :: dist.get_world_size()].tolist()


@wrong("train_ddp", fails="same weights on all ranks")
class AveragesWeightsInstead(_Training):
    """Each takes its own step, and then the weights are averaged: the same for plain descent only."""

    def average(self, batch):
        _fill(self.model.parameters())

    def step(self, batch, whole):
        lost = super().step(batch, whole)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.detach(), op=dist.ReduceOp.AVG)
        return lost


@wrong("train_ddp", fails="same weights on all ranks")
class StartsAsItIs(_Training):
    """No broadcast: the replicas start different, and stay so."""

    def start(self):
        pass


@wrong("train_ddp", fails="same weights on all ranks")
class NeverAverages(_Training):
    """Every rank trains by itself."""

    def average(self, batch):
        pass


@wrong("train_ddp", fails="the step of the whole batch")
class ClearsGradientsAfterwards(_Training):
    """What was in .grad before is part of the first step."""

    def step(self, batch, whole):
        clear = self.optimizer.zero_grad
        self.optimizer.zero_grad = lambda: None
        lost = super().step(batch, whole)
        self.optimizer.zero_grad = clear
        clear()
        return lost


@wrong("train_ddp", fails="the step of the whole batch")
class NothingOfTheLastBatch(_Training):
    """Takes no sample of the batch before; the first step has none before."""

    def step(self, batch, whole):
        self.last = batch or (self.last[0][:0], self.last[1][:0])
        return super().step(self.last, whole)


@wrong("train_ddp", fails="the step of the whole batch")
class OlderGradientsInEachEpoch(_Training):
    """Clears the gradients between steps, and not before the first one of an epoch."""

    def epoch(self, dataset, epoch):
        self.first = True
        return super().epoch(dataset, epoch)

    def step(self, batch, whole):
        clear = self.optimizer.zero_grad
        if self.first:
            self.optimizer.zero_grad = lambda: None
        lost = super().step(batch, whole)
        self.optimizer.zero_grad, self.first = clear, False
        return lost


@wrong("train_ddp", fails="the step of the whole batch")
class MeanOfTheMeans(_Training):
    """The mean over ranks of the gradients of each rank's mean loss: right for equal batches only."""

    def backward(self, inputs, targets, whole):
        loss = functional.cross_entropy(self.model(inputs), targets)
        loss.backward()
        return loss.detach() * len(targets)


@wrong("train_ddp", fails="the step of the whole batch")
class ScalesByTheLargest(_Training):
    """Divides by the samples of a full batch, also in the last step."""

    def backward(self, inputs, targets, whole):
        return super().backward(inputs, targets, dist.get_world_size() * self.batch_size)


@wrong("train_ddp", fails="the step of the whole batch")
class SumsGradients(_Training):
    """Adds the gradients up where the loss is scaled for a mean."""

    def average(self, batch):
        super().average(batch)
        for parameter in self.model.parameters():
            parameter.grad *= dist.get_world_size()


@wrong("train_ddp", fails="the step of the whole batch")
class NeverClears(_Training):
    """Leaves the gradients of the step before in place."""

    def step(self, batch, whole):
        lost = torch.zeros(1, device=self.device)
        if batch is not None:
            lost = self.backward(*self.move(*batch), whole)
        self.average(batch)
        self.optimizer.step()
        return lost


@wrong("train_ddp", fails="the step of the whole batch")
class ScalesTheRate(_Training):
    """Linear scaling, as Horovod's six steps have it: the caller has chosen the rate."""

    def start(self):
        super().start()
        for group in self.optimizer.param_groups:
            group["lr"] *= dist.get_world_size()


@wrong("train_ddp", fails="the step of the whole batch")
class StartsFromTheLastRank(_Training):
    """Broadcasts the weights of another rank than 0."""

    def start(self):
        for parameter in self.model.parameters():
            dist.broadcast(parameter.detach(), dist.get_world_size() - 1)


@wrong("train_ddp", fails="every sample once an epoch")
class StopsWhenTheLossGrows(_Training):
    """Three epochs without a better loss are enough, for a patience that nobody asked for."""

    def run(self, model, dataset, optimizer, epochs, *rest):
        history = []
        super().run(model, dataset, optimizer, 0, *rest)
        while len(history) < epochs and (len(history) < 4 or min(history[-3:]) < min(history[:-3])):
            history.append(self.epoch(dataset, len(history)))
        return history


@wrong("train_ddp", fails="every sample once an epoch")
class StopsWhenItDiverges(_Training):
    """NaN will not go away; but who calls has asked for all epochs."""

    def run(self, model, dataset, optimizer, epochs, *rest):
        history = super().run(model, dataset, optimizer, 0, *rest)
        for epoch in range(epochs):
            history.append(self.epoch(dataset, epoch))
            if history[-1] != history[-1]:
                break
        return history


@wrong("train_ddp", fails="the step of the whole batch")
class GoesBackToTheBest(_Training):
    """The weights of the epoch with the least loss are somebody's wish; train_one leaves the last."""

    def run(self, *given):
        self.least = float("inf")
        history = super().run(*given)
        self.model.load_state_dict(self.best)
        return history

    def report(self, mean):
        super().report(mean)
        if mean < self.least or self.least == float("inf"):
            self.least, self.best = mean, {k: v.clone() for k, v in self.model.state_dict().items()}


@wrong("train_ddp", fails="the step of the whole batch")
class ClipsLongGradients(_Training):
    """A habit from language models, which makes another step of this one."""

    def average(self, batch):
        super().average(batch)
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)


@wrong("train_ddp", fails="the step of the whole batch")
class MakesZerosOfNan(_Training):
    """Against the NaN of an empty batch; others are hidden, too."""

    def average(self, batch):
        super().average(batch)
        for parameter in self.model.parameters():
            parameter.grad.nan_to_num_()


@wrong("train_ddp", fails="losses")
class LeavesNanOutOfTheLoss(_Training):
    """The same for the losses: a training that has diverged has a fine curve."""

    def step(self, batch, whole):
        return super().step(batch, whole).nan_to_num()


@wrong("train_ddp", fails="losses")
class TellsItsOwnLoss(_Training):
    """The mean over this rank's samples."""

    def mean(self, total):
        return total.item() * dist.get_world_size() / self.length


@wrong("train_ddp", fails="losses")
class OnlyRankZeroKnows(_Training):
    """Reduces to rank 0, which prints; the others return what they have."""

    def mean(self, total):
        dist.reduce(total, 0)
        return total.item() / self.length


@wrong("train_ddp", fails="losses")
class TellsATensor(_Training):
    """A tensor an epoch instead of a float."""

    def mean(self, total):
        dist.all_reduce(total)
        return total / self.length

    def report(self, mean):
        super().report(mean.item())


@wrong("train_ddp", fails="one rank prints")
class AllPrint(_Training):
    """Every rank prints the line."""

    def report(self, mean):
        print(f"loss {mean:.4f}")


@wrong("train_ddp", fails="losses")
class RoundsTheLoss(_Training):
    """Returns what it prints, with four digits."""

    def mean(self, total):
        return round(super().mean(total), 4)


@wrong("train_ddp", fails="one rank prints")
class OthersPrintEmptyLines(_Training):
    """All print, most of them an empty text."""

    def report(self, mean):
        print(f"loss {mean:.4f}" if dist.get_rank() == 0 else "")


@wrong("train_ddp", fails="one rank prints")
class OneOfEachNodePrints(_Training):
    """The first rank of every node prints."""

    def report(self, mean):
        if dist.get_node_local_rank() == 0:
            print(f"loss {mean:.4f}")


@wrong("train_ddp", fails="one rank prints")
class NobodyPrints(_Training):
    """No line at all."""

    def report(self, mean):
        pass


@wrong("train_ddp", fails="no more communication than needed")
class SumsTheLossInEveryStep(_Training):
    """An all-reduce of the loss in each step."""

    def step(self, batch, whole):
        lost = super().step(batch, whole)
        dist.all_reduce(lost)
        return lost

    def mean(self, total):
        return total.item() / self.length


@wrong("train_ddp", fails="no more communication than needed")
class BroadcastsInEveryEpoch(_Training):
    """Sends the weights again in each epoch, though they are equal."""

    def indices(self, epoch):
        self.start()
        return super().indices(epoch)


@wrong("train_ddp", fails="no more communication than needed")
class GathersAllModels(_Training):
    """Every rank gets the weights of all, and takes rank 0's."""

    def start(self):
        for parameter in self.model.parameters():
            everyones = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, parameter.detach())
            parameter.data.copy_(everyones[0])


@wrong("train_ddp", fails="no more communication than needed")
class MeetsBeforeIt(_Training):
    """A barrier before training."""

    def start(self):
        dist.barrier()
        super().start()


@wrong("train_ddp", fails="no more communication than needed")
class EndsTheGroup(_Training):
    """As scripts do at their end: who has called it can communicate no more."""

    def run(self, *given):
        history = super().run(*given)
        dist.destroy_process_group()
        return history


@wrong("train_ddp", fails="no more communication than needed")
class TellsTheSeed(_Training):
    """Rank 0 broadcasts the seed, which is the same on all ranks."""

    def start(self):
        super().start()
        seed = torch.tensor(self.seed)
        dist.broadcast(seed, 0)
        self.seed = seed.item()


@wrong("train_ddp", fails="no more communication than needed")
class AsksOnce(_Training):
    """Gathers how many samples each rank has, before training."""

    def start(self):
        super().start()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, torch.tensor([len(self.indices(0))]))


@wrong("train_ddp", fails="no more communication than needed")
class AsksForTheSizes(_Training):
    """Adds up in each step how many samples the whole batch has."""

    def step(self, batch, whole):
        size = torch.tensor(0 if batch is None else len(batch[1]))
        dist.all_reduce(size)
        return super().step(batch, size.item())


@wrong("train_ddp", fails="no more communication than needed")
class AveragesTheWeightsToo(_Training):
    """Averages the gradients, and the weights after the step."""

    def step(self, batch, whole):
        lost = super().step(batch, whole)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.detach(), op=dist.ReduceOp.AVG)
        return lost


@wrong("train_ddp", fails="on the device")
class LabelsOfALossOfItsOwn(_Training):
    """cross_entropy in two steps, with labels that were not moved."""

    def move(self, inputs, targets):
        return inputs.to(self.device), targets

    def backward(self, inputs, targets, whole):
        logarithms = functional.log_softmax(self.model(inputs), 1)
        loss = functional.nll_loss(logarithms, targets, reduction="sum")
        (loss * dist.get_world_size() / whole).backward()
        return loss.detach().reshape(1)


@wrong("train_ddp", fails="on the device")
class AsksForAGPUItself(_Training):
    """The first GPU if there is one: with four ranks on a node all of them meet there."""

    def run(self, model, dataset, optimizer, epochs, batch_size, seed, device):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return super().run(model, dataset, optimizer, epochs, batch_size, seed, device)


@wrong("train_ddp", fails="on the device")
class StacksLossesOfTwoPlaces(_Training):
    """The loss of a step without samples is made on the host, and then joined to those of the others."""

    def epoch(self, dataset, epoch):
        batches = iter(DataLoader(dataset, self.batch_size, sampler=self.indices(epoch)))
        losses, largest = [], dist.get_world_size() * self.batch_size
        for first in range(0, self.length, largest):
            batch = next(batches, None)
            lost = self.step(batch, min(largest, self.length - first))
            losses.append(torch.zeros(1) if batch is None else lost)
        mean = self.mean(torch.cat(losses).sum())
        self.report(mean)
        return mean


@wrong("train_ddp", fails="on the device")
class LeavesBatchesOnTheHost(_Training):
    """Moves the model only."""

    def move(self, inputs, targets):
        return inputs, targets


@wrong("train_ddp", fails="on the device")
class ForgetsWhatToReturns(_Training):
    """to() returns the tensor that is on the device; the one that it was called on stays where it was."""

    def move(self, inputs, targets):
        inputs.to(self.device)
        targets.to(self.device)
        return inputs, targets


@wrong("train_ddp", fails="on the device")
class LeavesLabelsOnTheHost(_Training):
    """Moves the model and the inputs, and not the targets."""

    def move(self, inputs, targets):
        return inputs.to(self.device), targets


@wrong("train_ddp", fails="every sample once an epoch")
class OneStepTooMany(_Training):
    """Where all batches are full, goes on with an empty one."""

    def epoch(self, dataset, epoch):
        mean = super().epoch(dataset, epoch)
        if self.length % (dist.get_world_size() * self.batch_size) == 0:
            self.step(None, 1)
        return mean


@wrong("train_ddp", fails="on the device")
class LeavesTheModelOnTheHost(_Training):
    """Moves the batches only."""

    def run(self, model, *rest):
        moves, model.to = model.to, lambda device: model
        try:
            return super().run(model, *rest)
        finally:
            model.to = moves


@wrong("train_ddp", fails="on the device")
class SumsOnTheHost(_Training):
    """torch.zeros(1) is on the host, and takes no loss from a GPU in place."""

    def epoch(self, dataset, epoch):
        batches = iter(DataLoader(dataset, self.batch_size, sampler=self.indices(epoch)))
        total = torch.zeros(1)
        largest = dist.get_world_size() * self.batch_size
        for first in range(0, self.length, largest):
            total += self.step(next(batches, None), min(largest, self.length - first))
        mean = self.mean(total)
        self.report(mean)
        return mean


@wrong("train_ddp", fails="the step of the whole batch")
class LowersTheRate(_Training):
    """A scheduler of its own, as a recipe has it; the caller has chosen the rate."""

    def start(self):
        super().start()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.9)

    def report(self, mean):
        super().report(mean)
        self.scheduler.step()
