"""Memory of training: the device's own count beside the tracker's, and activations that go to the host."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from course_lib import Cluster, launch
from course_lib.cluster.device import Device
from course_lib.figures.plots import bar_figure
from course_lib.models import Transformer
from course_lib.published.on_h100 import META, new_batch, new_model, two_steps
from course_lib.training.host_memory import HostMemory
from graders.guest.run_cells import run_cells
from graders.submissions.read import read_submission
from workbook.gpu.measure import Row, Table, dtype_name, median_seconds, peak_bytes
from workbook.gpu.sizes import DTYPES, Net, Sizes


def peaks(device: torch.device, sizes: Sizes) -> Table:
    """The peak of two steps of training, as the allocator and as the tracker counts it."""
    for dtype in DTYPES:
        # The library of matrix products keeps a workspace from its first one on.
        torch.ones(64, 64, device=device, dtype=dtype) @ torch.ones(64, 64, device=device, dtype=dtype)
    rows = [_peak(net, dtype, device, sizes.vocabulary) for dtype in DTYPES for net in sizes.states]
    figure = bar_figure(
        {kind: [float(row[f"{kind} (GiB)"]) for row in rows] for kind in ("allocated", "tracked")},
        names=[f"{dtype_name(dtype)}\nD={net.width}" for dtype in DTYPES for net in sizes.states],
        y="peak of two steps (GiB)",
        alt="Peak memory of two steps in two precisions, allocated on the device beside tracked.",
    )
    return Table(
        "peaks",
        "Peak memory beside the tracker's",
        "The most that two steps of AdamW hold, the model among it: what the device's allocator counts, and "
        "what launch(..., memory=True) tells of tensors without data.",
        rows,
        figure,
    )


def _peak(net: Net, dtype: torch.dtype, device: torch.device, vocabulary: int) -> Row:
    gc.collect()
    allocated = peak_bytes(lambda: two_steps(*_model_and_batch(net, vocabulary, device, dtype)), device)
    cluster = Cluster(device=Device(cuda_kernels=device.type == "cuda"))
    shapes = _model_and_batch(net, vocabulary, META, dtype)
    tracked = launch(two_steps, *shapes, ranks=1, cluster=cluster, memory=True).memory[0].peak
    return {
        "model": str(net),
        "precision": dtype_name(dtype),
        "allocated (GiB)": allocated / 2**30,
        "tracked (GiB)": tracked / 2**30,
        "allocated / tracked": allocated / tracked,
    }


def _model_and_batch(
    net: Net, vocabulary: int, device: torch.device, dtype: torch.dtype
) -> tuple[Transformer, Tensor, Tensor]:
    model = new_model(net.layers, net.width, net.tokens, vocabulary=vocabulary, device=device, dtype=dtype)
    return model, *new_batch(net.batch, net.tokens, device)


# --- Activations on the host


def offload(device: torch.device, sizes: Sizes, solutions: Path) -> Table:
    """A step whose activations wait on the host, by the solution of unit 09 and by torch's own hooks."""
    chain = sizes.offload
    with device:
        layers = [nn.Sequential(nn.Linear(chain.width, chain.width), nn.ReLU()) for _ in range(chain.layers)]
        model, x = nn.Sequential(*layers), torch.randn(chain.rows, chain.width)
    rows = [
        _offloaded(way, partial(_step, model, x, hooks), device, sizes.runs)
        for way, hooks in _ways(model, device, solutions).items()
    ]
    figure = bar_figure(
        {kind: [float(row[kind]) for row in rows] for kind in ("step (s)", "peak (GiB)")},
        names=[str(row["way"]) for row in rows],
        y="seconds, GiB",
        alt="Seconds and peak memory of a step with everything kept, with HostOffload, with save_on_cpu.",
    )
    return Table(
        "offload",
        "Activations on the host",
        f"Forward and backward of {chain.layers} linear layers of {chain.width} with ReLU on {chain.rows:,} "
        f"rows in float32, and the most that it takes beside parameters and inputs: HostOffload is unit 09's "
        f"solution, save_on_cpu is torch's.",
        rows,
        figure,
    )


Hooks = Callable[[], AbstractContextManager[Any]]


def _ways(model: nn.Module, device: torch.device, solutions: Path) -> dict[str, Hooks]:
    offload_class = _solution(solutions, "09_memory", "HostOffload")
    host = HostMemory()

    def by_hand() -> AbstractContextManager[Any]:
        own = offload_class(host, model.parameters())
        return saved_tensors_hooks(own.pack, own.unpack)

    pinned = device.type != "cpu"
    return {
        "kept": nullcontext,
        "HostOffload": by_hand,
        "save_on_cpu": partial(save_on_cpu, pin_memory=pinned),
    }


def _step(model: nn.Module, x: Tensor, hooks: Hooks) -> None:
    with hooks():
        loss = model(x).square().mean()
    loss.backward()
    model.zero_grad()


def _offloaded(way: str, step: Callable[[], None], device: torch.device, runs: int) -> Row:
    seconds = median_seconds(step, device, runs)
    return {"way": way, "step (s)": seconds, "peak (GiB)": peak_bytes(step, device) / 2**30}


def _solution(solutions: Path, unit: str, name: str) -> Any:
    """What a unit's own cells define under a name."""
    namespace: dict[str, Any] = {"__name__": "solutions"}
    run_cells(read_submission(solutions / f"{unit}.py").cells, namespace)
    return namespace[name]
