"""The grader of `training_memory_bytes`."""

from dataclasses import dataclass

from graders.grading.cases import Values, both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.drivers import outcome
from graders.units.functions.stage import Arguments, of_function

BYTES_PER_PARAMETER = {
    ("fp32", "sgd"): 4 + 4,
    ("fp32", "momentum"): 4 + 4 + 4,
    ("fp32", "adam"): 4 + 4 + 8,
    ("bf16", "sgd"): 2 + 2,
    ("bf16", "momentum"): 2 + 2 + 2,
    ("bf16", "adam"): 2 + 2 + 4,
    ("mixed", "sgd"): 2 + 2 + 4,
    ("mixed", "momentum"): 2 + 2 + 4 + 4,
    ("mixed", "adam"): 2 + 2 + 4 + 8,
}
"""Weights + gradients + optimizer states, as the exercise defines them (Rajbhandari et al. 2020, 3.1)."""
UNKNOWN = (("adamw", "fp32"), ("Adam", "mixed"), ("adam", "fp16"), ("sgd", "FP32"))


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of each parameter."""

    optimizer: str = feature("sgd", "{}")
    precision: str = feature("fp32", "{}")


def parameters(rng: Rng, kept: Kept) -> Arguments:
    """Some millions."""
    return [rng.integer(10**6, 10**9), kept.optimizer, kept.precision]


def in_precision(precision: str) -> tuple[Values, ...]:
    """All three optimizers."""
    optimizers = ("sgd", "momentum", "adam")
    return tuple(change for name in optimizers for change in both(optimizer=name, precision=precision))


def unknown_names(answer: Answer, rng: Rng) -> Finding:
    """Passes if names that the exercise does not list raise ValueError."""
    for optimizer, precision in UNKNOWN:
        seen = answer.call(outcome, 1000, optimizer, precision)
        if "ValueError" not in seen.get("raised", ()):
            gave = f"gave {compare.shown(seen.get('gave'), 80)}"
            did = f"raised {seen['raised'][0]}" if "raised" in seen else gave
            return Finding(False, f'("{optimizer}", "{precision}") {did}; expected ValueError.')
    return Finding(True, "An unknown optimizer and an unknown precision raise ValueError.")


@of_function(
    base=Kept(),
    minutes=6,
    difficulty=2,
    rubric=(
        Criterion(
            "full precision",
            1,
            "4 bytes each for the weight, its gradient, and every number that the optimizer keeps: none for "
            "sgd, one for momentum, two for adam. An int.",
            vary=vary(optimizer=("momentum", "adam")),
        ),
        Criterion(
            "half precision",
            1,
            "As in full precision, with 2 bytes for everything.",
            vary=in_precision("bf16"),
        ),
        Criterion(
            "mixed precision",
            1,
            "Weights and gradients take 2 bytes each; the optimizer has a copy of the weights of its own and "
            "all its numbers in 4 bytes.",
            vary=in_precision("mixed"),
        ),
        Criterion(
            "unknown names",
            1,
            "Raise ValueError for an optimizer or a precision that is not listed.",
            needs=("full precision", "half precision", "mixed precision"),
            ask=unknown_names,
        ),
    ),
    hints=(
        "How many numbers does the optimizer keep for a parameter, and of how many bytes is each? Then "
        "add the weight's and the gradient's.",
        "Mixed precision with adam is 2 + 2 + 12 = 16 bytes. Which three numbers make up the 12?",
    ),
    arguments=parameters,
)
def training_memory_bytes(kept: Kept, given: Arguments) -> Expected:
    """So many bytes for each parameter."""
    count, optimizer, precision = given
    held = {"parameters": count, "optimizer": optimizer, "precision": precision}
    return Expected(count * BYTES_PER_PARAMETER[precision, optimizer], held, returned=None)
