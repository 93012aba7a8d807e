"""Small problems of operators and strategies in which each mistake shows, whatever is drawn."""

import math

from graders.units.unit_13.problems import Problem

DIAMOND = ((0, 1), (1, 2), (0, 2))
FREE = [[0.0, 0.0], [0.0, 0.0]]
HALF = 4 * 10**10
ORDINARY = {
    "round a triangle two strategies each are cheaper than one": Problem(
        [[1.0, 1.0]] * 3, [*DIAMOND], [[[9.0, 1.0], [1.0, 9.0]]] * 3
    ),
}
CLOSED = {"no change is possible": Problem([[1.0, 2.0], [1.0]], [(0, 1)], [[[math.inf], [math.inf]]])}
TINY = {
    "a strategy of 10 s beside microseconds": Problem([[2e-6, 1e-6, 10.0]], [], []),
    "0.1 s beside 50 nanoseconds": Problem([[3.0, 2e-8], [5e-8, 1e-8, 0.1]], [], []),
    "a second beside nanoseconds": Problem([[2e-9, 1e-9, 1.0]], [], []),
    "all free": Problem(FREE, [(0, 1)], [FREE]),
}
BOUNDED = {
    "just as much as fits": Problem([[1.0, 3.0], [1.0, 3.0]], [(0, 1)], [FREE], [[7, 2], [7, 3]], 10),
    "no byte at all": Problem([[1.0, 3.0], [1.0, 3.0]], [(0, 1)], [FREE], [[7, 0], [7, 0]], 0),
}
TIGHT = {
    "a byte too much": Problem([[1.0, 2.0], [1.0, 2.5]], [], [], [[HALF + 1, 1], [HALF, 1]], 2 * HALF),
    "a part in a thousand too much": Problem(
        [[1.0, 2.0], [1.0, 2.5]], [], [], [[HALF + HALF // 500, 1], [HALF, 1]], 2 * HALF
    ),
    "a byte too much for all": Problem([[1.0]], [], [], [[2 * HALF + 1]], 2 * HALF),
}
TELLING = ORDINARY | CLOSED | TINY | BOUNDED | TIGHT
