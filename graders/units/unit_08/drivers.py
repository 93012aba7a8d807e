"""Drivers of unit 08: they run beside the student's code, which could read an expected value here."""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import span
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import copies_of
from graders.units.optimizers import PlainSGD
from graders.units.random_states import random_states
from graders.units.unit_08.problems import (
    Batches,
    Client,
    Gradients,
    RoundReply,
    TrainedReply,
    pass_time,
    two_levels,
)
from graders.units.unit_08.replicas import Forked, ReplicaReply, loss_of


def trained(answer: AnswerFunction, w: Tensor, batches: Batches, arguments: list[PlainData]) -> TrainedReply:
    """A training from this rank's weights, with its batches and the other arguments."""
    gradients = Gradients(batches, w)
    result = answer(w, gradients, *arguments)
    return TrainedReply(result, w, gradients.seen, gradients.given)


WORK = "work"
"""The span of one batch's work."""


def dealt(answer: AnswerFunction, batches: int, seconds: list[float]) -> tuple[PlainData, list[int]]:
    """What the answer returned, and the batches that this rank was asked to work on, in order. seconds: what
    each takes this rank, and none on rank 0, which does not work.
    """
    worked: list[int] = []

    def work(batch: int) -> None:
        if dist.get_rank() == 0:
            raise RuntimeError("Rank 0 deals, and works on no batch.")
        if not 0 <= batch < batches:
            raise ValueError(f"There is no batch {batch}: there are {batches}, which begin with 0.")
        with span(WORK):
            pass_time(seconds[batch])
        worked.append(batch)

    return answer(batches, work), worked


def ticked(
    answer: AnswerFunction, workers: int, bound: float, ticks: list[int], beside: bool
) -> list[tuple[str, list[PlainData]]]:
    """Have a clock tick: for each tick what it raised, by name, empty if nothing, and who may go on then.
    beside: another clock, of another size and bound, ticks too.
    """
    clock = answer(workers, bound)
    if beside:
        answer(workers + 1, bound + 2).tick(0)
    told = []
    for worker in ticks:
        raised = ""
        try:
            clock.tick(worker)
        except Exception as error:
            raised = "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__
        told.append((raised, [clock.may_go_on(each) for each in range(workers)]))
    return told


def tree_step(
    answer: AnswerFunction, values: list[Tensor], gradients: list[Tensor | None], rates: list[float]
) -> ReplicaReply:
    """What a step for each rate leaves of a `Forked` with these gradients. values, gradients: of SHAPES."""
    model = Forked(values)
    for rate in rates:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        answer(model, rate)
    return ReplicaReply(copies_of(model.parameters()), model.seen)


def local_sgd(
    answer: AnswerFunction,
    values: list[Tensor],
    branch: int,
    batches: list[tuple[Tensor, Tensor]],
    lr: float,
    period: int,
) -> ReplicaReply:
    """What training leaves of a `Forked`. values: see SHAPES; batches: inputs, targets [B, WIDTH]."""
    model = Forked(values, branch)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = PlainSGD([each for each in model.parameters() if each.requires_grad], lr)
    returned = answer(model, optimizer, batches, loss_of, period)
    return ReplicaReply(copies_of(model.parameters()), model.seen, returned, optimizer.taken)


def federated_round(
    answer: AnswerFunction, w: Tensor, samples: Tensor, fraction: float, seeds: list[int]
) -> list[RoundReply]:
    """A round for each seed. w: [n]; samples: this rank's [m, n]."""
    replies = []
    for seed in seeds:
        client, mine, own, before = Client(), w.clone(), samples.clone(), random_states()
        returned = answer(mine, client, own, fraction, seed)
        after = random_states()
        changed = [f"the random state of {name}" for name, state in before.items() if after[name] != state]
        if not (mine.equal(w) and own.equal(samples)) or returned is mine:
            changed.append("w or samples, or w is what was returned")
        replies.append(RoundReply(returned, client.given, ", ".join(changed)))
    return replies


def designed(
    answer: AnswerFunction,
    w: Tensor,
    own: tuple[Tensor, Tensor, Tensor],
    steps: int,
    lr: float,
    seconds: list[float],
    network: tuple[int, int, float, float],
) -> Tensor:
    """The weights [asked, numbers] at which this rank asked for a gradient. own: slope [numbers], offset
    [numbers] and noise [steps, numbers] of its gradients. seconds: of each rank's. network: see `two_levels`.
    """
    slope, offset, noise = own
    takes = seconds[dist.get_rank()]
    batches: Batches = [{"slope": slope, "offset": each, "seconds": takes} for each in offset + noise]
    gradients = Gradients(batches, w)
    answer(w.clone(), gradients, steps, lr, [*seconds], two_levels(*network))
    return torch.stack(gradients.seen) if gradients.seen else w.new_empty(0, *w.shape)
