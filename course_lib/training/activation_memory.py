"""What a forward pass leaves in memory for backward."""

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def activation_bytes(model: nn.Module, inputs: Tensor) -> int:
    """Bytes that autograd keeps from the forward pass for backward, besides the parameters and the inputs.

    Counted, not estimated: every storage that a saved tensor lies in counts once.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in (inputs, *model.parameters())}
    # The storages themselves stay in the graph until it is dropped, so that no address comes twice.
    kept: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(record, _as_it_is):
        output = model(inputs)
    total = sum(kept.values())
    del output
    return total


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
