"""The answer in this very process: what `check` in a notebook grades."""

import inspect
import linecache
from dataclasses import dataclass
from typing import Any

from course_lib.runtime.processes.serialization import functions_of
from graders.guest.execute import perform
from graders.protocol.proxy import RemoteAnswer
from graders.protocol.requests import RunRequest
from graders.submissions.cells import definition_source


def kernel_answer(answer: Any, name: str) -> RemoteAnswer:
    """The student's object as a grader sees it.

    Its requests and replies are written down and read again as if they went to another process: the answer
    gets copies of the inputs, and returns nothing but plain data, as when grades are given.
    """
    beside = namespace_of(answer)
    return RemoteAnswer(
        name, source_of(answer), KernelTransport(answer), source_of=lambda other: source_of(beside.get(other))
    )


@dataclass(frozen=True, slots=True)
class KernelTransport:
    """A `graders.protocol.proxy.Transport` that stays in this process."""

    answer: Any

    def exchange(self, request: bytes, _seconds: float) -> bytes:
        """See `Transport`."""
        return perform(self.answer, request)

    def run(self, _request: RunRequest) -> None:
        """See `Transport`: the other side is here."""

    def keeps_line(self, _file: str) -> bool:
        """See `Transport`: it is the student's own kernel."""
        return True


def namespace_of(answer: Any) -> dict[str, Any]:
    """Where the answer's names are looked up: the namespace of the cells, as a rule."""
    return next((function.__globals__ for function in functions_of(answer)), {})


def source_of(answer: Any) -> str:
    """The source text of a function or class; empty where it is not to be had."""
    try:
        return inspect.getsource(answer)
    except (OSError, TypeError):
        return _class_source(answer) if inspect.isclass(answer) else ""


def _class_source(answer: type) -> str:
    """The source of a class from the file of one of its methods: a notebook's classes have no file."""
    methods = (inspect.unwrap(value) for value in vars(answer).values() if inspect.isfunction(value))
    for file in {method.__code__.co_filename for method in methods}:
        text = "".join(linecache.getlines(file))
        found = definition_source(text, answer.__name__)
        if found:
            return found
    return ""
