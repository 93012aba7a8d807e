"""A model and an optimizer that become rank 0's."""

from typing import Any

import torch
import torch.distributed as dist

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.models import copies_of, gradients_of, load_values, state_of
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import Normed, plain_model


def broadcast(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[dict[str, PlainData]],
    layouts: list[str],
    members: list[list[int] | None],
    meet: list[bool],
) -> list[Called]:
    """What each call leaves of this rank's model and optimizer: the model's state by names, the options of
    each group, and the state of each trained parameter, empty where there is none. Then, as arguments, what
    has to be as before.

    cases: whether the model is a `Normed`; values of its state; options of the optimizer's groups; and
    states, one a trained parameter. options, layouts, members, meet: see `graders.units.ranks.drivers.calls`.
    """
    told = []
    for (normed, values, groups, states), together in zip(cases, meet, strict=True):
        if together:
            dist.barrier()
        model: Any = Normed() if normed else plain_model()
        load_values(state_of(model), values)
        optimizer = _optimizer(model, groups, states)
        before = _what_stays(model, optimizer)
        answer(model, optimizer)
        stays = [now == then for now, then in zip(_what_stays(model, optimizer), before, strict=True)]
        names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
        result = {
            "tensors": dict(zip(names, copies_of(state_of(model)), strict=True)),
            "options": [
                {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
            ],
            "states": [
                dict(optimizer.state.get(each, {}))
                for group in optimizer.param_groups
                for each in group["params"]
            ],
        }
        told.append(Called(result, None, [*stays, optimizer.taken]))
    return told


def _optimizer(model: Any, groups: list[dict[str, Any]], states: list[dict[str, Any]]) -> PlainSGD:
    """Over the trained parameters, of which the first group has one if there is another. The first has a
    gradient of ones.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = [trained[:1], trained[1:]] if len(groups) > 1 else [trained]
    made = PlainSGD([{"params": part, **own} for part, own in zip(parts, groups, strict=True)], 0.1)
    for parameter, state in zip(trained, states, strict=True):
        if state:
            made.state[parameter] = dict(state)
    trained[0].grad = torch.ones_like(trained[0])
    return made


def _what_stays(model: Any, optimizer: PlainSGD) -> list[Any]:
    """Which tensors there are, and where; which the optimizer has; and gradients."""
    held = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    gradients = [None if each is None else each.tolist() for each in gradients_of(model)]
    return [
        [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)],
        held,
        gradients,
    ]
