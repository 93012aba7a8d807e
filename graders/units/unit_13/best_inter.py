"""The grader of `best_inter`."""

from dataclasses import dataclass
from functools import partial

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_13.drivers import choices as drivers
from graders.units.unit_13.stage_cases import as_good, drawn, large, measured, table_of

SECONDS = 6.0
"""What the plan of a large model may take: twice what is asked for, for machines differ."""


def _two_layers(micro_batches: int, *plans: tuple[float, float]) -> Arguments:
    """Plans of two stages, on 1 and 3, 2 and 2, 3 and 1 devices; a single stage takes far longer."""

    def seconds(begin: int, end: int, size: int) -> float:
        if end - begin == 2:
            return 500.0
        return plans[3 - size][1] if begin else plans[size - 1][0]

    return [table_of(2, (1, 2, 3), seconds), 2, 4, micro_batches, (1, 2, 3)]


SLOW_LAST = {(0, 1, 1): 6.0, (1, 2, 1): 6.0, (0, 2, 2): 10.0, (2, 3, 2): 20.0}
TELLING: dict[str, Arguments] = {
    "one stage is better only beside the slow last one": [
        table_of(3, (1, 2), lambda *stage: SLOW_LAST.get(stage, 40.0)),
        3,
        4,
        3,
        (1, 2),
    ],
    "neither the least sum nor the quickest slowest stage": _two_layers(
        4, (80.0, 4.0), (70.0, 30.0), (66.0, 64.0)
    ),
    "of many the sum counts, too": _two_layers(40, (67.0, 4.0), (90.0, 90.0), (66.0, 64.0)),
    "of one only the sum counts": _two_layers(1, (80.0, 4.0), (70.0, 30.0), (43.0, 43.0)),
}
"""Tables in which something else decides than in those that are drawn."""
FIRST, BETWEEN, MANY, ONE = TELLING


@dataclass(frozen=True, slots=True)
class Stages:
    """sizes: of submeshes. most: work that fits on a device; none: any. ruled: whether a stage's seconds
    follow from work and devices; else each is drawn by itself. unit: of seconds. telling: one of TELLING;
    empty: it is drawn. number: which of several.
    """

    layers: int = feature(4, "{} layers")
    devices: int = feature(6, "{} devices")
    micro_batches: int = feature(4, "{} micro-batches")
    sizes: tuple[int, ...] = feature((1, 2, 4), "sizes {}")
    most: float = feature(float("inf"), lambda most: "stages that do not fit" if most < 1e9 else "")
    ruled: bool = True
    unit: float = feature(1e-3, "in units of {:g} s")
    telling: str = feature("", "{}")
    number: int = 0


def a_model(rng: Rng, case: Stages) -> Arguments:
    """The table of all stages, and the other arguments."""
    if case.telling:
        return TELLING[case.telling]
    if case.ruled:
        table = drawn(rng, case.layers, case.sizes, case.most)
    else:
        table = measured(rng, case.layers, case.sizes)
    table = [(begin, end, size, seconds * case.unit) for begin, end, size, seconds in table]
    return [table, case.layers, case.devices, case.micro_batches, case.sizes]


def asks_once(tried: Tried[Stages]) -> Finding:
    """Passes if no stage was asked for twice, and none on more devices than there are."""
    told, (_, _, devices, _, _) = tried.seen.value, tried.seen.given
    if told["largest"] > devices:
        return Finding(False, f"stage_seconds was asked for a size of {told['largest']}.")
    return compare.at_most(told["most"], 1, "calls of stage_seconds for one stage")


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the plan of a large model is the best, and comes in time."""
    model = large(rng)
    told = answer.call(drivers.stages, [model], computing=SECONDS)
    return compare.first_failure(
        as_good(called.value, in_words(model), model) for called, _ in compare.side_by_side(told, [model])
    )


def in_words(given: Arguments) -> str:
    """The arguments, with the table if it is short."""
    table, layers, devices, micro_batches, sizes = given
    text = f"{layers=}, {devices=}, {micro_batches=}, {sizes=}"
    return f"{text}, (begin, end, size, seconds): {table}" if len(table) < 90 else text


@of_function(
    base=Stages(),
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "a few micro-batches",
            5,
            "The best plan of the first layers need not be part of the best plan of all: a slower stage may "
            "still come, beside which theirs do not matter.",
            vary=vary(layers=(2, 6), devices=(3, 8), micro_batches=(2, 9), unit=(1e-8,))
            + both(layers=1, devices=4)
            + both(devices=7, sizes=(1, 3))
            + both(layers=6, devices=7, ruled=False, number=0, sizes=(1, 2, 3, 4))
            + both(layers=6, devices=7, ruled=False, number=1, sizes=(1, 2, 3, 4))
            + both(layers=6, devices=7, ruled=False, number=2, sizes=(1, 2, 3, 4))
            + vary(telling=(FIRST, BETWEEN)),
        ),
        Criterion(
            "one micro-batch, or many",
            2,
            "With one only the sum counts; with many nearly only the slowest stage, and the sum still does.",
            vary=vary(micro_batches=(1, 300), telling=(MANY, ONE)),
        ),
        Criterion(
            "what does not fit",
            2,
            "Where every plan has a stage that does not fit, raise ValueError.",
            vary=vary(most=(5, 60, 100, 150)) + both(layers=3, devices=5, sizes=(2, 4)),
        ),
        Criterion(
            "each stage asked for once",
            1,
            "Keep what stage_seconds has said, and do not ask for more devices than there are.",
            how=asks_once,
        ),
        Criterion(
            "a large model",
            2,
            "There are too many plans to try them all. How many different stages are there? "
            "(Alpa has its search compiled by Numba for that; there is a faster one.)",
            ask=in_time,
        ),
    ),
    hints=(
        "If you knew how slow the slowest stage may be, what would be left to be minimised, and could the "
        "layers be settled one after another?",
        "least[end, used]: the least sum for the first layers on so many devices, of stages within the "
        "bound. Which bounds are worth a try, and from which one on can none be better than what you have?",
    ),
    arguments=a_model,
    possible=lambda case: not case.telling or case == Stages(telling=case.telling),
    driver=drivers.stages,
    written=in_words,
)
def best_inter(case: Stages, given: Arguments) -> Expected:
    """Any plan whose step is as short as it can be."""
    names = ("stage_seconds", "layers", "devices", "micro_batches", "sizes")
    best = Checked(partial(as_good, given=given))
    return Expected(best, dict.fromkeys(names, ANYTHING), returned=None)
