"""A process that grades one submission after the other; `graders.classroom.judge_start` begins it.

An order is a line of JSON on its standard input, {"folder", "unit", "student", "key", "unsafe"}; the answer
is a line of JSON on its standard output: the verdicts (`graders.classroom.result_store.Graded`), or
{"failed": sentence}. It ends as soon as its input is closed, whatever it is doing.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from graders.classroom.result_store import Graded
from graders.grading.registry import counted
from graders.grading.report import Report
from graders.grading.run import not_attempted
from graders.host.fork_server_client import SandboxFailed
from graders.host.grade_submission import grade_submission
from graders.isolation.backends import NoSandbox, backend_for_grading
from graders.submissions.folder import HandIn, read_hand_in
from graders.submissions.read import BadSubmission


def main() -> None:
    """Grade what is ordered until there are no orders."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Nothing but answers may reach whoever gives the orders.
    os.dup2(2, 1)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[orders], daemon=True).start()
    while True:
        answers.write(json.dumps(_obey(orders.get())) + "\n")
        answers.flush()


def _listen(orders: "queue.SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    # Nobody waits for what is being graded.
    os._exit(0)


def _obey(order: dict[str, Any]) -> dict[str, Any]:
    try:
        return grade_folder(**order).to_json()
    except (NoSandbox, SandboxFailed) as error:
        return {"failed": str(error)}
    except Exception:
        return {"failed": f"The grader stopped with an error of its own.\n{traceback.format_exc()}"}


def grade_folder(folder: str, unit: str, student: str, key: str, unsafe: bool) -> Graded:
    """Grade what stands in a folder. Raises SandboxFailed, and NoSandbox unless it is `unsafe`."""
    sandbox = backend_for_grading(unsafe)
    began = time.monotonic()
    hand_in = read_hand_in(Path(folder), unit)
    report, reason = _report(hand_in)
    return Graded(
        student,
        key,
        Report(unit, report.exercises, (*hand_in.notes, *report.notes)),
        hand_in.path.name if hand_in.path else "",
        reason,
        round(time.monotonic() - began, 3),
        sandbox.name,
    )


def nothing_earned(unit: str, reason: str) -> Report:
    """The report where there is nothing to grade, which gives the reason at every exercise."""
    return Report(unit, tuple(not_attempted(each, reason) for each in counted(unit).values()), (reason,))


def _report(hand_in: HandIn) -> tuple[Report, str]:
    """The grades, and if there was nothing to grade the reason."""
    if hand_in.submission is None:
        return nothing_earned(hand_in.unit, hand_in.reason), hand_in.reason
    try:
        return grade_submission(hand_in.submission, hand_in.unit), ""
    except BadSubmission as error:
        return nothing_earned(hand_in.unit, str(error)), str(error)
