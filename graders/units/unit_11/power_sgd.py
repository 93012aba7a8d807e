"""Unit 11, low rank: PowerSGD as a hook of DDP's.

Shapes: n rows and m columns of a gradient that is a matrix, r the rank it is compressed to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Kind
from graders.grading.communication import steps_of
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
from graders.units.unit_11.replies import LowRankReply

Gradients = list[list[list[Tensor]]]
"""By rank, step and parameter."""


@exercise(
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "the first step", 4, "P = M Q with the Q that was drawn; orthonormal columns; Q; P transpose(Q)."
        ),
        Criterion("other gradients", 2, "Which are compressed? What is not becomes its mean over ranks."),
        Criterion("the steps that follow", 4, "Begin with the Q of the step before, and add what was lost."),
        Criterion(
            "buckets that change",
            2,
            "What is kept belongs to a parameter, not to a place in a bucket.",
            needs=("the first step", "the steps that follow"),
        ),
        Criterion("small ranks and zeros", 2, "P may have dependent columns: torch.linalg.qr does not mind."),
        Criterion(
            "two all-reduces",
            1,
            "All P and all whole gradients of a bucket together, then all Q.",
            needs=("the first step", "other gradients"),
        ),
        Criterion(
            "numbers sent",
            1,
            "r (n + m) for each matrix, and nothing but the numbers of the others.",
            needs=("the first step", "other gradients"),
        ),
    ),
    hints=(
        "Which of a step's three products with Q and P need something from the other ranks?",
        "Two tensors can go in one all-reduce if they lie end to end. Which of a bucket's can go first?",
        "What is compressed in a step: the gradient, or the gradient and what is missing?",
        "A dictionary's key may be a parameter.",
    ),
)
def PowerSGD(answer: Answer, rng: Rng) -> Findings:  # noqa: N802, the exercise is a class
    """Steps in several worlds beside the grader's own, each with matrices and what is not compressed."""
    worlds = [
        World.draw(rng, 2, 2, [(4, 4), (7,), (4, 3, 2, 2), (6, 5), (), (6, 5)]),
        World.draw(rng, 3, 1, [(5, 4), (9,), (3, 6), (1, 5)], torch.float32, buckets=[[3, 2], [1, 0]]),
        World.draw(rng, 1, 3, [(8, 9), (8, 9), (4, 5)], buckets=[[0], [1], [2]]),
    ]
    changing = World.draw(rng, 2, 1, [(5, 4), (3,), (5, 4), (4, 6)], buckets=[[3, 2], [1, 0]])
    changing = replace(changing, buckets=[[[3, 2], [1, 0]], *[[[0], [2, 1], [3]]] * 2])
    runs = [world.launch(answer) for world in worlds]
    once = [world.expected() for world in worlds]
    yield (
        "the first step",
        compare.first_failure(
            [
                finding
                for world, run, wanted in zip(worlds, runs, once, strict=True)
                for finding in (world.matrices(run, wanted, [0]), random_left(run))
            ]
        ),
    )
    all_three = list(zip(worlds, runs, once, strict=True))
    yield (
        "other gradients",
        compare.first_failure(world.others(run, wanted) for world, run, wanted in all_three),
    )
    yield (
        "the steps that follow",
        compare.first_failure(world.matrices(run, wanted, [1, 2]) for world, run, wanted in all_three),
    )
    yield "buckets that change", changing.matrices(changing.launch(answer), changing.expected(), [0, 1, 2])
    yield "small ranks and zeros", small_ranks(answer, rng)
    yield "two all-reduces", compare.first_failure(map(World.calls, worlds, runs))
    yield "numbers sent", compare.first_failure(map(World.numbers, worlds, runs))


@dataclass(frozen=True, slots=True)
class World:
    """rank, seed: what the answer is made with. buckets: of each step."""

    rank: int
    seed: int
    gradients: Gradients
    buckets: list[list[list[int]]]

    @classmethod
    def draw(
        cls,
        rng: Rng,
        ranks: int,
        rank: int,
        shapes: Sequence[tuple[int, ...]],
        dtype: torch.dtype = torch.float64,
        buckets: list[list[int]] | None = None,
    ) -> "World":
        """Three steps; by default all parameters in one bucket, from the last to the first."""
        gradients = [
            [[rng.normal(*shape, dtype=dtype) for shape in shapes] for _ in range(3)] for _ in range(ranks)
        ]
        of_step = buckets or [list(reversed(range(len(shapes))))]
        return cls(rank, rng.integer(1, 999), gradients, [of_step] * 3)

    def launch(self, answer: Answer) -> Observed[LowRankReply]:
        return answer.launch(
            drivers.low_rank,
            {"rank": self.rank, "seed": self.seed},
            per_rank(self.gradients),
            self.buckets,
            ranks=len(self.gradients),
        )

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

    def matrices(
        self, run: Observed[LowRankReply], expected: list[list[Tensor]], steps: Sequence[int]
    ) -> Finding:
        """Passes if what is compressed is as expected in these steps."""
        return self._gradients(run, expected, steps, compressed=True)

    def others(self, run: Observed[LowRankReply], expected: list[list[Tensor]]) -> Finding:
        """Passes if what is not compressed is as expected in all steps; where there is nothing, too."""
        return self._gradients(run, expected, range(3), compressed=False)

    def _gradients(
        self,
        run: Observed[LowRankReply],
        expected: list[list[Tensor]],
        steps: Sequence[int],
        compressed: bool,
    ) -> Finding:
        numbers = [n for n in range(len(expected[0])) if self.compressed(n) is compressed]
        tolerance = 1e-7 if expected[0][0].dtype == torch.float64 else 1e-3
        given = [
            [
                [seen for seen, _ in compare.side_by_side(step, wanted)]
                for step, wanted in compare.side_by_side(reply.gradients, expected)
            ]
            for reply in run.results
        ]
        findings = [
            compare.close_on_all_ranks(
                [of_rank[step][number] for of_rank in given],
                [expected[step][number]] * len(run.results),
                f"rank {self.rank}, step {step}: the gradient of parameter {number}",
                rtol=tolerance,
                atol=tolerance,
            )
            for step in steps
            for number in numbers
        ]
        return compare.first_failure([*findings, *[Finding(True, "All gradients are as they should be.")]])

    def calls(self, run: Observed[LowRankReply]) -> Finding:
        """Passes if each bucket has its two all-reduces, or one."""
        marks = own_marks(run, len(self.buckets), "step begins", "step done")
        if not marks.passed:
            return marks
        expected = sum(1 + any(map(self.compressed, bucket)) for bucket in self.buckets[0])
        for step in steps_of(run, "step done"):
            names = [call.op for call in step.calls]
            if set(names) - {"all_reduce"} or len(names) > expected:
                said = f"{step}: {len(names)} calls ({', '.join(sorted(set(names)))})"
                return Finding(
                    False, f"{said}; {expected} all-reduces for {len(self.buckets[0])} buckets will do."
                )
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
    """Gradients of rank 1 on both of two ranks arrive whole with rank 3, and so do zeros; then no NaN."""
    dtype = torch.float64
    ones = [rng.normal(8, 1, dtype=dtype) @ rng.normal(1, 9, dtype=dtype) for _ in range(2)]
    zero, other = torch.zeros(8, 9, dtype=dtype), rng.normal(8, 9, dtype=dtype)
    world = World(3, 5, [[[each, zero], [other, other]] for each in ones], [[[1, 0]]] * 2)
    run = world.launch(answer)
    mean = torch.stack(ones).mean(0)
    findings = [
        compare.close_on_all_ranks([reply.gradients[0][n] for reply in run.results], [wanted] * 2, what, 1e-7)
        for n, wanted, what in ((0, mean, "a mean of rank 2"), (1, zero, "a gradient of zeros"))
    ]
    for reply in run.results:
        arrives = reply.gradients[1][1]
        across = arrives.mT @ (other - arrives)
        projected = bool(across.abs().max() < 1e-6) and bool(arrives.norm() > 0.1 * other.norm())
        said = "is M's part along orthonormal columns" if projected else "is no part of M along such columns"
        if not arrives.any():
            said = "is nothing: P had no orthonormal columns"
        findings.append(Finding(projected, f"In the step after zeros what arrives {said}."))
    return compare.first_failure(findings)


def own_marks(run: Observed[Any], steps: int, *labels: str) -> Finding:
    """Passes if each rank has as many marks of each label as steps: the driver's, and no others."""
    for rank in range(len(run.results)):
        found = [event.op for event in run.events if event.rank == rank and event.kind is Kind.SPAN]
        for label in labels:
            if found.count(label) != steps:
                said = f"rank {rank} has {found.count(label)} marks {label!r}"
                return Finding(False, f"{said} in {steps} steps: leave them to the grader.")
    return Finding(True, "No marks but the grader's.")
