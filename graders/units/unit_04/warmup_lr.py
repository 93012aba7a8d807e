"""The grader of `warmup_lr`."""

from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng, compare
from graders.units.functions.stage import Arguments, of_function


@dataclass(frozen=True, slots=True)
class Moment:
    """Which step of which training is asked for."""

    step: int = feature(90, "step {}")
    warmup_steps: int = feature(90, lambda steps: f"{compare.counted(steps, 'step')} of warm-up")
    size: int = feature(8, lambda size: compare.counted(size, "worker"))


def step_and_rate(rng: Rng, case: Moment) -> Arguments:
    """The arguments, with a drawn rate."""
    return [case.step, case.warmup_steps, rng.integer(1, 50) / 500, case.size]


@of_function(
    base=Moment(),
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion(
            "after the warm-up",
            1,
            "Each of `size` workers has a batch of its own, so the whole batch is `size` times as large. "
            "Step warmup_steps, counted from 0, is the first one with the full rate.",
            vary=vary(step=(91, 700), size=(3, 64)),
        ),
        Criterion(
            "the first step",
            1,
            "The warm-up begins with the rate that is right for one worker. How many steps may it have?",
            vary=vary(step=(0,)) + both(step=0, warmup_steps=1),
        ),
        Criterion(
            "between",
            1,
            "The rate grows by the same amount in every step, not by the same factor.",
            vary=vary(step=(1, 30, 89)) + both(step=7, warmup_steps=20),
        ),
        Criterion(
            "no warm-up",
            1,
            "With warmup_steps = 0 every step has the full rate. (PyTorch's LinearLR has the small rate in "
            "step 0 all the same, and DeepSpeed refuses: switching the warm-up off is then another program.)",
            vary=both(step=0, warmup_steps=0) + both(step=1, warmup_steps=0) + both(warmup_steps=0),
        ),
    ),
    hints=(
        "Which straight line goes through the rates of step 0 and step warmup_steps?",
        "What has to be true of a step's number for it to be still on that line?",
    ),
    arguments=step_and_rate,
    tolerance=1e-9,
)
def warmup_lr(case: Moment, given: Arguments) -> Expected:
    """Goyal et al. 2017, section 2.2."""
    step, warmup_steps, base_lr, size = given
    rate = base_lr * size
    if step < warmup_steps:
        rate = base_lr + step * (size - 1) * base_lr / warmup_steps
    names = ("step", "warmup_steps", "base_lr", "size")
    return Expected(rate, dict(zip(names, given, strict=True)), returned=None)
