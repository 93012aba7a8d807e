"""The grader of `Bucket`."""

from dataclasses import dataclass
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Rng
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_02.cases import ANY_CALL
from graders.units.unit_02.drivers import steps as drivers
from graders.units.unit_02.models import Layers, names_of
from graders.units.unit_02.step_calls import before_steps, called_as, never_waits, starts_in_backward
from graders.units.unit_02.steps import Steps, drawn_steps, mean_gradients, own_gradients


@dataclass(frozen=True, slots=True)
class InBuckets(Steps):
    """layers: those of each bucket."""

    layers: tuple[tuple[int, ...], ...] = feature(
        ((1, 2),), lambda layers: f"the layers {' and '.join(str([*each]) for each in layers)} in a bucket"
    )

    @property
    def buckets(self) -> list[list[int]]:
        return [[2 * layer + of for layer in each for of in range(2)] for each in self.layers]


def layers_and_buckets(rng: Rng, case: InBuckets) -> list[Arguments]:
    """The same model on all ranks."""
    return drawn_steps(rng, case, case.buckets)


def one_a_bucket(tried: Tried[Any]) -> Finding:
    """Passes if each step has one all_reduce a bucket, and nothing comes before."""
    early = [call.op for calls in before_steps(tried) for call in calls]
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
            # Two buckets get gradients in turn.
            vary=vary(layers=(((0, 2), (1,)),), double=(True,), layout=("transposed",), ranks=(3,)),
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
            "gradients come, each has the same place on all ranks. Where .grad was not cleared, backward "
            "adds to it: the mean is of the sum.",
            vary=vary(steps=(("012",) * 3, ("012", "021/012")), older=(True,)),
        ),
    ),
    hints=(
        "How do you learn that a gradient is complete? p.register_post_accumulate_grad_hook(hook) calls "
        "hook(p) at that moment.",
        "How does a hook know that it is the last? Count how many gradients are still missing.",
        "What has to be kept from the hook to finish()? The flat tensor that is under way, and its handle.",
    ),
    arguments=layers_and_buckets,
    # Steps take long, so hardly anything meets.
    possible=lambda case: (
        sum((len(case.steps) > 1, case.older, case.double, case.ranks > 2, case.layout == "transposed")) < 2
    ),
    calls=ANY_CALL,
    driver=drivers.in_buckets,
    what="rank {}",
)
def bucket(case: InBuckets, given: list[Arguments]) -> list[Expected]:
    """Means of what is in a bucket; each rank's own of what is in none."""
    model = Layers(given[0][1][0], **case.made)
    inside = {number for each in case.buckets for number in each}
    of_ranks = [own_gradients(model, each) for each in given]
    means = mean_gradients(of_ranks)
    told = []
    for own in of_ranks:
        steps = {
            drivers.after(step): {
                name: (mean if n in inside else mine)
                for n, (name, mean, mine) in enumerate(zip(names_of(model), means[step], of, strict=True))
            }
            for step, of in enumerate(own)
        }
        told.append(Expected({drivers.BEGINNING: ANYTHING, **steps}, {}, returned=None))
    return told
