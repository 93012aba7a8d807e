"""Drivers of unit 02: each builds a small model, lets the answer work on it, and returns what came of it.

More than 300 lines: what graders name has to be in this one module.
"""

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import mark, span
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.hashing import hashes_salted
from graders.units.models import Gradients, copies_of, gradients_of, load_values, state_of
from graders.units.random_states import random_states
from graders.units.unit_02.models import Branches, Chain, Normed, Tied, chain_of, descend, numbers_in
from graders.units.unit_02.numbered import DEVICE, Descent, MovesNoted, Numbered, Samples
from graders.units.unit_02.replies import (
    AverageReply,
    BroadcastReply,
    CombineReply,
    ConstructedReply,
    FailingLoadReply,
    LoadingReply,
    ShardsReply,
    TrainingReply,
)
from graders.units.unit_02.watching import broadcasts_in_autograd

LOAD_SIDE = 64
"""Side of the square matrices that the drivers' `load` multiplies, so that loading takes virtual time."""


def combine(answer: AnswerFunction, gradients: list[Tensor], counts: list[int]) -> CombineReply:
    """What the answer makes of the gradients, all of one shape, and what it leaves of them."""
    memory = {gradient.untyped_storage().data_ptr() for gradient in gradients}
    result = answer(gradients, counts)
    shared = isinstance(result, Tensor) and result.untyped_storage().data_ptr() in memory
    return CombineReply(result, gradients, shared)


def shards(answer: AnswerFunction, length: int, epochs: list[int], seeds: list[int]) -> ShardsReply:
    """This rank's indices for every (epoch, seed), twice.

    The ranks' own random states differ, as they do in training with dropout or augmentation; and so does
    what `hash` makes of a text, as in processes that torchrun starts.
    """
    torch.default_generator.manual_seed(1000 + dist.get_rank())
    before = random_states()
    pairs = list(zip(epochs, seeds, strict=True))
    with hashes_salted(answer, dist.get_rank):
        first = [answer(length, epoch, seed) for epoch, seed in pairs]
        after = random_states()
        torch.rand(1 + dist.get_rank())
        again = [answer(length, epoch, seed) for epoch, seed in pairs]
    return ShardsReply(
        first, again, [library for library, state in before.items() if after[library] != state]
    )


def broadcast(answer: AnswerFunction, values: list[Tensor], src: int) -> BroadcastReply:
    """What a broadcast makes of a `Normed` with these values, of the shapes of `state_of`."""
    model = Normed()
    # Column by column in memory, on every rank: a contiguous copy is another tensor.
    model.first.weight.data = model.first.weight.data.t().contiguous().t()
    load_values(state_of(model), values)
    before = [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)]
    recorded = broadcasts_in_autograd()
    answer(model, src)
    return BroadcastReply(
        copies_of(model.parameters()),
        copies_of(model.buffers()),
        before == [(id(tensor), tensor.data_ptr()) for tensor in state_of(model)],
        [parameter.requires_grad for parameter in model.parameters()],
        any(recorded),
    )


def average(
    answer: AnswerFunction, values: list[Tensor], gradients: Gradients, by_columns: bool
) -> AverageReply:
    """What averaging leaves of a chain of linear layers of which the last is frozen.

    values: see `chain_of`. gradients: of the same shapes, the frozen layer's too. by_columns: they lie in
    memory column by column, as backward leaves some: flattened, that is a copy.
    """
    model = chain_of(values)
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and by_columns:
            parameter.grad = gradient.t().clone(memory_format=torch.contiguous_format).t()
        else:
            parameter.grad = gradient
    before = [parameter.grad for parameter in parameters]
    answer(model)
    in_place = all(
        old is None or old is parameter.grad for old, parameter in zip(before, parameters, strict=True)
    )
    return AverageReply(gradients_of(model), copies_of(parameters), in_place)


def constructed(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> ConstructedReply:
    """How the answer wraps a `Normed` without frozen layers. inputs: [B, 5]."""
    model = Normed().eval().requires_grad_()
    load_values(state_of(model), values)
    recorded = broadcasts_in_autograd()
    wrapped = answer(model, 64)
    with torch.no_grad():
        seen, expected = wrapped(inputs), model(inputs)
    return ConstructedReply(copies_of(state_of(model)), any(recorded), seen, expected)


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
    used = []
    for inputs, targets in batches:
        mark("step begins")
        model.zero_grad()
        used.append(_finished(wrapped, model, functional.mse_loss(wrapped(inputs), targets)))
        descend(model, rate)
    return used


def _finished(made: Any, model: nn.Module, loss: Tensor) -> Gradients:
    """A step's backward and then finish(), each with a mark at its end; the gradients afterwards."""
    loss.backward()  # type: ignore[no-untyped-call]
    mark("backward ends")
    made.finish()
    mark("finished")
    return gradients_of(model)


def accumulated(
    answer: AnswerFunction,
    widths: list[int],
    values: list[Tensor],
    batches: list[tuple[Tensor, Tensor]],
    bucket_bytes: int,
) -> Gradients:
    """The gradients after a step in which all batches but the last were without communication; see `steps`.

    Their block ends with an error, and the first of them is in a block within it.
    """
    model = Chain(widths)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    mark("step begins")
    losses = (functional.mse_loss(wrapped(inputs), targets) for inputs, targets in batches[:-1])
    with suppress(KeyError), wrapped.no_sync():
        with wrapped.no_sync():
            next(losses).backward()  # type: ignore[no-untyped-call]
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        raise KeyError("no more samples")
    mark("leaves no_sync")
    inputs, targets = batches[-1]
    return _finished(wrapped, model, functional.mse_loss(wrapped(inputs), targets))


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
    the gradients of the one before.
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
        seen.append(_finished(made, model, functional.mse_loss(model(inputs), targets)))
    return seen


def in_order(
    answer: AnswerFunction, width: int, values: list[Tensor], inputs: Tensor, order: list[int]
) -> Gradients:
    """The gradients of the first two branches, which are in a bucket and which this rank uses in this order.

    inputs: [B, width].
    """
    model = Branches(width)
    load_values(list(model.parameters()), values)
    bucket = list(model.branches.parameters())[:4]
    made = answer(bucket)
    loss = torch.stack([model(inputs, branch).square().mean() for branch in order]).sum()
    return _finished(made, model, loss)[:4]


def branches(
    answer: AnswerFunction,
    width: int,
    values: list[Tensor],
    inputs: Tensor,
    used: list[list[int]],
    bucket_bytes: int,
) -> list[Gradients]:
    """The gradients after steps in each of which this rank used some branches, one after the other, all but
    the last without communication. inputs: [B, width].
    """
    model = Branches(width)
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    collected = []
    for *silent, last in used:
        mark("step begins")
        model.zero_grad()
        for branch in silent:
            with wrapped.no_sync():
                wrapped(inputs, branch=branch).square().mean().backward()
        collected.append(_finished(wrapped, model, wrapped(inputs, branch=last).square().mean()))
    return collected


def tied(
    answer: AnswerFunction,
    sizes: tuple[int, int],
    values: list[Tensor],
    words: Tensor,
    targets: Tensor,
    bucket_bytes: int,
) -> Gradients:
    """The gradients after one step of a model with a tied and two frozen parameters. words, targets: [B].

    A frozen parameter has a gradient from a time when it was trainable: its own value.
    """
    model = Tied(*sizes).double()
    load_values(list(model.parameters()), values)
    wrapped = answer(model, bucket_bytes)
    model.frozen.weight.grad = model.frozen.weight.detach().clone()
    mark("step begins")
    return _finished(wrapped, model, functional.cross_entropy(wrapped(words), targets))


def loading(answer: AnswerFunction, value: Tensor | None) -> LoadingReply:
    """How the answer loads `value`, of any shape.

    `load` takes virtual time on a cluster with `flops`, and marks its phase "load".
    """
    calls = 0

    def load() -> Tensor | None:
        nonlocal calls
        calls += 1
        _take_time()
        return value

    return LoadingReply(answer(load), calls)


def failing_load(answer: AnswerFunction, value: Tensor, failing: list[int]) -> FailingLoadReply:
    """How the answer takes it that `load`, of a value of any shape, fails on these ranks with a KeyError.

    Every rank's exception is caught, so that the run ends unless some rank is left waiting.
    """
    calls = 0

    def load() -> Tensor:
        nonlocal calls
        calls += 1
        _take_time()
        if dist.get_rank() in failing:
            raise KeyError("no such data set")
        return value

    try:
        answer(load)
    except Exception as error:
        return FailingLoadReply(f"{type(error).__name__}: {error}", calls)
    return FailingLoadReply(None, calls)


def _take_time() -> None:
    with span("load"):
        square = torch.ones(LOAD_SIDE, LOAD_SIDE)
        torch.mm(square, square)


def many_processes(
    answer: AnswerFunction,
    values: list[Tensor],
    samples: tuple[Tensor, Tensor],
    rate: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> TrainingReply:
    """How the answer trains a `Numbered` with these values on samples: inputs [N, 1 + F] and labels [N]."""
    torch.default_generator.manual_seed(1000 + dist.get_rank())
    model = Numbered(values)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # from whatever was done with the model before
    optimizer = Descent(model, rate)
    with torch.enable_grad(), MovesNoted() as moves:
        history = answer(model, Samples(*samples), optimizer, epochs, batch_size, seed, DEVICE)
    moved = model.moved and moves.all_of([*model.inputs, *moves.labels])
    random = random_states()["torch"]
    return TrainingReply(history, copies_of(model.parameters()), optimizer.batches, moved, random)
