"""Grading all submissions of a unit: `course grade UNIT`.

Grading (`graders.classroom.pool`) runs in parallel and keeps each verdict on the disk as soon as it is there;
recording in the gradebook follows, one submission at a time, each whole or not at all. So the command can be
stopped at any moment, and the next one does what is left: what has been graded is not graded again unless
submission, graders or library have changed, and what the gradebook has is not written again.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from course_lib.scratch import scratch_folder
from graders.classroom.batches import batches_in
from graders.classroom.entries import Entry
from graders.classroom.gradebook import Course, GradebookWriter
from graders.classroom.job_array import ArrayOptions, JobArray, remove_ended
from graders.classroom.pages import write_pages
from graders.classroom.pool import GradingFailed, JudgePool, Task
from graders.classroom.preprocessors import WrongCourse
from graders.classroom.private import keep_private
from graders.classroom.result_store import Graded, ResultStore
from graders.grading.fingerprint import key_of
from graders.grading.registry import counted
from graders.isolation.backends import backend_for_grading
from graders.submissions.folder import digest


class State(Enum):
    """What has become of a submission; the value is for people."""

    GRADED = "graded"
    UNCHANGED = "unchanged"
    NOT_GRADED = "not graded"


@dataclass(frozen=True, slots=True)
class StudentResult:
    """One submission: its verdicts, or the sentence that says why there are none, which is not its fault.

    entry: what the gradebook holds of it.
    """

    student: str
    state: State
    graded: Graded | None = None
    why: str = ""
    entry: Entry | None = None


class Watcher(Protocol):
    """Is told how far it has come."""

    def begin(self, count: int) -> None: ...
    def say(self, sentence: str) -> None: ...
    def end(self, result: StudentResult) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What to grade: the submissions of these students, or of all if there are none named.

    jobs: how many at the same time. force: grade again what has not changed. unsafe: where there is no
    sandbox, grade without; and what was graded without one may stay. cluster: grade there, not here.
    """

    unit: str
    students: tuple[str, ...] = ()
    jobs: int = 1
    force: bool = False
    unsafe: bool = False
    cluster: ArrayOptions | None = None


def grade_class(course: Course, order: Order, watcher: Watcher) -> list[StudentResult]:
    """Grade what is ordered. Raises WrongCourse if nothing can be, NoSandbox if it would not be safe."""
    students = _students(course, order)
    with _alone(course), GradebookWriter(course, order.unit) as book:
        run = _Run(course, order, ResultStore(course.results(order.unit)), book, watcher)
        results = sorted(run.results(students), key=lambda result: result.student)
        there = run.verdicts.students() & set(course.students(order.unit))
        class_ = [graded for graded in run.verdicts if graded.student in there]
        if len(class_) < len(there):
            watcher.say(
                f"{len(there) - len(class_)} submissions were graded when the unit had other exercises, and "
                f"are not on the class page. Grade them again with: course grade {order.unit}"
            )
        write_pages(course.results(order.unit), order.unit, class_, book.entries(), book.due())
        return results


class _Run:
    """One call of `grade_class`."""

    def __init__(
        self, course: Course, order: Order, verdicts: ResultStore, book: GradebookWriter, watcher: Watcher
    ) -> None:
        self.course = course
        self.order = order
        self.verdicts = verdicts
        self.book = book
        self.watcher = watcher
        self.batches = batches_folder(course, order.unit)
        self.left_behind = list(batches_in(self.batches))

    def results(self, students: Sequence[str]) -> Iterator[StudentResult]:
        """What becomes of each submission, as it does."""
        self.watcher.begin(len(students))
        entries = self.book.entries()
        tasks = []
        for student in students:
            try:
                task = self._task(student)
            except OSError as error:
                yield self._ended(
                    StudentResult(student, State.NOT_GRADED, why=f"It cannot be read: {error}.")
                )
                continue
            graded = None if self.order.force else self._known(task)
            if graded is None:
                tasks.append(task)
            elif self.book.has(graded, entries):
                yield self._ended(self._settled(graded, entries[student]))
            else:
                yield self._ended(self._record(graded))
        for task, future in self._graded(tasks) if tasks else ():
            yield self._ended(self._taken(task, future))
        remove_ended(batches_in(self.batches))

    def _graded(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, "Future[Graded]"]]:
        """Each task with its result, as they come in. Raises NoSandbox, or Refused by a cluster.

        On a cluster, whether there is a sandbox shows on the nodes that grade.
        """
        if self.order.cluster is not None:
            yield from JobArray(self.batches, self.order.cluster, self.watcher.say).grade(tasks)
            return
        backend_for_grading(self.order.unsafe)
        with (
            scratch_folder() as scratch,
            JudgePool(min(self.order.jobs, len(tasks)), scratch) as pool,
        ):
            yield from pool.grade(tasks)

    def _task(self, student: str) -> Task:
        folder, unit = self.course.submitted(student, self.order.unit), self.order.unit
        return Task(str(folder), unit, student, key_of(unit, digest(folder)), self.order.unsafe)

    def _known(self, task: Task) -> Graded | None:
        """The verdicts of an earlier run, or of a job that nobody waited for, if nothing has changed."""
        graded = self.verdicts.find(task.student)
        if graded is None or graded.key != task.key:
            found = (batch.find(task) for batch in self.left_behind)
            graded = next((result for result in found if isinstance(result, Graded)), None)
            if graded is not None:
                self.verdicts.keep(graded)
        return graded if graded is not None and (graded.sandboxed or task.unsafe) else None

    def _taken(self, task: Task, future: "Future[Graded]") -> StudentResult:
        """Keep what came of grading, then record it."""
        try:
            graded = future.result()
        except GradingFailed as error:
            return StudentResult(task.student, State.NOT_GRADED, why=str(error))
        self.verdicts.keep(graded)
        return self._record(graded)

    def _record(self, graded: Graded) -> StudentResult:
        try:
            self.book.record(graded)
        except Exception as error:  # nbgrader and its database have many kinds; the next student is graded
            why = f"The gradebook could not be written: {type(error).__name__}: {error}"
            return StudentResult(graded.student, State.NOT_GRADED, graded, why)
        self.verdicts.keep_recorded(graded)
        return StudentResult(graded.student, State.GRADED, graded)

    def _settled(self, graded: Graded, entry: Entry) -> StudentResult:
        """Nothing to record, but perhaps a due date, an extension or a penalty that is new."""
        try:
            changed = (entry.late or entry.penalty) and self.book.settle(graded.student)
        except Exception as error:  # of the course's own plugin
            why = f"The late penalty could not be found: {type(error).__name__}: {error}"
            return StudentResult(graded.student, State.NOT_GRADED, graded, why)
        if changed:
            return StudentResult(graded.student, State.GRADED, graded)
        return StudentResult(graded.student, State.UNCHANGED, graded, entry=entry)

    def _ended(self, result: StudentResult) -> StudentResult:
        result = result if result.entry else replace(result, entry=self.book.entry(result.student))
        self.watcher.end(result)
        return result


def batches_folder(course: Course, unit: str) -> Path:
    """Where what a cluster grades is kept until it has been collected."""
    return course.results(unit) / ".batches"


def _students(course: Course, order: Order) -> list[str]:
    """Those whose submissions are to be graded. Raises WrongCourse."""
    if not counted(order.unit):
        raise WrongCourse(f"There are no graders for {order.unit}.")
    there = course.students(order.unit)
    missing = [student for student in order.students if student not in there]
    if missing:
        raise WrongCourse(f"Nothing was handed in for {order.unit} by {', '.join(missing)}.")
    if not there:
        raise WrongCourse(
            f"Nothing was handed in for {order.unit}: there is no {course.submitted('STUDENT', order.unit)}."
        )
    return list(order.students) or there


@contextmanager
def _alone(course: Course) -> Iterator[None]:
    """Keep other runs of the command out of this course. Raises WrongCourse if there is one."""
    keep_private(course)
    try:
        with FileLock(
            course.root / "results" / ".lock",
            timeout=0,
            mode=0o660 if course.directory.groupshared else 0o600,
        ):
            yield
    except Timeout as error:
        raise WrongCourse(
            "Somebody is grading this course at the moment. Wait until that is done."
        ) from error
