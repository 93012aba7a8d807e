"""How large everything is that is measured: for a GPU, or for a CPU that only shows that it runs."""

from dataclasses import dataclass

import torch

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Net:
    """A Transformer and its batch: L layers of width D, B samples of T tokens."""

    layers: int
    width: int
    batch: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.layers} layers, D={self.width}, {self.batch} x {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class Chain:
    """Linear layers of one width, each with a ReLU, and the rows of a batch."""

    layers: int
    width: int
    rows: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """matrix: rows and columns of the product that is timed. copied: bytes. runs: of which the median counts.
    steps: timed. states: whose memory is counted. offload, replicated: chains of linear layers; rows of the
    latter are a rank's. images: of an epoch, in batches of so many.
    """

    matrix: int
    copied: int
    runs: int
    vocabulary: int
    steps: tuple[Net, ...]
    states: tuple[Net, ...]
    offload: Chain
    replicated: Chain
    images: int
    batches: tuple[int, ...]


FULL = Sizes(
    matrix=8192,
    copied=1 << 30,
    runs=5,
    vocabulary=32768,
    steps=(Net(4, 512, 8, 512), Net(12, 768, 8, 1024), Net(6, 2048, 8, 1024)),
    states=(Net(4, 512, 8, 512), Net(12, 768, 8, 1024), Net(6, 2048, 4, 1024)),
    offload=Chain(12, 4096, 16384),
    replicated=Chain(12, 4096, 4096),
    images=60_000,
    batches=(128, 1024),
)
"""For a GPU with 20 GB or more."""

SMALL = Sizes(
    matrix=64,
    copied=1 << 16,
    runs=2,
    vocabulary=64,
    steps=(Net(1, 64, 1, 8),),
    states=(Net(1, 64, 1, 8),),
    offload=Chain(3, 16, 8),
    replicated=Chain(2, 16, 8),
    images=64,
    batches=(32,),
)
"""For tests."""
