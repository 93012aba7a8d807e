"""What one H100 took, beside what the simulator says of it.

Source: measured for this workbook on 2026-11-26, on one NVIDIA H100 80GB HBM3 with 16 CPU cores, torch
2.11.0+cu130, NCCL 2.28.9; medians, timed by CUDA events. `course gpu` measures such steps on another machine.

Transformers: `course_lib.models.Transformer` with heads of 64, a vocabulary of 32,768 and a tied head; a step
is `next_token_loss`, backward and `zero_grad`. The card's own rates are those of `presets.one_h100`.
"""

from dataclasses import dataclass

SMALL_STEPS = {
    "transformer, 4 layers, D=64": 44.2e-6,
    "transformer, 12 layers, D=64": 46.5e-6,
    "SmallCNN, one image": 74.4e-6,
}
"""Of steps that are too small to keep the GPU busy: seconds a tensor operation, all of them the host's. The
first is what `presets.one_h100` takes."""


@dataclass(frozen=True, slots=True)
class Step:
    """Forward and backward. tokens: of a sample. operations: tensor operations of forward and backward.

    roofline: milliseconds by the simulator with the card's rates and no queue. measured: milliseconds.
    """

    precision: str
    layers: int
    width: int
    batch: int
    tokens: int
    operations: int
    roofline: float
    measured: float


STEPS = (
    Step("float32", 4, 512, 8, 512, 291, 19.98, 22.94),
    Step("float32", 12, 768, 8, 1024, 835, 165.87, 188.44),
    Step("float32", 12, 1024, 8, 1024, 835, 257.2, 274.69),
    Step("float32", 6, 2048, 8, 1024, 427, 439.82, 447.05),
    Step("float32", 4, 4096, 4, 2048, 291, 1105.19, 1118.23),
    Step("bfloat16", 4, 512, 8, 512, 291, 3.56, 14.69),
    Step("bfloat16", 12, 768, 8, 1024, 835, 32.22, 47.14),
    Step("bfloat16", 12, 1024, 8, 1024, 835, 44.85, 61.98),
    Step("bfloat16", 6, 2048, 8, 1024, 427, 57.32, 70.98),
    Step("bfloat16", 4, 4096, 4, 2048, 291, 137.02, 169.34),
)


@dataclass(frozen=True, slots=True)
class Offload:
    """A step of twelve layers of width 4096 on 16,384 rows in float32: seconds, and GiB at the peak."""

    way: str
    seconds: float
    peak_gib: float


OFFLOADS = (
    Offload("everything kept", 0.38, 8.06),
    Offload("copies without a bound", 0.404, 8.56),
    Offload("at most 1 copy leaving, ahead 1", 0.46, 2.81),
    Offload("at most 2 copies leaving, ahead 1", 0.404, 3.06),
    Offload("at most 2 copies leaving, ahead 2", 0.404, 3.31),
    Offload("at most 4 copies leaving, ahead 1", 0.404, 3.56),
    Offload("save_on_cpu, pinned", 0.66, 2.56),
    Offload("save_on_cpu, not pinned", 6.84, 2.56),
)
"""HostOffload of unit 09, with a bound on the copies that leave, and torch's `save_on_cpu`.

The record does not say what stands between the linear layers. With a GELU the peak of everything kept is met.
"""

OFFLOADS_H200 = (
    Offload("everything kept", 0.379, 3.44),
    Offload("copies without a bound", 0.394, 4.5),
    Offload("at most 1 copy leaving, ahead 1", 0.457, 1.69),
    Offload("at most 2 copies leaving, ahead 1", 0.395, 1.69),
    Offload("at most 4 copies leaving, ahead 1", 0.395, 1.8),
)
"""On one H200, in a later run: each layer is linear, with a ReLU."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes at the peak of two steps of AdamW, as the card's allocator counts."""

    precision: str
    layers: int
    width: int
    batch: int
    tokens: int
    allocated: int


PEAKS = (
    Peak("float32", 4, 512, 8, 512, 2_858_034_176),
    Peak("float32", 12, 768, 8, 1024, 14_283_987_968),
    Peak("float32", 6, 2048, 4, 1024, 12_600_042_496),
    Peak("float32", 4, 4096, 2, 2048, 31_191_942_144),
    Peak("bfloat16", 4, 512, 8, 512, 1_395_629_056),
    Peak("bfloat16", 12, 768, 8, 1024, 7_160_676_352),
    Peak("bfloat16", 6, 2048, 4, 1024, 6_303_368_192),
    Peak("bfloat16", 4, 4096, 2, 2048, 15_604_499_456),
)
CUBLAS_WORKSPACE = 68_157_440
"""Bytes that the library of matrix products keeps from its first one on. The first row has them in it."""

EPOCHS = {
    (128, "a sample at a time"): 1.662,
    (128, "whole batches"): 1.582,
    (128, "on the GPU"): 1.304,
    (1024, "a sample at a time"): 0.626,
    (1024, "whole batches"): 0.234,
    (1024, "on the GPU"): 0.154,
}
"""(batch, how it is loaded) -> seconds of an epoch of SmallCNN on 60,000 grey images of 28 x 28."""

SMALL_CNN = {
    256: (0.269, 1.711),
    4096: (4.303, 7.651),
}
"""Images of a batch -> milliseconds of SmallCNN's forward and backward, 29 operations: roofline, measured."""
