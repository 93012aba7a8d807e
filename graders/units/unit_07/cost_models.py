"""What unit 07's graders expect of predicted and of fitted times."""

from graders.grading import compare
from graders.grading.answer import Answer, PlainData
from graders.grading.exercise import Finding
from graders.grading.rng import Rng


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


ALGORITHMS = ("master", "exchange", "tree", "ring", "halving_doubling")


def formula(answer: Answer, rng: Rng, algorithm: str) -> Finding:
    """Passes if the answer predicts this algorithm on powers of two: latency, bytes, and both."""
    for alpha, beta in ((1e-5, 0.0), (0.0, 1e-9), (2e-5, 8e-11)):
        finding = _predicts(algorithm, answer, rng, algorithm, 2 ** rng.integer(1, 12), alpha, beta)
        if not finding.passed:
            return finding
    return finding


def folded_ranks(answer: Answer, rng: Rng) -> Finding:
    """Passes if all predictions are right where the number of ranks is no power of two."""
    for algorithm in ALGORITHMS:
        for ranks in (3, 2 ** rng.integer(3, 12) + rng.integer(1, 7)):
            finding = _predicts("ranks beyond a power of two", answer, rng, algorithm, ranks, 2e-5, 8e-11)
            if not finding.passed:
                return finding
    return finding


def reduction_terms(answer: Answer, rng: Rng) -> Finding:
    """Passes if the time of the additions is counted."""
    for algorithm in ALGORITHMS:
        for ranks in (8, 6):
            finding = _predicts("reduction", answer, rng, algorithm, ranks, 2e-5, 8e-11, 3e-10)
            if not finding.passed:
                return finding
    return finding


def single_rank(answer: Answer, rng: Rng) -> Finding:
    """Passes if one rank takes no time."""
    for algorithm in ALGORITHMS:
        finding = _predicts("one rank", answer, rng, algorithm, 1, 1.0, 1.0, 1.0)
        if not finding.passed:
            return finding
    return finding


def _predicts(
    criterion: str,
    answer: Answer,
    rng: Rng,
    algorithm: str,
    ranks: int,
    alpha: float,
    beta: float,
    gamma: float = 0.0,
) -> Finding:
    """Passes if the prediction agrees to nine digits, in the unit that it has (times may be tiny)."""
    nbytes = rng.integer(1_000, 1_000_000)
    arguments = (algorithm, nbytes, ranks, alpha, beta, *([gamma] if gamma else []))
    seen = answer.call("call", *arguments)
    wanted = expected_time(algorithm, nbytes, ranks, alpha, beta, gamma)
    number = isinstance(seen, int | float) and not isinstance(seen, bool)
    passed = number and abs(seen - wanted) <= 1e-9 * max(wanted, 1e-12)
    shown = f"{seen:.6g} s" if number else f"{seen!r:.80}"
    asked = f'"{algorithm}", {nbytes:,} bytes, {ranks:,} ranks, alpha={alpha:g}, beta={beta:g}'
    asked += f", gamma={gamma:g}" if gamma else ""
    return Finding(criterion, bool(passed), f"{asked}: {shown}; expected {wanted:.6g} s.")


# --------------------------------------------------------------------------------------------------- fitting

SIZES = [4096 * 4**power for power in range(8)]
"""4 KB to 64 MB."""


def exact_fit(answer: Answer, rng: Rng) -> Finding:
    """Passes if samples that lie on a line give that line."""
    for (alpha, beta), sizes in ((_draw_link(rng), SIZES), (_draw_carrier(rng), range(1, 9))):
        samples = [(size, alpha + size * beta) for size in sizes]
        finding = _near_both("exact samples", _fitted(answer, samples), alpha, beta, 1e-6)
        if not finding.passed:
            return finding
    return finding


def noisy_fit(answer: Answer, rng: Rng) -> Finding:
    """Passes if relative noise of a few per cent leaves both parameters within 5 per cent of the truth."""
    alpha, beta = _draw_link(rng)
    samples = []
    for size in SIZES:
        # In pairs around the truth, so that the noise does not shift the line as a whole.
        error = rng.integer(20, 40) / 1000 * (1 if rng.integer(0, 1) else -1)
        samples += [(size, (alpha + size * beta) * (1 + sign * error)) for sign in (1, -1)]
    # One slow run of the longest message: 10 % of it is a thousand times alpha.
    samples.append((SIZES[-1], (alpha + SIZES[-1] * beta) * 1.1))
    return _near_both("noisy samples", _fitted(answer, samples), alpha, beta, 0.05)


def samples_kept(answer: Answer, rng: Rng) -> Finding:
    """Passes if the samples stay as they are and two floats come back."""
    alpha, beta = _draw_link(rng)
    samples = [(size, alpha + size * beta) for size in reversed(SIZES)]
    told = answer.call("unit_07.fit", samples)
    if told["samples"] != samples:
        return Finding("samples unchanged", False, "The list of samples has changed.")
    result = told["result"]
    floats = type(result) is tuple and [type(item) for item in result] == [float, float]
    return Finding("samples unchanged", floats, f"Returned {result!r:.80}; expected a pair of floats.")


def _draw_link(rng: Rng) -> tuple[float, float]:
    return rng.integer(100, 999) * 1e-7, rng.integer(100, 999) * 1e-12


def _draw_carrier(rng: Rng) -> tuple[float, float]:
    """Of a very slow link, over which a byte takes longer than a second."""
    return rng.integer(100, 999) / 100, rng.integer(100, 999) / 100


def _fitted(answer: Answer, samples: list[tuple[int, float]]) -> PlainData:
    return answer.call("unit_07.fit", samples)["result"]


def _near_both(criterion: str, seen: PlainData, alpha: float, beta: float, rtol: float) -> Finding:
    """Passes if seen is (alpha, beta), each within rtol of the truth."""
    if type(seen) not in (tuple, list) or len(seen) != 2:
        return Finding(criterion, False, f"returned {seen!r:.80}; expected a pair (alpha, beta).")
    for name, value, wanted in zip(("alpha", "beta"), seen, (alpha, beta), strict=True):
        finding = compare.near(criterion, value, wanted, name)
        scaled = compare.near(criterion, _ratio(value, wanted), 1.0, name, rtol=rtol)
        if not scaled.passed:
            return Finding(criterion, False, finding.seen)
    return Finding(criterion, True, f"alpha {seen[0]:.4g} s, beta {seen[1]:.4g} s a byte: within {rtol:g}.")


def _ratio(value: PlainData, wanted: float) -> PlainData:
    return value / wanted if isinstance(value, int | float) and not isinstance(value, bool) else value
