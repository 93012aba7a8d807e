"""The grader of `prefetch`."""

from graders.grading.cases import both, vary
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.sharded_units import STEPS, Run, Setting, Units, calls, halves_of, of_family


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
    looks: Looks = {
        "ahead in forward": lambda: compare.first_failure((asked(case, run, "forward"), calls(units, run))),
        "ahead in backward": lambda: compare.first_failure((asked(case, run, "backward"), own_first(run))),
    }
    return compare.first_failure(units.results(run)), looks if case.units > 1 else {}


def asked(case: Setting, run: Run, which: str) -> Finding:
    """Passes if, when each unit computes in this pass, its own weights and its neighbour's have been asked
    for, and nobody else's.
    """
    for step, name, made, computes in halves_of(run):
        if name != which:
            continue
        gathers = of_family(made, "all_gather")
        for place, (mark, _) in enumerate(compare.side_by_side(computes, range(case.units))):
            seen, wanted = sum(call.sequence < mark.sequence for call in gathers), min(place + 2, case.units)
            if seen != wanted:
                unit = place if name == "forward" else case.units - 1 - place
                said = f"{step}, {name}: when unit {unit} of {case.units} computes, weights of {seen} units"
                return Finding(False, f"{said} in all have been asked for; expected {wanted}.")
    return Finding(True, f"A unit's and its neighbour's weights are asked for before it computes in {which}.")


def own_first(run: Run) -> Finding:
    """Passes if backward's first gradients are sent before the weights of the unit before have arrived."""
    for step, name, made, _ in halves_of(run):
        gathers, scatters = of_family(made, "all_gather"), of_family(made, "reduce_scatter")
        if name == "backward" and gathers[1:] and scatters and scatters[0].start >= gathers[1].end:
            said = "the last unit computes when its neighbour's weights are there"
            return Finding(False, f"{step}, {name}: {said}.")
    return Finding(True, "In backward the last unit does not wait for its neighbour's weights.")
