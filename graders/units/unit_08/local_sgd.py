"""The grader of `local_sgd`."""

import copy
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from graders.grading.communication import each_rank_calls
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.models import copies_of
from graders.units.optimizers import PlainSGD
from graders.units.unit_08 import drivers
from graders.units.unit_08.replicas import (
    FROZEN,
    SHAPES,
    TRAINED,
    WIDTH,
    Forked,
    LocalReply,
    in_two_groups,
    loss_of,
    state_of,
)

Batches = list[list[tuple[Tensor, Tensor]]]
"""For each rank and step, inputs and targets [B, WIDTH]."""

_ANY_PERIOD = ("any period, any number of ranks",)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "the weights",
            3,
            "Each rank steps with its own gradients. After `period` steps every rank's weights become the "
            "mean of all ranks' weights. Gradients are never averaged, and old ones never added.",
        ),
        Criterion(
            "any period, any number of ranks",
            3,
            "At the end all ranks have the same weights, also where the number of steps is no multiple of "
            "the period.",
        ),
        Criterion(
            "layers that only some ranks train",
            2,
            "A parameter that has no gradient on this rank may have changed on another: it is averaged too.",
            needs=_ANY_PERIOD,
        ),
        Criterion(
            "what stays a rank's own",
            1,
            "The model keeps its parameters, those that are frozen their numbers, each rank its buffers, its "
            "optimizer's state and its list of batches; nobody puts the model into another mode.",
            needs=_ANY_PERIOD,
        ),
        Criterion("losses", 1, "One float a step, of this rank's own batch.", needs=_ANY_PERIOD),
        Criterion(
            "all-reduces",
            3,
            "One all_reduce of all trainable parameters laid end to end, after each `period` steps and once "
            "for what is left; none where nothing has changed since the last.",
            needs=("layers that only some ranks train", "what stays a rank's own"),
        ),
    ),
    hints=(
        "What is a training step of one rank, with no other rank? Write that first. At which step numbers "
        "does something more happen?",
        "What does the mean of weights need? One flat tensor, one all_reduce, one division; then copy_ each "
        "piece into its parameter, under torch.no_grad().",
        "With 7 steps and a period of 3: after which steps do the ranks talk? After 3, 6 and 7.",
    ),
)
def local_sgd(answer: Answer, rng: Rng) -> Findings:
    """Trainings with drawn batches, periods and numbers of ranks, beside the same in one process."""
    runs = [
        _trained(answer, rng, 3, 6, 2, dtype=dtype, one_branch=True)
        for dtype in (torch.float32, torch.float64)
    ]
    yield "the weights", compare.first_failure(map(_right, runs))
    settings = ((2, 0, 3), (2, 5, 1), (3, 7, 3), (2, 3, 5), (1, 3, 2), (5, 4, 2))
    others = [_trained(answer, rng, *setting, one_branch=True) for setting in settings]
    yield "any period, any number of ranks", compare.first_failure(map(_right, others))
    yield "layers that only some ranks train", _right(_trained(answer, rng, 3, 5, 2, one_branch=False))
    yield "what stays a rank's own", compare.first_failure(map(_own, [*runs, *others]))
    yield "losses", compare.first_failure(map(_losses, [*runs, *others]))
    yield "all-reduces", compare.first_failure(map(_calls, [*runs, *others]))


@dataclass(frozen=True, slots=True)
class _Training:
    """What a training was given, and what came out. batches[r]: rank r's. expected: see `_expected`."""

    values: list[Tensor]
    batches: Batches
    period: int
    observed: Observed[LocalReply]
    expected: "_Expected"

    @property
    def steps(self) -> int:
        return len(self.batches[0])

    def __str__(self) -> str:
        return f"with {len(self.batches)} ranks, {self.steps} steps and a period of {self.period}"


@dataclass(frozen=True, slots=True)
class _Expected:
    """The weights at the end; for each rank its losses, and its optimizer's state as `state_of` tells it."""

    weights: list[Tensor]
    losses: list[list[float]]
    states: list[tuple[list[Tensor], list[float]]]


def _expected(models: list[Forked], optimizers: list[PlainSGD], batches: Batches, period: int) -> _Expected:
    """Computed replica by replica."""
    losses: list[list[float]] = [[] for _ in models]
    steps = len(batches[0])
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, targets = batches[rank][step]
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses[rank].append(loss.item())
        if (step + 1) % period == 0 or step + 1 == steps:
            _average(models)
    return _Expected(copies_of(models[0].parameters()), losses, [state_of(each) for each in optimizers])


def _average(models: list[Forked]) -> None:
    with torch.no_grad():
        for replicas in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack(replicas).mean(0)
            for each in replicas:
                if each.requires_grad:
                    each.copy_(mean)


def _trained(
    answer: Answer,
    rng: Rng,
    ranks: int,
    steps: int,
    period: int,
    one_branch: bool,
    dtype: torch.dtype = torch.float32,
) -> _Training:
    """A drawn training by the answer. one_branch: all ranks use the same layers, and have gradients there."""
    values = [rng.normal(*shape, dtype=dtype) for shape in SHAPES]
    branches = [0 if one_branch else rank % 2 for rank in range(ranks)]
    batches = [
        [(rng.normal(size, WIDTH, dtype=dtype), rng.normal(size, WIDTH, dtype=dtype)) for _ in range(steps)]
        for size in range(2, 2 + ranks)
    ]
    rates = (0.01 * rng.integer(2, 5), 0.01 * rng.integer(6, 9))
    given = (values, per_rank(branches), per_rank(copy.deepcopy(batches)), rates, period)
    observed = answer.launch(drivers.local_sgd, *given, ranks=ranks)
    models = [Forked(values, branch) for branch in branches]
    expected = _expected(models, [in_two_groups(model, rates) for model in models], batches, period)
    return _Training(values, batches, period, observed, expected)


def _right(training: _Training) -> Finding:
    """Passes if every rank ends with the expected weights."""
    weights = training.expected.weights
    rtol, atol = (1e-10, 1e-11) if weights[0].dtype is torch.float64 else (1e-4, 1e-5)
    return compare.first_failure(
        (
            compare.close(seen, wanted, f"{training}, parameter {position} on rank {rank}", rtol, atol)
            for rank, reply in enumerate(training.observed.results)
            for position, (seen, wanted) in enumerate(compare.side_by_side(reply.model.parameters, weights))
            if position not in FROZEN
        ),
        "All ranks end with the expected weights.",
    )


def _own(training: _Training) -> Finding:
    """Passes if parameters are the tensors that they were, and buffers and frozen ones were left alone."""
    for rank, reply in enumerate(training.observed.results):
        frozen = [reply.model.parameters[position] for position in FROZEN]
        where = f"{training}, on rank {rank}"
        if not reply.model.same:
            return Finding(False, f"{where} a parameter is another tensor, or no longer as trainable.")
        if not compare.same(frozen, [training.values[position] for position in FROZEN]):
            return Finding(False, f"{where} a frozen parameter has changed.")
        if not reply.kept:
            return Finding(False, f"{where} the list of batches has changed.")
        if reply.taken != training.steps:
            return Finding(False, f"{where} the optimizer made {reply.taken} steps.")
        momentum, rates = training.expected.states[rank]
        if reply.rates != rates or len(reply.momentum) != len(momentum):
            return Finding(False, f"{where} the optimizer has lost its state, or its learning rates.")
        samples = sum(len(inputs) for inputs, _ in training.batches[rank])
        seen = compare.equal(reply.model.seen, torch.full((1,), float(samples)), f"{where} its buffer")
        if not seen.passed:
            return seen
    return Finding(True, "Buffers, frozen parameters and the parameters' tensors are what they were.")


def _losses(training: _Training) -> Finding:
    """Passes if each rank returned the loss of each of its steps."""
    losses = training.expected.losses
    for rank, (reply, expected) in enumerate(zip(training.observed.results, losses, strict=True)):
        what = f"{training}, what rank {rank} returns"
        if not isinstance(reply.returned, list) or len(reply.returned) != len(expected):
            return Finding(
                False, f"{what} is {compare.shown(reply.returned)}; expected {len(expected)} floats."
            )
        near = (
            compare.near(seen, wanted, what, rtol=1e-4)
            for seen, wanted in zip(reply.returned, expected, strict=True)
        )
        finding = next((each for each in near if not each.passed), None)
        if finding:
            return finding
    return Finding(True, "Each rank returns the loss of each of its steps.")


def _calls(training: _Training) -> Finding:
    """Passes if every rank calls all_reduce once a period, with all its trainable numbers."""
    times = ceil(training.steps / training.period)
    finding = each_rank_calls([training.observed], ["all_reduce"] * times, "")
    if not finding.passed:
        said = f"{training}, rank 0 calls {len(training.observed.calls(0))} times"
        others = sorted({*training.observed.calls(0)} - {"all_reduce"})
        text = f"{said}{', ' + ', '.join(others) if others else ''}; expected all_reduce {times} times."
        return Finding(False, text, finding.kind)
    nbytes = TRAINED * training.values[0].element_size()
    for event in training.observed.communication(0):
        if event.nbytes != nbytes:
            text = f"{training}, rank 0 gives all_reduce {event.nbytes} bytes; expected {nbytes}."
            return Finding(False, text, Kind.TOO_MUCH if event.nbytes > nbytes else Kind.OTHER)
    return Finding(True, f"{training}, each rank calls all_reduce {times} times, with {nbytes} bytes.")
