"""Returns more than anybody could read."""


def rank_coordinates(rank, gpus, cyclic):
    return tuple(range(3 * 10**6))
