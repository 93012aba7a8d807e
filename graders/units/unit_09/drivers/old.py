"""Drivers of unit 09: they run beside the student's code, which could read an expected value here."""

import gc
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib import mark
from course_lib.training.host_memory import HostMemory
from course_lib.training.memory_plan import Layer, Task
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import copies_of, gradients_of, load_values, transposed
from graders.units.unit_09 import driven
from graders.units.unit_09.models import Adaptive, Assorted, Ladder, Rung, over
from graders.units.unit_09.offload_models import forward
from graders.units.unit_09.replies import (
    AssortedReply,
    GradientsReply,
    ListReply,
    MemoryPlanReply,
    NormReply,
    OffloadReply,
    OptimizerReply,
    StateReply,
    UnitsReply,
)

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

    frozen: numbers of some. groups: the numbers and options of each. Parameters come as a generator, in each
    group and without. later: options of each group from the second step on.
    """
    parameters = [
        nn.Parameter(transposed(each.clone()), number not in frozen) for number, each in enumerate(values)
    ]
    # Whoever refers to a parameter's memory sees what is written there.
    seen_by_others = [each.detach() for each in parameters]
    made = []

    class Noted(Adaptive):
        def __init__(self, *arguments: Any, **given: Any) -> None:
            super().__init__(*arguments, **given)
            made.append(self)

    iterators = [(parameters[number] for number in own) for own, _ in groups]
    described = [{"params": own, **more} for own, (_, more) in zip(iterators, groups, strict=True)]
    optimizer = answer([*described] or (each for each in parameters), Noted, **options)
    changed = any(
        each.keys() != {"params", *more} or each["params"] is not own
        for each, own, (_, more) in zip(described, iterators, groups, strict=True)
    )
    seen, left = [], []
    for number, of_step in enumerate(gradients):
        driven.give_gradients(parameters, of_step)
        mark("step begins")
        optimizer.step()
        mark("step done")
        if number + 1 == len(gradients):
            mark("over")
        seen.append(copies_of(seen_by_others))
        left.append(all(map(driven.same_gradient, parameters, of_step)))
        changed |= frozen != [n for n, each in enumerate(parameters) if not each.requires_grad]
        for group, more in zip(optimizer.param_groups, later, strict=False) if later else ():
            group.update(more)
    driven.give_gradients(parameters, gradients[0])
    optimizer.zero_grad()
    cleared = all(each.grad is None for number, each in enumerate(parameters) if number not in frozen)
    return OptimizerReply(seen, left, changed, cleared, sum(each.numbers() for each in made))


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
    shards: list[PlainData] = []
    left = []
    for number, (x, order) in enumerate(passes):
        loss = model(x, order).square().sum()
        mark("step begins")
        loss.backward()
        mark("backward ends")
        found = made.finish()
        mark("finished")
        mark(over(number))
        # Copies: the next pass may fill the same tensors again.
        shards.append(copies_of(found) if driven.all_tensors(found) else found)
        del found
        left.append(sum(parameter.grad is not None for parameter in model.parameters()))
    numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
    return GradientsReply(driven.numbered(made.buckets, numbers), shards, left, model.there)


def buckets_of(
    answer: AnswerFunction, values: list[Tensor], shape: tuple[int, bool, list[int]], limits: list[int]
) -> list[PlainData]:
    """The numbers of the parameters in the buckets of a `Ladder` of this shape, for each bound on bytes."""
    found = []
    for limit in limits:
        model = Ladder(values, *shape)
        numbers = {id(parameter): number for number, parameter in enumerate(model.parameters())}
        found.append(driven.numbered(answer(model, limit).buckets, numbers))
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
    before = driven.ids_of(modules)
    mark("making")
    model = answer(modules) if together else nn.Sequential(*map(answer, modules))
    made: list[Any] = list(model)
    changed = before != driven.ids_of(modules) or any(map(driven.is_changed, modules, values))
    del modules[:]
    # What an answer leaves in circles is young; going through all of memory takes long.
    gc.collect(1)
    mark("made")
    first = [unit.shard.detach().clone() for unit in made]
    others = sum(len(list(unit.parameters())) for unit in made) - len(made)
    if [own.shape for own in first] != [own.shape for own in shards]:
        return UnitsReply(first, others, [], [], None, changed)
    load_values([unit.shard for unit in made], shards)
    return UnitsReply(first, others, *driven.both_passes(model, batches, early), changed)


def assorted_unit(
    answer: AnswerFunction, weight: Tensor, scale: Tensor, tokens: Tensor, x: Tensor, seed: int
) -> AssortedReply:
    """A step of a unit of `Assorted`, on inputs that need no gradients."""
    units: list[Any] = []

    def start() -> None:
        with suppress(NotImplementedError):
            units[0].start()

    units.append(answer(module := Assorted(weight, scale, between=start)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mark("step begins")
        results = units[0](tokens, x)
        mark("forward ends")
        if driven.all_tensors(results):
            sum(each.square().sum() for each in results).backward()
    mark("backward ends")
    found = copies_of(results) if driven.all_tensors(results) else results
    return AssortedReply(found, gradients_of(units[0]), module.calls)


def started_in_vain(answer: AnswerFunction, x: Tensor) -> list[Tensor]:
    """What a unit of a linear layer makes of x [B, width] before its shard is doubled, and after.

    In between is a backward that does not need the weights, which are on their way.
    """
    unit = answer(nn.Linear(x.shape[1], 1))
    once = unit(x)
    unit.start()
    once.sum().backward()
    with torch.no_grad():
        unit.shard.mul_(2)
        return [once.detach(), unit(x)]


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
        return StateReply(state, shards, driven.as_lists(given))
    seen = {name: each.detach().clone() for name, each in state.items()}
    for each in state.values():
        each.detach().zero_()
    return StateReply(seen, shards, driven.as_lists(given))


# --- Sections 9 to 15: activations


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

    pack = driven.beside_another(answer, offload.pack)

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


def listed(answer: AnswerFunction, *arguments: PlainData) -> ListReply:
    """What the answer makes of plain arguments, and of the arguments. A `Way` comes as its word."""
    result = answer(*arguments)
    if isinstance(result, list):
        result = [str(each) if isinstance(each, str) else each for each in result]
    return ListReply(result, list(arguments))


def memory_planned(
    answer: AnswerFunction, layers: list[PlainData], rest: dict[str, PlainData]
) -> MemoryPlanReply:
    """The answer's plan. layers: of each, what `Layer` takes. rest: what else `Task` takes."""
    rest = {**rest, "states": tuple(rest["states"])}
    plan = answer(Task(layers=tuple(Layer(*layer) for layer in layers), **rest))
    return MemoryPlanReply(plan.stage, plan.micro_batches, list(map(str, plan.ways)))
