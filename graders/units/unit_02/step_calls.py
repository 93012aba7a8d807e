"""Rows about steps of training with buckets: which calls start, and when."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

from course_lib.runtime.communication.events import Event
from graders.grading.explanation import Tried
from graders.grading.kit import Finding
from graders.units.models import state_of
from graders.units.unit_02.models import Layers, reaches
from graders.units.unit_02.steps import SIZES


@dataclass(frozen=True, slots=True)
class Step:
    """What a rank did in a step: its calls, and the marks of its last pass by their labels. way: of this."""

    name: str
    way: list[int]
    marks: dict[str, Event]
    calls: list[Event]

    def before(self, label: str) -> list[Event]:
        """The calls up to this mark."""
        return [call for call in self.calls if call.sequence < self.marks[label].sequence]


def steps_seen(tried: Tried[Any]) -> Iterator[Step]:
    """Every step of every rank."""
    for rank, (calls, marks) in enumerate(zip(tried.seen.by_rank, tried.seen.marks, strict=True)):
        begins = [place for place, mark in enumerate(marks) if mark.op == "step begins"]
        ways = tried.case.features.ways(rank)
        for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(marks)], strict=True)):
            last = marks[end].sequence if end < len(marks) else sys.maxsize
            made = [call for call in calls if marks[begin].sequence <= call.sequence < last]
            of_last_pass = {mark.op: mark for mark in marks[begin:end]}
            yield Step(f"rank {rank}, step {number}", ways[number][-1], of_last_pass, made)


def called_before(tried: Tried[Any]) -> list[list[Event]]:
    """What each rank called before its first step."""
    begins = [next(mark for mark in marks if mark.op == "step begins") for marks in tried.seen.marks]
    return [
        [call for call in calls if call.sequence < begin.sequence]
        for calls, begin in zip(tried.seen.by_rank, begins, strict=True)
    ]


def called_as(tried: Tried[Any]) -> Finding:
    """Passes if every rank makes, in each step, one all_reduce a bucket, in order, and nothing else."""
    wanted = [("all_reduce", sum(SIZES[number] for number in each)) for each in tried.case.features.buckets]
    for step in steps_seen(tried):
        seen = [(call.op, call.nbytes) for call in step.calls]
        if seen != wanted:
            return Finding(False, f"{step.name}: calls of bytes {seen}; expected {wanted}.")
    return Finding(True, f"every step makes calls of bytes {wanted}.")


def starts_in_backward(tried: Tried[Any]) -> Finding:
    """Passes if backward starts every bucket before it goes on to the next layer, as soon as it can. Buckets
    are as large as those that are sent: how large they have to be is another row's.
    """
    trained = [number for each in tried.case.features.buckets for number in each]
    for step in steps_seen(tried):
        for number in range(len(step.way) + 1):
            label = reaches(step.way[number - 1]) if number else "backward ends"
            if label not in step.marks:
                return Finding(
                    False, f"{step.name}: backward did not go through the model that it was given."
                )
            done = {2 * layer + of for layer in step.way[number:] for of in range(2)}
            there = sum(SIZES[each] for each in takewhile(done.__contains__, trained))
            due = max(takewhile(there.__ge__, accumulate(call.nbytes for call in step.calls)), default=0)
            made = sum(call.nbytes for call in step.before(label))
            if made < due:
                text = f"when {label}, buckets of {due} bytes are complete, and {made or 'none'} under way"
                return Finding(False, f"{step.name}: {text}.")
    return Finding(True, "each all_reduce starts in backward, when the bucket's last gradient is there.")


def never_waits(tried: Tried[Any]) -> Finding:
    """Passes if backward ends before the first all_reduce does that it has started."""
    for step in steps_seen(tried):
        ended = step.marks["backward ends"].start
        for call in step.before("backward ends"):
            if call.end <= ended:
                text = f"{call.op} was over when backward ended, at {ended * 1e3:.2f} ms: it waited"
                return Finding(False, f"{step.name}: {text}.")
    return Finding(True, "backward ends while the all_reduce that it started first is under way.")


def once_before(tried: Tried[Any]) -> Finding:
    """Passes if the constructor broadcasts the model's state, and that is all."""
    state = sum(tensor.nbytes for tensor in state_of(Layers(0)))
    for rank, calls in enumerate(called_before(tried)):
        ops, nbytes = {call.op for call in calls}, sum(call.nbytes for call in calls)
        if ops != {"broadcast"} or nbytes != state:
            text = (
                f"on rank {rank} the constructor calls {', '.join(sorted(ops)) or 'nothing'}, {nbytes} bytes"
            )
            return Finding(False, f"{text}; expected broadcasts of {state} bytes in all.")
    return Finding(True, "the constructor broadcasts parameters and buffers, each once.")


def silent_but_the_last(tried: Tried[Any]) -> Finding:
    """Passes if only the last pass of a step sends."""
    for step in steps_seen(tried):
        early = step.before("pass begins")
        if early:
            text = f"backward within no_sync() calls {early[0].op}"
            return Finding(False, f"{step.name}: {text}; expected no call.")
    return Finding(True, "nothing is sent within no_sync(), and everything after it.")
