"""What the drivers of unit 05 build, and graders beside them. Shapes: B samples, I in, H within, O out."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from course_lib.runtime.eager_mode import EagerDispatchMode


class Piece(nn.Module):
    """A stage: [B, I] to tanh(x weight + bias) [B, O], or without weights to tanh(x).

    values: weight [I, O], bias [O] and, where there are three, a table [V, I], which makes the input
    numbers of its rows [B], int64. turned: the output lies in memory column by column. doubled: it is
    float64. frozen: names of parameters that are not trained.
    """

    def __init__(
        self,
        values: Sequence[Tensor],
        turned: bool = False,
        doubled: bool = False,
        frozen: Sequence[str] = (),
    ) -> None:
        super().__init__()
        for name, value in zip(("weight", "bias", "table"), values, strict=False):
            self.register_parameter(name, nn.Parameter(value.clone(), requires_grad=name not in frozen))
        self.turned, self.doubled = turned, doubled
        self.modes: list[bool] = []
        """Of each forward, whether it was in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        self.modes.append(self.training)
        weights = dict(self.named_parameters())
        if "table" in weights:
            x = weights["table"][x]
        if weights:
            x = x @ weights["weight"] + weights["bias"]
        output = torch.tanh(x)
        if self.turned:
            output = output.mT.contiguous().mT
        return output.double() if self.doubled else output


def lopsided_loss(output: Tensor, target: Tensor) -> Tensor:
    """A mean over the samples in which output and target cannot change places, a scalar."""
    return (output.pow(3) - 2 * output * target.square()).mean()


class Product(nn.Module):
    """[B, I] to x weight + bias [B, O]; without a bias to x weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


class Twice(nn.Sequential):
    """A stage of two products with a tanh between them: [B, I] to [B, O].

    values: [I, H], [H, O] and a bias [O], which may be frozen.
    """

    def __init__(self, values: Sequence[Tensor], frozen: bool) -> None:
        first, second, bias = values
        super().__init__(Product(first), nn.Tanh(), Product(second, bias))
        list(self.parameters())[-1].requires_grad_(not frozen)


class Descent:
    """Gradient descent with momentum and decay of the weights, as torch.optim.SGD has them.

    Importing that takes a second.
    """

    def __init__(
        self, parameters: Sequence[Tensor], rate: float, momentum: float = 0.0, decay: float = 0.0
    ) -> None:
        self.rate, self.momentum, self.decay = rate, momentum, decay
        halves = (list(parameters[:1]), list(parameters[1:]))
        self.param_groups: list[dict[str, Any]] = [{"params": half, "lr": rate} for half in halves]
        self.velocities: dict[Tensor, Tensor] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        for parameter in self._parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters in place by their gradients."""
        for parameter in self._parameters():
            if parameter.grad is None:
                continue
            change = parameter.grad
            if self.decay:
                change = change + self.decay * parameter
            if self.momentum:
                before = self.velocities.get(parameter)
                change = change.clone() if before is None else before.mul_(self.momentum).add_(change)
                self.velocities[parameter] = change
            parameter.sub_(change, alpha=self.rate)

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])


class HeldBytes(EagerDispatchMode):
    """Counts the memory of tensors that were made inside of it and are still alive, whoever keeps them."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in tensors:
            self._note(tensor)

    def count(self) -> int:
        """Bytes of all storages that are alive."""
        self._storages = {key: pair for key, pair in self._storages.items() if not _expired(pair[0])}
        return sum(nbytes for _, nbytes in self._storages.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return made

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = (_reference(storage), storage.nbytes())


def _reference(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _expired(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]
