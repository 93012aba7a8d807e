"""Drivers of unit 11: they run beside the student's code, which could read an expected value here."""

from functools import partial

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from course_lib import mark
from graders.grading.answer import AnswerFunction
from graders.units.groups import own_group
from graders.units.models import copies_of
from graders.units.unit_11.compressors import Compressor, loss, plain_copy
from graders.units.unit_11.hooked import pass_through, reducer_with, weighted_sum
from graders.units.unit_11.replies import (
    HookReply,
    QuantisedReply,
    RememberedReply,
    TrainedReply,
)


def hook(
    answer: AnswerFunction, gradients: list[Tensor], buckets: list[list[int]], groups: list[list[int]]
) -> HookReply:
    """A pass of DDP's reducer, with the answer as its hook.

    gradients: this rank's, of each parameter. buckets: the numbers of the parameters in each. groups: lists
    of ranks that make a group each, this rank's being the hook's state; without any the state is None.
    """
    group = own_group(groups)
    parameters = [torch.zeros_like(gradient).requires_grad_() for gradient in gradients]
    futures: list[torch.futures.Future[Tensor]] = []
    reducer = reducer_with(partial(_watched, answer, futures), group, parameters, buckets, group)
    mark("step begins")
    pass_through(reducer, partial(weighted_sum, parameters, gradients))
    mark("step done")
    seen = copies_of(p.grad for p in parameters if p.grad is not None)
    return HookReply(seen, [future.value() for future in futures])


def _watched(
    answer: AnswerFunction, futures: list[torch.futures.Future[Tensor]], state: object, bucket: GradBucket
) -> torch.futures.Future[Tensor]:
    """The answer's hook, between two marks."""
    number = len(futures)
    mark(f"hook {number} begins")
    futures.append(answer(state, bucket))
    mark(f"hook {number} ends")
    return futures[-1]


def quantised(answer: AnswerFunction, cases: list[tuple[Tensor, int, int]]) -> list[QuantisedReply]:
    """Of each x, levels and seed two calls with one generator, and the same once more."""
    return [_twice(answer, *case) for case in cases]


def _twice(answer: AnswerFunction, x: Tensor, levels: int, seed: int) -> QuantisedReply:
    given, before = [x.clone() for _ in range(4)], torch.random.get_rng_state()
    results = []
    for pair in (given[:2], given[2:]):
        generator = torch.Generator().manual_seed(seed)
        results.append([answer(each, levels, generator) for each in pair])
    moved = not torch.equal(before, torch.random.get_rng_state())
    return QuantisedReply(results[0], results[1], moved, torch.stack(given))


def drawn(answer: AnswerFunction, x: Tensor, levels: int, seed: int, count: int) -> Tensor:
    """The codes of so many calls with one generator, [count, *x.shape]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([answer(x, levels, generator)[0] for _ in range(count)])


def remembered(
    answer: AnswerFunction, kinds: list[str], turns: list[tuple[int, Tensor]], written_over: bool
) -> RememberedReply:
    """What the answer makes of compressors, called in turns: each a number of one, and an x.

    kinds: of the compressors; those of one kind are one and the same. written_over: after each call, what the
    answer was given and what it returned is.
    """
    compressors = {kind: Compressor(kind) for kind in kinds}
    made = [answer(compressors[kind]) for kind in kinds]
    arrived, left = [], []
    for number, x in turns:
        given = x.clone()
        came = made[number](given)
        arrived.append(plain_copy(came))
        left.append(torch.equal(given, x))
        for tensor in (given, came) if written_over else ():
            if isinstance(tensor, Tensor):
                tensor.detach().fill_(9)
    return RememberedReply(arrived, left, [compressor.calls for compressor in compressors.values()])


def low_rank(
    answer: AnswerFunction,
    options: dict[str, int],
    steps: list[list[Tensor]],
    buckets: list[list[list[int]]],
) -> list[list[Tensor]]:
    """Steps of DDP's reducer with the answer's hook: the gradients of each parameter, after each step.

    options: what the answer is made with. steps: this rank's gradients, of each parameter. buckets: of each
    step, the numbers of the parameters in each.
    """
    parameters = [torch.zeros_like(gradient).requires_grad_() for gradient in steps[0]]
    made = answer(**options)
    seen = []
    for gradients, of_step in zip(steps, buckets, strict=True):
        ordered = [number for bucket in of_step for number in bucket]
        places = [[ordered.index(number) for number in bucket] for bucket in of_step]
        reducer = reducer_with(type(made).hook, made, [parameters[number] for number in ordered], places)
        mark("step begins")
        pass_through(reducer, partial(weighted_sum, parameters, gradients))
        mark("step done")
        seen.append([torch.zeros(0) if p.grad is None else p.grad.detach().clone() for p in parameters])
        for parameter in parameters:
            parameter.grad = None
        del reducer
    return seen


def trained(
    answer: AnswerFunction, data: list[Tensor], weights: list[Tensor], steps: int, rate: float
) -> TrainedReply:
    """Steps of SGD with the answer's hook. data: this rank's samples, [N, in] and [N, out]."""
    own = [weight.clone().requires_grad_() for weight in weights]
    state, hook = answer(steps)
    reducer = reducer_with(hook, state, own[::-1], [list(range(len(own)))])
    seen = []
    for _ in range(steps):
        pass_through(reducer, lambda: loss(own, *data))
        mark("step done")
        for weight in own:
            if weight.grad is not None:
                weight.data.sub_(weight.grad, alpha=rate)
            weight.grad = None
        seen.append(torch.cat([weight.detach().flatten() for weight in own]))
    return TrainedReply(torch.stack(seen))
