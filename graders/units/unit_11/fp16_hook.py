"""The grader of `fp16_hook`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib import Cluster, Link
from graders.grading.communication import Step, steps_of
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
from graders.units.groups import members_of
from graders.units.unit_11 import drivers
from graders.units.unit_11.replies import HookReply

LARGEST = 65504.0
"""The largest number of float16."""
ROUNDING = 2.0**-11
"""By how much of itself a number changes, at most, when it becomes float16."""
SHAPES = ((7, 5), (30,), (2,), (6,), (5,))
BUCKETS = [[4], [3, 2], [1], [0]]
"""The numbers of the parameters in each bucket, as DDP lays them out: from the last to the first."""
SIZES = [sum(torch.Size(SHAPES[number]).numel() for number in bucket) for bucket in BUCKETS]


@exercise(
    minutes=25,
    difficulty=2,
    rubric=(
        Criterion(
            "mean over ranks",
            3,
            "What the future holds is the mean over ranks, in the dtype of the buffer.",
        ),
        Criterion("half the bytes", 2, "One all-reduce a bucket, of its numbers in float16."),
        Criterion(
            "does not wait",
            2,
            "async_op=True gives a work, and a work has a future: see then().",
            needs=("mean over ranks", "half the bytes"),
        ),
        Criterion(
            "no overflow",
            2,
            "What is the largest number that is ever put into float16? (fp16_compress_hook divides by the "
            "number of ranks before it sends, but after it has made float16 of the gradient.)",
        ),
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
    """Passes through DDP's reducer, with gradients of several sizes."""
    plain = [
        Exchange.run(answer, [[rng.normal(*shape, dtype=dtype) for shape in SHAPES] for _ in range(ranks)])
        for ranks, dtype in ((2, torch.float32), (3, torch.float64))
    ]
    yield "mean over ranks", compare.first_failure(each.right() for each in plain)
    steps = [step for each in plain for step in steps_of(each.observed, "step done")]
    yield "half the bytes", compare.first_failure(map(half_the_bytes, steps))
    yield "does not wait", compare.first_failure(map(goes_on, steps))
    # Numbers that float16 has, but not their sum; and on one rank numbers that are larger than any of it.
    everywhere = [[rng.integers(45_000, 65_000, *shape).float() for shape in SHAPES] for _ in range(2)]
    on_one = [[torch.full(shape, value) for shape in SHAPES] for value in (0.0, -1.8 * LARGEST)]
    large = [Exchange.run(answer, gradients) for gradients in (everywhere, on_one)]
    yield "no overflow", compare.first_failure(each.right() for each in large)
    of_four = [[rng.normal(*shape) for shape in SHAPES] for _ in range(4)]
    yield "group", Exchange.run(answer, of_four, [[0, 2], [1, 3]]).right()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A pass of DDP's reducer with the answer. gradients: of each rank. groups: if there are several."""

    gradients: list[list[Tensor]]
    groups: list[list[int]]
    observed: Observed[HookReply]

    @classmethod
    def run(
        cls, answer: Answer, gradients: list[list[Tensor]], groups: list[list[int]] | None = None
    ) -> "Exchange":
        ranks = len(gradients)
        # Messages take long beside all else.
        network = Cluster(devices_per_node=ranks, intra_node=Link(1e-3, 1e6))
        given = per_rank(gradients), BUCKETS, groups or []
        return cls(gradients, groups or [], answer.launch(drivers.hook, *given, ranks=ranks, cluster=network))

    def right(self) -> Finding:
        """Passes if futures and gradients are the means over each group, as exact as float16 is."""
        replies = enumerate(self.observed.results)
        return compare.first_failure(self._right_on(rank, reply) for rank, reply in replies)

    def _right_on(self, rank: int, reply: HookReply) -> Finding:
        dtype = self.gradients[0][0].dtype
        for value, size in compare.side_by_side(reply.values, SIZES):
            if type(value) is not Tensor or value.dtype != dtype or value.shape != (size,):
                said = f"on rank {rank} a future holds {compare.shown(value)}"
                return Finding(False, f"{said}; expected {size} numbers in {dtype}.")
        members = members_of(rank, len(self.gradients), self.groups)
        for number, seen in compare.side_by_side(list(range(len(SHAPES))), reply.gradients):
            of_group = torch.stack([self.gradients[member][number] for member in members])
            mean = of_group.mean(0)
            what = f"with {len(self.gradients)} ranks, the gradient of parameter {number} on rank {rank}"
            # Each of p numbers is rounded once, and so is each of p - 1 sums.
            allowed = ROUNDING * len(members) * of_group.abs().mean(0) + 1e-6
            if seen.shape != mean.shape or not bool(((seen - mean).abs() <= allowed).all()):
                return Finding(False, compare.close(seen, mean, what, rtol=ROUNDING).seen)
        largest = max(float(each.abs().max()) for of_rank in self.gradients for each in of_rank)
        text = f"of numbers up to {largest:,.5g} on {len(self.gradients)} ranks each gradient is the mean"
        return Finding(True, f"{text}{' over a group' if self.groups else ''}, as exact as float16 is.")


def half_the_bytes(step: Step) -> Finding:
    """Passes if each bucket had one all-reduce, of two bytes a number."""
    seen = [(call.op, call.nbytes) for call in step.calls]
    listed = ", ".join(f"{op} of {nbytes} bytes" for op, nbytes in seen) or "nothing"
    numbers = ", ".join(map(str, SIZES))
    expected = [("all_reduce", 2 * size) for size in SIZES]
    return Finding(seen == expected, f"for buckets of {numbers} numbers rank {step.rank} calls {listed}.")


def goes_on(step: Step) -> Finding:
    """Passes if each hook is over before its all-reduce is."""
    stood = [later.start >= call.end for call, later in zip(step.calls, step.calls[1:], strict=False)]
    for number in range(len(BUCKETS)):
        begins, ends = (step.marks.get(f"hook {number} {label}") for label in ("begins", "ends"))
        stood.append(begins is None or ends is None or ends.end > begins.end)
    told = "stands still until a bucket's all-reduce is over" if any(stood) else "goes on"
    return Finding(not any(stood), f"on rank {step.rank} backward {told}.")
