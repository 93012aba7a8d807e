"""What a forward pass leaves in memory for backward."""

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class KeptForBackward:
    """While it is entered: what autograd keeps for backward, besides the tensors that it is given.

    Counted, not estimated: every storage that a saved tensor lies in counts once.

        with KeptForBackward(model.parameters()) as kept:
            loss = loss_fn(model(inputs), targets)
        kept.nbytes
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        # Held here, so that no address comes twice.
        self._kept: dict[int, torch.UntypedStorage] = {}
        self._hooks = saved_tensors_hooks(self._record, _as_it_is)

    @property
    def nbytes(self) -> int:
        """Bytes kept so far."""
        return sum(storage.nbytes() for storage in self._kept.values())

    def __enter__(self) -> "KeptForBackward":
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _record(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._kept[storage.data_ptr()] = storage
        return tensor


def activation_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Bytes that autograd keeps from the forward pass for backward, besides the parameters and the inputs."""
    with KeptForBackward((inputs, *model.parameters())) as kept:
        model(inputs)
    return kept.nbytes


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
