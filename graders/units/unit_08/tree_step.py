"""The grader of `tree_step`."""

from dataclasses import dataclass
from math import ceil, log2

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.cases import both, vary
from graders.grading.communication import MEASURED, duration_within, only_messages, seconds
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.models import Gradients
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_08 import drivers
from graders.units.unit_08.on_replicas import moved, stayed
from graders.units.unit_08.replicas import SHAPES, TRAINED, ReplicaReply

STEPS = 2
ANY, SAME = "any number of ranks", "the same model everywhere"


@dataclass(frozen=True, slots=True)
class Replicas:
    """gaps: one rank has no gradient, and others lack some."""

    ranks: int = feature(4, lambda ranks: compare.counted(ranks, "rank"))
    gaps: bool = feature(False, lambda gaps: "gradients missing on some" if gaps else "")


def same(replies: list[ReplicaReply], values: list[Tensor]) -> Finding:
    """Passes if all ranks have the same bits, and left the rest alone."""
    kept, first = stayed(replies, values, [0] * len(replies)), replies[0].parameters
    alike = (compare.equal(each.parameters, first, "parameters, beside rank 0's") for each in replies)
    return compare.first_failure([kept, *alike])


def frugal(run: Observed[ReplicaReply]) -> Finding:
    """Passes if all ranks together send 2 (p - 1) messages a step, each of all gradients."""
    if not (only := only_messages([run], "Your answer")).passed:
        return only
    allowed, nbytes = 2 * (len(run.results) - 1) * STEPS, TRAINED * 4
    sent = [event.nbytes for event in run.events if event.op == "send"]
    text = f"{len(sent)} messages of {sum(sent):,} bytes are sent in {STEPS} steps"
    within = len(sent) <= allowed and sum(sent) <= allowed * nbytes
    return Finding(within, f"{text}; expected {allowed}, of {nbytes} bytes each.", Kind.TOO_MUCH)


def quick(run: Observed[ReplicaReply]) -> Finding:
    """Passes if a step takes no longer than 2 ceil(log2 p) messages one after another, and no rank receives
    more than ceil(log2 p) of them: those that arrive together share their latency.
    """
    ranks = len(run.results)
    levels = ceil(log2(ranks))
    most = max(run.calls(rank).count("recv") for rank in range(ranks)) / STEPS
    if most > levels:
        return compare.at_most(most, levels, "messages that the busiest rank gets in a step")
    # Half a round a step for messages that leave a rank together; another tree has a whole one more.
    rounds = (2 * levels + 0.5) * STEPS
    allowed = rounds * seconds(1, TRAINED * 4)
    return duration_within(run, allowed, f"{ranks} ranks and {STEPS} steps", f"{rounds:g} rounds")


@one_by_one(
    base=Replicas(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("the step", 3, "w - lr * mean: the sum over ranks, divided once by the number of ranks."),
        Criterion(
            ANY,
            1,
            "With 3, 5, 6 or 7 ranks some rank's partner does not exist. One rank makes its step alone. "
            "Divide the sum once, at the end, by the number of ranks.",
            vary=vary(ranks=(1, 3, 6)),
        ),
        Criterion(
            "missing gradients",
            1,
            "Where p.grad is None on a rank, it counts as zero there; the message has the same length on all "
            "ranks.",
            vary=both(ranks=3, gaps=True),
        ),
        Criterion(
            SAME,
            1,
            "The model keeps its parameters, and the frozen ones keep their numbers. Ranks agree to the "
            "last bit if all of them use the same sum, not each a sum in an order of its own.",
            needs=(ANY,),
            how=look(SAME),
        ),
        Criterion(
            "messages",
            1,
            "send and recv, and no collective. Every rank but one sends one message up, of all its trainable "
            "parameters' gradients, and gets one: 2 (p - 1) in all.",
            needs=(ANY, "missing gradients", SAME),
            how=look("messages"),
        ),
        Criterion(
            "rounds",
            3,
            "With whom does the busiest rank speak? With one in each round, and there are ceil(log2 p): "
            "every second of those that still have something to send sends, and is done.",
            needs=("messages",),
            how=look("rounds"),
        ),
    ),
    hints=(
        "Who could add up while rank 0 adds up what rank 1 has? Rank 2 could add rank 3's, and rank 4 rank "
        "5's. Who speaks with whom in the next round?",
        "With distance d = 1, 2, 4 ... a rank that is an odd multiple of d sends to rank - d and is done "
        "sending; an even multiple receives from rank + d, if there is such a rank, and adds.",
        "How does the sum come down? By the same messages, turned round, the last one first.",
    ),
)
def tree_step(answer: Answer, replicas: Replicas, rng: Rng) -> tuple[Finding, Looks]:
    """Every rank's model, after steps on the mean of the gradients; frozen parameters have one too."""
    values = [rng.normal(*shape) for shape in SHAPES]
    gradients: list[Gradients] = [[rng.normal(*shape) for shape in SHAPES] for _ in range(replicas.ranks)]
    if replicas.gaps:
        gradients[1] = [None] * len(SHAPES)
        gradients[0][0] = gradients[-1][4] = None
        for own in gradients:
            own[7] = None
    rates = [0.1 * rng.integer(1, 9) for _ in range(STEPS)]
    cluster = Cluster(nodes=replicas.ranks, inter_node=MEASURED)
    given = (values, per_rank(gradients), rates)
    run = answer.launch(drivers.tree_step, *given, ranks=replicas.ranks, cluster=cluster)
    wanted = []
    for value, *own in zip(values, *gradients, strict=True):
        total = sum((each for each in own if each is not None), torch.zeros_like(value))
        wanted.append(value - sum(rates) * total / replicas.ranks)
    return moved(run.results, wanted), {
        SAME: lambda: same(run.results, values),
        "messages": lambda: frugal(run),
        "rounds": lambda: quick(run),
    }
