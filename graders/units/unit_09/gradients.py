"""Unit 09, shards of the gradients."""

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_09.drivers import old as drivers
from graders.units.unit_09.passes import Passes, layers


@exercise(
    name="ShardedGradients",
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "shards of the mean",
            4,
            "finish() returns, for each bucket, this rank's part of the mean of the bucket's "
            "gradients laid end to "
            "end. Wait for what is under way before you return it; divide by the number of ranks.",
        ),
        Criterion(
            "every pass",
            2,
            "After finish() all is as before the first pass: what was counted, and what was kept.",
        ),
        Criterion(
            "buckets",
            2,
            "Go through the trainable parameters in reverse, and close a bucket before the "
            "parameter that would take "
            "it above bucket_bytes.",
        ),
        Criterion(
            "unused, tied and frozen parameters",
            2,
            "A bucket is sent when it is complete and all before it have been sent, so that all "
            "ranks send in "
            "one order; finish() sends the rest, with zeros for gradients that are None.",
            needs=("every pass",),
        ),
        Criterion(
            "calls",
            1,
            "One reduce-scatter a bucket. An all-reduce gives every rank what only one of them needs.",
            needs=("unused, tied and frozen parameters",),
        ),
        Criterion(
            "sent in backward",
            4,
            "The hook of a bucket's last gradient sends it, and does not wait for its arrival: "
            "async_op=True.",
            needs=("buckets", "calls"),
        ),
        Criterion(
            "no more than a bucket beside the shards",
            5,
            "Once a bucket is laid end to end its .grad are None; and before the next one is, the one "
            "before has been waited for, and nobody refers to it any more.",
            needs=("sent in backward",),
        ),
    ),
    hints=(
        "What did unit 02's Bucket do when its last gradient came? Here it does the same, with "
        "another collective.",
        "What may be forgotten, and when? After flat(...) the gradients; after wait() what flat(...) made.",
        "How do all ranks send in one order? Keep the number of the next bucket to be sent: a "
        "hook sends from there "
        "on as long as buckets are complete.",
    ),
)
def sharded_gradients(answer: Answer, rng: Rng) -> Findings:
    """A deep model on slow links; ranks that use different layers; a bucket a parameter; and one rank."""
    deep, small, alone = Passes.deep(rng), Passes.small(rng), Passes.alone(rng)
    runs = [(each, each.launch(answer, memory=each is deep)) for each in (deep, small, alone)]
    yield "shards of the mean", compare.first_failure(each.mean(run, 0) for each, run in runs)
    yield "every pass", compare.first_failure(each.mean(run, 1) for each, run in runs)
    yield "buckets", closed_as_expected(answer, rng)
    crossed = Passes.crossed(rng)
    of_crossed = crossed.launch(answer)
    uneven = [(crossed, of_crossed), *((each, each.launch(answer)) for each in Passes.uneven(rng))]
    yield (
        "unused, tied and frozen parameters",
        compare.first_failure(
            each.mean(run, number) for each, run in uneven for number in range(len(each.inputs[0]))
        ),
    )
    runs += uneven
    yield "calls", compare.first_failure(each.calls(run) for each, run in runs)
    of_deep = runs[0][1]
    in_backward = deep.sent_in_backward(of_deep), crossed.sent_in_backward(of_crossed)
    yield "sent in backward", compare.first_failure(in_backward)
    held = deep.cleared(of_deep), deep.held(of_deep), deep.one_under_way(of_deep)
    yield "no more than a bucket beside the shards", compare.first_failure(held)


def closed_as_expected(answer: Answer, rng: Rng) -> Finding:
    """Passes if buckets are those of unit 02, for bounds that are met to the byte and others.

    Of three layers, and of three whose first and last have one weight, the second of which is frozen.
    """
    values = layers(rng, rng.integer(3, 6), 3, torch.float64)
    weight, bias = (value.nbytes for value in values[:2])
    limits = [weight + bias, weight + bias - 1, 1, 10**6, 2 * bias + weight, weight - 1]
    tied = [*values[:4], values[5]]
    return compare.first_failure(
        (
            _closed(answer, values, (3, False, []), [5, 4, 3, 2, 1, 0], limits),
            _closed(answer, tied, (3, True, [1]), [4, 1, 0], limits),
        )
    )


def _closed(
    answer: Answer,
    values: list[Tensor],
    shape: tuple[int, bool, list[int]],
    numbers: list[int],
    limits: list[int],
) -> Finding:
    """numbers: of the trainable parameters, as buckets should have them."""
    (seen,) = answer.launch(drivers.buckets_of, values, shape, limits, ranks=1).results
    sizes = {number: values[number].nbytes for number in numbers}
    for limit, (found, _) in zip(limits, compare.side_by_side(seen, limits), strict=True):
        expected: list[list[int]] = []
        for number in numbers:
            if not expected or sum(sizes[each] for each in expected[-1]) + sizes[number] > limit:
                expected.append([])
            expected[-1].append(number)
        if not compare.same(found, expected):
            said = f"parameters of {sizes} bytes in buckets of at most {limit}: {compare.shown(found)}"
            return Finding(False, f"{said}; expected {expected}.")
    return Finding(True, "Buckets begin with the last parameters, and are as full as they may be.")
