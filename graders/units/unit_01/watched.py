"""A small model that writes down how it is used."""

import torch
from torch import Tensor, nn

from graders.units.models import load_values

Batch = tuple[Tensor, Tensor]
Mode = bool | None
"""Whether a model is in training mode; None if only some of its modules are."""


def mode_of(model: nn.Module) -> Mode:
    """In which mode all modules of a model are, and so each dropout and each batch norm."""
    modes = {module.training for module in model.modules()}
    return modes.pop() if len(modes) == 1 else None


def in_words(mode: Mode) -> str:
    """`in training mode`."""
    names = {True: "in training mode", False: "in evaluation mode", None: "in training mode in parts"}
    return names[mode]


class Watched(nn.Module):
    """Two linear layers that write down how they are used. Inputs [B, F, 1].

    A buffer of zeros, [F], is added to the inputs: it has to be where they are.
    """

    shift: Tensor

    def __init__(self, values: list[Tensor]) -> None:
        """values: weight [H, F] and bias [H] of the first layer, weight [K, H] and bias [K] of the second."""
        super().__init__()
        hidden, features = values[0].shape
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, values[2].shape[0])
        self.register_buffer("shift", torch.zeros(features))
        load_values(self.parameters(), values)
        self.log: list[str] = []
        """"forward 8" for a forward pass of 8 samples, "backward 8" when backward reaches its outputs."""
        self.modes: list[Mode] = []
        """In which mode a forward pass found the model."""
        self.graphs: list[bool] = []
        """Whether a forward pass recorded a graph."""

    def forward(self, inputs: Tensor) -> Tensor:
        samples = len(inputs)
        self.log.append(f"forward {samples}")
        self.modes.append(mode_of(self))
        logits: Tensor = self.second(torch.tanh(self.first(inputs.squeeze(2) + self.shift)))
        self.graphs.append(logits.requires_grad)
        if logits.requires_grad:
            logits.register_hook(lambda _: self.log.append(f"backward {samples}"))  # type: ignore[no-untyped-call]
        return logits
