"""Letting graders judge mutants: each in a process of its own, which is killed when it takes too long."""

import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import resource
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from course_lib.runtime.processes.process_tree import end_descendants
from graders.grading.answer import Answer, AnswerFailed, FailureKind
from graders.grading.exercise import Exercise, Findings
from graders.grading.fingerprint import key_of
from graders.grading.registry import exercises, load_all
from graders.grading.rng import Rng
from graders.grading.run import ExerciseResult, grade
from graders.guest.run_cells import run_cells
from graders.student.kernel_answer import kernel_answer
from graders.submissions.cells import Cell
from graders.submissions.read import read_submission
from mutants.making import Mutant, Solution

SEEDS = (1, 2, 3)
"""Inputs are drawn from each. A mutant that one of them lets pass would be luck in a student's hands."""

GRACE_SECONDS, TIMES_SLOWER = 5.0, 6
"""A mutant hangs that takes so much more processor time than the solution, however loaded the machine is."""

PATIENCE = 12
"""For so many times this time, on the clock, a mutant may wait for something."""

Namespace = dict[str, Any]


class BadSolution(Exception):
    """A solution does not earn all points, so its mutants prove nothing."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a mutant."""

    survived: bool
    how: str
    """What killed it, or how it survived."""
    seconds: float = 0.0
    """Processor time that judging it took; 0 if it was killed."""


class JudgePool:
    """A context: worker processes that judge mutants, with the units' namespaces in their memory."""

    def __init__(self, units: Sequence[Path], jobs: int) -> None:
        """Runs the cells of the units. Raises BadSolution if one of them fails."""
        torch.set_num_threads(1)  # a thread pool would not survive a fork
        load_all()
        _namespaces.update({path.stem: _solved(path) for path in units})
        self._seconds: dict[str, float] = {}
        # Forked all at once with the first task, before there is a second thread.
        context = multiprocessing.get_context("fork")
        # Not here: a mutant may write under a name that the solution would not write under.
        self._folder = tempfile.TemporaryDirectory(prefix="course-mutants-", ignore_cleanup_errors=True)
        self._pool = ProcessPoolExecutor(jobs, context, _begin, (self._folder.name,))

    def __enter__(self) -> "JudgePool":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def measure(self, solution: Solution) -> None:
        """Judge the solution itself, for the time that it takes. Raises BadSolution unless it passes."""
        judged = self._pool.submit(_judge, solution, solution.source, 100).result()
        if not judged.survived:
            raise BadSolution(f"The solution of {solution.exercise} does not earn all points: {judged.how}")
        self._seconds[solution.exercise] = judged.seconds

    def judge(self, mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, Judged]]:
        """Each mutant and what became of it, as they come to their ends. Measures their solutions first."""
        for solution in dict.fromkeys(mutant.solution for mutant in mutants):
            self.measure(solution)
        asked: dict[Future[Judged], Mutant] = {}
        for mutant in mutants:
            # The system limits processor time by whole seconds.
            seconds = math.ceil(GRACE_SECONDS + TIMES_SLOWER * self._seconds[mutant.solution.exercise])
            asked[self._pool.submit(_judge, mutant.solution, mutant.source, seconds)] = mutant
        for future in as_completed(asked):
            yield asked[future], future.result()


def key(mutant: Mutant) -> str:
    """What the verdict on a mutant depends on: its source, the rest of the unit, the graders, the library."""
    handed_in = mutant.source + mutant.solution.file.read_text()
    return key_of(mutant.solution.unit, f"{SEEDS} {handed_in}")


_namespaces: dict[str, Namespace] = {}
"""What the cells of each unit leave behind, solutions included; the workers have it from their parent."""


def _solved(path: Path) -> Namespace:
    namespace: Namespace = {"__name__": "solutions", "contextlib": contextlib}
    failures = run_cells(read_submission(path).cells, namespace)
    if failures:
        raise BadSolution(f"{path}, {failures[0].cell}: {failures[0].report}")
    return namespace


def _begin(folder: str) -> None:
    """Let a worker work in this folder, and what a killed mutant has started, mpirun for one, become a child
    of this worker: see `_judge`.
    """
    os.chdir(folder)
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _judge(solution: Solution, source: str, seconds: int) -> Judged:
    """Judge a cell's source in a forked process, for so much processor time, and leave no process behind."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(solution, source, seconds, writing)
    os.close(writing)
    try:
        said = _said(reading, PATIENCE * seconds)
        if said is None:
            return Judged(False, f"killed after {PATIENCE * seconds} s")
        if not said:
            _, status = os.waitpid(child, 0)
            hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
            how = f"killed after {seconds} s of processor time" if hung else "its process died"
            return Judged(False, how)
        return Judged(**json.loads(said))
    finally:
        os.close(reading)
        end_descendants()


def _said(reading: int, seconds: float) -> bytes | None:
    """What the process says before it closes its end of the pipe; None if it does not within that time."""
    said = b""
    until = time.monotonic() + seconds
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        part = os.read(reading, 2**16)
        if not part:
            return said
        said += part


def _child(solution: Solution, source: str, seconds: int, writing: int) -> NoReturn:
    """Judge, write the verdict as JSON, and end without a look at what the parent has open."""
    try:
        # The signal comes after so much processor time of this process, all threads together, and ends it.
        # No timer, for graders set the timers to limit an answer's call, and afterwards to nothing.
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        began = time.process_time()
        survived, how = _earns_all_points(solution, source)
        judged = {"survived": survived, "how": how[:4000], "seconds": time.process_time() - began}
        os.write(writing, json.dumps(judged).encode())
    finally:
        os._exit(0)


def _earns_all_points(solution: Solution, source: str) -> tuple[bool, str]:
    """Whether the cell earns all points from some seed, or breaks the grader; and what was seen."""
    exercise = exercises(solution.unit)[solution.exercise]
    namespace = _namespaces[solution.unit]
    failures = run_cells([Cell(f"<cell of {exercise.name}>", source)], namespace)
    if failures:
        return False, f"its cell: {failures[0].error or failures[0].kind}"
    how = ""
    for seed in SEEDS:
        answer = kernel_answer(namespace[exercise.name], exercise.name)
        result = grade(_until_first_failure(exercise), answer, Rng(seed))
        if result.mistake:
            return True, f"with seed {seed} the grader itself stops: {result.mistake.splitlines()[-1]}"
        if result.passed:
            return True, f"all points with seed {seed}"
        how = _first_failure(result)
    return False, how


def _first_failure(result: ExerciseResult) -> str:
    return next(f"{each.criterion.name}: {each.seen}" for each in result.criteria if not each.points)


def _until_first_failure(exercise: Exercise) -> Exercise:
    """The exercise with a grader that does not go on once a criterion has failed: the mutant is seen."""

    def judge(answer: Answer, rng: Rng) -> Findings:
        for name, finding in exercise.grade(answer, rng):
            yield name, finding
            if not finding.passed:
                raise AnswerFailed(FailureKind.NOT_ASKED, "A criterion has failed.")

    return replace(exercise, grade=judge)
