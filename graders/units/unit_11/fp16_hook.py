"""Unit 11, gradients in half precision: a communication hook of DDP."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib import Cluster, Link
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    communication,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_11 import drivers
from graders.units.unit_11.replies import HookReply

LARGEST = 65504.0
"""The largest number of float16."""

ROUNDING = 2.0**-11
"""By how much of itself a number changes, at most, when it becomes float16."""


BUCKETS = [[4], [3, 2], [1], [0]]
"""The numbers of the parameters in each bucket, as DDP lays them out: from the last to the first."""


@exercise(
    minutes=25,
    difficulty=2,
    rubric=(
        Criterion(
            "mean over ranks", 3, "What the future holds is the mean over ranks, in the dtype of the buffer."
        ),
        Criterion("half the bytes", 2, "One all-reduce a bucket, of its numbers in float16."),
        Criterion(
            "does not wait",
            2,
            "async_op=True gives a work, and a work has a future: see then().",
            needs=("mean over ranks", "half the bytes"),
        ),
        Criterion("no overflow", 2, "What is the largest number that is ever put into float16?"),
        Criterion("group", 1, "state is the group: its sum, and its number of ranks."),
    ),
    hints=(
        "Which call starts an all-reduce and comes back at once? What does it return?",
        "`work.get_future().then(f)` is a future too: of what f returns. f gets a future "
        "that holds a list with one tensor.",
        "Four ranks hold 60,000 each. Which number has to fit into float16 if you divide after the sum, and "
        "which if you divide before?",
    ),
)
def fp16_hook(answer: Answer, rng: Rng) -> Findings:
    """Two ranks in float32, three in float64, and four in two groups."""
    cases = [
        Case.drawn(rng, 2, torch.float32),
        Case.drawn(rng, 3, torch.float64),
        Case.drawn(rng, 4, torch.float32, [[0, 2], [1, 3]]),
    ]
    runs = [case.launch(answer) for case in cases[:2]]
    yield "mean over ranks", compare.first_failure(_means(cases[:2], runs, range(3)))
    yield "half the bytes", compare.first_failure(map(_half, cases[:2], runs))
    yield "does not wait", compare.first_failure(map(_waits, runs))
    yield "no overflow", compare.first_failure(_means(cases[:2], runs, (3, 4)))
    grouped = cases[2].launch(answer)
    yield "group", compare.first_failure(_means(cases[2:], [grouped], range(3)))


@dataclass(frozen=True, slots=True)
class Case:
    """gradients: of each rank, for five parameters; the last two are too large to be added up in float16, or
    to be there before they are divided.
    """

    gradients: list[list[Tensor]]
    groups: list[list[int]]

    @classmethod
    def drawn(cls, rng: Rng, ranks: int, dtype: torch.dtype, groups: Sequence[list[int]] = ()) -> "Case":
        shapes = [(rng.integer(5, 9), rng.integer(5, 9)), (rng.integer(20, 40),), ()]
        members = len(groups[0]) if groups else ranks
        spread = rng.integers(45_000, 65_000, ranks, 6).to(dtype)
        alone = torch.zeros(ranks, 5, dtype=dtype)
        # The ranks that belong to the same group differ in which of them has the large numbers.
        largest = 0.9 * members * LARGEST
        for group in groups or [list(range(ranks))]:
            alone[rng.choice(group)] = -largest
        each = [[rng.normal(*shape, dtype=dtype) for shape in shapes] for _ in range(ranks)]
        return cls([[*each[rank], spread[rank], alone[rank]] for rank in range(ranks)], list(groups))

    def launch(self, answer: Answer) -> Observed[HookReply]:
        ranks = len(self.gradients)
        # Messages take long beside all else.
        network = Cluster(devices_per_node=ranks, intra_node=Link(1e-3, 1e6))
        given = (per_rank(self.gradients), BUCKETS, self.groups)
        return answer.launch(drivers.hook, *given, ranks=ranks, cluster=network)

    def sizes(self) -> list[int]:
        """How many numbers each bucket has."""
        return [sum(self.gradients[0][number].numel() for number in bucket) for bucket in BUCKETS]

    def expected(self, rank: int, parameter: int) -> tuple[Tensor, Tensor]:
        """The mean over the rank's group, and the mean of the magnitudes, both of the parameter's shape."""
        group = next((ranks for ranks in self.groups if rank in ranks), list(range(len(self.gradients))))
        tensors = torch.stack([self.gradients[other][parameter] for other in group])
        return tensors.mean(0), tensors.abs().mean(0)


def _means(
    cases: Sequence[Case], runs: Sequence[Observed[HookReply]], parameters: Sequence[int]
) -> Iterator[Finding]:
    """Whether every rank has the means of these parameters in each pass, as exact as float16 lets them be."""
    for case, run in zip(cases, runs, strict=True):
        for rank, reply in enumerate(run.results):
            for value, size in compare.side_by_side(reply.values, case.sizes()):
                yield _holds(value, size, case.gradients[rank][0].dtype, rank)
            for gradients in reply.gradients:
                for parameter in parameters:
                    mean, magnitude = case.expected(rank, parameter)
                    # Each of p numbers is rounded once, and so is each of p - 1 sums.
                    allowed = ROUNDING * len(case.gradients) * magnitude
                    yield _near(gradients, parameter, mean, allowed, f"rank {rank} of {len(run.results)}")


def _holds(value: object, size: int, dtype: torch.dtype, rank: int) -> Finding:
    """Passes if a future's value is a tensor [size] of the buffer's dtype."""
    if type(value) is not Tensor or value.dtype != dtype or value.shape != (size,):
        said = f"On rank {rank} a future holds {compare.shown(value)}"
        return Finding(False, f"{said}; expected a tensor of {size} numbers of {dtype}.")
    return Finding(True, "")


def _near(gradients: list[Tensor], parameter: int, mean: Tensor, allowed: Tensor, where: str) -> Finding:
    """Passes if the parameter's gradient is within `allowed`, number by number, of the mean."""
    what = f"the gradient of parameter {parameter} on {where}"
    if parameter >= len(gradients) or gradients[parameter].shape != mean.shape:
        return Finding(False, f"There is no gradient of parameter {parameter} on {where}.")
    seen = gradients[parameter]
    if bool(((seen - mean).abs() <= allowed + 1e-6).all()):
        return Finding(True, f"{what} is the mean, as exact as float16 can be.")
    finding = compare.close(seen, mean, what, rtol=ROUNDING)
    return Finding(False, finding.seen, finding.kind)


def _half(case: Case, run: Observed[HookReply]) -> Finding:
    """Passes if in each pass each bucket had one all-reduce, of two bytes a number."""
    for step in communication.steps_of(run, "step done"):
        seen = [(call.op, call.nbytes) for call in step.calls]
        sizes = case.sizes()
        if seen != [("all_reduce", 2 * size) for size in sizes]:
            listed = ", ".join(f"{op} of {nbytes} bytes" for op, nbytes in seen) or "nothing"
            numbers = ", ".join(map(str, sizes))
            return Finding(False, f"{step}: for buckets of {numbers} numbers it calls {listed}.")
    return Finding(True, "Each bucket has one all-reduce, of two bytes a number.")


def _waits(run: Observed[HookReply]) -> Finding:
    """Passes if each hook is over before its all-reduce is, so that backward goes on meanwhile."""
    for step in communication.steps_of(run, "step done"):
        starts = [call.start for call in step.calls[1:]]
        stood = [start >= call.end for call, start in zip(step.calls, starts, strict=False)]
        for number in range(len(BUCKETS)):
            begins, ends = (step.marks.get(f"hook {number} {label}") for label in ("begins", "ends"))
            stood.append(begins is None or ends is None or ends.end > begins.end)
        if any(stood):
            return Finding(False, f"{step}: backward stands still until a bucket's all-reduce is over.")
    return Finding(True, "The hook comes back at once, and backward goes on.")
