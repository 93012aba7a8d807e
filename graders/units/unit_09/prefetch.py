"""The grader of `prefetch`."""

from collections.abc import Callable

from graders.grading.cases import both, vary
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.sharded_units import GRADIENTS, STEPS, Run, Setting, Units
from graders.units.unit_09.unit_calls import asked, calls, own_first, waits
from graders.units.unit_09.unit_memory import lets_go_in_backward, two_at_once


@one_by_one(
    base=Setting(asked=STEPS, units=3),
    minutes=20,
    difficulty=4,
    rubric=(
        Criterion(
            "computes as without",
            1,
            "A Sequential of units, with the same results and gradients as without prefetching. The last "
            "unit starts nobody: weights that are asked for before the optimizer's step are old.",
            vary=vary(units=(1, 2)) + both(ranks=3, width=5),
        ),
        Criterion(
            "ahead in forward",
            2,
            "Before a unit computes, two have been started: itself, and the next one. "
            "module.register_forward_pre_hook(hook) calls hook(module, inputs) at that moment.",
            how=look("ahead in forward"),
        ),
        Criterion(
            "ahead in backward",
            3,
            "In backward the neighbour is the unit before; its own are asked for first, then those. "
            "module.register_full_backward_pre_hook(hook) calls hook(module, gradient) before its backward.",
            needs=("ahead in forward",),
            how=look("ahead in backward"),
        ),
        Criterion(
            "two units at most",
            2,
            "A unit starts its neighbour's weights, and nobody else's; not all of them at the beginning. "
            "It lets go of its own before the next one computes, and calls are those without prefetching.",
            needs=("ahead in forward", "ahead in backward"),
            vary=both(deep=True, asked=GRADIENTS, units=4, width=24, tied=True),
            how=look("two units at most"),
        ),
        Criterion(
            "nobody waits for the neighbour",
            2,
            "start() returns at once; only the unit that computes waits, and for its own weights alone. "
            "What is asked for first arrives first: its own before its neighbour's.",
            needs=("two units at most",),
            how=look("nobody waits for the neighbour"),
        ),
    ),
    hints=(
        "What is to happen before a unit's forward, and before its backward? Two calls of start() each.",
        "In which order? Its own first: what is asked for first arrives first.",
        "Which unit is next? itertools.pairwise(units) gives each with the one behind it.",
    ),
    possible=lambda case: not case.deep or case.ranks == 2,
)
def prefetch(answer: Answer, case: Setting, rng: Rng) -> tuple[Finding, Looks]:
    """Units of layers, one behind the other."""
    units = Units.draw(rng, case)
    run = units.launch(answer, together=True)
    looks: Looks = {"two units at most": lambda: calls(units, run)}
    if case.units > 1:
        looks["ahead in forward"] = lambda: asked(units, run, "forward", ahead=True)
        looks["ahead in backward"] = lambda: asked(units, run, "backward", ahead=True)
        looks["two units at most"] = lambda: compare.first_failure(found() for found in _no_more(units, run))
        looks["nobody waits for the neighbour"] = lambda: compare.first_failure((waits(run), own_first(run)))
    return compare.first_failure(units.results(run)), looks


def _no_more(units: Units, run: Run) -> list[Callable[[], Finding]]:
    """What nobody may do besides starting a neighbour."""
    looks = [
        lambda: calls(units, run),
        lambda: asked(units, run, "forward", ahead=False),
        lambda: asked(units, run, "backward", ahead=False),
    ]
    if units.setting.deep:
        looks.append(lambda: two_at_once(units, run))
        looks.append(lambda: lets_go_in_backward(units, run, "step begins", wholes=7))
    return looks
