"""The grader of `predict_time`."""

import math
from collections.abc import Sequence
from functools import partial

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
            "ranks beyond a power of two",
            1,
            "halving_doubling works on the largest power of two in p, with two more messages of the whole "
            "tensor; a tree rounds log2 p up.",
            needs=("tree", "halving_doubling"),
        ),
        Criterion(
            "reduction",
            1,
            "gamma is paid for each byte that arrives and is added, not for copies.",
            needs=("tree", "halving_doubling"),
        ),
        Criterion(
            "one rank, no bytes",
            1,
            "Alone there is nothing to send: 0 seconds. A message of no bytes takes its latency.",
            needs=("tree", "halving_doubling"),
        ),
    ),
    hints=(
        "Which rank has most to do, and how many messages, and how many bytes, come there one after another?",
        "ceil(log2 p) is (p - 1).bit_length(), without rounding errors.",
    ),
)
def predict_time(answer: Answer, rng: Rng) -> Findings:
    """Each algorithm's formula."""
    right = []
    for algorithm in ALGORITHMS:
        yield algorithm, (found := formula(answer, rng, algorithm))
        right += [algorithm] * found.passed
    # What one algorithm's row has told, the rows behind it do without.
    every = partial(_every_algorithm, answer, rng, right)
    # Of the second, several fold at the same time, and the logarithm is nearer to the number below it.
    beyond = every((3, 2 ** rng.integer(5, 12) + rng.integer(2, 7)), 2e-5, 8e-11)
    yield "ranks beyond a power of two", beyond
    reduction = every((2, 8, 6 if beyond.passed else 4), 2e-5, 8e-11, 3e-10)
    yield "reduction", reduction
    alone = every((1,), 1.0, 1.0, 1.0 if reduction.passed else 0.0)
    no_bytes = (_predicts(answer, rng, each, 4, 1e-5, 8e-11, nbytes=0) for each in right)
    yield "one rank, no bytes", compare.first_failure([alone, *no_bytes])


def expected_time(
    algorithm: str, nbytes: int, ranks: int, alpha: float, beta: float, gamma: float = 0.0
) -> float:
    """Seconds of an all-reduce on `ranks` ranks (Thakur, Rabenseifner, Gropp 2005, section 4)."""
    messages, sent, reduced = _busiest(algorithm, nbytes, ranks)
    return messages * alpha + sent * beta + reduced * gamma


def _busiest(algorithm: str, n: int, p: int) -> tuple[int, float, float]:
    """Messages one after another, their bytes, and the bytes that are added, on the critical path."""
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


def formula(answer: Answer, rng: Rng, algorithm: str) -> Finding:
    """Passes if the answer predicts this algorithm on powers of two: latency, bytes, and both."""
    links = ((1e-5, 0.0), (0.0, 1e-9), (2e-5, 8e-11))
    sizes = (2 ** rng.integer(2, 12), 2 ** rng.integer(2, 12), 2)
    return compare.first_failure(
        _predicts(answer, rng, algorithm, ranks, *link) for ranks, link in zip(sizes, links, strict=True)
    )


def _every_algorithm(
    answer: Answer, rng: Rng, algorithms: Sequence[str], sizes: Sequence[int], *link: float
) -> Finding:
    """Passes if the algorithms' predictions are right on so many ranks. link: alpha, beta and, if it counts,
    gamma.
    """
    return compare.first_failure(
        _predicts(answer, rng, algorithm, ranks, *link) for algorithm in algorithms for ranks in sizes
    )


def _predicts(
    answer: Answer,
    rng: Rng,
    algorithm: str,
    ranks: int,
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    *,
    nbytes: int | None = None,
) -> Finding:
    """Passes if the prediction agrees to nine digits, in the unit that it has (times may be tiny). nbytes: by
    default an odd number, of which no half is whole.
    """
    nbytes = 2 * rng.integer(500, 500_000) + 1 if nbytes is None else nbytes
    arguments = (algorithm, nbytes, ranks, alpha, beta, *([gamma] if gamma else []))
    seen = answer.call(call, *arguments)
    wanted = expected_time(algorithm, nbytes, ranks, alpha, beta, gamma)
    number = compare.as_float(seen)
    passed = abs(number - wanted) <= 1e-9 * max(wanted, 1e-12)
    digits = 6 if f"{number:.6g}" != f"{wanted:.6g}" else 12
    text = compare.shown(seen, 80) if math.isnan(number) else f"{number:.{digits}g} s"
    asked = (
        f'"{algorithm}", {nbytes:,} bytes, {compare.counted(ranks, "rank")}, alpha={alpha:g}, beta={beta:g}'
    )
    asked += f", gamma={gamma:g}" if gamma else ""
    return Finding(passed, f"{asked}: {text}; expected {wanted:.{digits}g} s.")
