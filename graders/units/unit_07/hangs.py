"""Unit 07, the deadlock lab: causes, and programs of messages or one collective."""

from collections.abc import Iterator, Sequence
from itertools import chain

from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading import compare
from graders.grading.communication import MEASURED, duration_within, each_rank_calls, seconds
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Observed,
    PlainData,
    Rng,
    exercise,
    per_rank,
)
from graders.units.drivers import call
from graders.units.unit_07 import drivers, lab
from graders.units.unit_07.drivers import MendedReply


@exercise(
    minutes=15,
    difficulty=2,
    rubric=tuple(
        Criterion(
            program, 1, f'Read in the report of "{program}" who waits in which call, and for whom.', needs=()
        )
        for program in lab.CAUSES
    ),
    hints=(
        'Who waits for whom to "send" or to "receive"? Where ranks call different things: which calls meet '
        "that do not match?",
        "A circle in which everyone waits for a send and one in which everyone waits for a receive are two "
        "different mistakes.",
        "Where the calls that do not match are new_group's, look at the order in which groups were made.",
    ),
)
def causes_of_hangs(answer: Answer, rng: Rng) -> Findings:
    """Six reports, six causes."""
    named = answer.call(call)
    if type(named) is not dict:
        said = f"Returned {named!r:.60}; expected a dictionary with six entries."
        raise AnswerFailed(FailureKind.NOT_ASKED, said)
    for program in lab.CAUSES:
        yield program, cause(program, named)


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


@exercise(
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(
            lab.ENDS,
            1,
            "A collective is called by every rank of its group, or by none.",
            needs=("the mean on rank 0",),
        ),
        Criterion(
            "the mean on rank 0",
            1,
            "The sum of all ranks' losses divided by their number; `.item()` makes a float of a tensor.",
        ),
        Criterion("None elsewhere", 1, "What to do with the result may well depend on the rank."),
        Criterion("one collective", 1, "One all_reduce on every rank; nothing else is needed."),
    ),
    hints=("What belongs behind `if rank == 0`, and what does not?",),
)
def mend_report(answer: Answer, rng: Rng) -> Findings:
    """The mean loss, reported by rank 0."""
    given = [[rng.integer(1, 999_999) / 1e9 for _ in range(3)]]
    # A likelihood's logarithm is a loss, too.
    given += [[rng.integer(-999_999, 99_999) / 1e5 for _ in range(4)], [0.0]]
    runs = [lab.launched(answer, losses) for losses in given]
    yield lab.ENDS, lab.ends(runs)
    means = [sum(losses) / len(losses) for losses in given]
    yield (
        "the mean on rank 0",
        compare.first_failure(
            lab.numbers(run, losses, [mean]) for run, losses, mean in zip(runs, given, means, strict=True)
        ),
    )
    elsewhere = (
        lab.numbers(run, losses, [mean, *[None] * (len(losses) - 1)])
        for run, losses, mean in zip(runs, given, means, strict=True)
    )
    yield "None elsewhere", compare.first_failure(elsewhere)
    yield "one collective", each_rank_calls(runs, ("all_reduce",), "Every rank calls all_reduce once.")


def cause(program: str, named: dict[str, PlainData]) -> Finding:
    """Passes if `named`, the student's dictionary, has the program's cause."""
    seen = named.get(program)
    if seen is None:
        return Finding(False, f'no cause is named for "{program}".')
    # The right one is not told: there are only six.
    known = (
        "" if any(compare.same(seen, each) for each in lab.CAUSES.values()) else ", none of the six causes"
    )
    text = f'the cause named for "{program}" is "{seen!s:.60}"{known}.'
    return Finding(compare.same(seen, lab.CAUSES[program]), text)
