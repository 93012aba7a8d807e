"""What a launch asks of an engine."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_lib.cluster.topology import Cluster
from course_lib.errors import BadLaunch

if TYPE_CHECKING:
    from torch import Tensor


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
    beside: str | None = None
    """The environment in which the ranks run; None: that of this process."""
    memory: bool = False
    """Whether to record what the ranks hold in memory."""


def moves_shapes_only(arguments: Sequence[Any]) -> bool:
    """Whether there are tensors among the arguments of a launch, and all of them are meta tensors."""
    tensors = list(_tensors(arguments))
    return bool(tensors) and all(tensor.is_meta for tensor in tensors)


def _tensors(values: Sequence[Any]) -> Iterator["Tensor"]:
    # Imported here: who only imports the library, as the command `course` does, need not wait for PyTorch.
    import torch
    from torch import nn
    from torch.utils._pytree import tree_leaves

    for value in values:
        for leaf in tree_leaves(list(value) if isinstance(value, PerRank) else value):
            if isinstance(leaf, torch.Tensor):
                yield leaf
            elif isinstance(leaf, nn.Module):
                yield from leaf.parameters()
                yield from leaf.buffers()
