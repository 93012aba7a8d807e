"""The grader of `tree_step`."""

from dataclasses import dataclass
from math import ceil, log2

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.communication import MEASURED, duration_within, only_messages, seconds
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_08 import drivers
from graders.units.unit_08.replicas import FROZEN, SHAPES, TRAINED, StepReply


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("the step", 1, "w - lr * mean: the sum over ranks, divided once by the number of ranks."),
        Criterion(
            "any number of ranks",
            1,
            "With 3, 5, 6 or 7 ranks some rank's partner does not exist. One rank makes its step alone. "
            "Divide the sum once, at the end, by the number of ranks.",
        ),
        Criterion(
            "missing gradients",
            1,
            "Where p.grad is None on a rank, it counts as zero there; the message has the same length on all "
            "ranks.",
        ),
        Criterion(
            "the same model everywhere",
            1,
            "The model keeps its parameters, and the frozen ones keep their numbers. Ranks agree to the "
            "last bit if all of them use the same sum, not each a sum in an order of its own.",
            needs=("any number of ranks",),
        ),
        Criterion("only send and recv", 1, "Use send and recv, and no collective."),
        Criterion(
            "messages",
            1,
            "Every rank but one sends one message up, of all its trainable parameters' gradients, and gets "
            "one: 2 (p - 1) in all.",
            needs=(
                "any number of ranks",
                "missing gradients",
                "the same model everywhere",
                "only send and recv",
            ),
        ),
        Criterion(
            "no bottleneck",
            2,
            "With whom does the busiest rank speak? With one in each round, and there are ceil(log2 p).",
            needs=("messages",),
        ),
        Criterion(
            "rounds",
            2,
            "In each round every second of those that still have something to send sends: half of them are "
            "done after it.",
            needs=("no bottleneck",),
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
def tree_step(answer: Answer, rng: Rng) -> Findings:
    """Steps on drawn gradients, on few and many ranks, then what was sent."""
    yield "the step", compare.first_failure(_right(*_stepped(answer, rng, 4, dtype)) for dtype in _DTYPES)
    runs = {ranks: _stepped(answer, rng, ranks) for ranks in (1, 2, 3, 5, 6, 8, 9)}
    yield "any number of ranks", compare.first_failure(_right(*each) for each in runs.values())
    yield "missing gradients", _right(*_stepped(answer, rng, 3, gaps=True))
    yield "the same model everywhere", compare.first_failure(_one_model(*each) for each in runs.values())
    yield "only send and recv", only_messages([run for _, run in runs.values()], "Your answer")
    yield "messages", compare.first_failure(_messages(run) for _, run in runs.values())
    yield "no bottleneck", compare.first_failure(_busiest(run) for _, run in runs.values())
    yield "rounds", compare.first_failure(_rounds(runs[ranks][1]) for ranks in (6, 8, 9))


_DTYPES = (torch.float32, torch.float64)
_STEPS = 2


@dataclass(frozen=True, slots=True)
class _Case:
    """values: of SHAPES, on every rank. gradients[r]: None where rank r lacks one; frozen ones have one."""

    values: list[Tensor]
    gradients: list[list[Tensor | None]]
    rates: list[float]

    def expected(self) -> list[Tensor]:
        """The parameters after the steps."""
        after = []
        for position, value in enumerate(self.values):
            present = [own for rank in self.gradients if (own := rank[position]) is not None]
            total = torch.stack([torch.zeros_like(value), *present]).sum(0)
            mean = torch.zeros_like(value) if position in FROZEN else total / len(self.gradients)
            after.append(value - sum(self.rates) * mean)
        return after


def _stepped(
    answer: Answer, rng: Rng, ranks: int, dtype: torch.dtype = torch.float32, gaps: bool = False
) -> tuple[_Case, Observed[StepReply]]:
    """A drawn case and what the answer made of it. gaps: rank 1 has no gradient, others lack some."""
    values = [rng.normal(*shape, dtype=dtype) for shape in SHAPES]
    gradients: list[list[Tensor | None]] = [
        [rng.normal(*shape, dtype=dtype) for shape in SHAPES] for _ in range(ranks)
    ]
    if gaps:
        gradients[0][0] = gradients[-1][4] = None
        gradients[1] = [None] * len(SHAPES)
        for own in gradients:
            own[7] = None
    case = _Case(values, gradients, [0.1 * rng.integer(1, 9) for _ in range(_STEPS)])
    cluster = Cluster(nodes=ranks, inter_node=MEASURED)
    arguments = (values, per_rank(gradients), case.rates)
    return case, answer.launch(drivers.tree_step, *arguments, ranks=ranks, cluster=cluster)


def _right(case: _Case, run: Observed[StepReply]) -> Finding:
    """Passes if every rank has the expected parameters."""
    exact = case.values[0].dtype is torch.float64
    rtol, atol = (1e-11, 1e-12) if exact else (1e-5, 1e-5)
    return compare.first_failure(
        (
            compare.close(
                seen, wanted, f"parameter {position} on rank {rank} of {len(run.results)}", rtol, atol
            )
            for rank, reply in enumerate(run.results)
            for position, (seen, wanted) in enumerate(compare.side_by_side(reply.parameters, case.expected()))
            if position not in FROZEN
        ),
        f"After {_STEPS} steps all parameters are as expected on all {len(run.results)} ranks.",
    )


def _one_model(case: _Case, run: Observed[StepReply]) -> Finding:
    """Passes if all ranks have the same bits, in the tensors that were there, and left the rest alone."""
    first = run.results[0].parameters
    for rank, reply in enumerate(run.results):
        if not reply.same:
            return Finding(False, f"on rank {rank} a parameter is another tensor, or no longer as trainable.")
        if not compare.same([reply.parameters[i] for i in FROZEN], [case.values[i] for i in FROZEN]):
            return Finding(False, f"on rank {rank} a frozen parameter has changed.")
        if not compare.same(reply.seen, torch.zeros(1)):
            return Finding(False, f"on rank {rank} a buffer has changed.")
        if not compare.same(reply.parameters, first):
            return Finding(False, f"ranks 0 and {rank} differ in the last digits of a parameter.")
    return Finding(True, f"All {len(run.results)} ranks have the same parameters, to the last bit.")


def _messages(run: Observed[StepReply]) -> Finding:
    """Passes if all ranks together send 2 (p - 1) messages a step, each of all gradients."""
    ranks, nbytes = len(run.results), TRAINED * 4
    allowed = 2 * (ranks - 1) * _STEPS
    sent = [event for rank in range(ranks) for event in run.communication(rank) if event.op == "send"]
    if len(sent) > allowed or sum(event.nbytes for event in sent) > allowed * nbytes:
        said = f"{ranks} ranks send {len(sent)} messages of {sum(event.nbytes for event in sent):,} bytes"
        text = f"{said} in {_STEPS} steps; expected {allowed}, of {nbytes} bytes each."
        return Finding(False, text, Kind.TOO_MUCH)
    return Finding(True, f"{ranks} ranks send {len(sent)} messages of {nbytes} bytes in {_STEPS} steps.")


def _busiest(run: Observed[StepReply]) -> Finding:
    """Passes if no rank receives more than ceil(log2 p) messages a step."""
    ranks = len(run.results)
    most = max(run.calls(rank).count("recv") for rank in range(ranks)) / _STEPS
    return compare.at_most(most, _levels(ranks), f"Messages that the busiest of {ranks} ranks gets in a step")


def _rounds(run: Observed[StepReply]) -> Finding:
    """Passes if a step takes no longer than 2 ceil(log2 p) messages one after another."""
    ranks = len(run.results)
    rounds = 2 * _levels(ranks) * _STEPS
    # Half a round a step for messages that leave a rank together; another tree has a whole one more.
    allowed = seconds(2 * rounds + _STEPS, (2 * rounds + _STEPS) * TRAINED * 4) / 2
    return duration_within(
        run, allowed, f"{ranks} ranks and {_STEPS} steps", f"{rounds} rounds, and half a one a step,"
    )


def _levels(ranks: int) -> int:
    return ceil(log2(ranks))
