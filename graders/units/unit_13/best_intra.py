"""The grader of `best_intra`."""

import math
from dataclasses import dataclass
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.drivers import choices as drivers
from graders.units.unit_13.problems import Problem, typed

SECONDS = 10.0
"""What a larger graph may take: twice what the docstring says, for machines differ."""

DIAMOND = ((0, 1), (1, 2), (0, 2))
GRAPHS: dict[str, tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    "two triangles and an edge back": ((3, 2, 3, 2, 3), (*DIAMOND, (4, 2), (3, 4), (4, 0))),
    "one operator": ((3,), ()),
    "two operators without an edge": ((2, 3), ()),
    "a triangle": ((2, 3, 1), DIAMOND),
    "a tree": ((2, 3, 2, 2, 3), ((0, 2), (1, 2), (2, 3), (2, 4))),
    "several edges between two operators": ((3, 2, 4), ((0, 1), (1, 0), (0, 1), (1, 2))),
}
"""Strategies of each operator, and edges."""
BASE, *ORDINARY, SEVERAL = GRAPHS

HALF = 4 * 10**10
TELLING = {
    "round a triangle two strategies each are cheaper than one": Problem(
        [*DIAMOND], [[1.0, 1.0]] * 3, [[[9.0, 1.0], [1.0, 9.0]]] * 3
    ),
    "no change is possible": Problem([(0, 1)], [[1.0, 2.0], [1.0]], [[[math.inf], [math.inf]]]),
    "a strategy of 10 s beside microseconds": Problem([], [[2e-6, 1e-6, 10.0]], []),
    "a byte too much": Problem([], [[1.0, 2.0], [1.0, 2.5]], [], [[HALF + 1, 1], [HALF, 1]], 2 * HALF),
}
"""Problems in which a mistake shows, whatever is drawn."""
TRIANGLE, IMPOSSIBLE, *TOLERANCES = TELLING
NAMES = ("graph", "node_cost", "edge_cost", "memory", "capacity")


@dataclass(frozen=True, slots=True)
class Operators:
    """graph: one of GRAPHS. unit: seconds. closed: so many pairs of each edge cannot be. spare: of the bytes
    between the least that a choice has and the most; none: there is no bound. telling: one of TELLING; empty:
    it is drawn. number: which of several.
    """

    graph: str = feature(BASE, "{}")
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
    return (free if case.spare is None else free.bounded(rng, case.spare, 10**8)).arguments


def a_right_choice(tried: Tried[Operators]) -> Finding | None:
    """Passes if the choice fits and costs what was told, and arguments stay as they are."""
    seen: Seen = tried.seen
    if seen.value == "ValueError":
        return None
    return compare.first_failure((kept(tried), Problem(*seen.given).right_choice(seen.value, seen.what)))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the best plans of larger graphs are found in time."""
    # Many plans are within a percent of the best one, and a solver that may stop near it does.
    ladders = [Problem.ladder(rng, 12, least=970) for _ in range(3)]
    told = answer.call(drivers.choices, [each.arguments for each in ladders], computing=SECONDS)
    return compare.first_failure(
        ladder.right(called.value, "what comes of 12 operators", ladder.along_ladder())
        for called, ladder in compare.side_by_side(told, ladders)
    )


@of_function(
    base=Operators(),
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "least seconds",
            3,
            "One variable, 0 or 1, for each strategy, and for each pair of strategies on an edge.",
            vary=vary(graph=ORDINARY, number=(1, 2)) + both(telling=TRIANGLE),
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
            "The solver takes no infinite costs. Which bound keeps a variable at 0?",
            vary=vary(closed=(3,), telling=(IMPOSSIBLE,)),
        ),
        Criterion(
            "memory",
            3,
            "One more constraint: the bytes of all chosen strategies. Exactly `capacity` is allowed.",
            vary=vary(spare=(-0.01, 0.0, 0.2, 0.5, 10.0)),
        ),
        Criterion(
            "the solver's tolerances",
            3,
            "They are absolute, and made for sums near 1: divide by the cost of a plan, and leave out what "
            "is dearer than that. Add up the bytes of its plan, and forbid it if need be. (Alpa does not.)",
            vary=vary(unit=(1e-9,), telling=TOLERANCES),
        ),
        Criterion(
            "a larger graph",
            2,
            "Hundreds of plans are nearly as good as the best: how near may the solver stop?",
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
    """The least of all choices, by looking at all; ValueError where there is none."""
    problem = Problem(*given)
    least = problem.least

    def judged(reply: Any, what: str) -> Finding:
        if least == math.inf or reply == "ValueError":
            wanted = "ValueError" if least == math.inf else f"{least:.8g} s and a choice"
            same = least == math.inf and reply == "ValueError"
            return Finding(same, f"{what}: got {compare.shown(reply)}; expected {wanted}.")
        return problem.right_seconds(reply, what, least)

    return Expected(Checked(judged), dict(zip(NAMES, given, strict=True)), returned=None)
