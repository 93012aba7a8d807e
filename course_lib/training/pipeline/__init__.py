"""A pipeline's schedule as data: checked, timed, drawn, and run.

Read `actions` first: what a stage does, as small dataclasses. `checking` says whether a schedule can run,
`costs` when everything happens, `drawing` shows that, and `stage` does it, on any engine. The schedules
themselves come in as arguments.
"""

from course_lib.training.pipeline.actions import (
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Plan,
    Recompute,
    schedule_of,
)
from course_lib.training.pipeline.checking import BadSchedule, check_schedule
from course_lib.training.pipeline.costs import Costs, Timing, cost
from course_lib.training.pipeline.stage import Stage

__all__ = [
    "Action",
    "Backward",
    "BackwardInput",
    "BackwardWeight",
    "BadSchedule",
    "Costs",
    "Forward",
    "Plan",
    "Recompute",
    "Stage",
    "Timing",
    "check_schedule",
    "cost",
    "schedule_of",
]
