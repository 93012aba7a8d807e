"""The grader of `ShardedGradients`."""

from course_lib.cluster.topology import Cluster, Link
from graders.grading.cases import both, vary
from graders.grading.kit import Criterion, Rng
from graders.units.in_one_launch import in_one_launch
from graders.units.one_by_one import look
from graders.units.unit_09.drivers import gradients as drivers
from graders.units.unit_09.passes import ALL, CROSSED, LAYER, LESS, UNUSED, Passes, Setting

SLOW = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts what a rank computes by far."""


def possible(case: Setting) -> bool:
    """Two passes of ordinary buckets, ranks and parameters only."""
    return case.passes == 1 or (case.bucket, case.frozen, case.ranks) == (LAYER, (), 2)


@in_one_launch(
    base=Setting(),
    driver=drivers.gradient_shards,
    name="ShardedGradients",
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "shards of the mean",
            5,
            "finish() returns, for each bucket, this rank's part of the mean of the bucket's gradients laid "
            "end to end. Wait for what is under way before you return it; divide by the number of ranks.",
        ),
        Criterion(
            "every pass",
            2,
            "After finish() all is as before the first pass: what was counted, and what was kept.",
            vary=vary(passes=(2,)),
        ),
        Criterion(
            "buckets",
            3,
            "Go through the trainable parameters in reverse, and close a bucket before the parameter that "
            "would take it above bucket_bytes. Parts are padded.",
            vary=vary(bucket=(LESS, ALL), frozen=((1,),), ranks=(1, 3)),
        ),
        Criterion(
            "layers that a rank does not use",
            2,
            "A bucket is sent when it is complete and all before it have been sent, so that all ranks send "
            "in one order; finish() sends the rest, with zeros for gradients that are None.",
            needs=("every pass",),
            vary=both(order=UNUSED, passes=2),
        ),
        Criterion(
            "calls",
            1,
            "One reduce-scatter a bucket. An all-reduce gives every rank what only one of them needs.",
            how=look("calls"),
        ),
        Criterion(
            "sent in backward",
            4,
            "The hook of a bucket's last gradient sends it, and does not wait for its arrival: "
            "async_op=True. A bucket that had to wait for another is sent right after that.",
            needs=("calls",),
            vary=both(order=CROSSED, passes=2),
            how=look("sent in backward"),
        ),
        Criterion(
            "no more than a bucket beside the shards",
            3,
            "Once a bucket is laid end to end its .grad are None; and before the next one is, the one before "
            "has been waited for, and nobody refers to it any more.",
            needs=("sent in backward",),
            vary=both(alone=True, passes=2),
            how=look("no more than a bucket beside the shards"),
        ),
    ),
    hints=(
        "What did unit 02's Bucket do when its last gradient came? Here it does the same, with another "
        "collective.",
        "What may be forgotten, and when? After flat(...) the gradients; after wait() what flat(...) made.",
        "How do all ranks send in one order? Keep the number of the next bucket to be sent: a hook sends "
        "from there on as long as buckets are complete.",
    ),
    cluster=lambda ranks: Cluster(devices_per_node=ranks, intra_node=SLOW),
    possible=possible,
)
def sharded_gradients(rng: Rng, case: Setting) -> Passes:
    """Backward passes of linear layers in as many buckets, or in others."""
    width, samples = (40, 1) if case.alone else (4, 2)
    values = [rng.normal(*shape) / width**0.5 for shape in [(width, width), (width,)] * case.layers]
    inputs = [[rng.normal(samples, width) for _ in range(case.passes)] for _ in range(case.ranks)]
    return Passes(case, values, inputs)
