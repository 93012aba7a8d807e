"""`python -P -m graders.classroom.array_task FOLDER NUMBER`: grade a share of a batch.

It uses all cores that the job has here, and goes on where an earlier run of the same share was stopped.
"""

import os
import sys
from pathlib import Path

from course_lib.scratch import scratch_folder
from graders.classroom.batches import Batch
from graders.classroom.pool import GradingFailed, JudgePool, Task
from graders.grading.fingerprint import key_of
from graders.submissions.folder import digest


def grade_share(batch: Batch, number: int, shares: int, judges: int) -> None:
    """Grade every `shares`-th task, from `number` on, so many at the same time."""
    left = [task for task in batch.tasks()[number::shares] if batch.find(task) is None]
    print(f"{len(left)} submissions to grade", flush=True)
    if not left:
        return
    with (
        scratch_folder() as scratch,
        JudgePool(min(judges, len(left)), scratch) as pool,
    ):
        for task, future in pool.grade([task for task in left if _is_as_ordered(batch, task)]):
            try:
                batch.keep(task, future.result())
            except GradingFailed as error:
                batch.keep(task, error)
            print(f"{task.student}: done", flush=True)


def _is_as_ordered(batch: Batch, task: Task) -> bool:
    """Whether the submission is the one that was to be graded; says so where it is not."""
    try:
        same = key_of(task.unit, digest(Path(task.folder))) == task.key
        why = (
            "Submission, graders or library have changed since the job was submitted. Call the command again."
        )
    except OSError as error:
        same, why = False, f"It cannot be read on {os.uname().nodename}: {error}."
    if not same:
        batch.keep(task, GradingFailed(why))
    return same


def _cores() -> int:
    """Cores that the job has on this node."""
    return int(os.environ.get("SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)))


def main() -> None:
    """Grade the share that the command line names, of as many as the array has tasks."""
    folder, number = sys.argv[1:]
    grade_share(Batch(Path(folder)), int(number), int(os.environ["SLURM_ARRAY_TASK_COUNT"]), _cores())


if __name__ == "__main__":
    main()
