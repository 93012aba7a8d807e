"""The grader of `best_inter`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from graders.grading.cases import Values, both, vary
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_13.drivers import stages as drivers
from graders.units.unit_13.stage_cases import Case
from graders.units.unit_13.stage_models import TELLING, drawn, large

SECONDS = 6.0
"""What the plan of a large model may take: twice what is asked for, since other programs may be running."""


@dataclass(frozen=True, slots=True)
class Stages:
    """sizes: of submeshes; none: 1, 2, 4 and 8. telling: one of TELLING; empty: it is drawn. number: which of
    its cases. unit: of seconds.
    """

    layers: int = feature(4, "{} layers")
    devices: int = feature(6, "{} devices")
    micro_batches: int = feature(4, lambda count: compare.counted(count, "micro-batch").replace("hs", "hes"))
    sizes: tuple[int, ...] = feature((), lambda sizes: f"sizes {sizes}" if sizes else "")
    unit: float = feature(1e-3, "in units of {:g} s")
    telling: str = feature("", "{}")
    number: int = 0


def a_model(rng: Rng, case: Stages) -> Arguments:
    """The table of all stages, and the other arguments."""
    if case.telling:
        told = TELLING[case.telling](rng)[case.number]
        model = told.with_batches(1) if case.micro_batches == 1 else told
    else:
        model = drawn(rng, case.layers, case.devices, case.sizes).with_batches(case.micro_batches)
    return model.in_units(case.unit).arguments


def telling(name: str, numbers: Sequence[int], **features: float) -> tuple[Values, ...]:
    """These cases of one kind."""
    return tuple(each for number in numbers for each in both(telling=name, number=number, **features))


def possible(case: Stages) -> bool:
    """What tells does so as it is; where nothing fits, also with a single micro-batch."""
    alone = case.telling == "what does not fit" and case.micro_batches == 1
    count = 1 if alone else Stages().micro_batches
    told = Stages(micro_batches=count, unit=case.unit, telling=case.telling, number=case.number)
    return not case.telling or case == told


def asks_once(tried: Tried[Stages]) -> Finding:
    """Passes if no stage was asked for twice, and none on more devices than there are."""
    told, (_, _, devices, _, _) = tried.seen.value, tried.seen.given
    if told["largest"] > devices:
        return Finding(False, f"stage_seconds was asked for a size of {told['largest']}.")
    return compare.at_most(told["most"], 1, "calls of stage_seconds for one stage")


def in_time(answer: Answer, rng: Rng) -> Finding:
    """Passes if the plan of a large model is the best, and comes in time."""
    model = large(rng, rng.integer(5, 30))
    told = answer.call(drivers.stages, [model.arguments], timeout=SECONDS)
    return compare.first_failure(
        model.as_good(called.value) for called, _ in compare.side_by_side(told, [model])
    )


@of_function(
    base=Stages(),
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "a few micro-batches",
            4,
            "The best plan of the first layers need not be part of the best plan of all: it may be slow in "
            "a stage that does not matter beside a slower one that is still to come. All devices are used, "
            "even where fewer are faster.",
            vary=vary(layers=(2, 3, 6), devices=(3, 8), micro_batches=(2, 3, 9))
            + both(layers=1, devices=4)
            + both(devices=7, sizes=(1, 3))
            + both(devices=8, sizes=(2, 3, 6))
            + both(devices=3, sizes=(1, 2, 4, 8))
            + telling("seconds that tell", range(6))
            + telling("runs that are better the longer they are", range(4)),
        ),
        Criterion(
            "one micro-batch, or many",
            2,
            "With one only the sum counts; with many nearly only the slowest stage, and the sum still does.",
            vary=vary(micro_batches=(1, 300, 900)) + telling("many micro-batches that tell", range(2)),
        ),
        Criterion(
            "any seconds",
            1,
            "Any stage's seconds may be the best bound, however near another's, and however small.",
            vary=telling("seconds that tell", (1, 2), unit=1e-7)
            + telling("forty plans", (0, 2, 3, 6), unit=1e-8),
        ),
        Criterion(
            "what does not fit",
            2,
            "Where every plan has a stage that does not fit, raise ValueError.",
            vary=telling("what does not fit", range(5))
            + both(telling="what does not fit", number=2, micro_batches=1)
            + both(telling="what does not fit", number=0, micro_batches=1),
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
            "There are too many plans to try them all. How many different stages are there? (Alpa has its "
            "search compiled by Numba for that; there is a faster one.)",
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
    possible=possible,
    driver=drivers.stages,
    written=lambda given: str(Case.of(given)),
)
def best_inter(case: Stages, given: Arguments) -> Expected:
    """Any plan whose step is as short as it can be."""
    best = Checked(partial(Case.of(given).as_good))
    names = ("stage_seconds", "layers", "devices", "micro_batches", "sizes")
    return Expected(best, dict.fromkeys(names, ANYTHING), returned=None)
