"""The grader of `zero_memory`."""

from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function


@dataclass(frozen=True, slots=True)
class Cut:
    """rest: parameters that are left when each rank has as many. state_bytes: None: not told."""

    ranks: int = feature(4, "{} ranks")
    stage: int = feature(1, "stage {}")
    state_bytes: int | None = feature(
        None, lambda number: "" if number is None else f"{number} bytes of the optimizer"
    )
    rest: int = feature(0, lambda rest: "parameters that ranks do not divide" if rest else "")


def numbers(rng: Rng, case: Cut) -> Arguments:
    """What zero_memory is given."""
    parameters = case.ranks * rng.integer(10**3, 10**8) + case.rest
    return [parameters, case.ranks, case.stage, *([] if case.state_bytes is None else [case.state_bytes])]


@of_function(
    base=Cut(),
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "the optimizer's numbers", 1, "In stage 1 only these are cut; weights and gradients stay whole."
        ),
        Criterion("gradients too", 1, "In stage 2 the weights alone are whole.", vary=vary(stage=(2,))),
        Criterion("weights too", 1, "In stage 3 all that a rank holds is a shard.", vary=vary(stage=(3,))),
        Criterion(
            "nothing cut, and other optimizers",
            1,
            "In stage 0 every rank has 2 bytes for the weight, 2 for its gradient, and state_bytes.",
            vary=vary(stage=(0,), state_bytes=(4, 8)),
        ),
        Criterion(
            "shards that are not equal",
            1,
            "Ten parameters on four ranks: one rank has three of them. Round the shard up, in parameters, "
            "and only then count bytes. -(-a // b) is a / b rounded up.",
            vary=vary(rest=(1, 3)) + both(rest=1, ranks=8),
        ),
    ),
    hints=(
        "Of which of the three kinds does a rank hold a shard only in this stage?",
        "How many parameters has the largest shard? -(-a // b) is a / b rounded up.",
    ),
    arguments=numbers,
)
def zero_memory(case: Cut, given: Arguments) -> Expected:
    """2 bytes of weight, 2 of gradient, and the optimizer's, each of all parameters or of a shard's."""
    parameters = given[0]
    shard = -(-parameters // case.ranks)
    weights, gradients, states = (shard if case.stage >= first else parameters for first in (3, 2, 1))
    state_bytes = 12 if case.state_bytes is None else case.state_bytes
    names = ("parameters", "ranks", "stage", "state_bytes")
    total = 2 * weights + 2 * gradients + state_bytes * states
    return Expected(total, dict(zip(names, given, strict=False)), returned=None)
