"""The grader of `synchronised_batch_norm`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Event
from graders.grading.cases import both, vary
from graders.grading.communication import in_words
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng
from graders.units.unit_12.both_passes import Cut, Given, both_passes, in_passes

RIGHT = ("result", "gradient of the image", "gradients of weight and bias")


@dataclass(frozen=True, slots=True)
class Parts(Cut):
    """sizes: rows of each rank's images; samples: how many images. eps: None for the default. far: whether
    means are thousands of standard deviations from 0.
    """

    sizes: tuple[int, ...] = feature((4, 4, 4), "{} rows")
    samples: tuple[int, ...] = feature((2, 2, 2), "of {} images")
    eps: float | None = feature(0.25, lambda eps: f"eps={eps}" if eps else "")
    far: bool = feature(False, lambda far: "means far from 0" if far else "")

    @property
    def gradients_too(self) -> bool:
        return not self.far

    @property
    def tolerance(self) -> float:
        return 1e-2 if self.far else {torch.float64: 1e-9, torch.float32: 1e-4}[self.dtype]


def drawn(rng: Rng, case: Parts) -> Given:
    """A part for each rank, and weight and bias."""
    weight, bias = 1 + rng.normal(2, dtype=case.dtype).abs(), rng.normal(2, dtype=case.dtype)
    shift = 6000 + rng.normal(2, 1, 1) if case.far else rng.normal(2, 1, 1, dtype=case.dtype)
    scale = 2.0 if case.eps else 0.1
    parts = [
        rng.normal(samples, 2, rows, 3, dtype=case.dtype) + shift + place / 2
        for place, (samples, rows) in enumerate(zip(case.samples, case.sizes, strict=True))
    ]
    return [[scale * part, weight, bias] for part in parts]


def one_collective(case: Parts, given: Given, rank: int, label: str, calls: Sequence[Event]) -> Finding:
    """Passes if this pass has one collective, of so many numbers of eight bytes at most."""
    if len(calls) != 1:
        said = f"in {label} rank {rank} calls {in_words([call.op for call in calls])}"
        kind = Kind.TOO_MUCH if len(calls) > 1 else Kind.OTHER
        return Finding(False, f"{said}; expected one collective.", kind)
    channels = len(given[rank][1])
    most = 2 * channels + (label != "backward")
    said = f"in {label} rank {rank} gives {calls[0].op} {calls[0].nbytes:,} bytes"
    text = f"{said}; with {channels} channels {most} numbers of 8 bytes are enough."
    return Finding(calls[0].nbytes <= 8 * most, text, Kind.TOO_MUCH)


@both_passes(
    base=Parts(),
    names=("x_shard", "the weight", "the bias"),
    options=("eps",),
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "result",
            3,
            "The variance of all pixels is not the mean of the ranks' variances: means differ, too.",
        ),
        Criterion(
            "gradient of the image",
            3,
            "Each pixel has a part in the mean and the variance of all: two more sums, over all ranks.",
            vary=vary(only=(0,)),
        ),
        Criterion(
            "gradients of weight and bias",
            1,
            "They are the very sums that the image's gradient needs.",
            needs=RIGHT[:2],
            vary=vary(only=(1, 2)),
        ),
        Criterion(
            "other parts",
            3,
            "Parts that differ in size, whose means may not be averaged as they are; one rank; a rank that "
            "has nothing; float64; eps by default; and several calls in one graph.",
            needs=RIGHT,
            vary=vary(dtype=(torch.float64,), eps=(None,), times=(2,))
            + both(sizes=(3, 5, 2), samples=(2, 1, 3))
            + both(ranks=1, sizes=(2,), samples=(2,))
            + both(sizes=(1, 0, 4), samples=(1, 2, 1)),
        ),
        Criterion(
            "large means",
            1,
            "The mean of squares less the square of the mean: two large numbers, hardly a digit of whose "
            "difference is left in float32.",
            needs=("result", "other parts"),
            vary=both(far=True, eps=None),
        ),
        Criterion(
            "one collective",
            1,
            "2 C + 1 numbers forward, 2 C backward: put into one tensor what travels together.",
            needs=RIGHT,
            how=in_passes(one_collective),
        ),
        Criterion("group", 1, "Both passes' collectives take the group.", needs=RIGHT, vary=vary(group=(1,))),
    ),
    hints=(
        "From which three things of each rank do mean and variance of all follow?",
        "If a rank knows its own mean and its own sum of squares around that: how does the sum of squares "
        "around another mean follow?",
        "Write the result as weight * x_hat + bias. Which two sums over all pixels does the gradient of x "
        "have in it, beside the gradient itself?",
    ),
    arguments=drawn,
)
def synchronised_batch_norm(case: Parts, given: Given) -> list[Tensor]:
    """PyTorch's own of all pixels together."""
    _, weight, bias = given[0]
    parts = [x.movedim(1, -1) for x, *_ in given]
    pixels = torch.cat([part.reshape(-1, len(weight)) for part in parts])
    eps = 1e-5 if case.eps is None else case.eps
    y = functional.batch_norm(pixels, None, None, weight, bias, training=True, eps=eps)
    split = torch.split(y, [part.numel() // len(weight) for part in parts])
    return [each.view(part.shape).movedim(-1, 1) for each, part in zip(split, parts, strict=True)]
