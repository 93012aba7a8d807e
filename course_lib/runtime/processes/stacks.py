"""Stacks that another process has written with `faulthandler`: which lines of the student's it was in."""

import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.runtime.communication.callsite import is_grader, is_library
from course_lib.runtime.processes.call_log import Place

_RANK = str(Path(__file__).with_name("rank_life.py"))

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of a rank's main thread, innermost first, and whether it sleeps."""

    frames: tuple[Place, ...] = ()
    asleep: bool = False

    @property
    def own(self) -> tuple[Place, ...]:
        """The student's frames, outermost first; a grader's if there are none."""
        outside = [frame for frame in self.frames if not is_library(frame[0])]
        students = [frame for frame in outside if not is_grader(frame[0])]
        return tuple(reversed(students or outside))

    def innermost_in(self, folder: str) -> bool:
        """Whether the thread is in code under `folder`, or in C code called from there."""
        return bool(self.frames) and self.frames[0][0].startswith(folder)


def read_stack(path: Path) -> Stack:
    """The latest stack of the main thread in a file of `faulthandler`; empty if there is none."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return Stack()
    threads: list[list[Place]] = [[]]
    for line in text.splitlines():
        if match := _FRAME.match(line):
            threads[-1].append((match["file"], int(match["line"]), match["function"]))
        elif "most recent call first" in line:
            threads.append([])
    # The main thread is the one that lives a rank's life; what is outside of that is the warm process's.
    mains = [inside for frames in threads if (inside := _inside_rank(frames))]
    return Stack(mains[-1]) if mains else Stack()


def _inside_rank(frames: list[Place]) -> tuple[Place, ...]:
    """The frames up to the outermost one of a rank's life, innermost first; none for another thread."""
    outermost = [number for number, frame in enumerate(frames) if frame[0] == _RANK]
    return tuple(frames[: outermost[-1]]) if outermost else ()
