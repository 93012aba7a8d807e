"""The grader of `fit_alpha_beta`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_07 import drivers


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("exact samples", 2, "seconds = alpha + nbytes * beta is linear in alpha and beta."),
        Criterion(
            "noisy samples",
            2,
            "An error of 10 % weighs as much for a short message as for a long one: divide each equation by "
            "its seconds before you solve, in float64.",
        ),
        Criterion(
            "alpha below 0",
            1,
            "The best alpha may be negative: do not clip it.",
            needs=("exact samples", "noisy samples"),
        ),
        Criterion("samples unchanged", 1, "Return two floats, and leave the list as it is."),
    ),
    hints=(
        "In what is the relative error (alpha + nbytes * beta) / seconds - 1 linear? Its squares are least "
        "squares with the columns 1 / seconds and nbytes / seconds and the right-hand side 1.",
        "torch.linalg.lstsq or numpy.linalg.lstsq solves it; divide a column by its largest entry, and its "
        "coefficient too.",
    ),
)
def fit_alpha_beta(answer: Answer, rng: Rng) -> Findings:
    """A line through measurements that span many orders of magnitude."""
    yield "exact samples", exact_fit(answer, rng)
    yield "noisy samples", noisy_fit(answer, rng)
    yield "alpha below 0", fit_below_zero(answer, rng)
    yield "samples unchanged", samples_kept(answer, rng)


SIZES = [4096 * 4**power for power in range(8)]
"""4 KB to 64 MB."""


def exact_fit(answer: Answer, rng: Rng) -> Finding:
    """Passes if samples that lie on a line give that line."""
    found = ((_draw_link(rng), SIZES), (_draw_carrier(rng), (rng.integer(3, 9), 0)))
    return compare.first_failure(on_a_line(answer, *link, sizes) for link, sizes in found)


def fit_below_zero(answer: Answer, rng: Rng) -> Finding:
    """Passes if samples on a line that is below 0 where there are no bytes give that line."""
    beta = rng.integer(100, 999) * 1e-12
    return on_a_line(answer, -rng.integer(1, 9) / 10 * SIZES[0] * beta, beta, SIZES)


def on_a_line(answer: Answer, alpha: float, beta: float, sizes: Sequence[int]) -> Finding:
    """Passes if samples of these sizes on the line of alpha and beta give both."""
    samples = [(size, alpha + size * beta) for size in sizes]
    return _fits(answer, samples, alpha, beta, 1e-5)


def noisy_fit(answer: Answer, rng: Rng) -> Finding:
    """Passes if relative noise of a few per cent leaves both parameters within 5 per cent of the truth.

    The shortest and the longest messages were slow in every run, and many others tell so. In seconds 10 % of
    the longest is a thousand times alpha.
    """
    alpha, beta = rng.integer(500, 999) * 1e-7, rng.integer(100, 300) * 1e-12
    sizes = [SIZES[0] * 2**power for power in range(16)]
    samples = []
    for size in sizes:
        # In pairs around the truth, so that the noise does not shift the line as a whole.
        error = rng.integer(20, 40) / 1000 * (1 if rng.integer(0, 1) else -1)
        factors = (1.08, 1.12) if size in (sizes[0], sizes[-1]) else (1 + error, 1 - error)
        samples += [(size, _legible((alpha + size * beta) * factor)) for factor in factors]
    near = _fits(answer, samples, alpha, beta, 0.05)
    return nearest(answer, rng, sizes) if near.passed else near


def nearest(answer: Answer, rng: Rng, sizes: list[int]) -> Finding:
    """Passes if of noise that leans to one side the least sum of squared relative errors is found; each size
    was measured twice, in no order.

    Other weights, such as those of the square root of the seconds, find another line, and so does who leaves
    out a sample: the first or last one, the fastest or slowest.
    """
    alpha, beta = _draw_link(rng)
    # Clocks are coarse: some were measured twice alike, and count twice.
    drawn = [(size, rng.integer(95, 120)) for size in sizes * 2] + [(sizes[0], 120)] * 3
    drawn.sort(key=lambda _: rng.integer(0, 999))
    drawn = [(sizes[0], 120), *drawn, (sizes[0], 90), (sizes[-1], 125)]
    samples = [(size, _legible((alpha + size * beta) * percent / 100)) for size, percent in drawn]
    nbytes, seconds = (np.array(column) for column in zip(*samples, strict=True))
    columns = np.column_stack([alpha / seconds, beta * nbytes / seconds])
    of_alpha, of_beta = np.linalg.lstsq(columns, np.ones(len(samples)), rcond=None)[0]
    return _fits(answer, samples, alpha * float(of_alpha), beta * float(of_beta), 1e-3)


def samples_kept(answer: Answer, rng: Rng) -> Finding:
    """Passes if the samples stay as they are and two floats come back."""
    alpha, beta = _draw_link(rng)
    samples = [(size, alpha + size * beta) for size in reversed(SIZES)]
    told = answer.call(drivers.mended, samples)
    if not compare.same(told.argument, samples):
        return Finding(False, "The list of samples has changed.")
    floats = type(told.result) is tuple and [type(item) for item in told.result] == [float, float]
    return Finding(floats, f"Returned {told.result!r:.80}; expected a pair of floats.")


def _draw_link(rng: Rng) -> tuple[float, float]:
    return rng.integer(100, 999) * 1e-7, rng.integer(100, 999) * 1e-12


def _draw_carrier(rng: Rng) -> tuple[float, float]:
    """Of a very slow link, over which a byte takes longer than a second."""
    return rng.integer(100, 999) / 100, rng.integer(100, 999) / 100


def _legible(seconds: float) -> float:
    """With so few digits that one can type it in."""
    return float(f"{seconds:.4g}")


def _fits(
    answer: Answer, samples: list[tuple[int, float]], alpha: float, beta: float, rtol: float
) -> Finding:
    """`_near_both` for what the answer makes of the samples, with these."""
    finding = _near_both(answer.call(drivers.mended, samples).result, alpha, beta, rtol)
    return finding if finding.passed else replace(finding, seen=f"{finding.seen} The samples: {samples}.")


def _near_both(seen: PlainData, alpha: float, beta: float, rtol: float) -> Finding:
    """Passes if seen is (alpha, beta), each within rtol of the truth."""
    if type(seen) not in (tuple, list) or len(seen) != 2:
        return Finding(False, f"returned {seen!r:.80}; expected a pair (alpha, beta).")
    for name, value, wanted in zip(("alpha", "beta"), seen, (alpha, beta), strict=True):
        if isinstance(value, Tensor):
            said = f"{name} is a tensor, {compare.shown(value)}; expected a float."
            return Finding(False, said, hint="Return two Python floats: `.item()`.")
        # Of the size that it has: both may be tiny.
        if not abs(compare.as_float(value) / wanted - 1) <= rtol:
            return Finding(False, compare.near(value, wanted, name).seen)
    return Finding(True, f"alpha {seen[0]:.4g} s, beta {seen[1]:.4g} s a byte: within {rtol:g}.")
