"""The grader of `best_chain`."""

import itertools
from dataclasses import dataclass
from functools import partial

from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.drivers import in_turn
from graders.units.functions.stage import Arguments, Seen, kept, of_function
from graders.units.unit_13.problems import Problem, typed

SECONDS = 4.0
"""What a long chain may take: twice what is asked for, for machines differ."""


@dataclass(frozen=True, slots=True)
class Chain:
    """strategies: of each operator. closed: so many pairs of each edge cannot be. number: of several."""

    strategies: tuple[int, ...] = feature((3, 2, 4, 2), "{} strategies")
    closed: int = feature(0, lambda closed: "some changes and a strategy that cannot be" if closed else "")
    number: int = 0


def a_chain(rng: Rng, case: Chain) -> Arguments:
    """node_cost and edge_cost."""
    chain = Problem.chain(rng, [*case.strategies], case.closed)
    return [chain.node_cost, chain.edge_cost]


def _problem(given: Arguments) -> Problem:
    node_cost, edge_cost = given
    return Problem([*itertools.pairwise(range(len(node_cost)))], node_cost, edge_cost)


def a_right_choice(tried: Tried[Chain]) -> Finding:
    """Passes if the choice costs what was told, and arguments stay as they are."""
    seen: Seen = tried.seen
    return compare.first_failure((kept(tried), _problem(seen.given).right_choice(seen.value, seen.what)))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the best plan of a long chain is found in time."""
    # Not so long that an answer which calls itself for the next operator comes to Python's limit of calls.
    chain = Problem.chain(rng, [8] * 150)
    found = answer.call(in_turn, [[chain.node_cost, chain.edge_cost]], computing=SECONDS)
    return compare.first_failure(
        chain.right(called.value, "what comes of 150 operators", chain.along())
        for called, _ in compare.side_by_side(found, [chain])
    )


@of_function(
    base=Chain(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "least seconds",
            3,
            "For each strategy of operator i: the least that a beginning of the chain costs that ends there.",
            vary=vary(strategies=((3,), (1, 1), (3,) * 6, (4, 1, 3, 3, 2)), number=range(1, 8)),
        ),
        Criterion(
            "a choice that has them",
            2,
            "Keep, for each strategy, from which one before it the least came, and go back from the end.",
            how=a_right_choice,
        ),
        Criterion(
            "what cannot be done",
            1,
            "A strategy or a change of infinite cost is in no best plan.",
            vary=vary(closed=(2, 3, 4)),
        ),
        Criterion(
            "long chains",
            2,
            "What came before matters only by the last strategy: S times S pairs, operator by operator.",
            needs=("least seconds", "a choice that has them"),
            ask=in_time,
        ),
    ),
    hints=(
        "If you know the least cost of getting to each strategy of operator i, what is it to those of i + 1?",
        "At the end you know the least cost. Which strategy of the last operator has it, and before that?",
    ),
    arguments=a_chain,
    written=typed,
    possible=lambda case: not case.closed or min(case.strategies) > 1,
)
def best_chain(case: Chain, given: Arguments) -> Expected:
    """The least of all choices, by looking at all."""
    problem = _problem(given)
    found = Checked(partial(problem.right_seconds, least=problem.along()))
    return Expected(found, dict(zip(("node_cost", "edge_cost"), given, strict=True)), returned=None)
