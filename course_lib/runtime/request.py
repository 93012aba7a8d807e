"""What a launch asks of an engine."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch


class PerRank(tuple[Any, ...]):
    """Marks an argument of `launch` of which rank r gets item r. Made by `per_rank`."""


def per_rank(values: Iterable[Any]) -> PerRank:
    """Give each rank its own value: `launch(f, per_rank([a, b, c, d]), ranks=4)`.

    Every other argument goes to every rank as it is.
    """
    return PerRank(values)


def check_per_rank(arguments: Sequence[Any], ranks: int) -> None:
    """Raise BadLaunch unless every per-rank argument has one value a rank."""
    for position, value in enumerate(arguments):
        if isinstance(value, PerRank) and len(value) != ranks:
            raise BadLaunch(
                f"Argument {position} is per_rank with {len(value)} values, but the launch has {ranks} "
                f"ranks. Give one value a rank, or pass a plain value that every rank gets."
            )


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A checked launch, as every engine gets it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    ranks: int
    cluster: Cluster
    timeout: float
    seed: int
    backend: str | None
