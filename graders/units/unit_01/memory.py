"""Unit 01, how much memory."""

import math
from itertools import cycle

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.drivers import call, outcome


@exercise(
    minutes=6,
    difficulty=2,
    rubric=(
        Criterion(
            "full precision",
            1,
            "4 bytes each for the weight, its gradient, and every number that the optimizer keeps: none for "
            "sgd, one for momentum, two for adam.",
        ),
        Criterion("half precision", 1, "As in full precision, with 2 bytes for everything."),
        Criterion(
            "mixed precision",
            1,
            "Weights and gradients take 2 bytes each; the optimizer has a copy of the weights of its own and "
            "all its numbers in 4 bytes.",
        ),
        Criterion(
            "unknown names",
            1,
            "Raise ValueError for an optimizer or a precision that is not listed.",
            needs=("full precision", "half precision", "mixed precision"),
        ),
    ),
    hints=(
        "How many numbers does the optimizer keep for a parameter, and of how many bytes is each? Then "
        "add the weight's and the gradient's.",
        "Mixed precision with adam is 2 + 2 + 12 = 16 bytes. Which three numbers make up the 12?",
    ),
)
def training_memory_bytes(answer: Answer, rng: Rng) -> Findings:
    """All nine combinations, by precision, and names that are not among them."""
    yield "full precision", memory_as_expected(answer, rng, "fp32")
    yield "half precision", memory_as_expected(answer, rng, "bf16")
    yield "mixed precision", memory_as_expected(answer, rng, "mixed")
    yield "unknown names", unknown_names_rejected(answer)


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


def memory_as_expected(answer: Answer, rng: Rng, precision: str) -> Finding:
    """Passes if all three optimizers need what they should in this precision."""
    parameters = rng.integer(10**6, 10**9)
    return compare.first_failure(
        _each_takes(
            BYTES_PER_PARAMETER[precision, optimizer],
            parameters,
            answer.call(call, parameters, optimizer, precision),
            f'training_memory_bytes({parameters}, "{optimizer}", "{precision}")',
        )
        for optimizer in ("sgd", "momentum", "adam")
    )


def _each_takes(expected: int, parameters: int, seen: PlainData, what: str) -> Finding:
    """Passes if `seen` is an int of so many bytes a parameter."""
    each = compare.as_float(seen) / parameters
    told = f", {each:.4g} bytes a parameter" if math.isfinite(each) else ""
    text = f"{what} is {compare.shown(seen)}{told}; expected {expected} bytes a parameter"
    return Finding(type(seen) is int and seen == parameters * expected, f"{text}, as an int.")


_OPTIMIZERS = (
    *(
        "adamw",
        "Adam",
        "",
        "adam ",
        "ada",
        "nadam",
        "sgdm",
        "sgd_momentum",
        "momentum_sgd",
        "mom",
        "nesterov",
    ),
    *("rmsprop", "adagrad", "adadelta", "adafactor", "lamb", "lion", "muon", "lbfgs", "none"),
)
_PRECISIONS = (
    *("fp16", "FP32", "fp8", "", "fp64", "bf16 ", "fp", "bf", "16", "32", "float32", "bfloat16", "float16"),
    *("half", "single", "double", "tf32", "amp", "int8", "fp32_mixed", "mixed_bf16", "bf16-mixed", "mix"),
)
"""Names that are near to those of the exercise, and such as others have."""


def unknown_names_rejected(answer: Answer) -> Finding:
    """Passes if names that the exercise does not list raise ValueError."""
    known = cycle(BYTES_PER_PARAMETER)
    unknown = [(name, precision) for name, (precision, _) in zip(_OPTIMIZERS, known, strict=False)]
    unknown += [(optimizer, name) for name, (_, optimizer) in zip(_PRECISIONS, known, strict=False)]
    for optimizer, precision in unknown:
        seen = answer.call(outcome, 1000, optimizer, precision)
        if "ValueError" not in seen.get("raised", ()):
            did = (
                f"raised {seen['raised'][0]}"
                if "raised" in seen
                else f"gave {compare.shown(seen['gave'], 80)}"
            )
            return Finding(False, f'("{optimizer}", "{precision}") {did}; expected ValueError.')
    return Finding(True, "An unknown optimizer and an unknown precision raise ValueError.")
