"""Launch, simulate, draw: everything round a student's `torch.distributed` code, and none of its answers.

Read `training` first. Below it: `launch` is the door to every engine, `runtime` what ranks are made of,
`figures` and `notebook` show runs, `cluster` and `slurm` are the machines. It imports neither graders nor
workbook; and this module no torch, so that it costs a script next to nothing before its first launch.
"""

from course_lib.cluster.topology import Cluster, Link
from course_lib.errors import BadLaunch
from course_lib.launch import launch, per_rank
from course_lib.launch.failures import (
    CollectiveMismatch,
    Deadlock,
    LaunchError,
    LeftOpen,
    RankFailed,
    RankLost,
    TimedOut,
)
from course_lib.launch.run import Run
from course_lib.runtime.communication.events import mark, span
from course_lib.runtime.request import PerRank

__all__ = [
    "BadLaunch",
    "Cluster",
    "CollectiveMismatch",
    "Deadlock",
    "LaunchError",
    "LeftOpen",
    "Link",
    "PerRank",
    "RankFailed",
    "RankLost",
    "Run",
    "TimedOut",
    "launch",
    "mark",
    "per_rank",
    "span",
]
