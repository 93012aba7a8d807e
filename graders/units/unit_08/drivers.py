"""Drivers of unit 08: they run beside the student's code, which could read an expected value here."""

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import span
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.random_states import random_states
from graders.units.unit_08.clients import Client, RoundReply, what_is_said
from graders.units.unit_08.problems import Batches, Gradients, pass_time, two_levels
from graders.units.unit_08.replicas import (
    Forked,
    LocalReply,
    StepReply,
    give_gradients,
    identity_of,
    in_two_groups,
    loss_of,
    state_of,
    told,
)
from graders.units.unit_08.replies import DealtReply, DesignReply, RefusedReply, TickedReply, TrainedReply

# --- Parameter servers, and those who wait for nobody


def trained(
    answer: AnswerFunction, cases: list[tuple[Tensor, Batches, list[PlainData]]]
) -> list[TrainedReply]:
    """Trainings, one after another: of each this rank's weights, its batches, and the other arguments."""
    replies = []
    for w, batches, arguments in cases:
        gradients = Gradients(batches, w)
        result = answer(w, gradients, *arguments)
        replies.append(TrainedReply(result, w, gradients.seen, gradients.given))
    return replies


WORK = "work"
"""The span of one batch's work."""


def dealt(answer: AnswerFunction, batches: int, seconds: list[float]) -> DealtReply:
    """Deal batches; seconds: what each takes this rank, and none on rank 0, which does not work."""
    worked: list[int] = []

    def work(batch: int) -> None:
        if dist.get_rank() == 0:
            raise RuntimeError("Rank 0 deals, and works on no batch.")
        if type(batch) is not int:
            raise TypeError(f"work takes the number of a batch, an int, and not a {type(batch).__name__}.")
        if not 0 <= batch < batches:
            raise ValueError(f"There is no batch {batch}: there are {batches}, which begin with 0.")
        with span(WORK):
            pass_time(seconds[batch])
        worked.append(batch)

    return DealtReply(answer(batches, work), worked)


def refused(answer: AnswerFunction, log: list[tuple[str, int]]) -> RefusedReply:
    """What the answer says to a log that cannot be."""
    try:
        answer(log)
    except Exception as error:
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        return RefusedReply(kind, str(error))
    return RefusedReply("", "")


def ticked(
    answer: AnswerFunction, workers: int, bound: float, ticks: list[int], beside: bool, unasked: bool
) -> TickedReply:
    """Have a clock tick. beside: so does another one, of another size and bound. unasked: nobody asks who may
    go on until the last tick; of the moments before, nothing is told.
    """
    clock = answer(workers, bound)
    if beside:
        answer(workers + 1, bound + 2).tick(0)

    def free() -> list[PlainData]:
        return [clock.may_go_on(worker) for worker in range(workers)]

    told, raised = [[] if unasked else free()], [""]
    for worker in ticks:
        try:
            clock.tick(worker)
            raised.append("")
        except Exception as error:
            raised.append("RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__)
        told.append([] if unasked else free())
    told[-1] = free()
    return TickedReply(told, raised)


# --- Sections 7 to 10: trees, local steps, federation


def tree_step(
    answer: AnswerFunction, values: list[Tensor], gradients: list[Tensor | None], rates: list[float]
) -> StepReply:
    """What a step for each rate leaves of a `Forked` with these gradients. values, gradients: see SHAPES."""
    model = Forked(values)
    before = identity_of(model)
    for rate in rates:
        model.zero_grad()
        give_gradients(model, gradients)
        answer(model, rate)
    return told(model, before)


def local_sgd(
    answer: AnswerFunction,
    values: list[Tensor],
    branch: int,
    batches: list[tuple[Tensor, Tensor]],
    rates: tuple[float, float],
    period: int,
) -> LocalReply:
    """What training leaves of a `Forked`. values: see SHAPES; batches: inputs, targets [B, WIDTH]."""
    model = Forked(values, branch)
    give_gradients(model, [torch.ones_like(each) for each in values])
    optimizer = in_two_groups(model, rates)
    before, steps = identity_of(model), len(batches)
    returned = answer(model, optimizer, batches, loss_of, period)
    kept = len(batches) == steps
    return LocalReply(told(model, before), returned, optimizer.taken, kept, *state_of(optimizer))


def federated_round(
    answer: AnswerFunction, w: Tensor, samples: Tensor, fraction: float, seeds: list[int]
) -> list[RoundReply]:
    """A round for each seed. w: [n]; samples: this rank's [m, n]."""
    replies, (calls, sent) = [], what_is_said()
    for seed in seeds:
        client, mine, own = Client(), w.clone(), samples.clone()
        before = random_states()
        returned = answer(mine, client, own, fraction, seed)
        after = random_states()
        kept = mine.equal(w) and own.equal(samples) and returned is not mine
        changed = [library for library, state in before.items() if after[library] != state]
        replies.append(RoundReply(returned, client.given, kept, changed, calls.copy(), sent.copy()))
        calls.clear()
        sent.clear()
    return replies


def designed(
    answer: AnswerFunction,
    w: Tensor,
    own: tuple[Tensor, Tensor, Tensor],
    steps: int,
    lr: float,
    seconds: list[float],
    network: tuple[int, int, float, float, float, float],
) -> DesignReply:
    """A training of w [numbers]. own: slope [numbers], offset [numbers] and noise [steps, numbers] of this
    rank's gradients. seconds: of each rank's. network: see `two_levels`.
    """
    slope, offset, noise = own
    takes = seconds[dist.get_rank()]
    batches: Batches = [{"slope": slope, "offset": each, "seconds": takes} for each in offset + noise]
    gradients = Gradients(batches, w)
    answer(w.clone(), gradients, steps, lr, [*seconds], two_levels(*network))
    if any(each.shape != w.shape for each in gradients.seen):
        raise ValueError("A gradient was asked for at weights of another shape than w's.")
    return DesignReply(torch.stack(gradients.seen) if gradients.seen else w.new_empty(0, *w.shape))
