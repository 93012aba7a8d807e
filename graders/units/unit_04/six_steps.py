"""Unit 04, six steps: a program for one GPU that `horovodrun -np 2` runs."""

from course_lib.beside import missing
from graders.grading.kit import Answer, Criterion, Finding, Findings, MachineLacks, Rng, compare, exercise
from graders.units.unit_04.drivers import programs as drivers
from graders.units.unit_04.program_runs import RANKS, Case, averaged, one_gpu_each

SECONDS = 90.0
"""What a run may take; `horovodrun` itself gives up before."""


@exercise(
    minutes=60,
    difficulty=4,
    rubric=(
        Criterion(
            "its part of the samples",
            2,
            "Every process takes other samples, and together they take all of them once an epoch.",
        ),
        Criterion(
            "the same start",
            2,
            "Broadcast rank 0's model, buffers too, after the optimizer exists and the checkpoint was read. "
            "A new optimizer has no state to send: section 5 says what becomes of the weights else.",
        ),
        Criterion(
            "averaged gradients",
            2,
            "Wrap the optimizer: step() is to wait for the average.",
            needs=("the same start",),
        ),
        Criterion(
            "scaled learning rate",
            1,
            "Two processes take half as many steps, each twice as long; and clear the gradients.",
            needs=("averaged gradients",),
        ),
        Criterion("one GPU a process", 1, "GPUs are counted on each node anew: use_gpu(hvd.local_rank())."),
        Criterion(
            "accuracy over all",
            1,
            "Add up what every rank got right, on its part of the test samples.",
            needs=("averaged gradients",),
        ),
        Criterion("checkpoints of rank 0", 1, "Rank 0 writes after every epoch; nobody else does."),
        Criterion(
            "goes on",
            2,
            "Only rank 0 has the checkpoint: weights, the optimizer's state, and the number of epochs have "
            "to reach the others. Section 5 names two traps: what does wrapping do to an optimizer's state, "
            "and what does sending a state do to weights?",
            needs=("scaled learning rate", "checkpoints of rank 0"),
        ),
    ),
    hints=(
        "Which lines of train_alone would do something else on another process?",
        "What does rank 1 know when it finds no checkpoint, and rank 0 has one?",
        "Horovod broadcasts parameters, an optimizer's state, and any object: which calls are these?",
    ),
)
def six_steps(answer: Answer, rng: Rng) -> Findings:
    """A training of two epochs; and one that goes on from its checkpoint, as if that were of the first."""
    if lack := missing("horovod"):
        raise MachineLacks(lack)
    case = Case.drawn(rng)
    told = answer.call(drivers.under_horovodrun, case.values, case.data, timeout=SECONDS)
    if told.blocked:
        raise MachineLacks(told.blocked)
    first = [process for process, _ in compare.side_by_side(told.begins, range(RANKS))]
    yield "its part of the samples", case.samples(first)
    yield "the same start", case.same_start(first)
    yield "averaged gradients", averaged(first)
    yield "scaled learning rate", case.trained(first)
    yield "one GPU a process", one_gpu_each(first)
    yield "accuracy over all", case.accuracies(first)
    yield "checkpoints of rank 0", case.checkpoints(first)
    if told.failed:
        yield (
            "goes on",
            Finding(False, f"With a checkpoint of one epoch, and another to train, {told.failed}"),
        )
    else:
        later = [process for process, _ in compare.side_by_side(told.goes_on, range(RANKS))]
        yield "goes on", case.goes_on(first, later)
