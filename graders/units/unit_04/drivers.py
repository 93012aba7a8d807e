"""Drivers of unit 04: they run beside the student's code, which could read an expected value here.

More than 300 lines: what graders name has to be in this one module.
"""

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from course_lib import Link, mark
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import copies_of, gradients_of, load_values, state_of
from graders.units.optimizers import PlainSGD
from graders.units.unit_04 import horovodrun
from graders.units.unit_04.models import HashedName, Normed, Paths, laid_out
from graders.units.unit_04.optimizers import cleared, hands_on_state, raised_by, refused
from graders.units.unit_04.replies import (
    BroadcastReply,
    CallReply,
    FusedReply,
    MeansReply,
    OwnReply,
    ProcessReply,
    RunReply,
    StepReply,
    UnfusedReply,
    WarmupReply,
)


def calls(answer: AnswerFunction, given: list[list[PlainData]]) -> list[PlainData]:
    """What the answer returns for each list of arguments."""
    return [answer(*arguments) for arguments in given]


def given_and_left(answer: AnswerFunction, given: list[list[PlainData]]) -> list[CallReply]:
    """What the answer makes of each list of arguments."""
    return [CallReply(answer(*arguments), arguments) for arguments in given]


def warmup(answer: AnswerFunction, learning_rate: float, size: int, steps_per_epoch: int) -> WarmupReply:
    """How the answer makes its optimizer and its callback."""
    optimizers: list[Any] = []
    made: list[PlainData] = []

    def new_optimizer(lr: float) -> Any:
        made.append(lr)
        optimizers.append(SimpleNamespace(param_groups=[{"lr": lr}]))
        return optimizers[-1]

    callback = answer(new_optimizer, learning_rate, size, steps_per_epoch)
    own = any(getattr(callback, "optimizer", None) is optimizer for optimizer in optimizers)
    rate, steps, workers = (getattr(callback, name, None) for name in ("initial_lr", "warmup_steps", "size"))
    return WarmupReply(callback is not None, rate, steps, workers, made, own)


def broadcast(
    answer: AnswerFunction,
    values: list[Tensor],
    options: list[dict[str, float]],
    states: list[dict[str, PlainData]],
) -> BroadcastReply:
    """What a broadcast makes of a `Normed` and its optimizer.

    values: of the shapes of `state_of`. options: of the optimizer's two groups. states: one a trainable
    parameter, empty if it has none.
    """
    model = Normed()
    load_values(state_of(model), values)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    halves = trained[:2], trained[2:]
    groups = [{"params": half, **own} for half, own in zip(halves, options, strict=True)]
    optimizer = PlainSGD(groups, 0.1)
    for parameter, state in zip(trained, states, strict=True):
        if state:
            optimizer.state[parameter] = dict(state)
    before = [(id(tensor), tensor.data_ptr(), tensor.requires_grad) for tensor in state_of(model)]
    ones = trained[0].grad = torch.ones_like(trained[0])
    gradients = [parameter.grad for parameter in trained]
    random = torch.get_rng_state()
    answer(model, optimizer)
    same_random = torch.equal(random, torch.get_rng_state())
    kept = all(old is parameter.grad for old, parameter in zip(gradients, trained, strict=True))
    after = [(id(tensor), tensor.data_ptr(), tensor.requires_grad) for tensor in state_of(model)]
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return BroadcastReply(
        copies_of(state_of(model)),
        [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ],
        [dict(optimizer.state.get(parameter, {})) for parameter in trained],
        [each[:2] for each in before] == [each[:2] for each in after],
        list(map(id, held)) == list(map(id, trained)),
        before == after,
        model.training and kept and same_random and torch.equal(ones, torch.ones_like(ones)),
        optimizer.taken,
    )


def metrics(answer: AnswerFunction, own: dict[str, float], samples: int, hashes: list[int]) -> MeansReply:
    """The means that this rank gets. hashes: of its names in their order; empty for those of this process."""
    if hashes:
        own = {HashedName(*name): own[name[0]] for name in zip(own, hashes, strict=True)}
    before = list(own.items())
    means = answer(own, samples)
    named = {str(name): mean for name, mean in means.items()}
    return MeansReply(named, means is not own, list(own.items()) == before)


def fused(answer: AnswerFunction, tensors: list[Tensor], layout: str, trained: bool) -> FusedReply:
    """The buffer of these tensors, laid out as asked: "contiguous", "transposed" or "strided"."""
    given = [laid_out(tensor, layout).requires_grad_(trained) for tensor in tensors]
    before = _lies(given)
    flat = answer(given)
    same = before == _lies(given)
    if not isinstance(flat, Tensor):
        return FusedReply(flat, False, True, True, same)
    result, history = flat.detach().clone(), flat.requires_grad
    flat.detach().add_(1)
    kept = all(torch.equal(own, tensor) for own, tensor in zip(given, tensors, strict=True))
    return FusedReply(result, history, flat.is_contiguous(), kept, same)


def _lies(tensors: list[Tensor]) -> list[PlainData]:
    return [(each.requires_grad, each.data_ptr(), each.shape, each.stride()) for each in tensors]


def unfused(answer: AnswerFunction, flat: Tensor, shapes: list[list[int]]) -> UnfusedReply:
    """What the answer cuts out of flat [n], which begins within a larger tensor, and whether that is still
    part of it.
    """
    flat = torch.cat([flat[:0].new_ones(3), flat, flat[:0].new_ones(2)])[3:-2]
    parts = answer(flat, [torch.Size(shape) for shape in shapes])
    copies = copies_of(parts)
    for part in parts:
        part += 1
    return UnfusedReply(copies, flat.clone())


def unfuse_raises(answer: AnswerFunction, flat: Tensor, shapes: list[list[int]]) -> str:
    """The class of what the answer raises, by name; empty if nothing. flat: [n]."""
    return raised_by(lambda: answer(flat, [torch.Size(shape) for shape in shapes]), ValueError)


def cycles(answer: AnswerFunction, requests: list[list[str]], trainings: int) -> list[PlainData]:
    """What each cycle returns on this rank. requests: of each cycle; trainings: of equally many, with a table
    each.
    """
    tables: list[dict[str, Any]] = [{} for _ in range(trainings)]
    length = len(requests) // trainings
    return [answer(list(names), tables[cycle // length]) for cycle, names in enumerate(requests)]


def train(
    answer: AnswerFunction,
    model_options: dict[str, PlainData],
    values: list[Tensor],
    inputs: list[list[Tensor]],
    orders: list[list[list[int]]],
    options: dict[str, PlainData],
) -> list[StepReply]:
    """Steps of a `Paths` with the answer's optimizer.

    values: of the parameters. inputs, orders: by step and micro-batch, [B, width], and through which layers.
    options: "passes", "threshold", "lr", and "to_none", of zero_grad.
    """
    model = Paths(**model_options)
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), options["lr"])
    names = model.named_parameters(remove_duplicate=False)
    optimizer = answer(plain, names, options["passes"], threshold=options["threshold"])
    replies = []
    for batches, paths in zip(inputs, orders, strict=True):
        mark("step begins")
        optimizer.zero_grad(set_to_none=options["to_none"])
        for number, (batch, path) in enumerate(zip(batches, paths, strict=True)):
            model(batch, path, number).square().mean().backward()
            mark(f"backward {number} ends")
        before = [parameter.grad for parameter in model.parameters()]
        optimizer.step()
        mark("stepped")
        in_place = all(
            old is None or old is parameter.grad
            for old, parameter in zip(before, model.parameters(), strict=True)
        )
        replies.append(StepReply(gradients_of(model), copies_of(model.parameters()), in_place))
    return replies


OWN = ("param_groups", "state", "defaults")


class _Phases:
    """Steps of an optimizer around `plain`, numbered; what each leaves behind."""

    def __init__(self, model: Paths, plain: PlainSGD, optimizer: Any) -> None:
        self._model, self._plain, self._optimizer = model, plain, optimizer
        self.taken: list[int] = []
        self.parameters: list[list[Tensor]] = []

    def step(self, *closure: Callable[[], float]) -> PlainData:
        """A step, which ends the phase; what it returned."""
        returned: PlainData = self._optimizer.step(*closure)
        mark(f"phase {len(self.taken)} ends")
        self.taken.append(self._plain.taken)
        self.parameters.append(copies_of(self._model.parameters()))
        self._optimizer.zero_grad()
        return returned


def own(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> OwnReply:
    """One layer, in six phases, each marked: a step before any backward; one with a closure; one at another
    rate; one with gradients halved after synchronize(); one whose backward came after synchronize(); and one
    without a backward. Then comes a backward whose gradients are NaN. inputs: [B, width].
    """
    width = inputs.shape[1]
    model = Paths(width, [2], ["float32"], [], [])
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), 0.1)
    optimizer = answer(plain, model.named_parameters())
    shared = [name for name in OWN if getattr(optimizer, name, None) is getattr(plain, name)]
    phases = _Phases(model, plain, optimizer)
    closures: list[float] = []

    def backward(inputs: Tensor = inputs) -> None:
        model(inputs, [0]).square().mean().backward()

    def closure() -> float:
        closures.append(4.5)
        return 4.5

    phases.step()
    backward()
    returned = phases.step(closure)
    optimizer.param_groups[0]["lr"] = 0.01
    backward()
    phases.step()
    backward()
    optimizer.synchronize()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    phases.step()
    backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    backward()
    phases.step()
    phases.step()
    backward(inputs * torch.nan)
    optimizer.synchronize()
    lost = sum(each is None or not each.isnan().all() for each in gradients_of(model))
    state = hands_on_state(optimizer, plain)
    left = cleared(model, optimizer)
    return OwnReply(shared, state, returned, len(closures), phases.taken, phases.parameters, lost, left)


def refusals(answer: AnswerFunction, values: list[Tensor], inputs: Tensor) -> list[str]:
    """What is raised, see `refused`, in turn: by zero_grad() after a backward; after step(); after
    synchronize(); after the first of two passes; by the second of two passes; by a third. inputs: [B, width].
    One of two layers has no gradient, so the only message is not complete before synchronize().
    """
    width = inputs.shape[1]
    found: list[str] = []
    for passes in (1, 2):
        model = Paths(width, [2, 2], ["float64"] * 2, [], [])
        load_values(model.parameters(), values)
        optimizer = answer(PlainSGD(model.parameters(), 0.1), model.named_parameters(), passes)

        def backward(model: Paths = model) -> None:
            model(inputs, [0]).square().mean().backward()

        backward()
        found.append(refused(model, optimizer))
        if passes == 1:
            optimizer.step()
            found.append(refused(model, optimizer))
            backward()
            optimizer.synchronize()
            found.append(refused(model, optimizer))
        else:
            found.append(raised_by(backward, RuntimeError))
            found.append(raised_by(backward, RuntimeError))
            with suppress(Exception):  # what is under way is to be waited for, whatever state that left
                optimizer.synchronize()
    return found


def tuned(
    answer: AnswerFunction, sizes: list[int], ready: list[float], ranks: int, latency: float, bandwidth: float
) -> PlainData:
    """What the answer chooses for this model and this link."""
    return answer(sizes, ready, ranks, Link(latency, bandwidth))


def under_horovodrun(answer: AnswerFunction, values: list[list[Tensor]], data: dict[str, Tensor]) -> RunReply:
    """What each process did in a run of both phases; see `graders.units.unit_04.horovodrun.run`."""
    try:
        begins, goes_on, failed = horovodrun.run(answer, values, data)
    except horovodrun.LauncherFailed as failure:
        return RunReply([], [], "", str(failure))
    return RunReply(
        [ProcessReply(**each) for each in begins], [ProcessReply(**each) for each in goes_on], failed, ""
    )
