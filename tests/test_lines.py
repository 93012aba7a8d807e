"""Which frames are the student's, and which text is a definition's."""

import ast
import inspect
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import graders
from course_lib.runtime.communication.blocking import called_blocking
from course_lib.runtime.communication.callsite import caller_line, is_grader, is_library, own_lines
from course_lib.runtime.communication.events import SourceLine
from graders.submissions.cells import definition_source


def run_as(file: str | Path, code: str, **names: object) -> SourceLine | None:
    """Run code as if it stood in a file, and return what it assigns to `seen`."""
    namespace: dict[str, object] = {"caller_line": caller_line, **names}
    exec(compile(code, str(file), "exec"), namespace)
    seen = namespace["seen"]
    assert seen is None or isinstance(seen, SourceLine)
    return seen


def test_files_of_python_torch_and_the_course_are_libraries() -> None:
    for file in (os.__file__, torch.__file__, dist.__file__, "<frozen importlib._bootstrap>"):
        assert is_library(file)
    assert is_library(str(Path(graders.__file__).parents[1] / "course_lib" / "data.py"))
    for file in (__file__, "/tmp/ipykernel_1/23.py", "<ipython-input-1>", "<stdin>"):
        assert not is_library(file)


def test_the_innermost_line_of_the_students_counts() -> None:
    def call_back() -> SourceLine | None:
        return run_as(torch.__file__, "seen = caller_line()")

    seen = call_back()
    assert seen is not None
    # The frame in torch is passed over, and `run_as` in this file is next.
    assert (seen.file, seen.function) == (__file__, "run_as")


def test_a_graders_line_counts_only_if_there_is_no_other() -> None:
    driver = str(Path(graders.__file__).parent / "drivers" / "unit.py")
    assert is_grader(driver)
    seen = run_as(
        "/home/student/answer.py", "seen = inner()", inner=lambda: run_as(driver, "seen = caller_line()")
    )
    assert seen is not None
    assert not is_grader(seen.file)


def test_nothing_is_the_students_in_a_librarys_own_thread() -> None:
    # A thread begins in `threading`; the function that it runs is a library's here.
    import threading

    results: list[SourceLine | None] = []
    namespace = {"caller_line": caller_line, "results": results}
    exec(compile("def body():\n    results.append(caller_line())", torch.__file__, "exec"), namespace)
    thread = threading.Thread(target=namespace["body"])  # type: ignore[arg-type]
    thread.start()
    thread.join()
    assert results == [None]


def test_a_blocking_call_is_known_by_torchs_own_frames() -> None:
    c10d = dist.distributed_c10d.__file__
    names = {"called_blocking": called_blocking}
    for function, blocking in (("send", True), ("isend", False)):
        namespace: dict[str, object] = dict(names)
        code = f"def {function}():\n    return called_blocking('send')\nseen = {function}()"
        exec(compile(code, c10d, "exec"), namespace)
        assert namespace["seen"] is blocking


def test_a_frame_without_a_line_counts_as_its_first() -> None:
    # What a signal raises between two lines of a generator has no line there, and a report needs one.
    frame = inspect.currentframe()
    assert frame is not None
    assert own_lines([(frame, None)])[0].line == frame.f_code.co_firstlineno


@pytest.mark.parametrize(
    "text",
    [
        Path(__file__).read_text(),
        "def f():\r\n  'é\x0c'\r\n  return 'é'  # behind it\r\nx = 1\rclass A: 'é'; y = 2\n",
        "@f\nasync def g(x):\n  '''a\x0bb\u2028c\n d'''\n\ndef f(): 1\ndef f(): 2",
        "\x0cdef g(): return 'éé'  # behind it\n",
    ],
)
def test_a_definition_is_the_text_that_python_says(text: str) -> None:
    # Invariant: whichever way lines end and letters are counted; the last of a name counts.
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    expected = {
        node.name: ast.get_source_segment(text, node)
        for node in ast.parse(text).body
        if isinstance(node, definitions)
    }
    assert expected
    assert {name: definition_source(text, name) for name in expected} == expected
    assert definition_source(text, "nothing") == definition_source("def f(:", "f") == ""
