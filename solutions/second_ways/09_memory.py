"""Second ways to do exercises of unit 09, shown once they are solved. Each docstring says how it differs."""

import itertools
import math


def checkpoint_segments(layers):
    """Guesses the peak and halves the guess: within a bound, the cut with the fewest bytes of checkpoints."""
    until = [0, *itertools.accumulate(map(sum, layers))]

    def cut(bound):
        fewest, came_from = [0], [0]
        for end in range(1, len(until)):
            fewest.append(math.inf)
            came_from.append(0)
            for begin in range(end):
                held = fewest[begin] + layers[begin][0]
                if fewest[begin] + until[end] - until[begin] <= bound and held < fewest[end]:
                    fewest[end], came_from[end] = held, begin
        if fewest[-1] == math.inf:
            return None
        lengths, end = [], len(layers)
        while end:
            lengths.insert(0, end - came_from[end])
            end = came_from[end]
        return lengths

    low, high = 0, until[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cut(middle) else (middle + 1, high)
    return cut(low)
