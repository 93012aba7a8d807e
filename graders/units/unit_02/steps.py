"""Steps of training with buckets: what must come of them, and when calls start."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Finding, Rng
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments
from graders.units.unit_02.models import Layers, inputs_of, older_gradients, reaches

FORWARD = "012"
"""The way through a `Layers` in the order of its layers."""


def told_steps(steps: tuple[str, ...]) -> str:
    """`2 steps in which layers run in the order 201/210 (one rank/the next)`, or how many there are."""
    ways = dict.fromkeys(step for step in steps if step != FORWARD)
    many = f"{len(steps)} steps" if len(steps) > 1 else "a step" if ways else ""
    if not ways:
        return many
    named = ", ".join("; ".join(step.split()) for step in ways)
    by_rank = " (one rank/the next)" if "/" in named else ""
    silent = "; all but the last pass within no_sync" if " " in "".join(ways) else ""
    return f"{many} in which layers run in the order {named}{by_rank}{silent}"


@dataclass(frozen=True, slots=True)
class Steps(Ranks):
    """steps: what each does: passes with a space between, all but the last silent; of a pass the numbers of
    the layers in the order in which they run, of one rank, then of the next, in turn. older:
    whether .grad holds something before the first step, of rank 0 an infinity and a NaN, too.
    """

    ranks: int = feature(2, lambda ranks: f"{ranks} rank{'s' * (ranks > 1)}")
    steps: tuple[str, ...] = feature((FORWARD,), told_steps)
    double: bool = feature(False, lambda double: "float64" if double else "float32")
    older: bool = feature(False, lambda older: "older gradients, with an inf and a NaN" if older else "")

    @property
    def made(self) -> dict[str, Any]:
        """How the `Layers` is made."""
        return {"double": self.double}

    @property
    def model(self) -> Layers:
        """One like those of the ranks, with whatever values."""
        return _model_like(self)

    @property
    def buckets(self) -> list[list[int]]:
        """The numbers of the parameters in each."""
        raise NotImplementedError

    @property
    def in_turn(self) -> bool:
        """Whether a bucket waits for those before it."""
        return False

    @property
    def tolerance(self) -> float:
        return 1e-11 if self.double else 1e-5

    @property
    def passes(self) -> list[list[list[list[int]]]]:
        """Step -> pass -> rank -> layers."""
        return [[_by_rank(each.split("/"), self.ranks) for each in step.split()] for step in self.steps]

    @property
    def plain(self) -> bool:
        """Whether all layers run in their order, in all steps."""
        return set(self.steps) == {FORWARD}


@cache
def _model_like(case: Steps) -> Layers:
    return Layers(0, **case.made)


@cache
def _complete(case: Steps, way: tuple[int, ...], left: tuple[int, ...]) -> set[int]:
    """The numbers of the parameters whose gradients a rank has that has gone this way, while backward has not
    yet computed those of the layers that are left.
    """
    users = [
        {layer for layer in way if any(each is parameter for each in case.model.layers[layer])}
        for parameter in case.model.parameters()
    ]
    return {number for number, of in enumerate(users) if of and not of & {*left}}


@cache
def _nbytes(case: Steps) -> list[int]:
    """Of each parameter."""
    return [parameter.nbytes for parameter in case.model.parameters()]


def _by_rank(ways: list[str], ranks: int) -> list[list[int]]:
    return [[*map(int, ways[rank % len(ways)])] for rank in range(ranks)]


def drawn_steps(
    rng: Rng, case: Steps, given: Any, apart: bool = False, raises: bool = False
) -> list[Arguments]:
    """See `drivers.steps`. given: what the answer gets beside the model. apart: whether each rank has a state
    of its own.
    """
    seeds = rng.integers(0, 2**40, 2, case.ranks).tolist()
    states, own = seeds if apart else ([seeds[0][0]] * case.ranks, seeds[1])
    return [
        [case.made, (states[rank], own[rank]), _of_rank(case, rank), case.older, raises, given]
        for rank in range(case.ranks)
    ]


def _of_rank(case: Steps, rank: int) -> list[list[list[int]]]:
    """Step -> pass -> layers."""
    return [[ways[rank] for ways in passes] for passes in case.passes]


def own_gradients(model: Layers, given: Arguments) -> list[list[Tensor]]:
    """Of each step what one rank's passes leave in .grad, zeros where nothing comes. model: as rank 0's."""
    _, (_, seed), steps, older, *_ = given
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    told = []
    for step, passes in enumerate(steps):
        losses = [
            model(inputs_of(model, seed, step, turn), way).square().mean() for turn, way in enumerate(passes)
        ]
        new = iter(torch.autograd.grad(torch.stack(losses).sum(), trained, materialize_grads=True))
        sums = [next(new) if each.requires_grad else torch.zeros_like(each) for each in parameters]
        zeros = [torch.zeros_like(each) for each in sums]
        before = older_gradients(model, seed) if older and step == 0 else zeros
        told.append([own + old for own, old in zip(sums, before, strict=True)])
    return told


def mean_gradients(of_ranks: list[list[list[Tensor]]]) -> list[list[Tensor]]:
    """Of each step the means over ranks."""
    return [
        [torch.stack(each).mean(0) for each in zip(*step, strict=True)]
        for step in zip(*of_ranks, strict=True)
    ]


# ---------------------------------------------------------------------- rows that ask when calls start


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank did in a step: its calls, and the marks of each of its passes by their labels. way: that of
    the last one.
    """

    rank: int
    number: int
    way: list[int]
    passes: list[dict[str, Event]]
    calls: list[Event]

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.number}"

    @property
    def ended(self) -> Event:
        """The end of backward."""
        return self.passes[-1]["backward ends"]

    def before(self, mark: Event) -> list[Event]:
        """The calls up to this mark."""
        return [call for call in self.calls if call.sequence < mark.sequence]


def steps_seen(tried: Tried[Any]) -> Iterator[Step]:
    """Every step of every rank."""
    passes = tried.case.features.passes
    for rank, (calls, marks) in enumerate(zip(tried.seen.by_rank, tried.seen.marks, strict=True)):
        begins = [place for place, mark in enumerate(marks) if mark.op == "step begins"]
        bounds = zip(begins, [*begins[1:], len(marks)], strict=True)
        for number, (begin, end) in enumerate(bounds):
            step = marks[begin:end]
            last = marks[end].sequence if end < len(marks) else sys.maxsize
            labels: list[dict[str, Event]] = []
            for mark in step:
                if mark.op == "pass begins":
                    labels.append({})
                if labels:
                    labels[-1].setdefault(mark.op, mark)
            made = [call for call in calls if step[0].sequence <= call.sequence < last]
            yield Step(rank, number, passes[number][-1][rank], labels, made)


def before_steps(tried: Tried[Any]) -> Iterator[list[Event]]:
    """What each rank called before its first step."""
    for step in steps_seen(tried):
        if step.number == 0:
            begin = step.passes[0]["pass begins"].sequence
            yield [call for call in tried.seen.by_rank[step.rank] if call.sequence < begin]


def called_as(tried: Tried[Any]) -> Finding:
    """Passes if every rank makes, in each step, one all_reduce a bucket, in order, and nothing else."""
    case = tried.case.features
    wanted = [("all_reduce", sum(_nbytes(case)[number] for number in each)) for each in case.buckets]
    if not case.in_turn:
        wanted.sort()
    for step in steps_seen(tried):
        seen = [(call.op, call.nbytes) for call in step.calls]
        if (seen if case.in_turn else sorted(seen)) != wanted:
            return Finding(False, f"{step}: {_in_words(seen)}; expected {_in_words(wanted)}.")
    return Finding(True, f"every step makes {_in_words(wanted)}.")


def _in_words(calls: Sequence[tuple[str, int]]) -> str:
    """`all_reduce of 160, 160 bytes`"""
    ops = ", ".join(sorted({op for op, _ in calls}))
    return f"{ops} of {', '.join(str(nbytes) for _, nbytes in calls)} bytes" if calls else "no call"


def starts_in_backward(tried: Tried[Any]) -> Finding:
    """Passes if backward starts every bucket before it goes on to the next layer, as soon as it can."""
    case = tried.case.features
    for step in steps_seen(tried):
        for number in range(len(step.way), -1, -1):
            left = step.way[:number]
            label = reaches(left[-1]) if left else "backward ends"
            if label not in step.passes[-1]:
                return Finding(False, f"{step}: backward did not go through the model that it was given.")
            made = sum(call.nbytes for call in step.before(step.passes[-1][label]))
            due = _due(case, step, _complete(case, tuple(step.way), tuple(left)))
            if made < due:
                text = f"when {label}, buckets of {due} bytes are complete, and {made or 'none'} under way"
                return Finding(False, f"{step}: {text}.")
    return Finding(True, "each all_reduce starts in backward, when the bucket's last gradient is there.")


def _due(case: Steps, step: Step, complete: set[int]) -> int:
    """Bytes of the buckets that a rank can have started. Where buckets go in turn they are as large as those
    that it sends: how large they have to be is another row's.
    """
    if not case.in_turn:
        sizes = [
            [_nbytes(case)[number] for number in each] for each in case.buckets if complete.issuperset(each)
        ]
        return sum(map(sum, sizes))
    trained = [number for each in case.buckets for number in each]
    there = sum(_nbytes(case)[number] for number in takewhile(complete.__contains__, trained))
    return max(takewhile(there.__ge__, accumulate(call.nbytes for call in step.calls)), default=0)


def never_waits(tried: Tried[Any]) -> Finding:
    """Passes if backward ends before the first all_reduce does that it has started."""
    for step in steps_seen(tried):
        for call in step.before(step.ended):
            if call.op == "all_reduce" and call.end <= step.ended.start:
                text = f"backward called {call.op} at {call.start * 1e3:.2f} ms, and ended at"
                return Finding(
                    False, f"{step}: {text} {step.ended.start * 1e3:.2f} ms, when it was over: it waited."
                )
    return Finding(True, "backward ends while the all_reduce that it started first is under way.")
