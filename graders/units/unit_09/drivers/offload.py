"""The driver of what holds activations on the host, and the model whose activations these are."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib import mark
from course_lib.training.host_memory import HostMemory
from graders.grading.answer import AnswerFunction, PlainData

Told = tuple[list[list[Tensor]], list[int]]
"""Gradients of the weights, by pass; and bytes on the host after each forward, and after each pass."""


def forward(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The loss of linear layers, each of which leaves its input, and a view of its weights. x [N, W], each
    weight [W', W].

    What is between two of them is looked at, and thrown away. The last operation saves two tensors, which
    backward asks for in that order.
    """
    for number, weight in enumerate(weights):
        x = x @ weight.mT
        if number == len(weights) // 2:
            (x.sin() * x).sum()
    return (x[:, :5].sin() * x[:, :1].cos()).sum()


def offloaded(
    answer: AnswerFunction, xs: list[Tensor], weights: list[Tensor], ahead: int, backwards: list[int]
) -> Told:
    """Passes of a model with what it saves on the host.

    xs: the samples of each pass, [N, W]. backwards: how many there are through the graph of each pass.
    """
    parameters = [torch.nn.Parameter(weight) for weight in weights]
    host = HostMemory()
    offload = answer(host, iter(parameters), *([] if ahead == 1 else [ahead]))
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def unpack(packed: PlainData) -> Tensor:
        tensor: Tensor = offload.unpack(packed)
        mark("stays" if tensor.untyped_storage().data_ptr() in known else "given")
        return tensor

    gradients, on_host = [], []
    mark("begins")
    for x, times in zip(xs, backwards, strict=True):
        with saved_tensors_hooks(offload.pack, unpack):
            loss = forward(x, parameters)
        mark("forward over")
        on_host.append(host.nbytes)
        for number in range(times):
            mark("backward")
            loss.backward(retain_graph=number + 1 < times)  # type: ignore[no-untyped-call]
        del loss
        on_host.append(host.nbytes)
        gradients.append([parameter.grad for parameter in parameters if parameter.grad is not None])
        for parameter in parameters:
            parameter.grad = None
    return gradients, on_host
