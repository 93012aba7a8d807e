"""DeepSpeed's stages of ZeRO on processes without GPUs, over Gloo (`course beside deepspeed`)."""

import copy
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime.communication.events import Event, span

SAMPLES, WIDTH = 8, 32
"""Of a rank's part of a batch, which each rank draws by its number."""
RATE = 0.01
_ALWAYS = {
    "train_micro_batch_size_per_gpu": SAMPLES,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def deepspeed_steps(
    model: nn.Module, stages: Mapping[str, Mapping[str, Any]], steps: int
) -> tuple[dict[str, list[Tensor]], float]:
    """For each way the whole parameters after some steps of Adam; and what gradients are clipped to by
    default.

    stages: name of a way -> DeepSpeed's "zero_optimization". model: takes [SAMPLES, WIDTH], and stays as it
    is; its loss is the mean of the squares of what it returns. Each step is a span, "NAME: step NUMBER".
    """
    initialize, whole_of = _deepspeed()
    found = {}
    for name, stage in stages.items():
        own = copy.deepcopy(model)
        config = _ALWAYS | {"gradient_clipping": 0.0, "zero_optimization": dict(stage)}
        optimizer = torch.optim.Adam(own.parameters(), lr=RATE)
        engine, *_ = initialize(model=own, optimizer=optimizer, config=config)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for number in range(steps):
            with span(f"{name}: step {number}"):
                engine.backward(engine(torch.randn(SAMPLES, WIDTH, generator=generator)).square().mean())
                engine.step()
        whole = whole_of if stage["stage"] else torch.clone
        found[name] = [whole(parameter).detach() for parameter in own.parameters()]
    own = copy.deepcopy(model)
    engine, *_ = initialize(model=own, optimizer=torch.optim.SGD(own.parameters()), config=_ALWAYS)
    return found, engine.gradient_clipping()


def _deepspeed() -> tuple[Any, Any]:
    """Its `initialize`, on this process's group, and what gives a whole parameter of shards."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # asked for, and not used
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    # Or it compiles an operation of its own.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    return deepspeed.initialize, safe_get_full_fp32_param


def calls_within(events: Iterable[Event], label: str) -> list[Event]:
    """Rank 0's calls that began while its span of this name lasted."""
    own = [event for event in events if event.rank == 0]
    (during,) = [event for event in own if event.op == label]
    return [event for event in own if event.messages and during.start <= event.start <= during.end]
