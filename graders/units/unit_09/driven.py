"""What several drivers of unit 09 do with what an answer made."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import mark
from course_lib.training.host_memory import HostMemory
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import sent, transposed


def numbered(buckets: Any, numbers: dict[int, int]) -> PlainData:
    """Buckets with the numbers of the parameters in place of these; what is no list of lists, as a text."""
    if not isinstance(buckets, list | tuple) or not all(isinstance(each, list | tuple) for each in buckets):
        return f"a {type(buckets).__name__}"
    return [[numbers.get(id(each), type(each).__name__) for each in bucket] for bucket in buckets]


def all_tensors(values: Any) -> bool:
    """Whether it is a list or tuple of tensors."""
    return isinstance(values, list | tuple) and all(isinstance(each, Tensor) for each in values)


def as_lists(shapes: dict[str, Any]) -> dict[str, Any]:
    """Shapes by name, each as a list; what else a name has got as it is."""
    return {name: list(each) if isinstance(each, tuple) else each for name, each in shapes.items()}


def give_gradients(parameters: list[nn.Parameter], gradients: list[Tensor | None]) -> None:
    """Each parameter's .grad is a copy of the gradient of its place, with other strides, or None."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else transposed(gradient.clone())


def same_gradient(parameter: nn.Parameter, gradient: Tensor | None) -> bool:
    """Whether a parameter's .grad has the numbers of this gradient, or is None as it is."""
    if parameter.grad is None or gradient is None:
        return parameter.grad is gradient
    return torch.equal(parameter.grad, gradient)


def ids_of(modules: list[Any]) -> list[list[int]]:
    """Of each module its own id and those of its parameters."""
    return [[id(each), *map(id, each.parameters())] for each in modules]


def is_changed(module: nn.Module, values: list[Tensor]) -> bool:
    """Whether its parameters have other values, or gradients."""
    pairs = zip(module.parameters(), values, strict=True)
    return any(not torch.equal(own, value) or own.grad is not None for own, value in pairs)


def beside_another(answer: AnswerFunction, pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """pack of a HostOffload; before each tensor another HostOffload packs one of no bytes."""
    other, packed = answer(HostMemory(), ()), []

    def packs(tensor: Tensor) -> Any:
        packed.append(other.pack(tensor.new_empty(0)))
        return pack(tensor)

    return packs


def both_passes(
    model: nn.Sequential, batches: list[Tensor], early: bool
) -> tuple[list[PlainData], list[list[Tensor | None]], PlainData]:
    """A forward under no_grad of the first batch, and both passes for each batch [B, width], without clearing
    gradients. Before the first step the shards are doubled, before the second they are as they were.
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
        for unit in made if early else []:
            unit.start()
            mark("started")
            unit.start()
        hidden = model(leaf)
        mark("forward ends")
        results.append(hidden.detach().clone())
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
