"""The grader of `pipedream_hierarchy`."""

from dataclasses import dataclass

from graders.grading.cases import Values, both, vary
from graders.grading.expected import Checked, Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.drivers import in_turn
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_13.levels import Layers

SECONDS = 10.0
"""What the plan of a large model may take: twice what is asked for, for machines differ."""

CUT_AT = [1, 30, 1], [10**6] * 3
"""Bytes of three layers. Even halves would be best, were it not for what crosses the cut between them."""
TELLING = {
    "a dear cut": Layers([1.0, 2.0, 3.0], *CUT_AT, [(2, 10.0)]),
    "a last stage of several": Layers([1.0, 30.0], [1, 1], [10**6, 1], [(4, 1000.0)]),
    "an exchange beside the computing": Layers([6.0, 10.0], [1, 1], [35, 35], [(2, 10.0)]),
    "a dear cut, on servers of one GPU": Layers([1.0, 2.0, 3.0], *CUT_AT, [(1, 900.0), (2, 10.0)]),
    "an exchange between servers": Layers([4e-3] * 2, [10] * 2, [600] * 2, [(4, 5e6), (2, 1e5)]),
    "a cut within a server": Layers([4.0, 4.0, 1.0], [45] * 3, [9000] * 3, [(2, 30.0), (2, 20.0)]),
    # Racks exchange gradients once for the batches of all their four GPUs, or else a cut would be better.
    "an exchange between racks": Layers([8.0] * 2, [25] * 2, [60] * 2, [(2, 1e5), (2, 1e5), (2, 20.0)]),
}
"""Models in which something else decides than in those that are drawn."""
ONE, SERVERS, RACKS = tuple(TELLING)[:3], tuple(TELLING)[3:6], tuple(TELLING)[6:]


@dataclass(frozen=True, slots=True)
class Network:
    """units: of each level, the innermost first. slow: how much slower each level is than that within it.
    inside: whether the innermost network is by far the slowest, and only there has the plan to be a good one.
    telling: one of TELLING; empty: it is drawn. number: which of several.
    """

    layers: int = feature(4, "{} layers")
    units: tuple[int, ...] = feature((3, 2), lambda units: f"levels of {units} units")
    slow: int = 4
    inside: bool = feature(False, lambda inside: "a slow network within servers" if inside else "")
    telling: str = feature("", "{}")
    number: int = 0


def a_model(rng: Rng, case: Network) -> Arguments:
    """The four arguments."""
    if case.telling:
        return [*TELLING[case.telling]]
    return [*(_slow_inside if case.inside else _drawn)(rng, case)]


def _drawn(rng: Rng, case: Network) -> Layers:
    """Layers of which the first hand on much and the last have large weights; each level is slower."""
    places = range(case.layers)
    return Layers(
        [rng.integer(2, 20) / 2 for _ in places],
        [rng.integer(1, 60 // (place + 1)) for place in places],
        [rng.integer(1, 40) * (1 + place * rng.integer(0, 5)) for place in places],
        [(count, 400.0 / case.slow**level) for level, count in enumerate(case.units)],
    )


def _slow_inside(rng: Rng, case: Network) -> Layers:
    """The first layers' large weights must not be exchanged, and those behind them take long."""
    large = [place < 2 for place in range(case.layers)]
    return Layers(
        [float(rng.integer(4, 9) if each else rng.integer(8, 24)) for each in large],
        [rng.integer(1, 3) for _ in large],
        [rng.integer(300, 900) if each else rng.integer(0, 1) for each in large],
        [(count, 2e4 if level else 20.0) for level, count in enumerate(case.units)],
    )


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the plan of many layers on four servers of four GPUs is the best, and comes in time."""
    model = Layers(
        [rng.integer(1, 20) / 10 for _ in range(30)],
        [rng.integer(1, 60) for _ in range(30)],
        [rng.integer(1, 9) * (50 if place > 22 else 1) for place in range(30)],
        [(4, 1500.0), (4, 300.0)],
    )
    told = answer.call(in_turn, [[*model]], computing=SECONDS)
    return compare.first_failure(
        model.as_good(called.value) for called, _ in compare.side_by_side(told, [model])
    )


def _inside(*units: tuple[int, ...]) -> tuple[Values, ...]:
    return tuple(each for levels in units for each in both(layers=5, inside=True, units=levels))


@of_function(
    base=Network(),
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "servers of several GPUs",
            4,
            "What a run of layers takes on a whole server is what its best plan there takes.",
            vary=vary(
                layers=(3, 5),
                units=((2, 2), (2, 3), (4, 2), (1, 3), (3, 1)),
                slow=(2, 6, 20),
                telling=SERVERS,
                number=(1, 2),
            )
            + _inside((3, 2), (4, 2)),
        ),
        Criterion(
            "one level",
            2,
            "With one level this is the planner of unit 05. Its arguments are still needed.",
            vary=vary(units=((1,), (3,), (4,), (5,)), telling=ONE),
            how=kept,
        ),
        Criterion(
            "three levels",
            2,
            "What holds for servers holds for racks of servers.",
            vary=vary(units=((2, 2, 2), (2, 1, 3)), telling=RACKS) + _inside((3, 2, 2)),
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
    possible=lambda case: not case.telling or case == Network(telling=case.telling),
    written=lambda given: str(Layers(*given)),
)
def pipedream_hierarchy(case: Network, given: Arguments) -> Expected:
    """Narayanan et al. (2019), section 3.1: any plan whose slowest part is as fast as can be."""
    names = ("seconds", "activation_bytes", "weight_bytes", "levels")
    best = Checked(Layers(*given).as_good)
    return Expected(best, dict(zip(names, given, strict=True)), returned=None)
