"""Returns a pair in a pair in a pair, without end."""


def rank_coordinates(rank, gpus, cyclic):
    pair = (0, 0)
    for _ in range(10**5):
        pair = (pair, 0)
    return pair
