"""Unit 06, costs: what four ways to share a stack of layers send, hold and compute."""

from collections.abc import Iterator

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call

WAYS = ("data", "pipeline", "tensor", "sequence")


@exercise(
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion(
            "sent",
            4,
            "Data: gradients. Pipeline: what crosses a cut, both ways. Tensor: f and g, of every layer. "
            "Sequence: count its collectives, and compare their sum with an all-reduce.",
            needs=(),
        ),
        Criterion(
            "parameters", 2, "Two matrices of D times 4 D a layer: who has what of how many?", needs=()
        ),
        Criterion(
            "kept",
            4,
            "Four inputs a layer, two of them D wide and two 4 D: which are cut on a rank, and into how many "
            "parts? And what does `up` see under sequence parallelism?",
            needs=(),
        ),
        Criterion(
            "flops",
            2,
            "Forward one product a matrix, backward two, one for each operand's gradient.",
            needs=(),
        ),
    ),
    hints=(
        "Of which of B, T, D and the p layers does a rank have a part only, in each of the ways? Draw a "
        "table.",
        "An all-reduce of n numbers sends 2 (p - 1) / p of n. How many has each way, of how many?",
        "Of the four inputs, where does each stand: outside of f and g, between them, or at the border?",
    ),
)
def stack_costs(answer: Answer, rng: Rng) -> Findings:
    """Drawn sizes for each way."""
    asked = [(way, *_sizes(rng)) for way in WAYS for _ in range(2)]
    seen = [(arguments, answer.call(call, *arguments)) for arguments in asked]
    for name in ("sent", "parameters", "kept", "flops"):
        yield name, compare.first_failure(_findings(name, seen), f"{name} is right for all four ways.")


def _sizes(rng: Rng) -> tuple[int, int, int, int]:
    """B, T, D and p."""
    ranks = rng.integer(3, 9)
    return ranks * rng.integer(1, 5), ranks * rng.integer(2, 9), ranks * rng.integer(3, 11), ranks


Seen = list[tuple[tuple[str, int, int, int, int], object]]


def _findings(name: str, seen: Seen) -> Iterator[Finding]:
    for (way, samples, tokens, width, ranks), told in seen:
        where = f"{name} with {way}, B = {samples}, T = {tokens}, D = {width}, p = {ranks}"
        if type(told) is not dict or name not in told:
            yield Finding(False, f"{where}: there is no {name} in {compare.shown(told)}.")
            return
        number, expected = (
            compare.as_float(told[name]),
            expected_costs(way, samples, tokens, width, ranks)[name],
        )
        yield Finding(number == expected, f"{where}: {compare.shown(told[name])}; expected {expected:,}.")


def expected_costs(way: str, samples: int, tokens: int, width: int, ranks: int) -> dict[str, int]:
    """What a rank's step costs, from what it has of each layer."""
    layers = 1 if way == "pipeline" else ranks
    inside = ranks if way in ("tensor", "sequence") else 1
    matrices = layers * 2 * width * (4 * width // inside)
    here = tokens * (samples // ranks if way == "data" else samples)
    whole, own = here * width, here * width // (ranks if way == "sequence" else 1)
    reduced = {"data": [matrices], "pipeline": []}.get(way, [whole] * 2 * layers)
    crossing = 2 * whole if way == "pipeline" else 0
    return {
        "sent": crossing + sum(2 * (ranks - 1) * numbers // ranks for numbers in reduced),
        "parameters": matrices,
        "kept": layers * (own + whole + 2 * 4 * whole // inside),
        "flops": 3 * 2 * here * matrices,
    }
