"""The grader of `Bucket`."""

from dataclasses import dataclass
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_02.cases import ANY_CALL
from graders.units.unit_02.drivers import steps as drivers
from graders.units.unit_02.models import Layers, names_of
from graders.units.unit_02.step_calls import (
    called_as,
    called_before,
    never_waits,
    starts_in_backward,
)
from graders.units.unit_02.steps import (
    Steps,
    drawn_steps,
    mean_gradients,
    own_gradients,
)


@dataclass(frozen=True, slots=True)
class InBuckets(Steps):
    """layers: those of each bucket."""

    layers: tuple[tuple[int, ...], ...] = feature(
        ((1, 2),), lambda layers: f"the layers {' and '.join(str([*each]) for each in layers)} in a bucket"
    )

    @property
    def buckets(self) -> list[list[int]]:
        return [[2 * layer + of for layer in each for of in range(2)] for each in self.layers]


def one_a_bucket(tried: Tried[Any]) -> Finding:
    """Passes if each step has one all_reduce a bucket, and nothing comes before."""
    early = [call.op for calls in called_before(tried) for call in calls]
    text = f"a Bucket calls {', '.join(early[:1])} when it is made; expected one all_reduce a step."
    return Finding(False, text) if early else called_as(tried)


@on_ranks(
    name="Bucket",
    base=InBuckets(),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "averages",
            1,
            "After finish() the gradients of the bucket's parameters are the means over ranks, and those of "
            "all others are as backward left them. Wait before you read what is under way.",
        ),
        Criterion(
            "one all_reduce",
            1,
            "Lay the bucket's gradients end to end, and send them together: one call a step. What one "
            "bucket keeps is its own: another one must not see it.",
            vary=vary(layers=(((2,), (0, 1)),), ranks=(3,)),
            how=one_a_bucket,
        ),
        Criterion(
            "starts with the last gradient",
            2,
            "The hook that finds all gradients complete starts the all_reduce, whichever parameter's it is; "
            "finish() is too late.",
            how=starts_in_backward,
        ),
        Criterion(
            "never waits in backward",
            1,
            "all_reduce(..., async_op=True) returns a handle at once; only finish() calls its wait(). (DDP's "
            "Reducer has no finish(): its backward waits at the end. What comes between backward and "
            "finish() here, such as loading the next batch, is hidden too.)",
            needs=("starts with the last gradient",),
            how=never_waits,
        ),
        Criterion(
            "every step",
            1,
            "What has been counted in one step must be back at its start for the next. In whatever order "
            "gradients come, each has the same place on all ranks.",
            vary=vary(steps=(("012",) * 3, ("012", "021/012"))),
        ),
    ),
    hints=(
        "How do you learn that a gradient is complete? p.register_post_accumulate_grad_hook(hook) calls "
        "hook(p) at that moment.",
        "How does a hook know that it is the last? Count how many gradients are still missing.",
        "What has to be kept from the hook to finish()? The flat tensor that is under way, and its handle.",
    ),
    arguments=lambda rng, case: drawn_steps(rng, case, case.buckets),
    calls=ANY_CALL,
    driver=drivers.in_buckets,
    what="rank {}",
)
def bucket(case: InBuckets, given: list[Arguments]) -> list[Expected]:
    """Means of what is in a bucket; each rank's own of what is in none."""
    names, inside = names_of(Layers(0)), {number for each in case.buckets for number in each}
    of_ranks = own_gradients(given)
    means = mean_gradients(of_ranks)
    return [
        Expected(
            {
                drivers.after(step): {
                    name: (means[step] if number in inside else of_step)[number]
                    for number, name in enumerate(names)
                }
                for step, of_step in enumerate(own)
            },
            {},
            returned=None,
        )
        for own in of_ranks
    ]
