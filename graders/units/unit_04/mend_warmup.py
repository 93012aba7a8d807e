"""The grader of `mend_warmup`."""

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_04.drivers import calls as drivers


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
    where = f"with learning_rate={rate}, size={size}, steps_per_epoch={steps}"
    first = compare.as_float(seen.initial_lr) / (compare.as_float(seen.size) or 1)
    rates = (
        Finding(seen.there, "mend_warmup returned None; expected a WarmupCallback."),
        compare.near(seen.initial_lr, rate * size, f"{where}, the rate after the warm-up"),
        compare.near(first, rate, f"{where}, the rate of step 0"),
    )
    yield "the rates", compare.first_failure(rates)
    yield "three epochs", compare.equal(seen.warmup_steps, 3 * steps, f"{where}, the steps of the warm-up")
    said = f"new_optimizer was called {compare.counted(len(seen.made), 'time')}"
    one = Finding(
        len(seen.made) == 1 and seen.own,
        f"{said}; expected one call, and a callback over the optimizer that it made.",
    )
    made = seen.made[0] if seen.made else None
    its_rate = compare.near(made, rate * size, f"{where}, the optimizer's rate")
    yield "the optimizer", compare.first_failure((one, its_rate))
