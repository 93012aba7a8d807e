"""The grader of `mend_swap`."""

from collections.abc import Iterator, Sequence
from itertools import chain

from torch import Tensor

from graders.grading import compare
from graders.grading.communication import each_rank_calls
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    exercise,
)
from graders.units.unit_07 import lab
from graders.units.unit_07.drivers import MendedReply


@exercise(
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            lab.ENDS,
            1,
            "One of two partners has to send while the other receives.",
            needs=("the partner's tensor",),
        ),
        Criterion(
            "the partner's tensor",
            1,
            "Partners are 2k and 2k + 1. What is sent is x, as it was before anything arrived.",
        ),
        Criterion(
            "a tensor of its own",
            1,
            "Receive into a new tensor, made like x, also on its device: x still has to be sent.",
        ),
        Criterion("one message each", 1, "Each rank sends once and receives once; no collective."),
    ),
    hints=(
        "Which of two partners could begin with the other call, and how does a rank know which of the two "
        "it is? Or does isend help?",
    ),
)
def mend_swap(answer: Answer, rng: Rng) -> Findings:
    """Pairs that swap tensors."""
    given = [lab.tensors(rng, ranks, whole=ranks > 2) for ranks in (2, 6)]
    runs = [lab.launched(answer, tensors) for tensors in given]
    yield lab.ENDS, lab.ends(runs)
    swapped = [[tensors[rank ^ 1] for rank in range(len(tensors))] for tensors in given]
    yield (
        "the partner's tensor",
        compare.first_failure(chain(own_ones(runs, given), [lab.each_returned(runs, swapped)])),
    )
    yield "a tensor of its own", lab.its_own(answer, runs, given)
    yield (
        "one message each",
        each_rank_calls(runs, ("send", "recv"), "Each rank sends once and receives once."),
    )


def own_ones(runs: Sequence[Observed[MendedReply]], given: Sequence[Sequence[Tensor]]) -> Iterator[Finding]:
    """For each rank that returned what it had itself, not its partner's tensor, a failure."""
    for run, tensors in zip(runs, given, strict=True):
        for rank, (told, x) in enumerate(compare.side_by_side(run.results, tensors)):
            if compare.same(told.result, x):
                text = f"with {len(tensors)} ranks, rank {rank} returned the tensor that it has itself"
                yield Finding(False, f"{text}: was x overwritten before it was sent?")
