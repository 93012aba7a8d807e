"""The driver of what holds activations on the host."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib import mark
from course_lib.training.host_memory import HostMemory
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.unit_09.offload_models import forward
from graders.units.unit_09.replies import OffloadReply


def offloaded(
    answer: AnswerFunction,
    kind: str,
    xs: list[Tensor],
    weights: list[Tensor],
    frozen: list[int],
    leaves: list[int],
    ahead: int,
    passes: list[str],
) -> OffloadReply:
    """Passes of a model with what it saves on the host. kind: see `offload_models`.

    xs: the samples of each pass, [N, W]. weights: [W, W], for "mixed" within their storage, trained but for
    those at places in `frozen`; all stay but those at places in `leaves`. passes: "once", "twice" for
    a second backward through the same graph, "late" for one when all passes are over, or "never".
    """
    weights = [torch.cat([each[:1], each])[1:] for each in weights] if kind == "mixed" else weights
    parameters = [torch.nn.Parameter(weight, number not in frozen) for number, weight in enumerate(weights)]
    host = HostMemory()
    stays = [parameter for number, parameter in enumerate(parameters) if number not in leaves]
    offload = answer(host, iter(stays), *([] if ahead == 1 else [ahead]))
    known = {parameter.untyped_storage().data_ptr() for parameter in stays}

    pack = _beside_another(answer, offload.pack)

    def unpack(packed: PlainData) -> Tensor:
        mark("asked")
        tensor: Tensor = offload.unpack(packed)
        mark("stays" if tensor.untyped_storage().data_ptr() in known else "given")
        return tensor

    gradients, on_host = [], []

    def take() -> None:
        gradients.append([parameter.grad for parameter in parameters if parameter.grad is not None])
        for parameter in parameters:
            parameter.grad = None

    kept = []
    for x, way in zip(xs, passes, strict=True):
        with saved_tensors_hooks(pack, unpack):
            loss = forward(kind, x, parameters)
        mark("forward over")
        on_host.append(host.nbytes)
        for again in {"never": [], "once": [False], "twice": [True, False], "late": [True]}[way]:
            mark("backward")
            loss.backward(retain_graph=again)  # type: ignore[no-untyped-call]
        kept += [loss] if way == "late" else []
        del loss
        on_host.append(host.nbytes)
        take()
    for loss in kept:
        loss.backward()  # type: ignore[no-untyped-call]
        take()
    return OffloadReply(gradients, on_host)


def _beside_another(answer: AnswerFunction, pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """pack of a HostOffload; before each tensor another HostOffload packs one of no bytes."""
    other, packed = answer(HostMemory(), ()), []

    def packs(tensor: Tensor) -> Any:
        packed.append(other.pack(tensor.new_empty(0)))
        return pack(tensor)

    return packs
