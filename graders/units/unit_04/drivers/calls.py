"""An answer is called with what the grader has drawn, or on every rank."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from course_lib import Link
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import copies_of, load_values, state_of
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.models import HashedName, Normed
from graders.units.unit_04.replies import BroadcastReply, CallReply, MeansReply, WarmupReply


def calls(answer: AnswerFunction, given: list[list[PlainData]]) -> list[PlainData]:
    """What the answer returns for each list of arguments."""
    return [answer(*arguments) for arguments in given]


def given_and_left(answer: AnswerFunction, given: list[list[PlainData]]) -> list[CallReply]:
    """What the answer makes of each list of arguments."""
    return [CallReply(answer(*arguments), arguments) for arguments in given]


def warmup(answer: AnswerFunction, learning_rate: float, size: int, steps_per_epoch: int) -> WarmupReply:
    """How the answer makes its optimizer and its callback."""
    optimizers: list[Any] = []
    made: list[PlainData] = []

    def new_optimizer(lr: float) -> Any:
        made.append(lr)
        optimizers.append(SimpleNamespace(param_groups=[{"lr": lr}]))
        return optimizers[-1]

    callback = answer(new_optimizer, learning_rate, size, steps_per_epoch)
    own = any(getattr(callback, "optimizer", None) is optimizer for optimizer in optimizers)
    rate, steps, workers = (getattr(callback, name, None) for name in ("initial_lr", "warmup_steps", "size"))
    return WarmupReply(callback is not None, rate, steps, workers, made, own)


def broadcast(
    answer: AnswerFunction,
    values: list[Tensor],
    options: list[dict[str, float]],
    states: list[dict[str, PlainData]],
) -> BroadcastReply:
    """What a broadcast makes of a `Normed` and its optimizer.

    values: of the shapes of `state_of`. options: of the optimizer's two groups. states: one a trainable
    parameter, empty if it has none.
    """
    model = Normed()
    load_values(state_of(model), values)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    halves = trained[:2], trained[2:]
    groups = [{"params": half, **own} for half, own in zip(halves, options, strict=True)]
    optimizer = PlainSGD(groups, 0.1)
    for parameter, state in zip(trained, states, strict=True):
        if state:
            optimizer.state[parameter] = dict(state)
    before = [(id(tensor), tensor.data_ptr(), tensor.requires_grad) for tensor in state_of(model)]
    ones = trained[0].grad = torch.ones_like(trained[0])
    gradients = [parameter.grad for parameter in trained]
    random = torch.get_rng_state()
    answer(model, optimizer)
    same_random = torch.equal(random, torch.get_rng_state())
    kept = all(old is parameter.grad for old, parameter in zip(gradients, trained, strict=True))
    after = [(id(tensor), tensor.data_ptr(), tensor.requires_grad) for tensor in state_of(model)]
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return BroadcastReply(
        copies_of(state_of(model)),
        [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ],
        [dict(optimizer.state.get(parameter, {})) for parameter in trained],
        [each[:2] for each in before] == [each[:2] for each in after],
        list(map(id, held)) == list(map(id, trained)),
        before == after,
        model.training and kept and same_random and torch.equal(ones, torch.ones_like(ones)),
        optimizer.taken,
    )


def metrics(answer: AnswerFunction, own: dict[str, float], samples: int, hashes: list[int]) -> MeansReply:
    """The means that this rank gets. hashes: of its names in their order; empty for those of this process."""
    if hashes:
        own = {HashedName(*name): own[name[0]] for name in zip(own, hashes, strict=True)}
    before = list(own.items())
    means = answer(own, samples)
    named = {str(name): mean for name, mean in means.items()}
    return MeansReply(named, means is not own, list(own.items()) == before)


def cycles(answer: AnswerFunction, requests: list[list[str]], trainings: int) -> list[PlainData]:
    """What each cycle returns on this rank. requests: of each cycle; trainings: of equally many, with a table
    each.
    """
    tables: list[dict[str, Any]] = [{} for _ in range(trainings)]
    length = len(requests) // trainings
    return [answer(list(names), tables[cycle // length]) for cycle, names in enumerate(requests)]


def tuned(
    answer: AnswerFunction, sizes: list[int], ready: list[float], ranks: int, latency: float, bandwidth: float
) -> PlainData:
    """What the answer chooses for this model and this link."""
    return answer(sizes, ready, ranks, Link(latency, bandwidth))
