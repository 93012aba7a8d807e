"""Unit 12, a normalisation by the statistics of all samples and all pixels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.communication import in_words
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    PlainData,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.groups import members_of
from graders.units.passes import calls_by_pass
from graders.units.unit_12.drivers import space
from graders.units.unit_12.several import Call, several_calls, together
from graders.units.unit_12.space_replies import PassesReply
from graders.units.unit_12.space_worlds import ALONE, THREES

PASSES = ("forward", "backward", "forward under no_grad")
GRADIENTS = ("x_shard", "the weight", "the bias")
RIGHT = ("result", "gradient of the image", "gradients of weight and bias")
Replies = Observed[PassesReply]


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "result", 3, "Parts differ in size: neither means nor variances may be averaged as they are."
        ),
        Criterion(
            "gradient of the image",
            3,
            "Each pixel has a part in the mean and the variance of all: two more sums, over all ranks.",
        ),
        Criterion(
            "gradients of weight and bias",
            1,
            "They are the very sums that the image's gradient needs.",
            needs=RIGHT[:2],
        ),
        Criterion(
            "other parts",
            2,
            "One rank; a rank that has one pixel, or none; float64; tensors that stand in memory in another "
            "order; a weight of 0; eps by default.",
            needs=RIGHT,
        ),
        Criterion(
            "large means",
            1,
            "The mean of squares less the square of the mean: two large numbers, hardly a digit of whose "
            "difference is left in float32.",
            needs=("result", "other parts"),
        ),
        Criterion(
            "one collective",
            1,
            "2 C + 1 numbers forward, 2 C backward: put into one tensor what travels together.",
            needs=RIGHT,
        ),
        Criterion("group", 1, "Collectives take a group, in backward too.", needs=(*RIGHT, "other parts")),
        several_calls((*RIGHT, "other parts", "group")),
    ),
    hints=(
        "From which three things of each rank do mean and variance of all follow?",
        "If a rank knows its own mean and its own sum of squares around that: how does the sum of squares "
        "around another mean follow?",
        "Write the result as weight * x_hat + bias. Which two sums over all pixels does the gradient of x "
        "have in it, beside the gradient itself?",
    ),
)
def synchronised_batch_norm(answer: Answer, rng: Rng) -> Findings:
    """Drawn images, parts of which are on each rank."""
    plain = Parts.drawn(rng, [(2, 3), (1, 5), (3, 2)], eps=0.25)
    run = plain.launch(answer)
    yield "result", plain.result(run)
    yield "gradient of the image", plain.gradients(run, [0])
    yield "gradients of weight and bias", plain.gradients(run, [1, 2])
    others = [
        Parts.drawn(rng, [(2, 2)], idle=True),
        Parts.drawn(rng, [(1, 1), (2, 0), (1, 4), (0, 3)], columns=1),
        Parts.drawn(rng, [(3, 2), (2, 2)], dtype=torch.float64, gaps=True),
    ]
    yield "other parts", compare.first_failure(each.all_right(each.launch(answer)) for each in others)
    far = Parts.drawn(rng, [(2, 3), (1, 4)], far=True)
    yield "large means", far.result(far.launch(answer))
    double = Parts.drawn(rng, [(2, 3), (1, 4)], dtype=torch.float64)
    looked_at = ((plain, run), (double, double.launch(answer)))
    yield "one collective", compare.first_failure(each.one_collective(seen) for each, seen in looked_at)
    grouped = Parts.drawn(rng, [(1, 2), (2, 3), (2, 1), (1, 1), (1, 3), (3, 2)], groups=THREES)
    yield "group", grouped.all_right(grouped.launch(answer))
    others = [
        replace(plain, x=[3 * each + 1 for each in plain.x]),
        Parts.drawn(rng, [(2, 1), (1, 3), (1, 2)], groups=ALONE),
        Parts.drawn(rng, [(1, 2), (3, 1), (1, 1)], eps=1.5),
    ]
    yield "several calls", together(answer, [each.call() for each in (plain, *others)])


@dataclass(frozen=True, slots=True)
class Parts:
    """Each rank's part [samples, C, rows, columns], and what is the same everywhere. eps None: default."""

    x: list[Tensor]
    weight: Tensor
    bias: Tensor
    eps: float | None
    far: bool
    gaps: bool
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        sizes: Sequence[tuple[int, int]],
        *,
        eps: float | None = None,
        far: bool = False,
        dtype: torch.dtype = torch.float32,
        gaps: bool = False,
        columns: int | None = None,
        idle: bool = False,
        groups: list[list[int]] | None = None,
    ) -> "Parts":
        """sizes: samples and rows of each rank. columns: by default two to four. far: whether means are
        thousands of standard deviations from 0, and these differ too. idle: whether a channel's weight is 0.
        """
        channels, columns = rng.integer(2, 3), columns or rng.integer(2, 4)
        x = [rng.normal(samples, channels, rows, columns, dtype=dtype) for samples, rows in sizes]
        if far:
            means = [rng.choice((1, -1)) * float(rng.integer(5000, 9000)) for _ in range(channels)]
            sizes_of = [rng.choice((0.01, 1.0, 300.0)) for _ in range(channels)]
            shift, scale = (torch.tensor(each, dtype=dtype).view(-1, 1, 1) for each in (means, sizes_of))
            x = [scale * (each + shift) for each in x]
        else:
            shift = rng.normal(channels, 1, 1, dtype=dtype)
            x = [2 * each + place + shift for place, each in enumerate(x)]
        weight, bias = rng.normal(channels, dtype=dtype), rng.normal(channels, dtype=dtype)
        weight[: int(idle)] = 0
        if far:  # so that a small error is seen
            weight = 1 + weight.abs()
        return cls(x, weight, bias, eps, far, gaps, groups or [])

    def launch(self, answer: Answer) -> Replies:
        given = per_rank(self.x), self.weight, self.bias, self.eps, self.gaps, self.groups
        return answer.launch(space.normalised, *given, ranks=len(self.x))

    def expected(self) -> list[list[Tensor]]:
        """For each rank the result, and the gradients of x, weight and bias; computed in float64."""
        found: list[list[Tensor]] = [[] for _ in self.x]
        for members in {tuple(members_of(rank, len(self.x), self.groups)) for rank in range(len(self.x))}:
            leaves = [each.double().requires_grad_() for each in (*(self.x[r] for r in members), self.weight)]
            leaves.append(self.bias.double().requires_grad_())
            *parts, weight, bias = leaves
            channels = len(self.weight)
            rows = torch.cat([part.movedim(1, -1).reshape(-1, channels) for part in parts])
            eps = 1e-5 if self.eps is None else self.eps
            y = functional.batch_norm(rows, None, None, weight, bias, training=True, eps=eps)
            results = [
                piece.view(*part.movedim(1, -1).shape).movedim(-1, 1)
                for piece, part in zip(
                    torch.split(y, [part.numel() // channels for part in parts]), parts, strict=True
                )
            ]
            loss = torch.stack(
                [(y * space.arriving(y, rank)).sum() for y, rank in zip(results, members, strict=True)]
            ).sum()
            *of_x, of_weight, of_bias = torch.autograd.grad(loss, leaves)
            for rank, result, gradient in zip(members, results, of_x, strict=True):
                all_four = (result.detach(), gradient, of_weight, of_bias)
                found[rank] = [each.to(self.weight.dtype) for each in all_four]
        return found

    def call(self) -> Call:
        """As one of several calls."""
        given = [self.x, [self.weight] * len(self.x), [self.bias] * len(self.x)]
        results, *gradients = map(list, zip(*self.expected(), strict=True))
        options: dict[str, PlainData] = {} if self.eps is None else {"eps": self.eps}
        return Call(given, options, results, gradients, self.groups)

    def result(self, run: Replies) -> Finding:
        """Passes if each rank returned its part, with a gradient and without, and left its arguments."""
        expected = [each[0] for each in self.expected()]
        near = 1e-2 if self.far else self.near
        arguments = [[x, self.weight, self.bias] for x in self.x]
        found = [
            compare.close_on_all_ranks(seen, expected, what, near, near)
            for what, seen in (
                ("the result", [reply.result for reply in run.results]),
                ("the result under no_grad", [reply.without for reply in run.results]),
            )
        ]
        kept = [
            compare.equal(reply.given, given, f"the arguments on rank {rank} afterwards")
            for rank, (reply, given) in enumerate(compare.side_by_side(run.results, arguments))
        ]
        return compare.first_failure((*found, *kept))

    @property
    def near(self) -> float:
        """How far apart two sums in different order may be."""
        return 1e-9 if self.weight.dtype is torch.float64 else 1e-4

    def gradients(self, run: Replies, numbers: Sequence[int]) -> Finding:
        """Passes if the gradients of these arguments are right. numbers: 0 for x, 1 weight, 2 bias."""
        expected = self.expected()
        return compare.first_failure(
            compare.close_on_all_ranks(
                compare.column([reply.gradients for reply in run.results], number, len(GRADIENTS)),
                [each[1 + number] for each in expected],
                f"the gradient of {GRADIENTS[number]}",
                10 * self.near,
                10 * self.near,
            )
            for number in numbers
        )

    def all_right(self, run: Replies) -> Finding:
        return compare.first_failure((self.result(run), self.gradients(run, [0, 1, 2])))

    def one_collective(self, run: Replies) -> Finding:
        """Passes if each pass has one collective, of so many numbers of eight bytes at most."""
        channels = len(self.weight)
        numbers = (2 * channels + 1, 2 * channels, 2 * channels + 1)
        for rank in range(len(self.x)):
            for label, calls, most in zip(PASSES, calls_by_pass(run, rank, PASSES), numbers, strict=True):
                if len(calls) != 1:
                    said = f"in {label} rank {rank} calls {in_words([call.op for call in calls])}"
                    kind = Kind.TOO_MUCH if len(calls) > 1 else Kind.OTHER
                    return Finding(False, f"{said}; expected one collective.", kind)
                if calls[0].nbytes > 8 * most:
                    said = f"in {label} rank {rank} gives {calls[0].op} {calls[0].nbytes:,} bytes"
                    text = f"{said}; with {channels} channels {most} numbers of 8 bytes are enough."
                    return Finding(False, text, Kind.TOO_MUCH)
        return Finding(True, "One collective in each pass, of no more numbers than are needed.")
