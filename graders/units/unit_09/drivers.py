"""Drivers of unit 09: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib import mark
from course_lib.training.host_memory import HostMemory
from course_lib.training.memory_plan import Layer, Task
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.unit_09.offload_models import forward

# --- Sections 9 to 15: activations


@dataclass(frozen=True, slots=True)
class OffloadReply(DriverReply):
    """What passes of a model left, one after another.

    gradients: of the weights [W, W], by pass. on_host: bytes there after each forward, and at the end of each
    pass.
    """

    gradients: list[list[Tensor]]
    on_host: list[int]


def offloaded(
    answer: AnswerFunction,
    kind: str,
    xs: list[Tensor],
    weights: list[Tensor],
    frozen: list[int],
    ahead: int,
    passes: list[str],
) -> OffloadReply:
    """Passes of a model with what it saves on the host. kind: see `offload_models`.

    xs: the samples of each pass, [N, W]. weights: each [W, W], trained but for those at places in `frozen`.
    passes: "once", "twice" for a second backward through the same graph, or "never".
    """
    parameters = [torch.nn.Parameter(weight, number not in frozen) for number, weight in enumerate(weights)]
    host = HostMemory()
    offload = answer(host, iter(parameters), *([] if ahead == 1 else [ahead]))
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def unpack(packed: PlainData) -> Tensor:
        mark("asked")
        tensor: Tensor = offload.unpack(packed)
        mark("stays" if tensor.untyped_storage().data_ptr() in known else "given")
        return tensor

    gradients, on_host = [], []
    for x, way in zip(xs, passes, strict=True):
        with saved_tensors_hooks(offload.pack, unpack):
            loss = forward(kind, x, parameters)
        mark("forward over")
        on_host.append(host.nbytes)
        if way == "twice":
            loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        if way != "never":
            mark("backward")
            loss.backward()  # type: ignore[no-untyped-call]
        del loss
        on_host.append(host.nbytes)
        gradients.append([parameter.grad for parameter in parameters if parameter.grad is not None])
        for parameter in parameters:
            parameter.grad = None
    return OffloadReply(gradients, on_host)


@dataclass(frozen=True, slots=True)
class ListReply(DriverReply):
    """result: what the answer returned. arguments: as the answer left them."""

    result: PlainData
    arguments: list[PlainData]


def listed(answer: AnswerFunction, *arguments: PlainData) -> ListReply:
    """What the answer makes of plain arguments, and of the arguments."""
    return ListReply(answer(*arguments), list(arguments))


@dataclass(frozen=True, slots=True)
class MemoryPlanReply(DriverReply):
    """The three parts of a plan."""

    stage: int
    micro_batches: int
    ways: list[str]


def memory_planned(
    answer: AnswerFunction, layers: list[PlainData], rest: dict[str, PlainData]
) -> MemoryPlanReply:
    """The answer's plan. layers: of each, what `Layer` takes. rest: what else `Task` takes."""
    rest = {**rest, "states": tuple(rest["states"])}
    plan = answer(Task(layers=tuple(Layer(*layer) for layer in layers), **rest))
    return MemoryPlanReply(plan.stage, plan.micro_batches, list(map(str, plan.ways)))
