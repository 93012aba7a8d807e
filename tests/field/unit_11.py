"""Answers to exercises of unit 11."""

from typing import Any

import torch
from torch import Tensor

from tests.field.answers import field

UNIT = "11_compression"


@field(UNIT, "fp16_hook", "fp16_compress_hook", lacks=["no overflow"])
def fp16_compress(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return fp16_compress_hook(state, bucket)


@field(UNIT, "PowerSGD", "powerSGD_hook", lacks=["buckets that change"])
class LowRank:
    def __init__(self, rank: int, seed: int = 0) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        self.rank, self.generator = rank, torch.Generator().manual_seed(seed)
        self.state = PowerSGDState(None, rank, start_powerSGD_iter=2, min_compression_rate=1)
        # Not only from the third step on.
        self.state.iter = 2

    def hook(self, bucket: Any) -> torch.futures.Future[Tensor]:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

        if bucket.index() not in self.state.q_memory_dict:
            self._draw(bucket)
        return powerSGD_hook(self.state, bucket)

    def _draw(self, bucket: Any) -> None:
        """The Q of the exercise, in place of those that it would draw by another seed."""
        matrices = [each.flatten(1) for each in bucket.gradients() if each.dim() > 1]
        sides = [each.shape for each in matrices if self.rank * sum(each.shape) < each.numel()]
        like = bucket.buffer()
        drawn = [torch.randn(m, self.rank, generator=self.generator, dtype=like.dtype) for _, m in sides]
        self.state.p_memory_dict[bucket.index()] = like.new_empty(self.rank * sum(n for n, _ in sides))
        self.state.q_memory_dict[bucket.index()] = torch.cat([like[:0], *(q.flatten() for q in drawn)])
