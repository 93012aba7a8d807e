"""Modules as the drivers of unit 06 have them: whole halves of a block, passes, parameters by name."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import mark
from course_lib.models import MLP, Attention, TransformerConfig
from graders.grading.answer import PlainData
from graders.units.models import sent, transposed


def without_gradient(forward: Callable[[Tensor], Tensor], x: Tensor) -> tuple[PlainData, PlainData]:
    """What comes out for x [...] under no_grad, and for an x that needs no gradient."""
    mark("forward under no_grad")
    with torch.no_grad():
        result = forward(x.clone().requires_grad_())
    mark("forward of an x without gradient")
    return result, forward(x.clone()).detach()


def changes(whole: nn.Module, cut: nn.Module, training: bool) -> Iterator[str]:
    """What is no longer as it was with the module given, of which `cut` is this rank's part."""
    own = {each.untyped_storage().data_ptr() for each in cut.parameters()}
    for name, parameter in whole.named_parameters():
        if parameter.untyped_storage().data_ptr() in own:
            yield f"{name} is shared"
        if not parameter.requires_grad:
            yield f"{name} gets no gradient"
    if any(module.training is not training for module in whole.modules()):
        yield f"training is {not training}"


def whole_half(kind: str, sizes: tuple[int, int, int]) -> nn.Module:
    """An "mlp" or an "attention", which in training drops everything. sizes: D, heads, F."""
    width, heads, inner = sizes
    config = TransformerConfig(width=width, heads=heads, mlp_width=inner, dropout=1.0)
    return MLP(config) if kind == "mlp" else Attention(config)


def passes_of(
    module: nn.Module, x: Tensor, arriving: Tensor, gaps: bool = False
) -> tuple[PlainData, tuple[PlainData, PlainData], dict[str, Tensor | None], Tensor, Tensor]:
    """What came out of forward, and out of those without gradient, the gradients of two steps by name, x and
    arriving afterwards; a mark before each pass. In each step x gets a gradient of ones by another way.
    gaps: x and arriving stand transposed in memory.
    """
    leaf = x.clone().requires_grad_()
    for step in ("first", "second"):
        given, gradient = (transposed(each) if gaps else each.clone() for each in (leaf, arriving))
        mark(f"{step} forward")
        result = module(given)
        mark(f"{step} backward")
        torch.autograd.backward(sent(result, gradient) + sent(given, torch.ones_like(given)))
    without = without_gradient(module, x)
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    return result.detach(), without, {**found, "x": leaf.grad}, given.detach(), gradient


def named_copies(module: nn.Module) -> dict[str, Tensor]:
    """What the parameters hold now, by name."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def load_named(module: nn.Module, parameters: dict[str, Tensor]) -> None:
    """Copy values into the parameters, which have the same names and shapes, else it raises LookupError."""
    own = dict(module.named_parameters())
    seen = {name: list(parameter.shape) for name, parameter in own.items()}
    expected = {name: list(value.shape) for name, value in parameters.items()}
    if seen != expected:
        raise LookupError(f"The parameters on rank {dist.get_rank()} are {seen}; expected are {expected}.")
    with torch.no_grad():
        for name, value in parameters.items():
            own[name].copy_(value)
