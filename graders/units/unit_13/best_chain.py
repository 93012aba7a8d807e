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

SECONDS = 10.0
"""What long chains may take."""


def _dear_at_first(count: int) -> Arguments:
    """Three operators, whose strategies lead to themselves only, and the last one is dear but for one."""
    own = [float(s + 1) for s in range(count)]
    stay = [[0.0 if s == t else 1e3 for t in range(count)] for s in range(count)]
    return [[own, own, [500.0] * (count - 1) + [1.0]], [stay, stay]]


TELLING: dict[str, Arguments] = {
    "what is cheapest at first leads to a dear end": [
        [[1.0, 2.0], [5.0, 4.0], [0.0, 0.0]],
        [[[0.0, 3.0], [1.0, 0.0]], [[9.0, 9.0], [1.0, 9.0]]],
    ],
    "the best plan begins with what costs nothing": [
        [[0.0, 5.0], [0.0, 3.0], [0.0, 4.0]],
        [[[0.0, 7.0], [6.0, 5.0]], [[0.0, 8.0], [9.0, 2.0]]],
    ],
    "the dearest beginning leads to the only cheap end": _dear_at_first(12),
}


@dataclass(frozen=True, slots=True)
class Chain:
    """strategies: of each operator. closed: so many pairs of each edge cannot be. telling: one of TELLING;
    empty: it is drawn. number: which of several.
    """

    strategies: tuple[int, ...] = feature((3, 2, 4, 2), "{} strategies")
    closed: int = feature(0, lambda closed: "some changes and a strategy that cannot be" if closed else "")
    telling: str = feature("", "{}")
    number: int = 0


def a_chain(rng: Rng, case: Chain) -> Arguments:
    """node_cost and edge_cost."""
    chain = Problem.chain(rng, [*case.strategies], case.closed)
    return TELLING.get(case.telling) or [chain.node_cost, chain.edge_cost]


def _problem(given: Arguments) -> Problem:
    node_cost, edge_cost = given
    return Problem(node_cost, [*itertools.pairwise(range(len(node_cost)))], edge_cost)


def a_right_choice(tried: Tried[Chain]) -> Finding:
    """Passes if the choice costs what was told, and arguments stay as they are."""
    seen: Seen = tried.seen
    return compare.first_failure((kept(tried), _problem(seen.given).right_choice(seen.value, seen.what)))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the best plan of a long chain is found in time."""
    # Not so long that an answer which calls itself for the next operator comes to Python's limit of calls.
    chains = [Problem.chain(rng, [rng.integer(2, 5) for _ in range(60)]), Problem.chain(rng, [12] * 150)]
    found = answer.call(in_turn, [[each.node_cost, each.edge_cost] for each in chains], timeout=SECONDS)
    return compare.first_failure(
        chain.right(called.value, str(chain), chain.along())
        for called, chain in compare.side_by_side(found, chains)
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
            vary=vary(strategies=((3,), (1, 1), (3,) * 6, (4, 1, 3, 3, 2)), number=range(1, 6))
            + vary(telling=tuple(TELLING)),
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
    possible=lambda case: (
        case == Chain(telling=case.telling) if case.telling else not case.closed or min(case.strategies) > 1
    ),
)
def best_chain(case: Chain, given: Arguments) -> Expected:
    """The least of all choices, by looking at all."""
    problem = _problem(given)
    found = Checked(partial(problem.right_seconds, least=problem.along()))
    return Expected(found, dict(zip(("node_cost", "edge_cost"), given, strict=True)), returned=None)
