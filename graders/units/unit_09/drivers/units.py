"""The drivers of units whose weights are cut over ranks."""

import gc
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import copies_of, gradients_of, load_values, sent
from graders.units.unit_09.models import Assorted, Rung
from graders.units.unit_09.replies import AssortedReply, UnitsReply


def units(
    answer: AnswerFunction,
    values: list[list[Tensor]],
    shards: list[Tensor],
    batches: list[Tensor],
    how: dict[str, bool],
) -> UnitsReply:
    """Passes of units of `Rung`s, one behind the other; see `_passes`.

    values: of the parameters of each. shards: this rank's, in place of what the units were made with.
    batches: without any the units are only made. how: together: the answer makes all units at once.
    backward: whether there is one. early: every unit is told to start before it is called.
    """
    modules = [Rung(number, own) for number, own in enumerate(values)]
    before = _ids_of(modules)
    mark("making")
    model = answer(modules) if how["together"] else nn.Sequential(*map(answer, modules))
    made: list[Any] = list(model)
    changed = before != _ids_of(modules) or any(map(_is_changed, modules, values))
    del modules[:]
    # What an answer leaves in circles is young; going through all of memory takes long.
    gc.collect(1)
    mark("made")
    first = [unit.shard.detach().clone() for unit in made]
    others = sum(len(list(unit.parameters())) for unit in made) - len(made)
    if [own.shape for own in first] != [own.shape for own in shards] or not batches:
        return UnitsReply(first, others, [], [], None, changed)
    load_values([unit.shard for unit in made], shards)
    return UnitsReply(first, others, *_passes(model, batches, how), changed)


def _passes(
    model: nn.Sequential, batches: list[Tensor], how: dict[str, bool]
) -> tuple[list[PlainData], list[list[Tensor | None]], PlainData]:
    """A forward under no_grad of the first batch, and forward, and backward, of each batch [B, width],
    without clearing gradients. In the first step the shards are doubled, in the second as they were.
    """
    made: list[Any] = list(model)
    results: list[PlainData] = []
    gradients: list[list[Tensor | None]] = []
    mark("evaluation")
    with torch.no_grad():
        without: PlainData = model(batches[0])
    mark("evaluated")
    for number, batch in enumerate(batches):
        with torch.no_grad():
            for unit in made:
                unit.shard.mul_(0.5 if number else 2)
        leaf = batch.clone().requires_grad_()
        mark("step begins")
        for unit in made if how["early"] else []:
            unit.start()
            mark("started")
            unit.start()
        hidden = model(leaf)
        mark("forward ends")
        results.append(hidden.detach().clone())
        if not how["backward"]:
            continue
        loss = sent(hidden, torch.ones_like(hidden))
        del hidden
        mark("backward begins")
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        gc.collect(1)
        mark("backward ends")
        of_shards = [unit.shard.grad for unit in made]
        gradients.append(
            [None if each is None else each.detach().clone() for each in (*of_shards, leaf.grad)]
        )
    return results, gradients, without


def _ids_of(modules: list[Any]) -> list[list[int]]:
    """Of each module its own id and those of its parameters."""
    return [[id(each), *map(id, each.parameters())] for each in modules]


def _is_changed(module: nn.Module, values: list[Tensor]) -> bool:
    """Whether its parameters have other values, or gradients."""
    pairs = zip(module.parameters(), values, strict=True)
    return any(not torch.equal(own, value) or own.grad is not None for own, value in pairs)


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
        if _all_tensors(results):
            sum(each.square().sum() for each in results).backward()
    mark("backward ends")
    found = copies_of(results) if _all_tensors(results) else results
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


def _all_tensors(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(each, Tensor) for each in values)
