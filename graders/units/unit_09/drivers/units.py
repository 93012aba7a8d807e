"""The drivers of units whose weights are cut over ranks."""

import gc
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import copies_of, gradients_of, sent
from graders.units.unit_09.models import Assorted, Rung

Passed = tuple[list[Tensor], list[PlainData], list[list[Tensor | None]], list[str]]
"""The shards as they were made; the result of each forward [B, width]; the gradients after each backward, of
all shards and of the input; and what is not as it should be besides.
"""


def units(
    answer: AnswerFunction,
    values: list[list[Tensor]],
    batches: list[Tensor],
    how: dict[str, bool],
) -> Passed:
    """Passes of units of `Rung`s, one behind the other; see `_passes`.

    values: of the parameters of each. batches: without any the units are only made. how: together: the
    answer makes all units at once. backward: whether there is one. early: every unit is told to start
    before it is called.
    """
    modules = [Rung(number, own) for number, own in enumerate(values)]
    model = answer(modules) if how["together"] else nn.Sequential(*map(answer, modules))
    made: list[Any] = list(model)
    changed = [f"module {n}, given" for n, module in enumerate(modules) if _is_changed(module, values[n])]
    changed += [f"unit {n}'s parameters" for n, unit in enumerate(made) if len([*unit.parameters()]) != 1]
    del modules[:]
    # What an answer leaves in circles is young; going through all of memory takes long.
    gc.collect(1)
    mark("made")
    first = [unit.shard.detach().clone() for unit in made]
    return first, *_passes(model, batches, how), changed


def _passes(
    model: nn.Sequential, batches: list[Tensor], how: dict[str, bool]
) -> tuple[list[PlainData], list[list[Tensor | None]]]:
    """Forward, and backward, of each batch [B, width], without clearing gradients. In the first step the
    shards are doubled, in the second as they were.
    """
    made: list[Any] = list(model)
    results: list[PlainData] = []
    gradients: list[list[Tensor | None]] = []
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
    return results, gradients


def _is_changed(module: nn.Module, values: list[Tensor]) -> bool:
    """Whether its parameters have other values, or gradients."""
    own = list(module.parameters())
    return len(own) != len(values) or any(
        not torch.equal(one, value) or one.grad is not None for one, value in zip(own, values, strict=True)
    )


def assorted_unit(
    answer: AnswerFunction, weight: Tensor, tokens: Tensor, x: Tensor, seed: int
) -> tuple[PlainData, list[Tensor | None]]:
    """A step of a unit of `Assorted`, on inputs that need no gradients: its results and gradients."""
    unit = answer(Assorted(weight))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        results = unit(tokens, x)
    if not isinstance(results, tuple):
        return results, []
    sum(each.square().sum() for each in results).backward()
    return copies_of(results), gradients_of(unit)
