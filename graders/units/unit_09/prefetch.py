"""The grader of `prefetch`."""

from graders.grading.cases import both, vary
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.sharded_units import STEPS, Setting, Units
from graders.units.unit_09.unit_calls import asked, calls, own_first


@one_by_one(
    base=Setting(asked=STEPS, units=3),
    minutes=20,
    difficulty=4,
    rubric=(
        Criterion(
            "computes as without",
            2,
            "A Sequential of units, with the same results and gradients as without prefetching. The "
            "last unit starts nobody: weights that are asked for before the optimizer's step are old.",
            vary=vary(units=(1, 2)) + both(ranks=3, width=5),
        ),
        Criterion(
            "ahead in forward",
            4,
            "Before a unit computes, two have been started: itself, and the next one; nobody else. "
            "module.register_forward_pre_hook(hook) calls hook(module, inputs) at that moment.",
            how=look("ahead in forward"),
        ),
        Criterion(
            "ahead in backward",
            4,
            "In backward the neighbour is the unit before; its own are asked for first, then those. "
            "module.register_full_backward_pre_hook(hook) calls hook(module, gradient) before its backward.",
            needs=("ahead in forward",),
            how=look("ahead in backward"),
        ),
    ),
    hints=(
        "What is to happen before a unit's forward, and before its backward? Two calls of start() each.",
        "In which order? Its own first: what is asked for first arrives first.",
        "Which unit is next? itertools.pairwise(units) gives each with the one behind it.",
    ),
)
def prefetch(answer: Answer, case: Setting, rng: Rng) -> tuple[Finding, Looks]:
    """Units of layers, one behind the other."""
    units = Units.draw(rng, case)
    run = units.launch(answer, together=True)
    looks: Looks = {}
    if case.units > 1:
        looks["ahead in forward"] = lambda: compare.first_failure(
            (asked(units, run, "forward"), calls(units, run))
        )
        looks["ahead in backward"] = lambda: compare.first_failure(
            (asked(units, run, "backward"), own_first(run))
        )
    return compare.first_failure(units.results(run)), looks
