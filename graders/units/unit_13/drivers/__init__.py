"""Drivers of unit 13: they run beside the student's code, which could read an expected value here."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import AnswerFunction, DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class ExampleReply(DriverReply):
    """result: what the answer returned on this rank. x: its argument [n] afterwards."""

    result: PlainData
    x: Tensor


def example(answer: AnswerFunction, x: Tensor) -> ExampleReply:
    """What the answer makes of x [n]."""
    return ExampleReply(answer(x), x)
