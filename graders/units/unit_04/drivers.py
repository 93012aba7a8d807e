"""Drivers of unit 04: they run beside the student's code, which could read an expected value here.

A unit's drivers are one module, so that it is plain what runs there; hence its length.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from course_lib import Link, mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.unit_04 import horovodrun
from graders.units.unit_04.models import Normed, Paths, PlainSGD, load_values, state_of

Gradients = list[Tensor | None]
"""Of a model's parameters in their order; None where there is none."""


def calls(answer: AnswerFunction, given: list[list[PlainData]]) -> list[PlainData]:
    """What the answer returns for each list of arguments."""
    return [answer(*arguments) for arguments in given]


@dataclass(frozen=True, slots=True)
class PlanReply(DriverReply):
    """plan: what the answer returned. left: what its arguments are afterwards."""

    plan: PlainData
    left: list[PlainData]


def planned(answer: AnswerFunction, given: list[list[PlainData]]) -> list[PlanReply]:
    """What the answer makes of each list of arguments."""
    return [PlanReply(answer(*arguments), arguments) for arguments in given]


@dataclass(frozen=True, slots=True)
class WarmupReply(DriverReply):
    """The callback's fields, None where it has none, the rates with which new_optimizer was called, and
    whether the callback has one of those optimizers.
    """

    initial_lr: PlainData
    warmup_steps: PlainData
    size: PlainData
    made: list[PlainData]
    own: bool


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
    return WarmupReply(rate, steps, workers, made, own)


@dataclass(frozen=True, slots=True)
class BroadcastReply(DriverReply):
    """A rank's model and optimizer afterwards.

    tensors: of the model. options: of each group. states: of the trainable parameters, empty without one.
    in_place: whether the tensors are those that were there; shared: whether the optimizer has them;
    trainable: whether the same ones require a gradient; untouched: whether gradients and the model's mode are
    what they were. steps: how many were taken.
    """

    tensors: list[Tensor]
    options: list[dict[str, PlainData]]
    states: list[dict[str, PlainData]]
    in_place: bool
    shared: bool
    trainable: bool
    untouched: bool
    steps: int


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
    answer(model, optimizer)
    kept = all(old is parameter.grad for old, parameter in zip(gradients, trained, strict=True))
    after = [(id(tensor), tensor.data_ptr(), tensor.requires_grad) for tensor in state_of(model)]
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return BroadcastReply(
        _copies(state_of(model)),
        [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ],
        [dict(optimizer.state.get(parameter, {})) for parameter in trained],
        [each[:2] for each in before] == [each[:2] for each in after],
        list(map(id, held)) == list(map(id, trained)),
        before == after,
        model.training and kept and torch.equal(ones, torch.ones_like(ones)),
        optimizer.taken,
    )


@dataclass(frozen=True, slots=True)
class MeansReply(DriverReply):
    """means: what this rank gets. kept: whether the dictionary that was given is what it was."""

    means: dict[str, PlainData]
    kept: bool


def metrics(answer: AnswerFunction, own: dict[str, float], samples: int) -> MeansReply:
    """The means that this rank gets."""
    before = dict(own)
    means = answer(own, samples)
    return MeansReply(means, means is not own and list(own.items()) == list(before.items()))


@dataclass(frozen=True, slots=True)
class FusedReply(DriverReply):
    """result: the buffer. history: whether autograd knows of it. contiguous: whether its numbers lie one
    behind the other. kept: whether the tensors given stay as they are when the buffer is written to; same:
    whether they still require a gradient, or not, and lie where they lay.
    """

    result: PlainData
    history: bool
    contiguous: bool
    kept: bool
    same: bool


def fused(answer: AnswerFunction, tensors: list[Tensor], layout: str, trained: bool) -> FusedReply:
    """The buffer of these tensors, laid out as asked: "contiguous", "transposed" or "strided"."""
    given = [_laid_out(tensor, layout).requires_grad_(trained) for tensor in tensors]
    before = [(each.requires_grad, each.data_ptr(), each.shape, each.stride()) for each in given]
    flat = answer(given)
    same = before == [(each.requires_grad, each.data_ptr(), each.shape, each.stride()) for each in given]
    if not isinstance(flat, Tensor):
        return FusedReply(flat, False, True, True, same)
    result, history = flat.detach().clone(), flat.requires_grad
    flat.detach().add_(1)
    kept = all(torch.equal(own, tensor) for own, tensor in zip(given, tensors, strict=True))
    return FusedReply(result, history, flat.is_contiguous(), kept, same)


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    if layout == "transposed":
        return tensor.mT.contiguous().mT
    if layout == "strided":
        return torch.stack([tensor, tensor], -1)[..., 0]
    return tensor.clone()


@dataclass(frozen=True, slots=True)
class UnfusedReply(DriverReply):
    """result: the tensors. flat: the buffer after 1 was added to each of them."""

    result: PlainData
    flat: Tensor


def unfused(answer: AnswerFunction, flat: Tensor, shapes: list[list[int]]) -> UnfusedReply:
    """What the answer cuts out of flat [n], which begins within a larger tensor, and whether that is still
    part of it.
    """
    flat = torch.cat([flat[:0].new_ones(3), flat, flat[:0].new_ones(2)])[3:-2]
    parts = answer(flat, [torch.Size(shape) for shape in shapes])
    copies = _copies(parts)
    for part in parts:
        part += 1
    return UnfusedReply(copies, flat.clone())


def unfuse_raises(answer: AnswerFunction, flat: Tensor, shapes: list[list[int]]) -> str:
    """The class of what the answer raises, by name; empty if nothing. flat: [n]."""
    try:
        answer(flat, [torch.Size(shape) for shape in shapes])
    except NotImplementedError:
        raise
    except ValueError:  # or a class made from it
        return "ValueError"
    except Exception as error:
        return type(error).__name__
    return ""


def cycles(answer: AnswerFunction, requests: list[list[str]], trainings: int) -> list[PlainData]:
    """What each cycle returns on this rank. requests: of each cycle; trainings: of equally many, with a table
    each.
    """
    tables: list[dict[str, Any]] = [{} for _ in range(trainings)]
    length = len(requests) // trainings
    return [answer(list(names), tables[cycle // length]) for cycle, names in enumerate(requests)]


@dataclass(frozen=True, slots=True)
class StepReply(DriverReply):
    """After a step: gradients and values of all parameters, and whether gradients that were there before
    are the tensors that they were.
    """

    gradients: Gradients
    parameters: list[Tensor]
    in_place: bool


def train(
    answer: AnswerFunction,
    model_options: dict[str, PlainData],
    values: list[Tensor],
    inputs: list[list[Tensor]],
    orders: list[list[list[int]]],
    options: dict[str, PlainData],
) -> list[StepReply]:
    """Steps of a `Paths` with the answer's optimizer.

    values: of the parameters. inputs, orders: by step and micro-batch, [B, width], and through which layers.
    options: "passes", "threshold", "lr", and "to_none", of zero_grad.
    """
    model = Paths(**model_options)
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), options["lr"])
    names = model.named_parameters(remove_duplicate=False)
    optimizer = answer(plain, names, options["passes"], threshold=options["threshold"])
    replies = []
    for batches, paths in zip(inputs, orders, strict=True):
        mark("step begins")
        optimizer.zero_grad(set_to_none=options["to_none"])
        for number, (batch, path) in enumerate(zip(batches, paths, strict=True)):
            model(batch, path, number).square().mean().backward()
            mark(f"backward {number} ends")
        before = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
        mark("stepped")
        in_place = all(
            old is None or old is parameter.grad
            for old, parameter in zip(before, model.parameters(), strict=True)
        )
        replies.append(StepReply(_gradients(model), _copies(model.parameters()), in_place))
    return replies


@dataclass(frozen=True, slots=True)
class OwnReply(DriverReply):
    """What of the answer is the wrapped optimizer's own.

    shared: names of its attributes that are. state: whether state_dict() is its, and load_state_dict()
    reaches it. returned: what step(closure) returned. taken: steps of the optimizer after each phase.
    parameters: the model's values after each phase. cleared: how many gradients are 0 after
    zero_grad(set_to_none=False), and how many None after zero_grad().
    """

    shared: list[str]
    state: bool
    returned: PlainData
    taken: list[int]
    parameters: list[list[Tensor]]
    cleared: list[int]


OWN = ("param_groups", "state", "defaults")


def own(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> OwnReply:
    """One layer, in six phases, each marked: a step before any backward; one with a closure; one at another
    rate; one with gradients halved after synchronize(); one whose backward came after synchronize(); and one
    without a backward. inputs: [B, width].
    """
    width = inputs.shape[1]
    model = Paths(width, [2], ["float32"], [], [])
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), 0.1)
    optimizer = answer(plain, model.named_parameters())
    shared = [name for name in OWN if getattr(optimizer, name, None) is getattr(plain, name)]
    taken, parameters = [], []

    def end(phase: int) -> None:
        mark(f"phase {phase} ends")
        taken.append(plain.taken)
        parameters.append(_copies(model.parameters()))
        optimizer.zero_grad()

    def backward() -> None:
        model(inputs, [0]).square().mean().backward()

    optimizer.step()
    end(0)
    backward()
    returned = optimizer.step(lambda: 4.5)
    end(1)
    optimizer.param_groups[0]["lr"] = 0.01
    backward()
    optimizer.step()
    end(2)
    backward()
    optimizer.synchronize()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    optimizer.step()
    end(3)
    backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    backward()
    optimizer.step()
    end(4)
    optimizer.step()
    end(5)
    saved = optimizer.state_dict()
    same = saved["param_groups"] == plain.state_dict()["param_groups"] and len(saved["state"]) == 3
    saved["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(saved)
    same = same and plain.param_groups[0]["lr"] == 0.5
    return OwnReply(shared, same, returned, taken, parameters, _cleared(model, optimizer))


def _cleared(model: torch.nn.Module, optimizer: Any) -> list[int]:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.zero_grad(set_to_none=False)
    zeros = sum(grad is not None and not grad.any() for grad in _gradients(model))
    optimizer.zero_grad()
    return [zeros, sum(grad is None for grad in _gradients(model))]


def refusals(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> list[str]:
    """The class of what is raised, by name, or nothing, in turn: zero_grad() after a backward; after step();
    after synchronize(); after the first of two passes; by the second of two passes; by a third. inputs: [B,
    width]. One of two layers has no gradient, so the only message is not complete before synchronize().
    """
    width = inputs.shape[1]
    found: list[str] = []
    for passes in (1, 2):
        model = Paths(width, [2, 2], ["float64"] * 2, [], [])
        load_values(model.parameters(), values)
        optimizer = answer(PlainSGD(model.parameters(), 0.1), model.named_parameters(), passes)

        def backward(model: Paths = model) -> None:
            model(inputs, [0]).square().mean().backward()

        backward()
        found.append(_raised(optimizer.zero_grad))
        if passes == 1:
            optimizer.step()
            found.append(_raised(optimizer.zero_grad))
            backward()
            optimizer.synchronize()
            found.append(_raised(optimizer.zero_grad))
        else:
            found.append(_raised(backward))
            found.append(_raised(backward))
            with suppress(Exception):  # what is under way is to be waited for, whatever state that left
                optimizer.synchronize()
    return found


def _raised(action: Callable[[], Any]) -> str:
    try:
        action()
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    return ""


def _copies(tensors: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _gradients(model: torch.nn.Module) -> Gradients:
    """A copy of each parameter's gradient, None where there is none."""
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def tuned(
    answer: AnswerFunction, sizes: list[int], ready: list[float], ranks: int, latency: float, bandwidth: float
) -> PlainData:
    """What the answer chooses for this model and this link."""
    return answer(sizes, ready, ranks, Link(latency, bandwidth))


@dataclass(frozen=True, slots=True)
class ProcessReply(DriverReply):
    """What one process of a run did; see `graders.units.unit_04.horovod_rank`.

    accuracy: what it returned. returned: whether it also returned its model. weights: of that, afterwards.
    starts: its weight before the first two batches, seen: the inputs of all; saved: when the checkpoint was
    written, as known at each batch. gpus: which it used. files: what lies in its node's folder; checkpoint:
    what that holds.
    """

    accuracy: PlainData
    returned: bool
    weights: list[Tensor]
    starts: list[Tensor]
    seen: list[Tensor]
    saved: list[int]
    gpus: list[PlainData]
    files: list[str]
    checkpoint: dict[str, PlainData] | None
    written: bytes


def under_horovodrun(
    answer: AnswerFunction,
    values: list[list[Tensor]],
    data: dict[str, Tensor],
    epochs: int,
    checkpoint: bytes,
) -> list[ProcessReply]:
    """What each process did in one run; see `graders.units.unit_04.horovodrun.run`."""
    told = horovodrun.run(answer, values, data, epochs, checkpoint)
    return [ProcessReply(**process) for process in told]
