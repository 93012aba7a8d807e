"""What is seen of steps of training with buckets: which calls start, and when."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from typing import Any

from course_lib.runtime.communication.events import Event
from graders.grading.explanation import Tried
from graders.grading.kit import Finding
from graders.units.models import state_of
from graders.units.unit_02.models import reaches
from graders.units.unit_02.steps import Steps


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


def once_before(tried: Tried[Any]) -> Finding:
    """Passes if the constructor broadcasts the model's state, and that is all."""
    state = sum(tensor.nbytes for tensor in state_of(tried.case.features.model))
    for rank, calls in enumerate(before_steps(tried)):
        ops, nbytes = sorted({call.op for call in calls} - {"broadcast"}), sum(call.nbytes for call in calls)
        if ops or nbytes != state:
            text = f"on rank {rank} the constructor calls {', '.join([*ops, 'broadcast'])}, of {nbytes} bytes"
            return Finding(False, f"{text}; expected broadcasts of {state} bytes in all.")
    return Finding(True, "the constructor broadcasts parameters and buffers, each once.")


def in_order(tried: Tried[Any]) -> Finding:
    """Passes if buckets start in backward when they can, and what is left starts before anything is waited
    for.
    """
    for step in steps_seen(tried):
        left = [call for call in step.calls if call.sequence >= step.ended.sequence]
        first = min((call.end for call in step.calls if call.end > step.ended.start), default=sys.maxsize)
        if any(call.start >= first for call in left):
            text = "finish() waits for one all_reduce before it has started all that are left"
            return Finding(False, f"{step}: {text}; expected all to be under way at once.")
    return starts_in_backward(tried)


def silent_but_the_last(tried: Tried[Any]) -> Finding:
    """Passes if only the last pass of a step sends, as early as in an earlier step that goes the same way."""
    usual: dict[tuple[int, str], int] = {}
    for step in steps_seen(tried):
        early = step.before(step.passes[-1]["pass begins"])
        if early:
            text = f"backward within no_sync() calls {early[0].op}"
            return Finding(False, f"{step}: {text}; expected no call.")
        made, way = len(step.before(step.ended)), (step.rank, str(step.way))
        if made < usual.setdefault(way, made):
            text = f"the backward after no_sync() starts {made} buckets, and without such a block before it"
            return Finding(False, f"{step}: {text} {usual[way]}.")
    return Finding(True, "nothing is sent within no_sync(), and everything after it.")
