"""The model whose replicas the drivers of unit 08 train, and graders beside them; what drivers tell of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from graders.grading.answer import DriverReply, PlainData
from graders.units.models import load_values

WIDTH = 3
"""Numbers that go into each layer of a `Forked`, and come out of it."""
SHAPES = ((WIDTH, WIDTH), (WIDTH,)) * 4
"""Of the parameters of a `Forked`, in their order."""
FROZEN = (2, 3)
"""Which of them are frozen."""
TRAINED = 3 * (WIDTH**2 + WIDTH)
"""Numbers in the others together."""


class Forked(nn.Module):
    """A layer, a frozen one, and two branches of which a replica uses one.

    Inputs and outputs [B, WIDTH]. Its buffer counts the samples that it has trained on.
    """

    def __init__(self, values: Sequence[Tensor], branch: int = 0) -> None:
        """values: of SHAPES."""
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(1))
        self.branch = branch
        load_values(self.parameters(), values)

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += len(inputs)
        outputs: Tensor = self.branches[self.branch](self.frozen(torch.tanh(self.first(inputs))))
        return outputs


@dataclass(frozen=True, slots=True)
class ReplicaReply(DriverReply):
    """A `Forked` after a step or a training. parameters: of SHAPES. seen: its buffer [1].

    returned: by the answer. taken: how many steps the optimizer made, if there is one.
    """

    parameters: list[Tensor]
    seen: Tensor
    returned: PlainData = None
    taken: int = 0


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of outputs and targets of one shape; another one if they are mixed up."""
    return functional.mse_loss(2 * outputs, targets)
