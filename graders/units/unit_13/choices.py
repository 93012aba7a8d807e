"""Unit 13, the best of all plans."""

import math
from collections.abc import Iterator

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_13.drivers import choices as drivers
from graders.units.unit_13.problems import Problem


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "least seconds",
            3,
            "For each strategy of operator i: the least that a beginning of the chain costs that ends there.",
        ),
        Criterion(
            "a choice that has them",
            2,
            "Keep, for each strategy, from which one before it the least came, and go back from the end.",
        ),
        Criterion(
            "what cannot be done",
            1,
            "A strategy or a change of infinite cost is in no best plan.",
            needs=("least seconds", "a choice that has them"),
        ),
        Criterion(
            "long chains",
            2,
            "What came before matters only by the last strategy: S times S pairs, operator by operator.",
            needs=("least seconds", "a choice that has them"),
        ),
    ),
    hints=(
        "If you know the least cost of getting to each strategy of operator i, what is it to those of i + 1?",
        "At the end you know the least cost. Which strategy of the last operator has it, and before that?",
    ),
)
def best_chain(answer: Answer, rng: Rng) -> Findings:
    """Drawn chains, tried against all choices, and long ones against a table."""
    small = [Problem.chain(rng, lengths) for lengths in ([3], [1, 1], [2, 3], [3, 2, 4, 2], [4, 1, 3, 3, 2])]
    # What is cheapest at first leads to a dear end.
    small += [Problem([[1, 2], [5, 4], [0, 0]], [(0, 1), (1, 2)], [[[0, 3], [1, 0]], [[9, 9], [1, 9]]])]
    # The best plan begins with what costs nothing; and the dearest beginning leads to the only cheap end.
    small += [Problem([[0, 5], [0, 3], [0, 4]], [(0, 1), (1, 2)], [[[0, 7], [6, 5]], [[0, 8], [9, 2]]])]
    small += [_dear_at_first(12)]
    small += [Problem.chain(rng, [3] * 6) for _ in range(6)]
    closed = [Problem.chain(rng, [3, 4, 2, 3], closed=rng.integer(2, 4)) for _ in range(6)]
    # Not so long that an answer which calls itself for the next operator comes to Python's limit of calls.
    long = [Problem.chain(rng, [rng.integer(2, 5) for _ in range(60)]), Problem.chain(rng, [20] * 150)]
    replies = answer.call(drivers.choices, [[p.node_cost, p.edge_cost] for p in small])
    judged = [(p, reply) for reply, p in compare.side_by_side(replies, small)]
    yield "least seconds", compare.first_failure(p.right_seconds(reply, p.least) for p, reply in judged)
    yield "a choice that has them", compare.first_failure(p.right_choice(reply) for p, reply in judged)
    replies = answer.call(drivers.choices, [[p.node_cost, p.edge_cost] for p in closed])
    yield (
        "what cannot be done",
        compare.first_failure(
            finding
            for reply, p in compare.side_by_side(replies, closed)
            for finding in (p.right_seconds(reply, p.least), p.right_choice(reply))
        ),
    )
    replies = answer.call(drivers.choices_of_large, [[p.node_cost, p.edge_cost] for p in long], timeout=10.0)
    yield (
        "long chains",
        compare.first_failure(
            finding
            for reply, p in compare.side_by_side(replies, long)
            for finding in (p.right_seconds(reply, p.along()), p.right_choice(reply))
        ),
    )


def _dear_at_first(count: int) -> Problem:
    """Three operators, whose strategies lead to themselves only, and the last one is dear but for one."""
    own = [float(s + 1) for s in range(count)]
    stay = [[0.0 if s == t else 1e3 for t in range(count)] for s in range(count)]
    return Problem([own, own, [500.0] * (count - 1) + [1.0]], [(0, 1), (1, 2)], [stay, stay])


DIAMOND = [(0, 1), (1, 2), (0, 2)]
TWICE = [(0, 1), (1, 0), (0, 1), (1, 2)]
TREE = [(0, 2), (1, 2), (2, 3), (2, 4)]
_RIGHT = ("least seconds", "a choice that has them")


@exercise(
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "least seconds",
            4,
            "One variable for each strategy, 0 or 1, and one for each pair of strategies on an edge. What "
            "has the pair to do with its two strategies?",
        ),
        Criterion("a choice that has them", 2, "For each operator the number of the variable that is 1."),
        Criterion(
            "what cannot be done",
            2,
            "The solver takes no infinite costs. Which bound keeps a variable at 0? And if no plan is left, "
            "raise ValueError.",
            needs=_RIGHT,
        ),
        Criterion(
            "in nanoseconds",
            2,
            "The solver's tolerances are absolute, and made for sums near 1: divide by the cost of a plan, "
            "and leave out what is dearer than that. All costs may be 0.",
            needs=_RIGHT,
        ),
        Criterion(
            "memory",
            4,
            "One more constraint: the bytes of all chosen strategies. Exactly `capacity` is allowed. A "
            "solver's constraints have tolerances: add up the bytes of its plan, and forbid it if need be.",
            needs=_RIGHT,
        ),
        Criterion(
            "a larger graph",
            2,
            "4 to the power of 16 plans are too many to look at, and hundreds of them are nearly as good as "
            "the best, or hardly any can be: how near may the solver stop, and is a plan the best that no "
            "single change makes better?",
            needs=_RIGHT,
        ),
    ),
    hints=(
        "Which constraint says that an operator has one strategy? How many variables does it have?",
        "For an edge's pairs: what do those of one row add up to, and those of one column?",
        "scipy.optimize.milp: c, integrality, bounds, constraints, and options={'mip_rel_gap': 0}. In which "
        "unit should c be?",
    ),
)
def best_intra(answer: Answer, rng: Rng) -> Findings:
    """Drawn graphs with cycles, parallel edges and lonely operators, then a larger one."""
    small = [
        Problem.drawn(rng, [3], []),
        Problem.drawn(rng, [2, 3], []),
        Problem.drawn(rng, [2, 3, 1], DIAMOND),
        Problem.drawn(rng, [3, 2, 4], TWICE),
        Problem.drawn(rng, [2, 3, 2, 2, 3], TREE),
        *(Problem.drawn(rng, [3] * 5, [*DIAMOND, (4, 2), (3, 4), (4, 0)]) for _ in range(4)),
        # Round a triangle two strategies each are cheaper than one.
        Problem([[1.0, 1.0]] * 3, DIAMOND, [[[9.0, 1.0], [1.0, 9.0]]] * 3),
    ]
    replies = answer.call(drivers.choices, [p.arguments for p in small])
    judged = [(p, reply) for reply, p in compare.side_by_side(replies, small)]
    yield "least seconds", compare.first_failure(p.right_seconds(reply, p.least) for p, reply in judged)
    yield "a choice that has them", compare.first_failure(p.right_choice(reply) for p, reply in judged)

    closed = [Problem.drawn(rng, [3, 2, 3, 2], [*DIAMOND, (2, 3)], closed=3) for _ in range(4)]
    closed += [Problem([[1.0, 2.0], [1.0]], [(0, 1)], [[[math.inf], [math.inf]]])]
    rows = {
        "what cannot be done": closed,
        "in nanoseconds": [*_tiny(rng)],
        "memory": [*_bounded(rng)],
    }
    passed = {}
    for name, problems in rows.items():
        replies = answer.call(drivers.choices, [p.arguments for p in problems])
        found = compare.first_failure(
            finding
            for reply, p in compare.side_by_side(replies, problems)
            for finding in p.judge(reply, p.least)
        )
        passed[name] = found.passed
        yield name, found
    ladders = _drawn_ladders(rng, passed["what cannot be done"], passed["memory"])
    yield "a larger graph", compare.first_failure(_ladders(answer, ladders))


def _drawn_ladders(rng: Rng, closed: bool, bounded: bool) -> list[Problem]:
    """Larger graphs; with infinite costs, or with memory, only where that has not failed already."""
    ladders = [Problem.ladder(rng, rng.integer(14, 16))]
    if closed:
        # Hardly any plan can be, and none of those from which a single change leads to one.
        ladders.append(Problem.ladder(rng, rng.integer(14, 16), closed=20))
    if bounded:
        # Many plans are within a percent of the best one, and a solver that may stop near it does.
        near = (Problem.ladder(rng, rng.integer(11, 12), least=900) for _ in range(5))
        ladders += [each.within_a_third(rng) for each in near]
    return ladders


def _ladders(answer: Answer, ladders: list[Problem]) -> Iterator[Finding]:
    """Each in a call of its own, for twice the seconds of the docstring: other programs may be running."""
    for ladder in ladders:
        replies = answer.call(drivers.choices_of_large, [ladder.arguments], timeout=10.0)
        for reply, p in compare.side_by_side(replies, [ladder]):
            yield from p.judge(reply, p.along_ladder())


def _tiny(rng: Rng) -> Iterator[Problem]:
    """Seconds far below 1, some of them beside seconds far above."""
    yield from (Problem.drawn(rng, [3] * 5, [*DIAMOND, (3, 4), (4, 2)], unit=1e-9) for _ in range(4))
    # What is far dearer than the best plan, and is in none that is worth a look.
    for own in (
        [[2e-6, 1e-6, 10.0]],
        [[3.0, 2e-8], [5e-8, 1e-8, 0.1]],
        [[2e-9, 1e-9, 1.0]],
        [[1.0, 0.5, 1e8]],
    ):
        yield Problem(own, [], [])
    yield Problem([[0.0, 0.0], [0.0, 0.0]], [(0, 1)], [[[0.0, 0.0], [0.0, 0.0]]])


def _bounded(rng: Rng) -> Iterator[Problem]:
    """With room for all, for exactly the least, and for less than that; and where only some plans fit."""
    for spare in (-1, 0, 0.2, 0.4, 0.6, 10):
        free = Problem.drawn(rng, [3, 2, 3, 3], [*DIAMOND, (2, 3)])
        memory = [[rng.integer(0, 9) * 10**8 for _ in own] for own in free.node_cost]
        least, most = sum(map(min, memory)), sum(map(max, memory))
        capacity = least - 10**8 if spare < 0 else int(least + spare * (most - least))
        if capacity >= 0:
            yield Problem(free.node_cost, free.edges, free.edge_cost, memory, capacity)
    # Memory is there, and nobody asks for it to be small.
    yield Problem(free.node_cost, free.edges, free.edge_cost, memory, None)
    yield Problem([[1.0, 3.0], [1.0, 3.0]], [(0, 1)], [[[0.0, 0.0], [0.0, 0.0]]], [[7, 2], [7, 3]], 10)
    yield Problem([[1.0, 3.0], [1.0, 3.0]], [(0, 1)], [[[0.0, 0.0], [0.0, 0.0]]], [[7, 0], [7, 0]], 0)
    # With parts of strategies the first and a part of the last would be best, and the first alone is not.
    yield Problem([[11.0, 1.0], [7.0, 1.0], [7.0, 1.0]], [], [], [[0, 50], [0, 32], [0, 32]], 64)
    # Over by a byte, by one in a thousand, and none that fits by a byte.
    half = 4 * 10**10
    for over in (1, half // 500):
        yield Problem([[1.0, 2.0], [1.0, 2.5]], [], [], [[half + over, 1], [half, 1]], 2 * half)
    yield Problem([[1.0]], [], [], [[2 * half + 1]], 2 * half)
    yield Problem([[1.0, 2.0]], [], [], [[2 * half + 1, 1]], 2 * half)
