"""What ranks that still have batches ask in `with model.join():`, and go on without the answer.

torch lets these two calls of theirs go. Here no call may stay open, so they wait for both.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

_tell_the_joined = Join.notify_join_context


def waiting_in_join() -> Iterator[tuple[type, str, Callable[..., Any]]]:
    """What to put in the place of torch's own: the class, the method's name and the method."""
    yield DistributedDataParallel, "_check_global_requires_backward_grad_sync", _ask_for_averages
    yield Join, "notify_join_context", staticmethod(_tell_and_wait)


def _ask_for_averages(model: DistributedDataParallel, is_joined_rank: bool) -> bool | None:
    """Ask all ranks whether gradients are averaged in this step; only who has joined needs the answer."""
    averages = not is_joined_rank and model.require_backward_grad_sync
    anybody = torch.full((1,), float(averages), device=model.device)
    dist.all_reduce(anybody, group=model.process_group)
    return bool(anybody.item()) if is_joined_rank else None


def _tell_and_wait(joinable: Any) -> Any:
    """Tell those who have joined that this rank has not."""
    work = _tell_the_joined(joinable)
    if work is not None:
        work.wait()
    return work
