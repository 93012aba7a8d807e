"""What is told of the arguments with which a grader called a function that raised."""

from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
from torch import nn

import graders
from course_lib.cluster.topology import Link
from course_lib.runtime.communication.arguments import given_by_a_grader


def trace_of(function: Any, *arguments: Any, **named: Any) -> TracebackType | None:
    """The traceback of a call that a module of the graders makes, which raises."""
    driver: dict[str, Any] = {}
    source = "def drive(answer, arguments, named):\n    answer(*arguments, **named)\n"
    exec(compile(source, str(Path(graders.__file__).parent / "drivers.py"), "exec"), driver)
    with pytest.raises(ZeroDivisionError) as raised:
        driver["drive"](function, arguments, named)
    return raised.value.__traceback__


def divides(x: Any, *rest: Any, source: int = 0, **named: Any) -> None:
    inner(x)


def inner(deeper: Any) -> None:
    _ = 1 / 0


class Mine:
    """A student's class, which may have the name of one of Python's."""


Mine.__name__ = "list"


class Odd(torch.Tensor):
    """A student's tensor that cannot be asked for its dtype."""

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        raise ZeroDivisionError


def test_the_outermost_functions_arguments_are_told_briefly() -> None:
    given = given_by_a_grader(
        trace_of(divides, torch.ones(2, 3), "abc", source=1, more=nn.Sequential(nn.Linear(1, 1)))
    )
    assert given == "x=float32[2, 3], source=1, rest=('abc',), named={'more': Sequential(...)}"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Mine(), "list(...)"),
        ([1.5, None, True], "[1.5, None, True]"),
        (torch.tensor(1), "int64[]"),
        (Link(1e-6, 2e9), "Link(latency=1e-06, bandwidth=2000000000.0)"),
        (object(), "object(...)"),
        (nn.Parameter(torch.ones(2)), "float32[2]"),
        (torch.ones(2).as_subclass(Odd), "Odd(...)"),
        ("x" * 1000, f"'{'x' * 37}...{'x' * 38}'"),
    ],
    ids=[
        "a class named list",
        "list",
        "tensor",
        "course_lib",
        "no words",
        "parameter",
        "odd tensor",
        "long text",
    ],
)
def test_values_are_told_briefly(value: Any, told: str) -> None:
    assert given_by_a_grader(trace_of(inner, value)) == f"deeper={told}"


def test_what_no_grader_called_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        divides(1)
    assert given_by_a_grader(raised.value.__traceback__) == ""
