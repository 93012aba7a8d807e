"""Drivers of unit 09: they run beside the student's code, which could read an expected value here."""

import gc
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib import mark
from course_lib.training.host_memory import HostMemory
from course_lib.training.memory_plan import Layer, Task
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.models import copies_of, load_values
from graders.units.unit_09.driven import as_lists, both_passes, give_gradients, numbered, same_gradient
from graders.units.unit_09.models import Adaptive, Ladder, Rung
from graders.units.unit_09.offload_models import forward
from graders.units.unit_09.replies import GradientsReply, NormReply, OptimizerReply, StateReply, UnitsReply

# --- Shards of the model states


def optimizer_steps(
    answer: AnswerFunction,
    values: list[Tensor],
    frozen: list[int],
    groups: list[tuple[list[int], dict[str, float]]],
    options: dict[str, float],
    gradients: list[list[Tensor | None]],
    later: list[dict[str, float]],
) -> OptimizerReply:
    """Steps of the answer with `Adaptive`, one a list of gradients. values: of the parameters, of any shapes.

    frozen: numbers of some. groups: the numbers and options of each; without, all come as a generator.
    later: options of each group from the second step on.
    """
    parameters = [nn.Parameter(each.clone(), number not in frozen) for number, each in enumerate(values)]
    made = []

    class Noted(Adaptive):
        def __init__(self, *arguments: Any, **given: Any) -> None:
            super().__init__(*arguments, **given)
            made.append(self)

    described = [{"params": [parameters[number] for number in own], **more} for own, more in groups]
    optimizer = answer(described or (each for each in parameters), Noted, **options)
    seen, left = [], []
    for number, of_step in enumerate(gradients):
        give_gradients(parameters, of_step)
        mark("step begins")
        optimizer.step()
        mark("step done")
        if number + 1 == len(gradients):
            mark("over")
        seen.append(copies_of(parameters))
        left.append(all(map(same_gradient, parameters, of_step)))
        for group, more in zip(optimizer.param_groups, later, strict=False) if later else ():
            group.update(more)
    give_gradients(parameters, gradients[0])
    optimizer.zero_grad()
    cleared = all(each.grad is None for number, each in enumerate(parameters) if number not in frozen)
    return OptimizerReply(seen, left, cleared, sum(each.numbers() for each in made))


def gradient_shards(
    answer: AnswerFunction,
    values: list[Tensor],
    shape: tuple[int, bool, list[int]],
    passes: list[tuple[Tensor, list[int]]],
    bucket_bytes: int,
) -> GradientsReply:
    """What the answer makes of the gradients of a `Ladder` of this shape: how many layers, tied, frozen.

    passes: inputs [B, width], and the layers in the order in which this rank uses them.
    """
    model = Ladder(values, *shape)
    made = answer(model, bucket_bytes)
    shards, left = [], []
    for x, order in passes:
        loss = model(x, order).square().sum()
        mark("step begins")
        loss.backward()
        mark("backward ends")
        shards.append(made.finish())
        mark("finished")
        left.append(sum(parameter.grad is not None for parameter in model.parameters()))
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    return GradientsReply(numbered(made.buckets, numbers), shards, left)


def buckets_of(answer: AnswerFunction, values: list[Tensor], limits: list[int]) -> list[PlainData]:
    """The numbers of the parameters in the buckets of a `Ladder`, for each bound on their bytes."""
    found = []
    for limit in limits:
        model = Ladder(values, len(values) // 2, False, [])
        numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
        found.append(numbered(answer(model, limit).buckets, numbers))
    return found


def units(
    answer: AnswerFunction,
    values: list[list[Tensor]],
    shards: list[Tensor],
    batches: list[Tensor],
    together: bool,
    early: bool,
) -> UnitsReply:
    """Forward and backward passes of units of `Rung`s, one behind the other; see `both_passes`.

    values: of the parameters of each. shards: this rank's, in place of what the units were made with.
    together: the answer makes all units at once. early: every unit is told to start before it is called.
    """
    modules = [Rung(number, own) for number, own in enumerate(values)]
    before = [[id(each), *map(id, each.parameters())] for each in modules]
    mark("making")
    model = answer(modules) if together else nn.Sequential(*map(answer, modules))
    made: list[Any] = list(model)
    changed = before != [[id(each), *map(id, each.parameters())] for each in modules]
    changed |= any(
        not torch.equal(parameter, value) or parameter.grad is not None
        for module, own in zip(modules, values, strict=True)
        for parameter, value in zip(module.parameters(), own, strict=True)
    )
    del modules[:]
    # What an answer leaves in circles is young; going through all of memory takes long.
    gc.collect(1)
    mark("made")
    first = [unit.shard.detach().clone() for unit in made]
    others = sum(len(list(unit.parameters())) for unit in made) - len(made)
    if [own.shape for own in first] != [own.shape for own in shards]:
        return UnitsReply(first, others, [], [], None, changed)
    load_values([unit.shard for unit in made], shards)
    return UnitsReply(first, others, *both_passes(model, batches, early), changed)


def clipped(
    answer: AnswerFunction, weights: list[Tensor], gradients: list[Tensor | None], max_norm: float
) -> NormReply:
    """What the answer makes of this rank's shards, of any shapes, and of the tensors that are gradients."""
    shards = [nn.Parameter(each.clone()) for each in weights]
    for shard, gradient in zip(shards, gradients, strict=True):
        shard.grad = None if gradient is None else gradient.clone()
    given = [each.grad for each in shards]
    norm = answer(iter(shards), max_norm)
    norm = norm.detach().clone() if isinstance(norm, Tensor) else norm
    left = [None if each.grad is None else each.grad.clone() for each in shards]
    in_place = all(each.grad is gradient for each, gradient in zip(shards, given, strict=True))
    return NormReply(norm, left, in_place, [each.detach().clone() for each in shards])


def gathered(answer: AnswerFunction, shards: dict[str, Tensor], shapes: dict[str, list[int]]) -> StateReply:
    """What the answer makes of this rank's shards, and what is left of these when it is written into."""
    given = {name: torch.Size(shape) for name, shape in shapes.items()}
    mark("begins")
    state = answer(shards, given)
    mark("done")
    if type(state) is not dict or not all(isinstance(each, Tensor) for each in state.values()):
        return StateReply(state, shards, as_lists(given))
    seen = {name: each.detach().clone() for name, each in state.items()}
    for each in state.values():
        each.detach().zero_()
    return StateReply(seen, shards, as_lists(given))


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

    xs: the samples of each pass, [N, W]. weights: [W, W], trained but for those at places in `frozen`.
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
        for again in {"never": [], "once": [False], "twice": [True, False]}[way]:
            mark("backward")
            loss.backward(retain_graph=again)  # type: ignore[no-untyped-call]
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
    """What the answer makes of plain arguments, and of the arguments. A `Way` comes as its word."""
    result = answer(*arguments)
    if isinstance(result, list):
        result = [str(each) if isinstance(each, str) else each for each in result]
    return ListReply(result, list(arguments))


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
