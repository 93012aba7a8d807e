"""The grader of `fp16_hook`."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib import Cluster, Link
from graders.grading.cases import both, vary
from graders.grading.communication import Step, steps_of
from graders.grading.judging import ByCases, Stage, feature
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise, per_rank
from graders.units.groups import members_of
from graders.units.unit_11 import drivers
from graders.units.unit_11.cases import SHORT, part
from graders.units.unit_11.replies import HookReply

LARGEST = 65504.0
"""The largest number of float16."""
ROUNDING = 2.0**-11
"""By how much of itself a number changes, at most, when it becomes float16."""
SHAPES = ((7, 5), (30,), (), (6,), (5,))
BUCKETS = [[4], [3, 2], [1], [0]]
"""The numbers of the parameters in each bucket, as DDP lays them out: from the last to the first."""
SIZES = [sum(torch.Size(SHAPES[number]).numel() for number in bucket) for bucket in BUCKETS]


@dataclass(frozen=True, slots=True)
class Exchange:
    """large: numbers that float16 has, but not their sum; or on one rank larger than any of float16."""

    ranks: int = feature(2, "{} ranks")
    dtype: torch.dtype = feature(torch.float32, SHORT.__getitem__)
    large: str = feature("", lambda large: f"large numbers on {large}" if large else "")
    grouped: bool = feature(False, lambda grouped: "in two groups" if grouped else "")

    @property
    def groups(self) -> list[list[int]]:
        return [[0, 2], [1, 3]] if self.grouped else []

    def drawn(self, rng: Rng) -> list[list[Tensor]]:
        """The gradients of each rank."""
        if not self.large:
            return [[rng.normal(*shape, dtype=self.dtype) for shape in SHAPES] for _ in range(self.ranks)]
        if self.large == "all ranks":
            low, high = 45_000, 65_000
            return [
                [rng.integers(low, high, *shape).to(self.dtype) for shape in SHAPES]
                for _ in range(self.ranks)
            ]
        groups = self.groups or [list(range(self.ranks))]
        value = {rng.choice(group): -0.9 * len(group) * LARGEST for group in groups}
        return [
            [torch.full(shape, value.get(rank, 0.0), dtype=self.dtype) for shape in SHAPES]
            for rank in range(self.ranks)
        ]


class Hooked(Stage[Exchange]):
    """Several passes of DDP's reducer in a launch. Seen is, by row, what was found of messages and time."""

    def together(self, features: Exchange) -> Hashable:
        return features.ranks, features.grouped

    def run(
        self, answer: Answer, cases: Sequence[tuple[Exchange, Rng]]
    ) -> Sequence[tuple[Finding, dict[str, Finding]]]:
        ranks, groups = cases[0][0].ranks, cases[0][0].groups
        gradients = [case.drawn(rng) for case, rng in cases]
        # Messages take long beside all else.
        network = Cluster(devices_per_node=ranks, intra_node=Link(1e-3, 1e6))
        of_ranks = per_rank([[each[rank] for each in gradients] for rank in range(ranks)])
        run = answer.launch(drivers.hook, of_ranks, BUCKETS, groups, ranks=ranks, cluster=network)
        steps = list(steps_of(run, "step done"))
        found = []
        for number, (case, _) in enumerate(cases):
            own = [step for step in steps if step.number == number]
            replies = compare.column(run.results, number, len(cases))
            mean = compare.first_failure(
                right(case, gradients[number], rank, reply) for rank, reply in enumerate(replies)
            )
            seen = {
                "half the bytes": compare.first_failure(map(half_the_bytes, own)),
                "does not wait": compare.first_failure(map(goes_on, own)),
            }
            found.append((mean, seen))
        return found


def right(case: Exchange, gradients: list[list[Tensor]], rank: int, reply: HookReply) -> Finding:
    """Passes if this rank's futures and gradients are the means over its group, as exact as float16 is."""
    for value, size in compare.side_by_side(reply.values, SIZES):
        if type(value) is not Tensor or value.dtype != case.dtype or value.shape != (size,):
            said = f"on rank {rank} a future holds {compare.shown(value)}"
            return Finding(False, f"{said}; expected {size} numbers in {SHORT[case.dtype]}.")
    members = members_of(rank, case.ranks, case.groups)
    for number, seen in compare.side_by_side(list(range(len(SHAPES))), reply.gradients):
        of_group = torch.stack([gradients[member][number] for member in members])
        mean = of_group.mean(0)
        what = f"the gradient of parameter {number} on rank {rank}"
        # Each of p numbers is rounded once, and so is each of p - 1 sums.
        allowed = ROUNDING * case.ranks * of_group.abs().mean(0) + 1e-6
        if seen.shape != mean.shape or not bool(((seen - mean).abs() <= allowed).all()):
            found = compare.close(seen, mean, what, rtol=ROUNDING)
            return Finding(False, found.seen, found.kind)
    return Finding(True, "every gradient is the mean, as exact as float16 can be.")


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


RUBRIC = (
    Criterion(
        "mean over ranks",
        3,
        "What the future holds is the mean over ranks, in the dtype of the buffer.",
        vary=vary(ranks=(3,), dtype=(torch.float64,)),
    ),
    part("half the bytes", 2, "One all-reduce a bucket, of its numbers in float16."),
    part(
        "does not wait",
        2,
        "async_op=True gives a work, and a work has a future: see then().",
        needs=("mean over ranks", "half the bytes"),
    ),
    Criterion(
        "no overflow",
        2,
        "What is the largest number that is ever put into float16? (fp16_compress_hook divides by the number "
        "of ranks before it sends, but after it has made float16 of the gradient.)",
        vary=vary(large=("all ranks", "one rank")),
    ),
    Criterion(
        "group", 1, "state is the group: its sum, and its number of ranks.", vary=both(ranks=4, grouped=True)
    ),
)


@exercise(
    minutes=25,
    difficulty=2,
    rubric=RUBRIC,
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
    yield from ByCases(Exchange(), Hooked(), RUBRIC, lambda case: not case.grouped or case.ranks == 4)(
        answer, rng
    )
