"""Returns more than anybody could read."""


def rank_coordinates(rank, gpus_per_node):
    return tuple(range(3 * 10**6))
