"""A class graded by a job array on a cluster, one share of the submissions a task.

The tasks leave each verdict in a folder that all nodes see (`graders.classroom.batches`); whoever waits here
collects them, and is the only one who writes the gradebook. So either side may be stopped, requeued or lost:
the array goes on by itself, and the next run finds what it has done, or what it is doing, and has the rest
done.
"""

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course_lib.slurm.scripts import GRADING, Job, Refused, render, submit
from course_lib.slurm.sites import Site
from graders.classroom.batches import Batch, batches_in, new_batch
from graders.classroom.pool import GradingFailed, Task
from graders.classroom.result_store import Graded

LOOK_SECONDS = 1.0
ASK_SECONDS = 30.0
"""So often Slurm is asked whether a job is still there: sites mind being asked every second."""


@dataclass(frozen=True, slots=True)
class ArrayOptions:
    """How to ask for the array. None: what the site has for it."""

    site: Site
    tasks: int = 4
    minutes: int = 60
    partition: str | None = None
    account: str | None = None


class JobArray:
    """Grades by a job array; takes the place of `graders.classroom.pool.JudgePool`.

    folder: seen by all nodes; the batches are kept there until everything has been collected. say: is told in
    a sentence what happens.
    """

    def __init__(self, folder: Path, cluster: ArrayOptions, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._cluster = cluster
        self._say = say
        self._left: dict[str, Task] = {}
        self._under_way: list[Batch] = []

    def grade(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, "Future[Graded]"]]:
        """Each task with its outcome, as they come in: the verdicts, or GradingFailed. Raises Refused."""
        self._left = {task.student: task for task in tasks}
        self._under_way = [batch for batch in batches_in(self._folder) if is_under_way(batch.job)]
        self._submit_uncovered()
        asked = time.monotonic()
        while True:
            yield from self._collected()
            if not self._left:
                return
            time.sleep(LOOK_SECONDS)
            if time.monotonic() - asked > ASK_SECONDS:
                asked = time.monotonic()
                yield from self._after_ended_jobs()

    def _collected(self) -> Iterator[tuple[Task, "Future[Graded]"]]:
        """What has come in since the last look."""
        for batch in self._under_way:
            for task in list(self._left.values()):
                outcome = batch.find(task)
                if outcome is not None:
                    del self._left[task.student]
                    yield task, _done(outcome)

    def _after_ended_jobs(self) -> Iterator[tuple[Task, "Future[Graded]"]]:
        """What jobs that have ended leave unmarked is submitted again, as long as that gets anything done."""
        ended = [batch for batch in self._under_way if not is_under_way(batch.job)]
        if not ended:
            return
        # What a node has written may be seen here a little later than its job's end.
        time.sleep(LOOK_SECONDS)
        yield from self._collected()
        for batch in ended:
            self._under_way.remove(batch)
            tasks = batch.tasks()
            if all(self._left.get(task.student) == task for task in tasks):
                for task in tasks:
                    del self._left[task.student]
                    yield task, _done(_lost(batch))
        self._submit_uncovered()

    def _submit_uncovered(self) -> None:
        """Submit an array for the tasks that no job under way will grade."""
        covered = [task for batch in self._under_way for task in batch.tasks()]
        for batch in self._under_way:
            self._say(f"Job {batch.job} of an earlier run is at it: waiting for what it grades.")
        rest = [task for task in self._left.values() if task not in covered]
        if rest:
            self._under_way.append(self._submitted(rest))

    def _submitted(self, tasks: Sequence[Task]) -> Batch:
        """A batch of these tasks, with the array that grades it. Raises Refused."""
        shares = min(self._cluster.tasks, len(tasks))
        batch = new_batch(self._folder, tasks)
        try:
            script = batch.folder / "grade.sbatch"
            script.write_text(render(self._job(batch, shares), self._cluster.site))
            said = submit(script, self._cluster.site, folder=batch.folder)
        except BaseException:
            shutil.rmtree(batch.folder, ignore_errors=True)
            raise
        batch.keep_job(said.split()[-1])
        self._say(
            f"Job {batch.job}: {len(tasks)} submissions in {shares} tasks on {self._cluster.site.title}."
        )
        return batch

    def _job(self, batch: Batch, shares: int) -> Job:
        folder = shlex.quote(str(batch.folder))
        return Job(
            GRADING,
            tasks_per_node=1,
            minutes=self._cluster.minutes,
            partition=self._cluster.partition,
            account=self._cluster.account,
            array=f"0-{shares - 1}",
            run=folder,
            program=f"-m graders.classroom.array_task {folder}",
        )


def remove_ended(batches: Iterable[Batch]) -> None:
    """Remove batches that nobody works on any more, as far as that can be known here."""
    with suppress(Refused):
        for batch in batches:
            if batch.complete or not is_under_way(batch.job):
                shutil.rmtree(batch.folder, ignore_errors=True)


def is_under_way(job: str) -> bool:
    """Whether a job waits or runs; so it does as long as Slurm does not say that it has ended.

    Raises Refused where there is no Slurm.
    """
    if not job:
        return False
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise Refused(["There is no squeue here: grade on a login node of the cluster."]) from None
    except subprocess.TimeoutExpired:
        return True
    if done.returncode:
        return "Invalid job id" not in done.stderr
    return bool(done.stdout.strip())


def _lost(batch: Batch) -> GradingFailed:
    return GradingFailed(
        f"Job {batch.job} of the cluster ended without having graded it; the last it said: {batch.said()}"
    )


def _done(outcome: Graded | GradingFailed) -> "Future[Graded]":
    future: Future[Graded] = Future()
    if isinstance(outcome, GradingFailed):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future
