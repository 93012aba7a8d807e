"""Which line of the student's code made a call: the frames of libraries are not the student's."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from course_lib.library_folders import NAMES
from course_lib.runtime.communication.events import SourceLine


def _torch_folders() -> Sequence[str]:
    """Where PyTorch is, without importing it; nothing where there is none, as in TensorFlow's environment."""
    spec = find_spec("torch")
    return spec.submodule_search_locations or () if spec else ()


_COURSE = Path(__file__).parents[2]
_LIBRARIES = tuple(
    sorted(
        {
            os.path.realpath(folder) + os.sep
            for folder in (
                *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
                *_torch_folders(),
                str(_COURSE),
            )
        }
    )
)
_OF_ANOTHER_ENVIRONMENT = tuple(f"{os.sep}{name}{os.sep}" for name in NAMES)
_GRADERS = os.path.realpath(_COURSE.parent / "graders") + os.sep
_GENERATED = ("<frozen ", "<eval_with_key>", "<__array_function__ internals>")
"""File names of code without a file that is nobody's own; a notebook or a console has other names."""


@cache
def is_library(file: str) -> bool:
    """Whether a source file belongs to Python, to a package of any environment or to course_lib."""
    if file.startswith("<"):
        return file.startswith(_GENERATED)
    real = os.path.realpath(file)
    return real.startswith(_LIBRARIES) or any(name in real for name in _OF_ANOTHER_ENVIRONMENT)


@cache
def is_grader(file: str) -> bool:
    """Whether a source file belongs to the graders, which drive a student's answer."""
    return os.path.realpath(file).startswith(_GRADERS)


def caller_line() -> SourceLine | None:
    """The line of the student's code that this call came from: the innermost frame that is theirs.

    Code that a grader drives has frames of both; the grader's line counts only if there is no other. None if
    every frame is a library's, as in a thread that a library started.
    """
    from_grader = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            if not is_grader(file):
                return _line(file, frame.f_lineno, frame.f_code.co_name)
            from_grader = from_grader or _line(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return from_grader


def stack_lines(frame: FrameType | None) -> tuple[SourceLine, ...]:
    """The student's lines on the stack of `frame`, outermost first, as a traceback has them."""
    places = [(each, each.f_lineno) for each in _outwards(frame)]
    return own_lines(reversed(places))


def own_lines(places: Iterable[tuple[FrameType, int | None]]) -> tuple[SourceLine, ...]:
    """Those of the frames, each with its line number, that are the student's.

    If none is, the graders' frames; if none of those either, all: an error inside a library that was launched
    itself is not left without a place.
    """
    # An exception that a signal raised between two lines of a generator has no line there.
    known = [(frame, number or frame.f_code.co_firstlineno) for frame, number in places]
    outside = [place for place in known if not is_library(place[0].f_code.co_filename)]
    own = [place for place in outside if not is_grader(place[0].f_code.co_filename)]
    return tuple(
        _line(frame.f_code.co_filename, number, frame.f_code.co_name)
        for frame, number in own or outside or known
    )


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@lru_cache(maxsize=4096)
def _line(file: str, number: int, function: str) -> SourceLine:
    return SourceLine(file, number, function)
