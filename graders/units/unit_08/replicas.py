"""The model whose replicas the drivers of unit 08 train, and graders beside them; what drivers tell of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graders.grading.answer import DriverReply, PlainData
from graders.units.models import Gradients, copies_of, load_values
from graders.units.optimizers import PlainSGD

WIDTH = 3
"""Numbers that go into each layer of a `Forked`, and come out of it."""


class Forked(nn.Module):
    """A layer that has two names, a frozen one, and two branches of which a replica uses one.

    Inputs and outputs [B, WIDTH]. Its buffer counts the samples that it has trained on.
    """

    def __init__(self, values: Sequence[Tensor], branch: int = 0) -> None:
        """values: of the shapes of `model.parameters()`, and of their dtype."""
        super().__init__()
        self.shared = nn.Linear(WIDTH, WIDTH, dtype=values[0].dtype)
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=values[0].dtype).requires_grad_(False)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=values[0].dtype) for _ in range(2))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False, dtype=values[0].dtype)
        self.last.weight = self.shared.weight
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(1))
        self.branch = branch
        load_values(self.parameters(), values)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += len(inputs)
        hidden = self.frozen(torch.tanh(self.shared(inputs)))
        outputs: Tensor = self.last(torch.tanh(self.branches[self.branch](hidden)))
        return outputs


SHAPES = ((WIDTH, WIDTH), (WIDTH,)) * 4
"""Of the parameters of a `Forked`, in their order."""

FROZEN = (2, 3)
"""Which of them are frozen."""

TRAINED = 3 * (WIDTH**2 + WIDTH)
"""Numbers in the others together."""


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """A `Forked` after a step.

    parameters: of SHAPES. seen: its buffer [1]. same: whether each parameter is the tensor that it was, and
    trainable or frozen as before.
    """

    parameters: list[Tensor]
    seen: Tensor
    same: bool


@dataclass(frozen=True, slots=True)
class LocalReply(DriverReply):
    """What training leaves: the model, what the answer returned, how many steps the optimizer made.

    kept: whether the list of batches is as long as it was. momentum, rates: of the optimizer, see `state_of`.
    """

    model: StepReply
    returned: PlainData
    taken: int
    kept: bool
    momentum: list[Tensor]
    rates: list[float]


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of outputs and targets of one shape; another one if they are mixed up."""
    return functional.mse_loss(2 * outputs, targets)


def identity_of(model: nn.Module) -> list[tuple[int, bool]]:
    """What a parameter is, whatever it holds."""
    return [(id(each), each.requires_grad) for each in model.parameters()]


def told(model: Forked, before: list[tuple[int, bool]]) -> StepReply:
    """The model now; before: see `identity_of`."""
    return StepReply(copies_of(model.parameters()), model.seen.clone(), identity_of(model) == before)


def give_gradients(model: nn.Module, gradients: Gradients) -> None:
    """As backward would; matrices stand in memory column by column, as backward leaves some."""
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient.t().clone(memory_format=torch.contiguous_format).t()


def in_two_groups(model: nn.Module, rates: tuple[float, float]) -> PlainSGD:
    """Momentum for all; the first half of the trained parameters has the first rate."""
    trained = [each for each in model.parameters() if each.requires_grad]
    half = len(trained) // 2
    groups: list[dict[str, Any]] = [
        {"params": trained[:half], "lr": rates[0]},
        {"params": trained[half:], "lr": rates[1]},
    ]
    return PlainSGD(groups, rates[0])


def state_of(optimizer: PlainSGD) -> tuple[list[Tensor], list[float]]:
    """The momentum of each parameter that has one, and the learning rate of each group."""
    groups = optimizer.param_groups
    states = [
        optimizer.state[each] for group in groups for each in group["params"] if each in optimizer.state
    ]
    return [state["momentum"].clone() for state in states], [group["lr"] for group in groups]
