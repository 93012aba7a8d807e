"""Unit 02, one accuracy for all."""

from graders.grading import compare
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    PlainData,
    Rng,
    exercise,
    per_rank,
)
from graders.units.drivers import call


@exercise(
    minutes=5,
    difficulty=2,
    rubric=(
        Criterion(
            "weighted by samples",
            1,
            "Add up what is right and what there is, over all ranks, then divide: the mean of the ranks' "
            "accuracies is another number. Every rank returns it, as a float.",
        ),
        Criterion("rank without samples", 1, "A rank may have total == 0: divide only after summing."),
        Criterion(
            "one collective", 1, "Put both counts in one tensor: latency is paid a call, not a number."
        ),
    ),
    hints=(
        "Which two numbers of the ranks can be added? torch.tensor([correct, total]) is one tensor, and "
        "all_reduce adds it up element by element.",
    ),
)
def global_accuracy(answer: Answer, rng: Rng) -> Findings:
    """Sums over ranks, one collective, one division."""
    ranks = rng.integer(3, 5)
    # As many as the tokens of a text; together more than fit into 32 bits.
    totals = [rng.integer(1, 9), *(rng.integer(11 * 10**8, 2 * 10**9) for _ in range(ranks - 1))]
    counts = [totals[0], *(rng.integer(1, total // 2) for total in totals[1:])]
    observed = launched_accuracy(answer, counts, totals)
    yield "weighted by samples", accuracy_as_expected(observed, counts, totals)

    # So few that one too many shows; the first rank and the last have none, and one has none right.
    totals = [0, *(rng.integer(2, 9) for _ in range(ranks)), 0]
    counts = [0, 0, *(rng.integer(1, total) for total in totals[2:-1]), 0]
    without = launched_accuracy(answer, counts, totals)
    alone = launched_accuracy(answer, counts[2:3], totals[2:3])
    both = [(without, counts, totals), (alone, counts[2:3], totals[2:3])]
    yield "rank without samples", compare.first_failure(accuracy_as_expected(*each) for each in both)

    made = max((run.calls(rank) for run in (observed, without) for rank in range(len(run.results))), key=len)
    text = f"Calls a rank makes: {', '.join(made) or 'none'}; expected one."
    yield "one collective", Finding(len(made) == 1, text)


def launched_accuracy(answer: Answer, correct: list[int], total: list[int]) -> Observed[PlainData]:
    """Let rank r call the answer with correct[r] and total[r]."""
    return answer.launch(call, per_rank(correct), per_rank(total), ranks=len(total))


def accuracy_as_expected(observed: Observed[PlainData], correct: list[int], total: list[int]) -> Finding:
    """Passes if every rank returns all that is right over all there is."""
    expected = sum(correct) / sum(total)
    return compare.first_failure(
        (
            compare.near(seen, expected, f"with {correct} right of {total}, the accuracy on rank {rank}")
            for rank, seen in enumerate(observed.results)
        ),
        f"Every rank returns {expected:.6g}, {sum(correct)} of {sum(total)}.",
    )
