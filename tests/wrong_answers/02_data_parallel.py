"""Mistakes that people make in unit 02, each with the criterion that must find it."""

from itertools import chain

import torch
import torch.distributed as dist

from tests.answers import instead, wrong

# ---------------------------------------------------------------------------------------- combine_gradients


@wrong("combine_gradients", fails="equal shards")
def sums_means(gradients, counts):
    """Adds the means up and forgets to divide."""
    return sum(gradients)


@wrong("combine_gradients", fails="unequal shards")
def plain_mean(gradients, counts):
    """Every worker counts alike, however few samples it had."""
    return torch.stack(gradients).mean(0)


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
def hands_a_single_gradient_on(gradients, counts):
    """With one worker, returns the very tensor that it was given."""
    if len(gradients) == 1:
        return gradients[0]
    n = sum(counts)
    return sum(m / n * g for g, m in zip(gradients, counts, strict=True) if m)


# -------------------------------------------------------------------------------------------- shard_indices


def _generator(seed):
    return torch.Generator().manual_seed(seed)


@wrong("shard_indices", fails="any number of samples")
def pads(length, epoch, seed):
    """Gives samples out twice until all ranks have equally many, as DistributedSampler does."""
    ranks = dist.get_world_size()
    order = torch.randperm(length, generator=_generator(seed + epoch))
    padded = torch.cat([order, order.repeat(ranks)[: -length % ranks]])
    return padded[dist.get_rank() :: ranks]


@wrong("shard_indices", fails="each sample once")
def seeds_with_the_rank(length, epoch, seed):
    """Cuts another permutation on every rank."""
    order = torch.randperm(length, generator=_generator(seed + epoch + dist.get_rank()))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="shuffled")
def shuffles_its_own_part(length, epoch, seed):
    """Every rank keeps the same samples for ever, in another order."""
    mine = torch.arange(length)[dist.get_rank() :: dist.get_world_size()]
    return mine[torch.randperm(len(mine), generator=_generator(seed + epoch))]


@wrong("shard_indices", fails="reshuffled each epoch")
def forgets_the_epoch(length, epoch, seed):
    """The same cards in every epoch, as without set_epoch."""
    order = torch.randperm(length, generator=_generator(seed))
    return order[dist.get_rank() :: dist.get_world_size()]


@wrong("shard_indices", fails="random state kept")
def seeds_everything(length, epoch, seed):
    """Resets the random state that dropout and augmentation use."""
    torch.manual_seed(seed + epoch)
    return torch.randperm(length)[dist.get_rank() :: dist.get_world_size()]


# ------------------------------------------------------------------------------------- broadcast_parameters


@wrong("broadcast_parameters", fails="parameters")
def trainable_only(model, src):
    """Leaves the frozen layers as they are."""
    for tensor in chain((p for p in model.parameters() if p.requires_grad), model.buffers()):
        dist.broadcast(tensor, src)


@wrong("broadcast_parameters", fails="buffers")
def forgets_buffers(model, src):
    """Broadcasts the parameters only."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src)


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


@wrong("broadcast_parameters", fails="each tensor sent once")
def adds_to_zeros(model, src):
    """All ranks but src send zeros into an all_reduce: right numbers, twice the bytes."""
    for tensor in chain(model.parameters(), model.buffers()):
        with torch.no_grad():
            if dist.get_rank() != src:
                tensor.zero_()
            dist.all_reduce(tensor.detach())


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


@wrong("average_gradients", fails="any layout")
def writes_into_what_flatten_returns(model):
    """flatten() is a view of most gradients, and a copy of those that stand column by column."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad.flatten().copy_(mean.flatten())


@wrong("average_gradients", fails="in place")
def exchanges_gradients(model):
    """Hangs new tensors into .grad."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter, mean in zip(parameters, _flat_average(parameters), strict=True):
        parameter.grad = mean.clone()


@wrong("average_gradients", fails="missing gradients")
def skips_missing(model):
    """Calls all_reduce only where this rank has a gradient."""
    for parameter in _trainable(model):
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@wrong("average_gradients", fails="one call")
def one_call_a_parameter(model):
    """Right, but pays the latency for every parameter."""
    parameters = _trainable(model)
    _fill(parameters)
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


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


@wrong("make_buckets", fails="in the order of backward")
def loses_the_last_bucket(model, bucket_bytes):
    """Appends a bucket when the next one is opened, and the last one never."""
    return _cut(_trainable(model)[::-1], bucket_bytes)[:-1]


@wrong("make_buckets", fails="in the order of backward")
def from_the_first_layer(model, bucket_bytes):
    """As they are registered, so that the first bucket is complete last."""
    return _cut(_trainable(model), bucket_bytes)


@wrong("make_buckets", fails="cut at bucket_bytes")
def counts_numbers(model, bucket_bytes):
    """Takes numbers for bytes."""
    return _cut(_trainable(model)[::-1], bucket_bytes, size=lambda parameter: parameter.numel())


@wrong("make_buckets", fails="cut at bucket_bytes")
def closes_when_it_overflows(model, bucket_bytes):
    """Closes a bucket after the parameter that takes it above the bound."""
    buckets = []
    for parameter in _trainable(model)[::-1]:
        if not buckets or sum(p.nbytes for p in buckets[-1]) >= bucket_bytes:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


# --------------------------------------------------------------------------------------------------- Bucket


@instead("Bucket", ("(self.flat / dist.get_world_size())", "self.flat"), fails="averages")
def sums_the_bucket():
    """Does not divide."""


@wrong("Bucket", fails="one all_reduce")
class OneCallAParameter:
    """Each gradient sets off by itself."""

    def __init__(self, parameters):
        self.arrived = []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.ready)

    def ready(self, parameter):
        self.arrived.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for parameter, handle in self.arrived:
            handle.wait()
            parameter.grad /= dist.get_world_size()
        self.arrived = []


@instead("Bucket", ("        self.missing = len(self.parameters)\n", ""), fails="every step")
def never_counts_anew():
    """Later steps start nothing, and get the first one's means again."""


@instead(
    "Bucket",
    ("if self.missing == 0:", "if self.missing < 0:"),
    ("        self.handle.wait()", "        self.gradient_ready(None)\n        self.handle.wait()"),
    fails="starts with the last gradient",
)
def starts_at_the_end():
    """finish() starts and waits: nothing overlaps."""


@instead(
    "Bucket",
    ("async_op=True)", "async_op=True)\n            self.handle.wait()"),
    fails="never waits in backward",
)
def waits_where_it_starts():
    """The hook calls all_reduce without async_op."""


# ---------------------------------------------------------------------------------------------- BucketedDDP


@instead("BucketedDDP", ("broadcast_parameters(model, src=0)", "pass"), fails="starts equal")
def trusts_the_seed():
    """Does not broadcast at all."""


@instead("BucketedDDP", ("handle.wait()", "pass"), fails="averages")
def forgets_to_wait():
    """Reads a bucket that is still being reduced."""


@instead(
    "BucketedDDP",
    (
        "parameter.grad.copy_(mean.view_as(parameter))\n        self.reset()",
        "parameter.grad.copy_(mean.view_as(parameter))",
    ),
    fails="in order",
)
def never_resets():
    """Counts down once; from the second step on nothing is averaged."""


@instead("BucketedDDP", ("if not self.synchronizes:", "if True:"), fails="starts in backward")
def all_at_the_end():
    """Leaves all communication to finish()."""


@instead(
    "BucketedDDP",
    ("async_op=True)))", "async_op=True)))\n        self.under_way[-1][1].wait()"),
    fails="never waits in backward",
)
def waits_in_the_hook():
    """Calls all_reduce without async_op."""


@instead("BucketedDDP", ("self.synchronizes = False", "pass"), fails="no_sync")
def always_synchronizes():
    """no_sync() that changes nothing."""


# ------------------------------------------------------------------------------------------ global_accuracy


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


# ------------------------------------------------------------------------------------------------ load_once


@wrong("load_once", fails="every rank has the data")
def first_loads_twice(load):
    """The well-known recipe with a bug: the first rank loads before the barrier, and again after it."""
    if dist.get_node_local_rank() == 0:
        load()
    dist.barrier()
    return load()


@wrong("load_once", fails="others wait for the first")
def nobody_waits(load):
    """All load at once."""
    return load()


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


# ------------------------------------------------------------------------------------------------ train_ddp


@instead(
    "train_ddp",
    (
        "shard_indices(len(dataset), epoch, seed).tolist()",
        "DistributedSampler(range(len(dataset)), ranks, dist.get_rank(), seed=seed + epoch)",
    ),
    fails="any number of samples",
)
def pads_the_shards():
    """DistributedSampler as it is, which gives some samples out twice."""


@instead(
    "train_ddp", ("len(dataset), epoch, seed", "len(dataset), 0, seed"), fails="another order in each epoch"
)
def one_order_for_all_epochs():
    """The same order in every epoch, as without set_epoch."""


@instead("train_ddp", ("broadcast_parameters(model, src=0)", "pass"), fails="the step of the whole batch")
def starts_as_it_is():
    """No broadcast: the replicas start different, and stay so."""


@instead(
    "train_ddp",
    ("(loss * ranks / whole)", "(loss / len(targets))"),
    fails="any number of samples",
)
def mean_of_the_means():
    """The mean over ranks of the gradients of each rank's mean loss: right for equal batches only."""


@instead("train_ddp", ("dist.all_reduce(total)", "total *= ranks"), fails="losses")
def tells_its_own_loss():
    """The mean over this rank's samples."""


@instead(
    "train_ddp",
    ("inputs.to(device)", "inputs"),
    ("targets.to(device)", "targets"),
    fails="on the device",
)
def leaves_batches_on_the_host():
    """Moves the model only."""
