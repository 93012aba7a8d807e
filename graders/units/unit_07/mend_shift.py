"""The grader of `mend_shift`."""

from course_lib.cluster.topology import Cluster
from graders.grading import compare
from graders.grading.communication import MEASURED, duration_within, each_rank_calls, seconds
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Rng,
    exercise,
    per_rank,
)
from graders.units.unit_07 import drivers, lab


@exercise(
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            lab.ENDS,
            1,
            "A send may return only when its receiver is there: someone has to receive.",
            needs=("the left neighbour's tensor",),
        ),
        Criterion("the left neighbour's tensor", 1, "Rank 0's left neighbour is the last rank."),
        Criterion(
            "a tensor of its own",
            1,
            "Receive into a new tensor, made like x, also on its device: x still has to be sent.",
        ),
        Criterion("one message each", 1, "Each rank sends once and receives once; no collective."),
        Criterion(
            "all at the same time",
            1,
            "If only rank 0 receives first, the others go one after another, p messages long. isend starts "
            "all sends at once.",
            needs=(lab.ENDS, "one message each"),
        ),
    ),
    hints=(
        "What if a rank could receive while its own send is not yet done? isend, recv, then wait for the "
        "send.",
    ),
)
def mend_shift(answer: Answer, rng: Rng) -> Findings:
    """A ring in which everyone sends to the right."""
    given = [lab.tensors(rng, ranks, whole=ranks == 3) for ranks in (2, 3, 4, 7)]
    runs = [lab.launched(answer, tensors) for tensors in given]
    yield lab.ENDS, lab.ends(runs)
    shifted = [[tensors[rank - 1] for rank in range(len(tensors))] for tensors in given]
    yield "the left neighbour's tensor", lab.each_returned(runs, shifted)
    yield "a tensor of its own", lab.its_own(answer, runs, given)
    yield (
        "one message each",
        each_rank_calls(runs, ("send", "recv"), "Each rank sends once and receives once."),
    )
    yield "all at the same time", compare.first_failure(all_at_once(answer, rng, ranks) for ranks in (9, 4))


def all_at_once(answer: Answer, rng: Rng, ranks: int) -> Finding:
    """Passes if a ring of so many takes the time of three messages at most."""
    length = 250
    cluster = Cluster(nodes=ranks, intra_node=MEASURED, inter_node=MEASURED)
    given = per_rank([rng.normal(5, length // 5) for _ in range(ranks)])
    observed = answer.launch(drivers.mended, given, ranks=ranks, cluster=cluster)
    allowed = seconds(3, 3 * length * 4)
    return duration_within(observed, allowed, f"{ranks} ranks, {length * 4} bytes", "3 messages")
