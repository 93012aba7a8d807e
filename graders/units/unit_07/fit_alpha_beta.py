"""The grader of `fit_alpha_beta`."""

from collections.abc import Sequence

import numpy as np

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_07 import drivers

SIZES = [4096 * 4**power for power in range(8)]
"""4 KB to 64 MB."""


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "exact samples",
            3,
            "seconds = alpha + nbytes * beta is linear in alpha and beta. The best alpha may be negative.",
        ),
        Criterion(
            "noisy samples",
            2,
            "An error of 10 % weighs as much for a short message as for a long one: divide each equation by "
            "its seconds before you solve, in float64.",
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
    alpha, beta = rng.integer(100, 999) * 1e-7, rng.integer(100, 999) * 1e-12
    below = -rng.integer(1, 9) / 10 * SIZES[0] * beta
    lines = (
        [(size, alpha + size * beta) for size in SIZES[::-1]],
        [(size, below + size * beta) for size in SIZES],
    )
    yield "exact samples", compare.first_failure(nearest(answer, samples) for samples in lines)
    noisy = [(size, (alpha + size * beta) * rng.integer(80, 125) / 100) for size in SIZES * 3]
    yield "noisy samples", nearest(answer, noisy)
    called = answer.call(drivers.fitted, lines[0])
    floats = type(called.returned) is tuple and [type(item) for item in called.returned] == [float, float]
    if not floats:
        said = f"returned {called.returned!r:.80}; expected a pair of floats."
        yield "samples unchanged", Finding(False, said)
    else:
        kept = compare.same(called.samples, lines[0])
        said = "holds what it held, and the pair is of floats" if kept else "has changed"
        yield "samples unchanged", Finding(kept, f"the list of samples {said}.")


def nearest(answer: Answer, samples: Sequence[tuple[int, float]]) -> Finding:
    """Passes if the answer is the line of the least sum of squared relative errors."""
    nbytes, seconds = (np.array(column) for column in zip(*samples, strict=True))
    columns = np.column_stack([1 / seconds, nbytes / seconds])
    scale = columns.max(axis=0)
    wanted = np.linalg.lstsq(columns / scale, np.ones(len(samples)), rcond=None)[0] / scale
    seen = answer.call(drivers.fitted, list(samples)).returned
    if type(seen) not in (tuple, list) or len(seen) != 2:
        return Finding(False, f"returned {seen!r:.80}; expected a pair (alpha, beta).")
    near = [abs(compare.as_float(value) / best - 1) <= 1e-4 for value, best in zip(seen, wanted, strict=True)]
    told = f"returned {seen!r:.80}; expected ({wanted[0]:.6g}, {wanted[1]:.6g}). The samples: {samples}."
    return Finding(all(near), told)
