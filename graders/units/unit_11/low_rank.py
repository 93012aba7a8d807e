"""Trainings with PowerSGD: how they are drawn, what they lead to, and what is found of them.

Shapes: n rows and m columns of a gradient that is a matrix.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.communication import steps_of
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_11 import drivers

Gradients = list[list[list[Tensor]]]
"""By rank, step and parameter."""
Buckets = list[list[int]]
"""The numbers of the parameters in each."""


@dataclass(frozen=True, slots=True)
class World:
    """rank, seed: what the answer is made with. buckets: of each step."""

    rank: int
    seed: int
    gradients: Gradients
    buckets: list[Buckets]

    @classmethod
    def drawn(
        cls, rng: Rng, ranks: int, rank: int, shapes: tuple[tuple[int, ...], ...], buckets: list[Buckets]
    ) -> "World":
        """One step for each of `buckets`."""
        gradients = [
            [[rng.normal(*shape, dtype=torch.float64) for shape in shapes] for _ in buckets]
            for _ in range(ranks)
        ]
        return cls(rank, rng.integer(1, 999), gradients, buckets)

    def launch(self, answer: Answer) -> Observed[list[list[Tensor]]]:
        """By rank, step and parameter, the gradients that come out."""
        options = {"rank": self.rank, "seed": self.seed}
        given = options, per_rank(self.gradients), self.buckets
        return answer.launch(drivers.low_rank, *given, ranks=len(self.gradients))

    def compressed(self, parameter: int) -> bool:
        """Whether this parameter's gradient is."""
        rows, columns = sides(self.gradients[0][0][parameter])
        return self.rank * (rows + columns) < rows * columns

    def expected(self) -> list[list[Tensor]]:
        """By step and parameter.

        All that is done with a rank's matrix is linear, so that the mean of all matrices says what comes out.
        """
        generator = torch.Generator().manual_seed(self.seed)
        right: dict[int, Tensor] = {}
        lost: dict[int, Tensor] = {}
        found = []
        for step, buckets in enumerate(self.buckets):
            of_step = zip(*(of_rank[step] for of_rank in self.gradients), strict=True)
            means = [torch.stack(each).mean(0) for each in of_step]
            for number in (number for bucket in buckets for number in bucket if self.compressed(number)):
                mean = means[number]
                matrix = mean.flatten(1) + lost.get(number, 0)
                if number not in right:
                    shape = matrix.shape[1], self.rank
                    right[number] = torch.randn(shape, generator=generator, dtype=mean.dtype)
                left = torch.linalg.qr(matrix @ right[number]).Q
                right[number] = matrix.mT @ left
                lost[number] = matrix - left @ right[number].mT
                means[number] = (left @ right[number].mT).view(mean.shape)
            found.append(means)
        return found

    def right(self, run: Observed[list[list[Tensor]]], compressed: bool) -> Finding:
        """Passes if all that is compressed, or all that is not, is as expected in all steps."""
        wanted = self.expected()
        return compare.first_failure(
            compare.close(
                seen,
                each,
                f"in step {step} on rank {rank}, compressed to rank {self.rank}: the gradient of "
                f"parameter {number}",
                rtol=1e-7,
                atol=1e-7,
            )
            for rank, steps in enumerate(run.results)
            for step, pair in enumerate(compare.side_by_side(steps, wanted))
            for number, (seen, each) in enumerate(compare.side_by_side(*pair))
            if self.compressed(number) is compressed
        )

    def calls(self, run: Observed[list[list[Tensor]]]) -> Finding:
        """Passes if each bucket has its two all-reduces, or one."""
        for step in steps_of(run, "step done"):
            buckets = self.buckets[step.number]
            expected = sum(1 + any(map(self.compressed, bucket)) for bucket in buckets)
            names = [call.op for call in step.calls]
            if set(names) - {"all_reduce"} or len(names) > expected:
                said = f"{step}: {len(names)} calls ({', '.join(sorted(set(names)))})"
                return Finding(False, f"{said}; {expected} all-reduces for {len(buckets)} buckets will do.")
        return Finding(True, "Two all-reduces for each bucket with a matrix, and one for each without.")

    def numbers(self, run: Observed[list[list[Tensor]]]) -> Finding:
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
