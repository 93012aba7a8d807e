"""The grader of `pipedream_hierarchy`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from graders.grading.cases import Values, both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.drivers import in_turn
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_13.level_models import TELLING, drawn, large
from graders.units.unit_13.levels import Layers

SECONDS = 10.0
"""What the plan of a large model may take: twice what is asked for, since other programs may be running."""


@dataclass(frozen=True, slots=True)
class Network:
    """units: of each level, the innermost first. slow: how much slower each level is than that within it.
    telling: one of TELLING; empty: it is drawn. number: which of these.
    """

    layers: int = feature(4, "{} layers")
    units: tuple[int, ...] = feature((3, 2), lambda units: f"levels of {units} units")
    slow: int = 4
    telling: str = feature("", "{}")
    number: int = 0


def a_model(rng: Rng, case: Network) -> Arguments:
    """The four arguments."""
    told = TELLING[case.telling](rng)[case.number] if case.telling else None
    return arguments_of(told or drawn(rng, case.layers, case.units, case.slow))


def arguments_of(model: Layers) -> Arguments:
    """Those of the exercise."""
    return [model.seconds, model.activations, model.weights, model.levels]


def telling(name: str, numbers: Sequence[int]) -> tuple[Values, ...]:
    """These of one kind."""
    return tuple(each for number in numbers for each in both(telling=name, number=number))


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the plan of a large model is the best, and comes in time."""
    model = large(rng)
    told = answer.call(in_turn, [arguments_of(model)], timeout=SECONDS)
    return compare.first_failure(
        model.as_good(called.value, "") for called, _ in compare.side_by_side(told, [model])
    )


@of_function(
    base=Network(),
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "servers of several GPUs",
            4,
            "What a run of layers takes on a whole server is what its best plan there takes; each level has "
            "a bandwidth of its own.",
            vary=vary(layers=(3, 5), units=((2, 2), (2, 3), (4, 2), (1, 3), (3, 1)), slow=(2, 6, 20))
            + telling("servers that tell", range(18))
            + telling("dear cuts", (3, 4))
            + telling("slow within", (0, 1, 2)),
        ),
        Criterion(
            "one level",
            2,
            "With one level this is the planner of unit 05. Its arguments are still needed.",
            vary=vary(units=((1,), (3,), (4,), (5,)))
            + telling("one level that tells", range(14))
            + telling("dear cuts", (0, 1, 2))
            + telling("light weights", range(5)),
            how=kept,
        ),
        Criterion(
            "three levels",
            2,
            "What holds for servers holds for racks of servers.",
            vary=vary(units=((2, 2, 2), (2, 1, 3), (1, 2, 2)))
            + telling("racks that tell", (0,))
            + telling("slow within", (3, 4)),
        ),
        Criterion(
            "a large model",
            2,
            "Keep for each run of layers the best plan on each number of units; there are not many runs.",
            ask=in_time,
        ),
    ),
    hints=(
        "What would you have to know about every run of layers, so that a server is what a GPU was?",
        "Take the planner of unit 05, for runs that begin anywhere, and let it give for each run of layers "
        "the best plan on all units of its level.",
    ),
    arguments=a_model,
    possible=lambda case: not case.telling or case == Network(telling=case.telling, number=case.number),
    written=lambda given: str(Layers(*given)),
)
def pipedream_hierarchy(case: Network, given: Arguments) -> Expected:
    """Narayanan et al. (2019), section 3.1: any plan whose slowest part is as fast as can be."""
    names = ("seconds", "activation_bytes", "weight_bytes", "levels")
    best = Checked(partial(Layers(*given).as_good))
    return Expected(best, dict(zip(names, given, strict=True)), returned=None)
