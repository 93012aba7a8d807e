"""PyTorch's own planner of what is computed again, `torch.distributed._tools.sac_ilp`, for a chain of blocks.

It is told of a device that need not be there, and looks at a step of tensors without data. Its integer
program is solved by PuLP (`course beside pulp`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

GIBIBYTE = 2**30
_BY = {"estimate_mode_type": "operator-level-cost-model"}


@dataclass(frozen=True, slots=True)
class KnownBlock:
    """What PyTorch has found of a block.

    activations: bytes that its forward leaves for backward. seconds: of its forward. points: (part of what
    its forward makes that is thrown away, part of its time that is spent again). line: slope and intercept of
    the first piece of the line that the planner takes for these points.
    """

    activations: float
    seconds: float
    points: tuple[tuple[float, float], ...]
    line: tuple[float, float]


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """most: bytes that a step may hold. again: block -> part of it that is computed again. seconds: that this
    takes more.
    """

    most: float
    again: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class TorchPlans:
    """blocks: of the model, in order. most: bytes of a step that keeps all. plans: one for each bound."""

    blocks: tuple[KnownBlock, ...]
    most: float
    plans: tuple[TorchPlan, ...]


def plans_of_torch(
    make: Callable[[], nn.Sequential],
    shape: Sequence[int],
    bounds: Sequence[float],
    bandwidth: float,
    flops: float,
) -> TorchPlans:
    """What PyTorch plans for a step of SGD, for each bound of its memory.

    make: makes the model, of fake tensors. shape: of the samples. bounds: parts of what a step holds that
    keeps everything. bandwidth, flops: bytes of its memory that the device moves, and operations that it
    does, in a second.
    """
    import torch.utils._runtime_estimation as estimation
    from torch.distributed._tools.sac_ilp import sac_milp

    # It asks the GPU that it runs on; here it is told of one.
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(estimation, "get_gpu_dram_gbps", lambda: bandwidth / 1e9),
        patch.object(estimation, "get_device_tflops", lambda dtype: flops / 1e12),
    ):
        graph, most = _known(make, shape)
        plans = []
        for bound in bounds:
            again, milliseconds, _ = sac_milp(graph, bound * most / GIBIBYTE)
            plans.append(TorchPlan(bound * most, again, milliseconds / 1e3))
    blocks = [_block(node) for node in graph.nodes[1:] if not node["is_leaf"]]
    return TorchPlans(tuple(blocks), most, tuple(plans))


def _known(make: Callable[[], nn.Sequential], shape: Sequence[int]) -> tuple[Any, float]:
    """What PyTorch finds of the model's modules, as its planner takes it; bytes of a step that keeps all."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools import ilp_utils, mem_tracker, runtime_estimator, sac_estimator

    with FakeTensorMode():
        model, x = make(), torch.randn(*shape)
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        held, times = mem_tracker.MemTracker(), runtime_estimator.RuntimeEstimator()
        again = sac_estimator.SACEstimator()
        held.track_external(model, optimizer)
        with held:
            _step(model, optimizer, x)
            held.reset_mod_stats()
            _step(model, optimizer, x)
        for estimator in (times, again):
            with estimator(**_BY):
                _step(model, optimizer, x)
        known = ilp_utils.aggregate_stats(model, held, times, again, torch.device("cpu"))
    graph = ilp_utils.parse_module_info(known)
    most, _ = ilp_utils.get_peak_memory_runtime_baseline(graph)
    return graph, most


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _block(node: Any) -> KnownBlock:
    """A node of PyTorch's graph, in seconds and without its dictionaries."""
    return KnownBlock(
        float(node["act_fw_per_module"]),
        node["fw_runtime_per_module"] / 1e3,
        tuple(node["tradeoff_curve"].items()),
        (node["slopes"][0], node["intercepts"][0]),
    )
