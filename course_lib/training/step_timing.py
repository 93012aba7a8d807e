"""One training step, its phases named on the timeline: what overlaps what, and how long it takes."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib.launch.run import Run
from course_lib.runtime.communication.events import Kind, span
from course_lib.training.data_parallel import Replication
from course_lib.training.device import rank_device


def timed_step(replication: Replication, layers: int, width: int, samples: int) -> None:
    """A step of a chain of equal linear layers, on every rank of a launch.

    Parameters: layers * (width^2 + width). Run it on a cluster with `flops`, or computing takes no time.
    """
    device = rank_device()
    chain = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.Tanh())]
    module = replication.wrap(nn.Sequential(*chain).to(device))
    inputs = torch.randn(samples, width, device=device)
    dist.barrier()
    with span("forward"):
        loss = module(inputs).square().mean()
    with span("backward"):
        loss.backward()
    with span("synchronize"):
        replication.synchronize(module)


def step_limits(run: Run) -> tuple[float, float]:
    """When the step of a launched `timed_step` began and ended, in seconds: its setting up is left out."""
    spans = [event for event in run.events if event.kind is Kind.SPAN]
    return min(event.start for event in spans), max(event.end for event in spans)
