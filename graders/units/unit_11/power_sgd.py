"""The grader of `PowerSGD`. Shapes: n rows and m columns of a gradient that is a matrix."""

from collections.abc import Sequence

import torch

from graders.grading.cases import both, vary
from graders.grading.judging import ByCases, Stage
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_11.cases import part
from graders.units.unit_11.low_rank import Training, World, random_left


class Trained(Stage[Training]):
    """A launch each. Seen is, by row, what was found beside the matrices."""

    def run(
        self, answer: Answer, cases: Sequence[tuple[Training, Rng]]
    ) -> Sequence[tuple[Finding, dict[str, Finding]]]:
        found = []
        for case, rng in cases:
            world = case.drawn(rng)
            run, wanted = world.launch(answer), world.expected()
            matrices = compare.first_failure(
                [world.gradients_of(run, wanted, compressed=True), random_left(run)]
            )
            seen = {
                "other gradients": world.gradients_of(run, wanted, compressed=False),
                "two all-reduces": world.calls(run),
                "numbers sent": world.numbers(run),
            }
            found.append((matrices, seen))
        return found


def small_ranks(answer: Answer, rng: Rng) -> Finding:
    """Passes if a gradient of rank 1 on each of two ranks arrives whole with rank 3, and so do zeros; and if
    in the step after zeros something arrives, which is the matrix's part along some columns.
    """
    dtype = torch.float64
    ones = [rng.normal(8, 1, dtype=dtype) @ rng.normal(1, 9, dtype=dtype) for _ in range(2)]
    zero, other = torch.zeros(8, 9, dtype=dtype), rng.normal(8, 9, dtype=dtype)
    world = World(3, 5, [[[each, zero], [other, other]] for each in ones], [[[1, 0]]] * 2)
    mean, findings = torch.stack(ones).mean(0), []
    for reply in world.launch(answer).results:
        first, second = (compare.column(reply.gradients, number, 2) for number in range(2))
        findings.append(compare.close(first[0], mean, "a mean of rank 2, compressed to rank 3,", 1e-7))
        findings.append(compare.close(second[0], zero, "a gradient of zeros", 1e-7))
        arrives = second[1]
        across = arrives.mT @ (other - arrives) if arrives.shape == other.shape else other
        projected = bool(across.abs().max() < 1e-6) and bool(arrives.any())
        said = "its part along P's columns" if projected else f"{compare.shown(arrives)}, no part of it"
        findings.append(Finding(projected, f"after a step of zeros, what arrives of a gradient is {said}."))
    return compare.first_failure(findings)


RUBRIC = (
    Criterion(
        "the first step",
        5,
        "P = M Q with the Q that was drawn; orthonormal columns; Q; P transpose(Q).",
        vary=vary(network=("two buckets, float32", "a single rank")),
    ),
    part(
        "other gradients",
        1,
        "Which are compressed? What is not becomes its mean over ranks, a scalar too, which has no rows "
        "(powerSGD_hook fails at it).",
        vary=vary(network=("one bucket with a scalar",)),
    ),
    Criterion(
        "the steps that follow",
        5,
        "Begin with the Q of the step before, and add what was lost.",
        vary=vary(steps=(3,)),
    ),
    Criterion(
        "buckets that change",
        2,
        "What is kept belongs to a parameter, not to a place in a bucket.",
        needs=("the first step", "the steps that follow"),
        vary=both(network="buckets that change", steps=3),
    ),
    Criterion(
        "small ranks and zeros",
        1,
        "P may have dependent columns: torch.linalg.qr does not mind.",
        ask=small_ranks,
    ),
    part(
        "two all-reduces",
        1,
        "All P and all whole gradients of a bucket together, then all Q. (powerSGD_hook has a third for "
        "whole gradients: one latency more.)",
        needs=("the first step", "other gradients"),
    ),
    part(
        "numbers sent",
        1,
        "r (n + m) for each matrix, and nothing but the numbers of the others.",
        needs=("the first step", "other gradients"),
    ),
)


@exercise(
    minutes=40,
    difficulty=5,
    rubric=RUBRIC,
    hints=(
        "Which of a step's three products with Q and P need something from the other ranks?",
        "Two tensors can go in one all-reduce if they lie end to end. Which of a bucket's can go first?",
        "What is compressed in a step: the gradient, or the gradient and what is missing?",
        "A dictionary's key may be a parameter.",
    ),
)
def PowerSGD(answer: Answer, rng: Rng) -> Findings:  # noqa: N802, the exercise is a class
    """Steps of several networks beside the grader's own."""
    return ByCases(Training(), Trained(), RUBRIC)(answer, rng)
