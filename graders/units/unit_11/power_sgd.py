"""The grader of `PowerSGD`. Shapes: n rows and m columns of a gradient that is a matrix."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.communication import steps_of
from graders.grading.judging import ByCases, Stage, feature
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_11 import drivers
from graders.units.unit_11.cases import part
from graders.units.unit_11.marks import own_marks
from graders.units.unit_11.replies import LowRankReply

Gradients = list[list[list[Tensor]]]
"""By rank, step and parameter."""
Buckets = list[list[int]]
"""The numbers of the parameters in each."""


@dataclass(frozen=True, slots=True)
class Network:
    """Its parameters' shapes, and in which buckets they come. ranks: that train. rank: of the matrices."""

    ranks: int
    rank: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    buckets: Buckets
    later: Buckets | None = None
    """Buckets after the first step, if these are others."""


NETWORKS = {
    "one bucket": Network(
        2, 2, ((4, 4), (7,), (4, 3, 2, 2), (6, 5), (6, 5)), torch.float64, [[4, 3, 2, 1, 0]]
    ),
    "one bucket with a scalar": Network(2, 2, ((4, 4), (), (6, 5), (6, 5)), torch.float64, [[3, 2, 1, 0]]),
    "two buckets, float32": Network(3, 1, ((5, 4), (9,), (3, 6), (1, 5)), torch.float32, [[3, 2], [1, 0]]),
    "a single rank": Network(1, 3, ((8, 9), (8, 9), (4, 5)), torch.float64, [[0], [1], [2]]),
    "buckets that change": Network(
        2, 1, ((5, 4), (3,), (5, 4), (4, 6)), torch.float64, [[3, 2], [1, 0]], [[0], [2, 1], [3]]
    ),
}


@dataclass(frozen=True, slots=True)
class Training:
    """network: one of NETWORKS. steps: how many."""

    network: str = feature("one bucket", "{}")
    steps: int = feature(1, lambda steps: compare.counted(steps, "step"))

    def drawn(self, rng: Rng) -> "World":
        net = NETWORKS[self.network]
        gradients = [
            [[rng.normal(*shape, dtype=net.dtype) for shape in net.shapes] for _ in range(self.steps)]
            for _ in range(net.ranks)
        ]
        buckets = [net.buckets, *[net.later or net.buckets] * (self.steps - 1)]
        return World(net.rank, rng.integer(1, 999), gradients, buckets)


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


@dataclass(frozen=True, slots=True)
class World:
    """rank, seed: what the answer is made with. buckets: of each step."""

    rank: int
    seed: int
    gradients: Gradients
    buckets: list[Buckets]

    def launch(self, answer: Answer) -> Observed[LowRankReply]:
        options = {"rank": self.rank, "seed": self.seed}
        given = (options, per_rank(self.gradients), self.buckets)
        return answer.launch(drivers.low_rank, *given, ranks=len(self.gradients))

    def compressed(self, parameter: int) -> bool:
        """Whether this parameter's gradient is."""
        rows, columns = sides(self.gradients[0][0][parameter])
        return self.rank * (rows + columns) < rows * columns

    def expected(self) -> list[list[Tensor]]:
        """By step and parameter, in double precision.

        All that is done with a rank's matrix is linear, so that the mean of all matrices says what comes out.
        """
        generator = torch.Generator().manual_seed(self.seed)
        right: dict[int, Tensor] = {}
        lost: dict[int, Tensor] = {}
        found = []
        for step, buckets in enumerate(self.buckets):
            means = [
                torch.stack(each).mean(0) for each in zip(*(g[step] for g in self.gradients), strict=True)
            ]
            for number in (number for bucket in buckets for number in bucket if self.compressed(number)):
                mean, dtype = means[number], means[number].dtype
                matrix = mean.double().flatten(1) + lost.get(number, 0)
                if number not in right:
                    drawn = torch.randn(matrix.shape[1], self.rank, generator=generator, dtype=dtype)
                    right[number] = drawn.double()
                left = torch.linalg.qr(matrix @ right[number]).Q
                right[number] = matrix.mT @ left
                lost[number] = matrix - left @ right[number].mT
                means[number] = (left @ right[number].mT).view(mean.shape).to(dtype)
            found.append(means)
        return found

    def gradients_of(
        self, run: Observed[LowRankReply], expected: list[list[Tensor]], compressed: bool
    ) -> Finding:
        """Passes if all that is compressed, or all that is not, is as expected in all steps."""
        tolerance = 1e-7 if expected[0][0].dtype == torch.float64 else 1e-3
        by_rank = [
            [compare.side_by_side(*step) for step in compare.side_by_side(reply.gradients, expected)]
            for reply in run.results
        ]
        return compare.first_failure(
            [
                compare.close(
                    seen,
                    wanted,
                    f"in step {step} on rank {rank}, compressed to rank {self.rank}: the gradient of "
                    f"parameter {number}",
                    rtol=tolerance,
                    atol=tolerance,
                )
                for rank, steps in enumerate(by_rank)
                for step, numbered in enumerate(steps)
                for number, (seen, wanted) in enumerate(numbered)
                if self.compressed(number) is compressed
            ]
            or [Finding(True, "there are none.")]
        )

    def calls(self, run: Observed[LowRankReply]) -> Finding:
        """Passes if each bucket has its two all-reduces, or one."""
        marks = own_marks(run, len(self.buckets), "step begins", "step done")
        if not marks.passed:
            return marks
        for step in steps_of(run, "step done"):
            buckets = self.buckets[step.number]
            expected = sum(1 + any(map(self.compressed, bucket)) for bucket in buckets)
            names = [call.op for call in step.calls]
            if set(names) - {"all_reduce"} or len(names) > expected:
                said = f"{step}: {len(names)} calls ({', '.join(sorted(set(names)))})"
                return Finding(False, f"{said}; {expected} all-reduces for {len(buckets)} buckets will do.")
        return Finding(True, "Two all-reduces for each bucket with a matrix, and one for each without.")

    def numbers(self, run: Observed[LowRankReply]) -> Finding:
        """Passes if no step sends more than it has to."""
        first = self.gradients[0][0]
        own = [self.rank * sum(sides(g)) if self.compressed(n) else g.numel() for n, g in enumerate(first)]
        expected = sum(own) * first[0].element_size()
        seen = [sum(call.nbytes for call in step.calls) for step in steps_of(run, "step done")]
        return compare.at_most(max(seen), expected, f"A step with rank {self.rank}", " bytes")


def sides(gradient: Tensor) -> tuple[int, int]:
    """n and m; of a gradient of less than two dimensions, one row."""
    rows = len(gradient) if gradient.dim() > 1 else 1
    return rows, math.prod(gradient.shape) // rows


def random_left(run: Observed[LowRankReply]) -> Finding:
    """Passes if no rank's default generator was drawn from."""
    left = all(reply.random for reply in run.results)
    said = "has not moved." if left else "has moved: what others draw with it changes. Have one of your own."
    return Finding(left, f"PyTorch's default generator {said}")


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
