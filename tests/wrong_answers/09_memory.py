"""Mistakes that people make in unit 09."""

from tests.answers import wrong

# --------------------------------------------------------------------------------------- zero_memory


def _memory(whole, shard, stage, state_bytes):
    held = [shard if stage >= begins else whole for begins in (3, 2, 1)]
    return 2 * held[0] + 2 * held[1] + state_bytes * held[2]


def _stage(stage):
    if stage not in range(4):
        raise ValueError("a stage that ZeRO does not have")
    return stage


@wrong("zero_memory", fails="nothing cut")
def weights_of_four_bytes(parameters, ranks, stage, state_bytes=12):
    """Counts weights as if in single precision; they are among the optimizer's 12 bytes already."""
    return _memory(parameters, -(-parameters // ranks), _stage(stage), state_bytes) + 2 * parameters


@wrong("zero_memory", fails="nothing cut")
def sixteen_bytes(parameters, ranks, stage, state_bytes=12):
    """The 12 bytes of Adam, whatever the optimizer is."""
    return _memory(parameters, -(-parameters // ranks), _stage(stage), 12)


@wrong("zero_memory", fails="the optimizer's numbers")
def cuts_the_model_in_stage_one(parameters, ranks, stage, state_bytes=12):
    """Takes stage 1 for that which cuts the weights: counts from the wrong end."""
    shard = -(-parameters // ranks)
    held = [shard if _stage(stage) >= begins else parameters for begins in (1, 2, 3)]
    return 2 * held[0] + 2 * held[1] + state_bytes * held[2]


@wrong("zero_memory", fails="gradients too")
def gradients_instead(parameters, ranks, stage, state_bytes=12):
    """Stage 2 cuts gradients and leaves the optimizer's numbers whole."""
    shard = -(-parameters // ranks)
    states = parameters if _stage(stage) == 2 else shard
    return _memory(parameters, shard, min(stage, 2), 0) + state_bytes * (states if stage else parameters)


@wrong("zero_memory", fails="weights too")
def never_cuts_weights(parameters, ranks, stage, state_bytes=12):
    """Weights have to be there when the rank computes, so they are counted whole."""
    return _memory(parameters, -(-parameters // ranks), min(_stage(stage), 2), state_bytes)


@wrong("zero_memory", fails="shards that are not equal")
def rounds_down(parameters, ranks, stage, state_bytes=12):
    """The smallest shard, not the largest."""
    return _memory(parameters, parameters // ranks, _stage(stage), state_bytes)


@wrong("zero_memory", fails="shards that are not equal")
def rounds_bytes(parameters, ranks, stage, state_bytes=12):
    """Divides the bytes, so that a shard may end within a number."""
    cut, whole = {
        0: (0, 4 + state_bytes),
        1: (state_bytes, 4),
        2: (2 + state_bytes, 2),
        3: (4 + state_bytes, 0),
    }[_stage(stage)]
    return whole * parameters + -(-cut * parameters // ranks)


@wrong("zero_memory", fails="unknown stages")
def any_stage_will_do(parameters, ranks, stage, state_bytes=12):
    """A fourth stage is the third."""
    return _memory(parameters, -(-parameters // ranks), stage, state_bytes)


# --------------------------------------------------------------------------------------- shard_range


@wrong("shard_range", fails="parts of one length")
def begin_and_length(numel, ranks, rank):
    """How many numbers there are, where the end was asked for."""
    length = -(-numel // ranks)
    begin = min(rank * length, numel)
    return begin, min(length, numel - begin)


@wrong("shard_range", fails="parts of one length")
def end_included(numel, ranks, rank):
    """The last number, not the one behind it."""
    length = -(-numel // ranks)
    return min(rank * length, numel), min((rank + 1) * length, numel) - 1


@wrong("shard_range", fails="a shorter part at the end")
def as_tensor_split(numel, ranks, rank):
    """Unit 07's parts: the first ones are longer by one."""
    length, longer = divmod(numel, ranks)
    begin = rank * length + min(rank, longer)
    return begin, begin + length + (rank < longer)


@wrong("shard_range", fails="a shorter part at the end")
def the_last_takes_the_rest(numel, ranks, rank):
    """Rounds the length down, and the last rank has what is left."""
    length = numel // ranks
    return rank * length, numel if rank == ranks - 1 else (rank + 1) * length


@wrong("shard_range", fails="a shorter part at the end")
def loses_the_rest(numel, ranks, rank):
    """Rounds the length down: the last numbers are nobody's."""
    length = numel // ranks
    return rank * length, (rank + 1) * length


@wrong("shard_range", fails="a shorter part at the end")
def with_the_padding(numel, ranks, rank):
    """Counts the padding among the numbers."""
    length = -(-numel // ranks)
    return rank * length, (rank + 1) * length


@wrong("shard_range", fails="ranks without numbers")
def begins_behind_the_end(numel, ranks, rank):
    """Bounds the end only: a rank that has nothing begins behind it."""
    length = -(-numel // ranks)
    return rank * length, min((rank + 1) * length, numel)


@wrong("shard_range", fails="ranks without numbers")
def only_the_last_is_shorter(numel, ranks, rank):
    """Only the last rank's shard ends before its part does."""
    length = -(-numel // ranks)
    return rank * length, numel if rank == ranks - 1 else (rank + 1) * length
