"""Right answers of unit 09, written differently."""

from math import ceil

from tests.answers import right


@right("zero_memory")
def by_cases(parameters, ranks, stage, state_bytes=12):
    shard = ceil(parameters / ranks)
    match stage:
        case 0:
            return (4 + state_bytes) * parameters
        case 1:
            return 4 * parameters + state_bytes * shard
        case 2:
            return 2 * parameters + (2 + state_bytes) * shard
        case 3:
            return (4 + state_bytes) * shard
    raise ValueError(stage)


@right("zero_memory")
def counts_what_is_not_kept(parameters, ranks, stage, state_bytes=12):
    if not 0 <= stage <= 3:
        raise ValueError(stage)
    elsewhere = parameters - (parameters + ranks - 1) // ranks
    return parameters * (4 + state_bytes) - elsewhere * sum((state_bytes, 2, 2)[:stage])


@right("shard_range")
def cuts_what_there_is(numel, ranks, rank):
    length = (numel + ranks - 1) // ranks
    own = range(numel)[rank * length : (rank + 1) * length]
    return own.start, own.stop


@right("shard_range")
def one_part_after_another(numel, ranks, rank):
    length, begin = ceil(numel / ranks), 0
    for _ in range(rank):
        begin += min(length, numel - begin)
    return begin, begin + min(length, numel - begin)
