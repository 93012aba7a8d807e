"""Unit 04, the learning rate."""

from collections.abc import Iterable

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_04.drivers import calls as drivers


@exercise(
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion(
            "after the warm-up",
            1,
            "Each of `size` workers has a batch of its own, so the whole batch is `size` times as large. "
            "Step warmup_steps, counted from 0, is the first one with the full rate.",
        ),
        Criterion(
            "the first step",
            1,
            "The warm-up begins with the rate that is right for one worker. How many steps may it have?",
        ),
        Criterion(
            "between",
            1,
            "The rate grows by the same amount in every step, not by the same factor.",
            needs=("after the warm-up", "the first step"),
        ),
        Criterion(
            "no warm-up",
            1,
            "With warmup_steps = 0 every step has the full rate.",
            needs=("after the warm-up", "between"),
        ),
    ),
    hints=(
        "Which straight line goes through the rates of step 0 and step warmup_steps?",
        "What has to be true of a step's number for it to be still on that line?",
    ),
)
def warmup_lr(answer: Answer, rng: Rng) -> Findings:
    """The rates of steps at, before and after the end of a drawn warm-up."""
    size, steps = rng.integer(3, 64), rng.integer(20, 200)
    base = rng.integer(1, 50) / 500

    def rates(which: Iterable[int], warmup: int, workers: int) -> Finding:
        given = [[step, warmup, base, workers] for step in which]
        return compare.first_failure(
            compare.near(
                rate,
                _rate(step, warmup, base, workers),
                f"warmup_lr(step={step}, warmup_steps={warmup}, base_lr={base}, size={workers})",
                rtol=1e-9,
            )
            for rate, (step, *_) in compare.side_by_side(answer.call(drivers.calls, given), given)
        )

    yield "after the warm-up", rates([steps, steps + 1, 7 * steps], steps, size)
    yield "the first step", compare.first_failure(rates([0], warmup, size) for warmup in (steps, 1))
    yield "between", rates([1, steps // 3, steps - 1], steps, size)
    finding = rates([0, 1, steps], 0, size)
    yield "no warm-up", finding if not finding.passed else rates([0, 1, steps], steps, 1)


def _rate(step: float, warmup: int, base: float, size: int) -> float:
    """Goyal et al. 2017, section 2.2."""
    if step >= warmup:
        return base * size
    return base + step * (size - 1) * base / warmup


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "the rates",
            1,
            "Compare the rate in which the warm-up ends with the one that training is to go on with, for a "
            "learning rate that is not 1e-3. And how is the first rate made from initial_lr?",
        ),
        Criterion("three epochs", 1, "In what does the callback count, and in what the tutorial?"),
        Criterion(
            "the optimizer",
            1,
            "Call new_optimizer once, with the rate after the warm-up, and give that optimizer to the "
            "callback.",
        ),
    ),
    hints=(
        "What would a plot of the rate over the first hundred steps look like?",
        "Which numbers of the tutorial do not follow from its arguments?",
    ),
)
def mend_warmup(answer: Answer, rng: Rng) -> Findings:
    """What the callback was made with, for a drawn cluster."""
    rate, size, steps = rng.integer(2, 60) / 40, rng.integer(3, 32), rng.integer(5, 300)
    seen = answer.call(drivers.warmup, rate, size, steps)
    if not seen.there:
        yield "the rates", Finding(False, "mend_warmup returned None; expected a WarmupCallback.")
        return
    where = f"with learning_rate={rate}, size={size}, steps_per_epoch={steps}"
    first = compare.as_float(seen.initial_lr) / (compare.as_float(seen.size) or 1)
    yield (
        "the rates",
        compare.first_failure(
            (
                compare.near(seen.initial_lr, rate * size, f"{where}, the rate after the warm-up"),
                compare.near(first, rate, f"{where}, the rate of step 0"),
            )
        ),
    )
    yield "three epochs", compare.equal(seen.warmup_steps, 3 * steps, f"{where}, the steps of the warm-up")
    if len(seen.made) != 1 or not seen.own:
        said = f"new_optimizer was called {compare.counted(len(seen.made), 'time')}"
        text = f"{said}; expected one call, and a callback over the optimizer that it made."
        yield "the optimizer", Finding(False, text)
    else:
        yield "the optimizer", compare.near(seen.made[0], rate * size, f"{where}, the optimizer's rate")
