"""The grader of `DistributedOptimizer`."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from course_lib.cluster.topology import Cluster, Link
from graders.grading.cases import both, vary
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Observed,
    Rng,
    per_rank,
)
from graders.units.in_one_launch import by_case
from graders.units.unit_04.drivers import optimizer as drivers
from graders.units.unit_04.replies import StepReply
from graders.units.unit_04.step_findings import (
    messages_as_planned,
    never_waits,
    starts_when_complete,
    steps_as_expected,
)
from graders.units.unit_04.training import Course, Training, drawn
from graders.units.unit_04.wrapped import the_optimizers_own

SLOW = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts the backward pass by far, so that waiting for one shows."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A training, and what the ranks did in it."""

    training: Training
    observed: Observed[list[StepReply]]


@dataclass(frozen=True)
class Trainings(Stage[Course]):
    """Trainings on as many ranks share a launch."""

    def together(self, course: Course) -> Hashable:
        return course.ranks

    def run(self, answer: Answer, cases: Sequence[tuple[Course, Rng]]) -> Sequence[tuple[Finding, Seen]]:
        ranks = cases[0][0].ranks
        trainings = [drawn(rng, course) for course, rng in cases]
        given = per_rank([[each.of_rank(rank) for each in trainings] for rank in range(ranks)])
        cluster = Cluster(devices_per_node=ranks, intra_node=SLOW)
        observed = answer.launch(drivers.train, given, ranks=ranks, cluster=cluster)
        return [
            (steps_as_expected(training, part), Seen(training, part))
            for training, part in zip(trainings, by_case(observed, len(trainings)), strict=True)
        ]


def asked(look: Callable[[Training, Observed[Any]], Finding]) -> Callable[[Tried[Course]], Finding]:
    """A row that looks at what the ranks did."""
    return lambda tried: look(tried.seen.training, tried.seen.observed)


RUBRIC = (
    Criterion(
        "averages and steps",
        3,
        "After step() every .grad is the mean over ranks and the weights have taken one step with it. Wait "
        "for each all_reduce before you read what it brings. Zeros where others are right: which gradients "
        "were still missing when the message was filled?",
        vary=vary(ranks=(2,)),
    ),
    Criterion(
        "every step",
        1,
        "What one step has counted and started must be gone before the next.",
        vary=vary(steps=(2,)),
    ),
    Criterion(
        "fusion plan",
        2,
        "The trainable parameters in reverse, by plan_fusion with the threshold: one all_reduce a message, "
        "in order, and no other call. Horovod's optimizer leaves this to a thread below it; yours has none.",
        vary=vary(fused=(True,)),
        how=asked(messages_as_planned),
    ),
    Criterion(
        "starts during backward",
        3,
        "The hook of a message's last gradient starts it, whichever that is: gradients need not become "
        "complete in the order of the parameters. And it starts those after it that have become complete "
        "before.",
        needs=("fusion plan",),
        how=lambda tried: None if tried.case.features.mixed else asked(starts_when_complete)(tried),
    ),
    Criterion(
        "never waits in backward",
        2,
        "async_op=True; only synchronize() waits.",
        how=asked(never_waits),
    ),
    Criterion(
        "several passes",
        1,
        "Count the passes of every parameter. Only the last pass starts messages; gradients are added up.",
        vary=vary(passes=(2,)),
    ),
    Criterion(
        "other orders, unused parameters",
        1,
        "Which hook comes last differs from rank to rank, and some never come: start messages strictly in "
        "the plan's order, and what is left in synchronize(), with zeros for what is missing. In Horovod "
        "that thread has the ranks agree on an order.",
        vary=vary(mixed=(True,)) + both(mixed=True, steps=2, passes=2),
    ),
    Criterion(
        "dtypes, tied and frozen parameters",
        2,
        "A message has one dtype, and its buffer the same. One parameter may have two names, and a frozen "
        "one has no hook.",
        vary=vary(dtypes=(("float64", "float32", "bfloat16"),), shared=(True,)),
    ),
    Criterion(
        "the optimizer's own",
        2,
        "Hand on what is not yours, closures too; a mean is copied into the .grad that is there. step() "
        "after synchronize() sends no more. zero_grad() raises a RuntimeError while something is under way; "
        "Horovod's raises an AssertionError.",
        ask=the_optimizers_own,
    ),
)


TRIED = {Course(), *(replace(Course(), **values) for row in RUBRIC for values in row.vary)}
"""No others: trainings in which several rows meet would take longer than all these."""


@by_cases(
    ByCases(Course(), Trainings(), RUBRIC, TRIED.__contains__),
    name="DistributedOptimizer",
    minutes=75,
    difficulty=5,
    hints=(
        "What has to be known before the first backward, and is the same on all ranks?",
        "What does a hook have to find out to decide whether its message can go, and what when it can?",
        "How does a rank start a message for which one of its own hooks never comes?",
        "Which of your attributes would a second step find changed by the first?",
        "When is a gradient complete if backward runs several times before the step?",
    ),
)
def distributed_optimizer() -> None:
    """Training on slow links; what a training comes to is said by `Training.expected`."""
