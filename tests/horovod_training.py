"""Twenty steps of a small training with any averaging optimizer; as a program, with the real Horovod's.

Under horovodrun, `python horovod_training.py FILE` leaves what rank 0 has in the end in FILE.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS, PASSES = 20, 2


def train(wrap: Callable[..., Any], rank: int) -> Tensor:
    """This rank's weights, end to end. wrap: takes an optimizer, named parameters and passes a step."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model[2].bias.requires_grad_(False)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    optimizer = wrap(plain, model.named_parameters(), PASSES)
    batches = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(PASSES):
            inputs = torch.randn(6, 8, generator=batches)
            labels = torch.randint(0, 4, (6,), generator=batches)
            (functional.cross_entropy(model(inputs), labels) / PASSES).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    """The same with Horovod's own."""
    import horovod.torch as hvd

    hvd.init()

    def wrap(optimizer: Any, named_parameters: Any, passes: int) -> Any:
        return hvd.DistributedOptimizer(optimizer, named_parameters, backward_passes_per_step=passes)

    weights = train(wrap, hvd.rank())
    if hvd.rank() == 0:
        torch.save(weights, sys.argv[1])
    if "HOROVOD_TIMELINE" in os.environ:
        # What is still in a buffer at the end would be dropped.
        hvd.stop_timeline()


if __name__ == "__main__":
    main()
