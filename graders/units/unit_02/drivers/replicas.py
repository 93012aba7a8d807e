"""Drivers of unit 02: replicas begin alike and stay alike."""

import torch
from torch import Tensor

from graders.grading.answer import AnswerFunction
from graders.units.models import Gradients, copies_of, gradients_of, load_values, state_of, transposed
from graders.units.unit_02.models import Chain, Normed, chain_of
from graders.units.unit_02.replies import AverageReply, BroadcastReply
from graders.units.unit_02.watching import broadcasts_in_autograd


def broadcast(answer: AnswerFunction, values: list[Tensor], src: int, by_columns: bool) -> BroadcastReply:
    """What a broadcast makes of a `Normed` with these values, of the shapes of `state_of`.

    by_columns: whether a weight and a buffer stand in memory column by column, on every rank: a contiguous
    copy is another tensor.
    """
    model = Normed()
    if by_columns:
        for tensor in (model.first.weight, model.positions):
            tensor.data = transposed(tensor.data)
    load_values(state_of(model), values)
    before = [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)]
    recorded = broadcasts_in_autograd()
    with torch.enable_grad():
        answer(model, src)
        records_again = torch.is_grad_enabled()
    return BroadcastReply(
        copies_of(model.parameters()),
        copies_of(model.buffers()),
        before == [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)],
        [parameter.requires_grad for parameter in model.parameters()],
        any(recorded),
        records_again,
    )


def broadcast_chain(
    answer: AnswerFunction, widths: list[int], values: list[Tensor], src: int
) -> list[Tensor]:
    """The parameters of a `Chain` with these values after a broadcast: it has no buffers."""
    model = Chain(widths)
    load_values(model.parameters(), values)
    answer(model, src)
    return copies_of(model.parameters())


def average(
    answer: AnswerFunction,
    values: list[Tensor],
    gradients: Gradients,
    frozen: list[int],
    by_columns: bool,
    again: bool,
) -> AverageReply:
    """What averaging leaves of a chain of linear layers. frozen: the numbers of the parameters that are.

    values: see `chain_of`. gradients: of the same shapes, those of frozen ones too. by_columns: they lie in
    memory column by column, as backward leaves some: flattened, that is a copy. again: whether it has
    averaged others of this model before, and none was missing: there each parameter's was its own value.
    """
    model = chain_of(values)
    parameters = list(model.parameters())
    for number in frozen:
        parameters[number].requires_grad_(False)
    if again:
        for parameter in parameters:
            parameter.grad = parameter.detach().clone()
        answer(model)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and by_columns:
            parameter.grad = transposed(gradient) if gradient.dim() else gradient
        else:
            parameter.grad = gradient
    before = [(parameter.grad, _memory_of(parameter.grad)) for parameter in parameters]
    # Memory that torch.empty finds next: not by chance zeros.
    freed = [torch.full_like(parameter, torch.nan) for parameter in parameters for _ in range(16)]
    del freed
    answer(model)
    in_place = all(
        old is None or (old is parameter.grad and memory == _memory_of(old))
        for (old, memory), parameter in zip(before, parameters, strict=True)
    )
    return AverageReply(gradients_of(model), copies_of(parameters), in_place)


def _memory_of(gradient: Tensor | None) -> int:
    return 0 if gradient is None else gradient.data_ptr()
