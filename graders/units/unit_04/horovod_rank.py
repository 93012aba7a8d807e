"""One rank of a student's program under `horovodrun`: calls it, and writes down what came of it.

FOLDER/call holds, pickled, the answer and its arguments. The answer is called twice: to begin a training, and
to go on where the first call has ended. The process's local rank is made another than its rank.
"""

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor, nn

from graders.units.unit_04.horovodrun import EPOCHS
from graders.units.unit_04.models import Shifted

SECONDS = 10.0
"""What each of the calls may take; they compute for a small part of a second."""


class Watched(Shifted):
    """Notes with what it is called, and its weight [3, 6] and shift [6] before the first call."""

    def __init__(self, values: list[Tensor]) -> None:
        super().__init__(values)
        self.start: list[Tensor] = []
        self.calls: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.start = self.start or [self.weight.detach().clone(), self.shift.clone()]
        self.calls.append(inputs.detach().clone())
        return super().forward(inputs)


def play(folder: Path) -> int:
    """Call the answer in both phases, and write what it did to FOLDER/PHASE.RANK, or why it failed to
    FOLDER/PHASE.failed.RANK, or that the machine did to FOLDER/blocked.RANK. Returns the exit status.
    """
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    (folder / f"began.{rank}").touch()
    shutdown = _patched(folder / f"blocked.{rank}", local_rank=size - 1 - rank)
    for phase in EPOCHS:
        failed = folder / f"{phase}.failed.{rank}"
        watch = threading.Timer(SECONDS, _tell_where, (failed, threading.get_ident()))
        watch.daemon = True
        watch.start()
        try:
            told = _called(pickle.loads((folder / "call").read_bytes()), folder, phase, rank)
            (folder / f"{phase}.{rank}").write_bytes(pickle.dumps(told))
        except BaseException as error:
            kind = "stub" if type(error) is NotImplementedError else "error"
            text = "".join(traceback.format_exception(error, limit=-3))
            failed.write_text(f"{kind}\n{text}")
            return 1
        watch.cancel()
        (folder / f"{phase}.done.{rank}").touch()
        # A rank that fails, or hangs, ends all: it is horovodrun that ends this one.
        while len(list(folder.glob(f"{phase}.done.*"))) < size:
            time.sleep(0.005)
    shutdown()
    return 0


def _patched(blocked: Path, local_rank: int) -> Callable[[], None]:
    """Have hvd.init() write down if it is the machine that fails; give this process another local rank, for
    Horovod itself counts those of a node in the order of ranks; put off the shutdown, which is returned.
    """
    os.environ["HOROVOD_LOCAL_RANK"] = str(local_rank)
    init, shutdown = hvd.init, hvd.shutdown

    def told_init(*arguments: Any, **options: Any) -> None:
        blocked.write_text("hvd.init() came to no end")
        try:
            init(*arguments, **options)
        except RuntimeError as error:
            blocked.write_text(str(error))
            raise
        except Exception:  # called wrongly
            blocked.unlink()
            raise
        blocked.unlink()

    hvd.init, hvd.shutdown, hvd.local_rank = told_init, lambda: None, lambda: local_rank
    return shutdown  # type: ignore[no-any-return]


def _tell_where(failed: Path, thread: int) -> None:
    """End this process, and say in which line it was."""
    frame = sys._current_frames()[thread]
    at = "".join(traceback.format_stack(frame)[-3:])
    failed.write_text(
        f"error\nIt was still running after {SECONDS:g} s. Does every process make the same calls of "
        f"Horovod, as often? It was\n{at}"
    )
    os._exit(1)


def _called(call: dict[str, Any], folder: Path, phase: str, rank: int) -> dict[str, Any]:
    """What the answer did in a phase, as plain data. Only rank 0 finds what the phase before has saved."""
    own = folder / f"{phase}.folder{rank}"
    own.mkdir()
    checkpoint = own / "checkpoint.pt"
    first = folder / f"{next(iter(EPOCHS))}.folder0" / checkpoint.name
    if rank == 0 and first.exists():
        torch.save({**torch.load(first, weights_only=True), "epochs": 1}, checkpoint)
    models: list[Watched] = []
    gpus: list[Any] = []

    def new_model() -> nn.Module:
        models.append(Watched(call["values"][rank]))
        return models[-1]

    def use_gpu(number: int) -> torch.device:
        gpus.append(number)
        return torch.device("cpu")

    result = call["answer"](new_model, call["data"], own, EPOCHS[phase], use_gpu)
    model = models[0] if models else None
    return {
        "accuracy": result[1] if type(result) is tuple and len(result) == 2 else repr(result)[:200],
        "returned": type(result) is tuple and len(result) == 2 and result[0] is model,
        "weights": [each.detach().clone() for each in model.state_dict().values()] if model else [],
        "start": model.start if model else [],
        "calls": model.calls if model else [],
        "gpus": gpus,
        "files": sorted(path.name for path in own.iterdir()),
        "checkpoint": _read(checkpoint),
    }


def _read(checkpoint: Path) -> dict[str, Any] | None:
    """The model's values, momenta and epochs that a checkpoint holds, or lacks; None where there is none."""
    if not checkpoint.exists():
        return None
    saved = torch.load(checkpoint, weights_only=True)
    optimizer = saved.get("optimizer", {}).get("state", {})
    return {
        "model": list(saved.get("model", {}).values()),
        "momentum": [each.get("momentum_buffer") for each in optimizer.values()],
        "epochs": saved.get("epochs"),
    }


def _without_compiler() -> None:
    """Let optimizers do without torch's compiler: importing it takes longer than all the rest."""
    stub: Any = ModuleType("torch._dynamo")
    stub.disable = lambda function, *_, **__: function
    stub.graph_break = lambda: None
    sys.modules[stub.__name__] = torch._dynamo = stub


_without_compiler()
