"""Launch, simulate, draw: everything round a student's `torch.distributed` code, and none of its answers."""

from course_lib.cluster import Cluster, Link
from course_lib.errors import (
    BadLaunch,
    CollectiveMismatch,
    Deadlock,
    LaunchError,
    RankFailed,
    RankLost,
    TimedOut,
    UnmatchedMessage,
)
from course_lib.launch import launch, per_rank
from course_lib.launch.run import PerRank, Run
from course_lib.timeline.events import mark, span

__all__ = [
    "BadLaunch",
    "Cluster",
    "CollectiveMismatch",
    "Deadlock",
    "LaunchError",
    "Link",
    "PerRank",
    "RankFailed",
    "RankLost",
    "Run",
    "TimedOut",
    "UnmatchedMessage",
    "launch",
    "mark",
    "per_rank",
    "span",
]
