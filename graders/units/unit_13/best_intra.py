"""The grader of `best_intra`."""

import math
from dataclasses import dataclass
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.drivers import refusals as drivers
from graders.units.unit_13.problems import Problem, typed
from graders.units.unit_13.telling import BOUNDED, CLOSED, DIAMOND, ORDINARY, TELLING, TIGHT, TINY

SECONDS = 10.0
"""What larger graphs may take: twice what the docstring says, since other programs may be running."""

SEVERAL = "several edges between two operators"
GRAPHS: dict[str, tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    "two triangles and an edge back": ((3, 2, 3, 2, 3), (*DIAMOND, (4, 2), (3, 4), (4, 0))),
    "one operator": ((3,), ()),
    "two operators": ((2, 3), ((0, 1),)),
    "two operators without an edge": ((2, 3), ()),
    "a triangle": ((2, 3, 1), DIAMOND),
    SEVERAL: ((3, 2, 4), ((0, 1), (1, 0), (0, 1), (1, 2))),
    "a tree": ((2, 3, 2, 2, 3), ((0, 2), (1, 2), (2, 3), (2, 4))),
}
"""Strategies of each operator, and edges."""
GRAPHS_OF_ONE_EDGE = tuple(name for name in list(GRAPHS)[1:] if name != SEVERAL)


@dataclass(frozen=True, slots=True)
class Operators:
    """graph: one of GRAPHS. unit: seconds. closed: so many pairs of each edge cannot be. spare: of the bytes
    between the least that a choice has and the most; none: there is no bound. telling: one of TELLING; empty:
    it is drawn. number: which of several.
    """

    graph: str = feature(next(iter(GRAPHS)), "{}")
    unit: float = feature(1e-3, "about {:g} s each")
    closed: int = feature(0, lambda closed: "some changes and a strategy that cannot be" if closed else "")
    spare: float | None = feature(None, lambda spare: "" if spare is None else "a bound for memory")
    telling: str = feature("", "{}")
    number: int = 0


def a_problem(rng: Rng, case: Operators) -> Arguments:
    """What the exercise is given."""
    if case.telling:
        return TELLING[case.telling].arguments
    strategies, edges = GRAPHS[case.graph]
    free = Problem.drawn(rng, [*strategies], [*edges], case.unit, case.closed)
    memory = [[rng.integer(1, 9) * 10**8 for _ in own] for own in free.node_cost]
    least, most = sum(map(min, memory)), sum(map(max, memory))
    capacity = None if case.spare is None else int(least + case.spare * (most - least))
    return Problem(free.node_cost, free.edges, free.edge_cost, memory, capacity).arguments


def _problem(given: Arguments) -> Problem:
    graph, node_cost, edge_cost, memory, capacity = given
    return Problem(node_cost, graph, edge_cost, memory, capacity)


def _found(reply: Any, what: str, problem: Problem) -> Finding:
    """Passes if it has the least seconds, or raises ValueError where there is no choice."""
    raised = type(reply) is dict and "raised" in reply
    gave = reply.get("gave") if type(reply) is dict else reply
    if problem.least == math.inf or raised:
        got = "ValueError" if raised else compare.shown(gave)
        wanted = "ValueError" if problem.least == math.inf else f"{problem.least:.8g} s and a choice"
        return Finding(raised and problem.least == math.inf, f"{what}: got {got}; expected {wanted}.")
    return problem.right_seconds(gave, what, problem.least)


def a_right_choice(tried: Tried[Operators]) -> Finding | None:
    """Passes if the choice fits and costs what was told, and arguments stay as they are."""
    seen: Seen = tried.seen
    if "raised" in seen.value:
        return None
    found = _problem(seen.given).right_choice(seen.value["gave"], seen.what)
    return compare.first_failure((kept(tried), found))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the best plans of larger graphs are found in time."""
    # Where hardly any plan can be; and where many plans are within a percent of the best one, and a solver
    # that may stop near it does.
    ladders = [Problem.ladder(rng, 14, closed=20)]
    ladders += [Problem.ladder(rng, 11, least=900).within_a_third(rng) for _ in range(2)]
    return compare.first_failure(_in_time(answer, each) for each in ladders)


def _in_time(answer: Answer, ladder: Problem) -> Finding:
    for called in answer.call(drivers.choices, [ladder.arguments], timeout=SECONDS):
        gave = called.value.get("gave") if type(called.value) is dict else None
        return ladder.right(gave, str(ladder), ladder.along_ladder())
    return Finding(False, f"{ladder}: nothing came back.")


@of_function(
    base=Operators(),
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "least seconds",
            3,
            "One variable for each strategy, 0 or 1, and one for each pair of strategies on an edge. What "
            "has the pair to do with its two strategies?",
            vary=vary(graph=GRAPHS_OF_ONE_EDGE, number=(1, 2), telling=tuple(ORDINARY)),
        ),
        Criterion(
            "several edges",
            1,
            "Of two operators each edge has variables of its own. (Alpa refuses a second one.)",
            vary=vary(graph=(SEVERAL,)),
        ),
        Criterion(
            "a choice that has them",
            2,
            "For each operator the number of the variable that is 1.",
            how=a_right_choice,
        ),
        Criterion(
            "what cannot be done",
            2,
            "The solver takes no infinite costs. Which bound keeps a variable at 0? And if no plan is left, "
            "raise ValueError.",
            vary=vary(closed=(3,), telling=tuple(CLOSED)),
        ),
        Criterion(
            "in nanoseconds",
            2,
            "The solver's tolerances are absolute, and made for sums near 1: divide by the cost of a plan, "
            "and leave out what is dearer than that. All costs may be 0.",
            vary=vary(unit=(1e-9,), telling=tuple(TINY)),
        ),
        Criterion(
            "memory",
            3,
            "One more constraint: the bytes of all chosen strategies. Exactly `capacity` is allowed.",
            vary=vary(spare=(-0.01, 0.0, 0.2, 0.5, 10.0), telling=tuple(BOUNDED)),
        ),
        Criterion(
            "to the byte",
            1,
            "A solver's constraints have tolerances, and those of Alpa's too: add up the bytes of its plan, "
            "and forbid it if need be.",
            vary=vary(telling=tuple(TIGHT)),
        ),
        Criterion(
            "a larger graph",
            2,
            "4 to the power of 14 plans are too many to look at, and hundreds of them are nearly as good as "
            "the best, or hardly any can be: how near may the solver stop, and is a plan the best that no "
            "single change makes better?",
            needs=("least seconds", "a choice that has them"),
            ask=in_time,
        ),
    ),
    hints=(
        "Which constraint says that an operator has one strategy? How many variables does it have?",
        "For an edge's pairs: what do those of one row add up to, and those of one column?",
        "scipy.optimize.milp: c, integrality, bounds, constraints, and options={'mip_rel_gap': 0}. In which "
        "unit should c be?",
    ),
    arguments=a_problem,
    written=typed,
    possible=lambda case: not case.telling or case == Operators(telling=case.telling),
    driver=drivers.choices,
)
def best_intra(case: Operators, given: Arguments) -> Expected:
    """The least of all choices, by looking at all."""
    problem = _problem(given)
    names = ("graph", "node_cost", "edge_cost", "memory", "capacity")
    found = Checked(lambda reply, what: _found(reply, what, problem))
    return Expected(found, dict(zip(names, given, strict=True)), returned=None)
