"""A small model that writes down how it is used."""

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Mode = bool | None
"""Whether a model is in training mode; None if only some of its modules are."""


def mode_of(model: nn.Module) -> Mode:
    """In which mode all modules of a model are, and so each dropout and each batch norm."""
    modes = {module.training for module in model.modules()}
    return modes.pop() if len(modes) == 1 else None


def in_words(mode: Mode) -> str:
    """`in training mode`."""
    return "in training mode in some modules only" if mode is None else f"in {_NAMES[mode]} mode"


_NAMES = {True: "training", False: "evaluation"}

NOT_CALLED = (
    "did not call the model (a copy is another one, and model.forward() leaves out the model's hooks)"
)


class _Saved:
    """A tensor that a graph keeps for backward; it lives as long as the graph needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _is_called(model: "Watched", _inputs: Any) -> None:
    """A hook, as weight norm and profilers have them: `model.forward(inputs)` leaves it out."""
    model.called = True


class Watched(nn.Module):
    """Two linear layers that write down how they are used, when they are called. Inputs [B, F, 1].

    A buffer of zeros, [F], is added to the inputs: it has to be where they are.
    """

    shift: Tensor

    def __init__(self, values: list[Tensor]) -> None:
        """values: weight [H, F] and bias [H] of the first layer, weight [K, H] and bias [K] of the second."""
        super().__init__()
        hidden, features = values[0].shape
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, values[2].shape[0])
        self.log: list[str] = []
        """"forward 8" for a forward pass of 8 samples, "backward 8" when backward reaches its outputs."""
        self.modes: list[Mode] = []
        """In which mode a forward pass found the model."""
        self.graphs: list[bool] = []
        """Whether a forward pass recorded a graph."""
        self.devices: list[str] = []
        """On which device a forward pass ran."""
        self.kept: list[int] = []
        """How many tensors of earlier graphs were still kept when a forward pass began."""
        self._saved: list[weakref.ref[_Saved]] = []
        self.called = False
        self.register_forward_pre_hook(_is_called)
        self.register_buffer("shift", torch.zeros(features))
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), values, strict=True):
                parameter.copy_(value)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.called:
            return self._logits(inputs)
        self.called = False
        samples = len(inputs)
        self.log.append(f"forward {samples}")
        self.modes.append(mode_of(self))
        self.devices.append(inputs.device.type)
        self.kept.append(sum(saved() is not None for saved in self._saved))
        with self._noting_what_is_kept():
            logits = self._logits(inputs)
        self.graphs.append(logits.requires_grad)
        if logits.requires_grad:
            logits.register_hook(lambda _: self.log.append(f"backward {samples}"))  # type: ignore[no-untyped-call]
        return logits

    def _logits(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.second(torch.tanh(self.first(inputs.squeeze(2) + self.shift)))
        return logits

    def _noting_what_is_kept(self) -> AbstractContextManager[Any]:
        """Within torch.func nothing is noted, for it allows no hooks."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved.tensor)

    def _save(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor)
        self._saved.append(weakref.ref(saved))
        return saved
