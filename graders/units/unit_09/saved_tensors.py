"""What a model saves for backward, and in which order that comes back."""

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from graders.units.unit_09.offload_models import forward


def saved_by(
    kind: str, x: Tensor, weights: list[Tensor], frozen: list[int], leaves: list[int]
) -> tuple[list[int], list[int]]:
    """Bytes of each tensor that a model saves, besides the weights that stay, and their places in the order
    in which backward asks for them; what it never asks for is not there.
    """
    given = [weight.clone().requires_grad_(place not in frozen) for place, weight in enumerate(weights)]
    known = {own.untyped_storage().data_ptr() for place, own in enumerate(given) if place not in leaves}
    saved: list[int] = []
    asked: list[int] = []

    def pack(tensor: Tensor) -> tuple[int | None, Tensor]:
        if tensor.untyped_storage().data_ptr() in known:
            return None, tensor
        saved.append(tensor.numel() * tensor.element_size())
        return len(saved) - 1, tensor

    def unpack(packed: tuple[int | None, Tensor]) -> Tensor:
        place, tensor = packed
        if place is not None:
            asked.append(place)
        return tensor

    with saved_tensors_hooks(pack, unpack):
        forward(kind, x, given).backward()  # type: ignore[no-untyped-call]
    return saved, asked


def begun_of(asked: list[int], ahead: int) -> list[list[int]]:
    """Of tensors in the order in which backward asks for them: what has begun to come whenever it has one."""
    order, begun, found = sorted(asked), list[int](), []
    for each in asked:
        place = order.index(each)
        due = reversed(order[max(0, place - ahead) : place + 1])
        begun += [one for one in due if one not in begun]
        found.append([*begun])
    return found
