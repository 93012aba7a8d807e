"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import mark
from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class ConjugateReply(DriverReply):
    """result: what came out of forward, without_gradient: of a second forward, under no_grad.

    gradient: what arrived at x in backward, by both ways. x, arriving: the arguments afterwards.
    """

    result: PlainData
    without_gradient: PlainData
    gradient: PlainData
    x: Tensor
    arriving: Tensor


def conjugate(
    answer: AnswerFunction, x: Tensor, arriving: Tensor, beside: Tensor, groups: list[list[int]]
) -> ConjugateReply:
    """Both passes of the answer on x, of any shape. arriving: the gradient of what it returns, of x's shape
    or one number for all of it. beside: the gradient that x gets by another way. groups: see `own_group`.
    """
    options = {"group": own_group(groups)} if groups else {}
    leaf = x.clone().requires_grad_()
    given = leaf.clone()
    gradient = arriving.clone().expand_as(x)
    mark("forward")
    result = answer(given, **options)
    mark("backward")
    (found,) = torch.autograd.grad([result, given], leaf, [gradient, beside])
    mark("forward without gradient")
    with torch.no_grad():
        without = answer(x.clone(), **options)
    return ConjugateReply(result.detach(), without, found, given.detach(), gradient)


def own_group(groups: list[list[int]]) -> dist.ProcessGroup | None:
    """The group of these lists of ranks that this rank is in; every rank makes all of them."""
    made = [(ranks, dist.new_group(ranks)) for ranks in groups]
    return next((group for ranks, group in made if dist.get_rank() in ranks), None)


@dataclass(frozen=True, slots=True)
class LayerReply(DriverReply):
    """initial: the parameters that the layer was made with, by name; random: what is drawn after that.

    storage: bytes of the memory that each parameter keeps. result, gradients (by name; of x it is "x"): of a
    pass with the parameters given. x, arriving: the arguments afterwards.
    """

    initial: dict[str, Tensor]
    random: Tensor
    storage: dict[str, int]
    result: PlainData
    gradients: dict[str, Tensor | None]
    x: Tensor
    arriving: Tensor


def layer(
    answer: AnswerFunction,
    made: tuple[int, int, bool, int, list[list[int]]],
    parameters: dict[str, Tensor],
    x: Tensor,
    arriving: Tensor,
) -> LayerReply:
    """Both passes of a layer. made: inputs, outputs, bias, a seed, and groups (see `own_group`).

    parameters: what it is to have in them, by name, of this rank's shapes. arriving: the gradient of what it
    returns.
    """
    inputs, outputs, bias, seed, groups = made
    options = {"group": own_group(groups)} if groups else {}
    torch.manual_seed(seed)
    module = answer(inputs, outputs, bias, **options) if not bias else answer(inputs, outputs, **options)
    random, initial = torch.rand(3), named_copies(module)
    storage = {name: each.untyped_storage().nbytes() for name, each in module.named_parameters()}
    load_named(module, parameters)
    return LayerReply(initial, random, storage, *passes_of(module, x, arriving))


def passes_of(
    module: nn.Module, x: Tensor, arriving: Tensor
) -> tuple[PlainData, dict[str, Tensor | None], Tensor, Tensor]:
    """What came out of forward, the gradients by name, x and arriving afterwards; a mark before each pass."""
    leaf = x.clone().requires_grad_()
    given, gradient = leaf.clone(), arriving.clone()
    mark("forward")
    result = module(given)
    mark("backward")
    result.backward(gradient)
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    return result.detach(), {**found, "x": leaf.grad}, given.detach(), gradient


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
