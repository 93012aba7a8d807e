"""The grader of `predict_time`."""

import math

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call

ALGORITHMS = ("master", "exchange", "tree", "ring", "halving_doubling")


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion("master", 1, "p - 1 messages to the master, then p - 1 from it, all through its one link."),
        Criterion(
            "exchange", 1, "Each rank sends the whole tensor to p - 1 others, one after another.", needs=()
        ),
        Criterion("tree", 1, "ceil(log2 p) rounds of the whole tensor up, and as many down.", needs=()),
        Criterion("ring", 1, "2 (p - 1) steps, in each nbytes / ranks, not rounded.", needs=()),
        Criterion(
            "halving_doubling",
            1,
            "2 log2 p rounds for p a power of two. The halves add up to (p - 1) / p of the tensor, and are "
            "sent twice.",
            needs=(),
        ),
        Criterion(
            "any number of ranks",
            2,
            "halving_doubling works on the largest power of two in p, with two more messages of the whole "
            "tensor; a tree rounds log2 p up. Alone there is nothing to send: 0 seconds.",
            needs=("tree", "halving_doubling"),
        ),
        Criterion(
            "reduction",
            1,
            "gamma is paid for each byte that arrives and is added, not for copies.",
            needs=("tree", "halving_doubling"),
        ),
    ),
    hints=(
        "Which rank has most to do, and how many messages, and how many bytes, come there one after another?",
        "ceil(log2 p) is (p - 1).bit_length(), without rounding errors.",
    ),
)
def predict_time(answer: Answer, rng: Rng) -> Findings:
    """Each algorithm's formula: latency, bytes, and both."""
    right = []
    for algorithm in ALGORITHMS:
        links = (16, 1e-5, 0.0), (64, 0.0, 1e-9), (2, 2e-5, 8e-11)
        found = compare.first_failure(predicts(answer, rng, algorithm, *link) for link in links)
        right += [algorithm] * found.passed
        yield algorithm, found
    # What one algorithm's row has told, the rows behind it do without.
    sizes = (1, 3, 2 ** rng.integer(5, 12) + rng.integer(2, 7))
    yield (
        "any number of ranks",
        compare.first_failure(predicts(answer, rng, each, p, 2e-5, 8e-11) for each in right for p in sizes),
    )
    yield (
        "reduction",
        compare.first_failure(predicts(answer, rng, each, 8, 2e-5, 8e-11, 3e-10) for each in right),
    )


def _busiest(algorithm: str, n: int, p: int) -> tuple[int, float, float]:
    """Messages one after another, their bytes, and the bytes that are added, on the critical path (Thakur,
    Rabenseifner, Gropp 2005, section 4).
    """
    rounds = (p - 1).bit_length()
    core = 1 << (p.bit_length() - 1)
    folded = int(p > core)
    match algorithm:
        case "master":
            return 2 * (p - 1), 2 * (p - 1) * n, (p - 1) * n
        case "exchange":
            return p - 1, (p - 1) * n, (p - 1) * n
        case "tree":
            return 2 * rounds, 2 * rounds * n, rounds * n
        case "ring":
            return 2 * (p - 1), 2 * (p - 1) / p * n, (p - 1) / p * n
        case _:
            share = (core - 1) / core * n
            return 2 * (core.bit_length() - 1) + 2 * folded, 2 * share + 2 * folded * n, share + folded * n


def predicts(
    answer: Answer, rng: Rng, algorithm: str, ranks: int, alpha: float, beta: float, gamma: float = 0.0
) -> Finding:
    """Passes if the prediction agrees to nine digits. The bytes are odd: no half of them is whole."""
    nbytes = 2 * rng.integer(500, 500_000) + 1
    seen = answer.call(call, algorithm, nbytes, ranks, alpha, beta, *([gamma] if gamma else []))
    messages, sent, reduced = _busiest(algorithm, nbytes, ranks)
    wanted = messages * alpha + sent * beta + reduced * gamma
    number = compare.as_float(seen)
    text = compare.shown(seen, 80) if math.isnan(number) else f"{number:.12g} s"
    asked = f'"{algorithm}", {nbytes:,} bytes, {ranks} ranks, alpha={alpha:g}, beta={beta:g}, gamma={gamma:g}'
    passed = abs(number - wanted) <= 1e-9 * max(wanted, 1e-12)
    return Finding(passed, f"{asked}: {text}; expected {wanted:.12g} s.")
