"""The grader of `tree_step`."""

from dataclasses import dataclass
from math import ceil, log2

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.cases import both, vary
from graders.grading.communication import MEASURED, duration_within, only_messages, seconds
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.one_by_one import one_by_one
from graders.units.unit_08 import drivers
from graders.units.unit_08.replicas import FROZEN, SHAPES, TRAINED, ReplicaReply

STEPS = 2
ANY, SAME = "any number of ranks", "the same model everywhere"


@dataclass(frozen=True, slots=True)
class Replicas:
    """gaps: one rank has no gradient, and others lack some."""

    ranks: int = feature(4, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    gaps: bool = feature(False, lambda gaps: "gradients missing on some" if gaps else "")

    @property
    def levels(self) -> int:
        return ceil(log2(self.ranks))


@dataclass(frozen=True, slots=True)
class Stepped:
    """values: of SHAPES, which every rank began with."""

    values: list[Tensor]
    run: Observed[ReplicaReply]


def drawn(rng: Rng, replicas: Replicas) -> list[list[Tensor | None]]:
    """Each rank's gradients, of SHAPES; frozen parameters have one too."""
    gradients: list[list[Tensor | None]] = [
        [rng.normal(*shape) for shape in SHAPES] for _ in range(replicas.ranks)
    ]
    if replicas.gaps:
        gradients[0][0] = gradients[-1][4] = None
        gradients[1] = [None] * len(SHAPES)
        for own in gradients:
            own[7] = None
    return gradients


def stepped(value: Tensor, gradients: list[Tensor | None], rate: float) -> Tensor:
    """A parameter after the steps; gradients: of all ranks."""
    present = [gradient for gradient in gradients if gradient is not None]
    return value - rate * sum(present, torch.zeros_like(value)) / len(gradients)


def one_model(tried: Tried[Replicas]) -> Finding:
    """Passes if all ranks have the same bits, and left the rest alone."""
    replies = tried.seen.run.results
    for rank, reply in enumerate(replies):
        if changed := reply.kept(tried.seen.values, 0):
            return Finding(False, f"on rank {rank} {changed}.")
        if not compare.same(reply.parameters, replies[0].parameters):
            return Finding(False, f"ranks 0 and {rank} differ in the last digits of a parameter.")
    return Finding(True, "all ranks have the same parameters, to the last bit.")


def frugal(tried: Tried[Replicas]) -> Finding:
    """Passes if all ranks together send 2 (p - 1) messages a step, each of all gradients."""
    replicas, run = tried.case.features, tried.seen.run
    if not (only := only_messages([run], "Your answer")).passed:
        return only
    allowed, nbytes = 2 * (replicas.ranks - 1) * STEPS, TRAINED * 4
    sent = [event.nbytes for event in run.events if event.op == "send"]
    text = f"{len(sent)} messages of {sum(sent):,} bytes are sent in {STEPS} steps"
    within = len(sent) <= allowed and sum(sent) <= allowed * nbytes
    return Finding(within, f"{text}; expected {allowed}, of {nbytes} bytes each.", Kind.TOO_MUCH)


def quick(tried: Tried[Replicas]) -> Finding:
    """Passes if a step takes no longer than 2 ceil(log2 p) messages one after another, and no rank receives
    more than ceil(log2 p) of them.
    """
    replicas, run = tried.case.features, tried.seen.run
    most = max(run.calls(rank).count("recv") for rank in range(replicas.ranks)) / STEPS
    if most > replicas.levels:
        return compare.at_most(most, replicas.levels, "Messages that the busiest rank gets in a step")
    rounds = 2 * replicas.levels * STEPS
    # Half a round a step for messages that leave a rank together; another tree has a whole one more.
    halves = 2 * rounds + STEPS
    allowed = seconds(halves, halves * TRAINED * 4) / 2
    where = f"{replicas.ranks} ranks and {STEPS} steps"
    return duration_within(run, allowed, where, f"{rounds} rounds, and half a one a step,")


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
            how=one_model,
        ),
        Criterion(
            "messages",
            1,
            "send and recv, and no collective. Every rank but one sends one message up, of all its trainable "
            "parameters' gradients, and gets one: 2 (p - 1) in all.",
            needs=(ANY, "missing gradients", SAME),
            how=frugal,
        ),
        Criterion(
            "rounds",
            3,
            "With whom does the busiest rank speak? With one in each round, and there are ceil(log2 p): "
            "every second of those that still have something to send sends, and is done.",
            needs=("messages",),
            how=quick,
        ),
    ),
    hints=(
        "Who could add up while rank 0 adds up what rank 1 has? Rank 2 could add rank 3's, and rank 4 rank "
        "5's. Who speaks with whom in the next round?",
        "With distance d = 1, 2, 4 ... a rank that is an odd multiple of d sends to rank - d and is done "
        "sending; an even multiple receives from rank + d, if there is such a rank, and adds.",
        "How does the sum come down? By the same messages, turned round, the last one first. A rank gets it "
        "from the one that it sent to.",
        "What is a message? All gradients laid end to end, torch.cat([g.flatten() for g in gradients]).",
    ),
)
def tree_step(answer: Answer, replicas: Replicas, rng: Rng) -> tuple[Finding, Stepped]:
    """Every rank's model, after steps on the mean of the gradients."""
    values = [rng.normal(*shape) for shape in SHAPES]
    gradients, rates = drawn(rng, replicas), [0.1 * rng.integer(1, 9) for _ in range(STEPS)]
    cluster = Cluster(nodes=replicas.ranks, inter_node=MEASURED)
    given = (values, per_rank(gradients), rates)
    run = answer.launch(drivers.tree_step, *given, ranks=replicas.ranks, cluster=cluster)
    wanted = [
        stepped(value, [own[position] for own in gradients], sum(rates))
        for position, value in enumerate(values)
    ]
    right = (
        compare.close(seen, each, f"parameter {position} on rank {rank}", 1e-5, 1e-5)
        for rank, reply in enumerate(run.results)
        for position, (seen, each) in enumerate(compare.side_by_side(reply.parameters, wanted))
        if position not in FROZEN
    )
    return compare.first_failure(right), Stepped(values, run)
