"""Unit 04, metrics over all ranks."""

import math
from collections.abc import Sequence

from graders.grading.communication import each_rank_calls
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_04.drivers import calls as drivers
from graders.units.unit_04.replies import MeansReply


@exercise(
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "means over samples", 2, "A rank with twice as many samples counts twice, in double precision."
        ),
        Criterion(
            "names in any order",
            1,
            "What the ranks lay side by side has to be the same metric on all ranks: a set has no order.",
        ),
        Criterion("ranks without samples", 1, "0 * NaN is NaN: leave out what a rank without samples has."),
        Criterion("one all_reduce", 1, "All metrics, and the number of samples, fit into one tensor."),
    ),
    hints=(
        "What can be added over ranks, if means cannot?",
        "In which order would two ranks list the metrics, if they could not ask each other?",
    ),
)
def average_metrics(answer: Answer, rng: Rng) -> Findings:
    """Drawn metrics on drawn numbers of samples."""
    ranks = rng.integer(3, 4)
    samples = [rng.integer(1, 5), *(rng.integer(20, 90) for _ in range(ranks - 1))]
    names = ["accuracy", "error", "loss", "top5"][: rng.integer(3, 4)]
    metrics = [{name: _metric(rng) for name in names} for _ in range(ranks)]
    run = averaged(answer, metrics, samples)
    yield "means over samples", means_of(run, metrics, samples)

    one = each_rank_calls([run], ["all_reduce"], "Every rank calls all_reduce once.")
    others = [{f"validation {name}": value for name, value in own.items()} for own in metrics]
    turned = [dict(sorted(own.items(), reverse=rank % 2 == 0)) for rank, own in enumerate(others)]
    # Names that are sent as objects keep no given hash.
    seen = averaged(answer, turned, samples, hashes=range(len(names)) if one.passed else ())
    yield "names in any order", means_of(seen, turned, samples)

    without = [dict.fromkeys(names, math.nan), *metrics[1:]]
    none = [0, *samples[1:]]
    own = [without, [dict.fromkeys(names, math.inf), *metrics[1:]], _with_nan(rng, metrics)]
    yield (
        "ranks without samples",
        compare.first_failure(
            means_of(averaged(answer, each, counts), each, counts)
            for each, counts in zip(own, (none, none, samples), strict=True)
        ),
    )
    yield "one all_reduce", one


def _with_nan(rng: Rng, metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    """A metric of rank 0, which has samples, is NaN: so is its mean, and no other."""
    return [{**metrics[0], rng.choice(sorted(metrics[0])): math.nan}, *metrics[1:]]


def _metric(rng: Rng) -> float:
    """A number that single precision does not hold."""
    return rng.integer(1, 10**12) / 1e11


def averaged(
    answer: Answer,
    metrics: Sequence[dict[str, float]],
    samples: Sequence[int],
    hashes: Sequence[int] = (),
) -> Observed[MeansReply]:
    """What every rank gets. hashes: of its names, in their order on each; none: those of one process."""
    given = per_rank(metrics), per_rank(samples), list(hashes)
    return answer.launch(drivers.metrics, *given, ranks=len(samples))


def means_of(
    run: Observed[MeansReply], metrics: Sequence[dict[str, float]], samples: Sequence[int]
) -> Finding:
    """Passes if every rank has the means over all samples, under the names and in the order that it gave."""
    pairs = [(own, count) for own, count in zip(metrics, samples, strict=True) if count]
    total = sum(samples)

    def one(rank: int, reply: MeansReply) -> Finding:
        seen = reply.means
        if not reply.new:
            return Finding(
                False, f"On rank {rank} the dictionary that was given came back; expected a new one."
            )
        if not reply.kept:
            return Finding(
                False, f"On rank {rank} average_metrics wrote into the dictionary that it was given."
            )
        if list(seen) != list(metrics[rank]):
            return compare.equal(list(seen), list(metrics[rank]), f"the names on rank {rank}, in order")
        return compare.first_failure(
            _near(
                value,
                sum(own[name] * count for own, count in pairs) / total,
                f"{name} on rank {rank}, with {samples} samples on the ranks,",
            )
            for name, value in seen.items()
        )

    return compare.first_failure(
        (one(rank, seen) for rank, seen in enumerate(run.results)), "The means are right on all ranks."
    )


def _near(seen: object, expected: float, what: str) -> Finding:
    if not math.isnan(expected):
        found = compare.near(seen, expected, what, rtol=1e-12)
        if not found.passed and compare.near(seen, expected, what, rtol=1e-5).passed:
            return Finding(False, f"{found.seen} It is right to some digits: in double precision to all.")
        return found
    passed = type(seen) is float and math.isnan(seen)
    return Finding(passed, f"{what} is {compare.shown(seen)}; expected NaN, as a rank with samples had.")
