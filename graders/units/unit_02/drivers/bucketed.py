"""Drivers of unit 02: each builds a small model, has the answer cut or send its gradients in buckets, and
returns them.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import Gradients, copies_of, gradients_of, load_values, state_of, transposed
from graders.units.unit_02.models import Branches, Chain, Normed, Tied, descend, numbers_in
from graders.units.unit_02.replies import ConstructedReply
from graders.units.unit_02.watching import broadcasts_in_autograd


def constructed(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> ConstructedReply:
    """How the answer wraps a `Normed` without frozen layers. inputs: [B, 5]."""
    model = Normed().eval().requires_grad_()
    load_values(state_of(model), values)
    recorded = broadcasts_in_autograd()
    before = [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)]
    wrapped = answer(model, 64)
    in_place = before == [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)]
    with torch.no_grad():
        seen, expected = wrapped(inputs), model(inputs)
    return ConstructedReply(copies_of(state_of(model)), in_place, any(recorded), seen, expected)


def steps(
    answer: AnswerFunction,
    widths: list[int],
    values: list[Tensor],
    batches: list[tuple[Tensor, Tensor]],
    rate: float,
    bucket_bytes: int,
) -> list[Gradients]:
    """The gradients that every step of plain gradient descent used: one step a batch.

    values: of the shapes of a `Chain`'s parameters. batches: inputs [B, widths[0]], targets [B, widths[-1]].
    """
    model = Chain(widths)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    used: list[Gradients] = []
    for inputs, targets in batches:
        mark("step begins")
        model.zero_grad()
        loss = functional.mse_loss(wrapped(inputs), targets)
        used.append(_finished([wrapped], model, loss))
        descend(model, rate)
    return used


def accumulated(
    answer: AnswerFunction,
    widths: list[int],
    values: list[Tensor],
    batches: list[tuple[Tensor, Tensor]],
    bucket_bytes: int,
) -> Gradients:
    """The gradients after a step in which all batches but the last were without communication; see `steps`.

    Their block ends with an error; the first backward pass is in a block within it, its forward before both.
    """
    model = Chain(widths)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    mark("step begins")
    losses = (functional.mse_loss(wrapped(inputs), targets) for inputs, targets in batches[:-1])
    first = next(losses)
    with suppress(KeyError):
        with wrapped.no_sync():
            with wrapped.no_sync():
                first.backward()  # type: ignore[no-untyped-call]
            mark("leaves the inner block")
            for loss in losses:
                loss.backward()  # type: ignore[no-untyped-call]
            raise KeyError("no more samples")
        raise RuntimeError("A block of no_sync() has raised a KeyError, which did not come out of it.")
    mark("leaves no_sync")
    inputs, targets = batches[-1]
    return _finished([wrapped], model, functional.mse_loss(wrapped(inputs), targets))


def branches(
    answer: AnswerFunction,
    width: int,
    values: list[Tensor],
    inputs: Tensor,
    used: list[list[int]],
    bucket_bytes: int,
) -> list[Gradients]:
    """The gradients after steps in each of which this rank used some branches, one after the other, all but
    the last without communication. values, inputs [B, width]: float64.
    """
    model = Branches(width).double()
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    collected = []
    for *silent, last in used:
        mark("step begins")
        model.zero_grad()
        for branch in silent:
            with wrapped.no_sync():
                wrapped(inputs, branch=branch).square().mean().backward()
        collected.append(_finished([wrapped], model, wrapped(inputs, branch=last).square().mean()))
    return collected


def tied(
    answer: AnswerFunction,
    sizes: tuple[int, int],
    values: list[Tensor],
    words: Tensor,
    targets: Tensor,
    bucket_bytes: int,
) -> Gradients:
    """The gradients after one step of a model with a tied and two frozen parameters, one of the others column
    by column in memory. words, targets: [B].

    A frozen parameter has a gradient from a time when it was trainable: its own value. One number of another
    one's is infinite, one NaN.
    """
    model = Tied(*sizes).double()
    model.mixing.weight.data = transposed(model.mixing.weight.data)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    model.frozen.weight.grad = model.frozen.weight.detach().clone()
    broken = torch.zeros_like(model.mixing.bias)
    _overflow(broken)
    mark("step begins")
    loss = functional.cross_entropy(wrapped(words), targets) + torch.dot(broken, model.mixing.bias)
    return _finished([wrapped], model, loss)


def cut_chain(answer: AnswerFunction, widths: list[int], limits: list[int], double: bool) -> list[PlainData]:
    """The numbers of the parameters in the buckets of a `Chain`, for each bound on their bytes."""
    model = Chain(widths)
    return [numbers_in(answer(model.double() if double else model, limit), model) for limit in limits]


def cut_tied(
    answer: AnswerFunction, words: int, width: int, limits: list[int], frozen: list[int]
) -> list[PlainData]:
    """The same for a `Tied` in two precisions. frozen: the numbers of its frozen parameters."""
    model = Tied(words, width)
    model.mixing.double()
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number not in frozen)
    return [numbers_in(answer(model, limit), model) for limit in limits]


def one_bucket(
    answer: AnswerFunction,
    widths: list[int],
    values: list[Tensor],
    batches: list[tuple[Tensor, Tensor]],
    chosen: list[int],
) -> list[Gradients]:
    """The gradients after each of some backward passes of a `Chain`; the chosen parameters are in a bucket.

    values, batches: see `steps`, in double precision. The parameters stay as they are. The last pass adds to
    the gradients of the one before, which rank r has multiplied by 1 + r; one number is infinite, one NaN.
    """
    model = Chain(widths).double()
    parameters = list(model.parameters())
    load_values(parameters, values)
    made = answer([parameters[number] for number in chosen])
    seen = []
    for number, (inputs, targets) in enumerate(batches, 1):
        mark("step begins")
        if number < len(batches):
            model.zero_grad()
        else:
            for parameter in parameters:
                _multiply(parameter.grad, 1 + dist.get_rank())
            _overflow(parameters[chosen[0]].grad)
        seen.append(_finished([made], model, functional.mse_loss(model(inputs), targets)))
    return seen


def in_order(
    answer: AnswerFunction,
    width: int,
    values: list[Tensor],
    factor: Tensor,
    inputs: Tensor,
    order: list[int],
) -> Gradients:
    """All gradients after two steps with three buckets. One has the first two branches; one has the third and
    the shared layer; one the factor [] of the loss. order: in which this rank uses the branches, in the step
    before in the other. If the third is between the others, buckets get gradients in turn. inputs: [B,
    width].

    A weight in the first stands in memory column by column, and so do its gradients.
    """
    model = Branches(width)
    weight = next(model.branches.parameters())
    weight.data = transposed(weight.data)
    load_values(list(model.parameters()), values)
    parameters = list(model.parameters())
    scalar = nn.Parameter(factor.clone())
    made = [answer(each) for each in (parameters[:4], parameters[4:], [scalar])]
    for ways in (order[::-1], order):
        model.zero_grad()
        scalar.grad = None
        loss = torch.stack([model(inputs, branch).square().mean() for branch in ways]).sum()
        seen = _finished(made, model, scalar * loss)
    return [*seen, None if scalar.grad is None else scalar.grad.clone()]


def _finished(made: Sequence[Any], model: nn.Module, loss: Tensor) -> Gradients:
    """A step's backward and then finish() of all, each with a mark at its end; the gradients afterwards."""
    loss.backward()  # type: ignore[no-untyped-call]
    mark("backward ends")
    for each in made:
        each.finish()
    mark("finished")
    return gradients_of(model)


def _multiply(gradient: Tensor | None, factor: int) -> None:
    if gradient is not None:
        gradient.mul_(factor)


def _overflow(gradient: Tensor | None) -> None:
    """Make its first number infinite, as an overflow does, and its last one NaN."""
    if gradient is not None:
        gradient.view(-1)[0], gradient.view(-1)[-1] = torch.inf, torch.nan
