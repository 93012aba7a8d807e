"""One process of a student's program under `horovodrun`: calls it, and writes down what came of it.

Run as `python horovod_rank.py FOLDER`, where FOLDER/call holds, pickled, the answer and its arguments. Every
process stands for a node of its own with one GPU: so it has a local rank of 0 and a folder of its own.
"""

import os
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 6, 3


class Watched(nn.Linear):
    """A linear classifier that notes what it is trained with. Inputs [B, 6], outputs [B, 3].

    starts: copies of the weight [3, 6] before the first two batches of training; seen: their inputs. saved:
    the times at which the checkpoint had been written when they came, 0 where there was none.
    """

    def __init__(self, checkpoint: Path, values: list[Tensor]) -> None:
        super().__init__(FEATURES, CLASSES)
        with torch.no_grad():
            self.weight.copy_(values[0])
            self.bias.copy_(values[1])
        self.checkpoint = checkpoint
        self.starts: list[Tensor] = []
        self.seen: list[Tensor] = []
        self.saved: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.training:
            if len(self.starts) < 2:
                self.starts.append(self.weight.detach().clone())
            self.seen.append(inputs.detach().clone())
            self.saved.append(self.checkpoint.stat().st_mtime_ns if self.checkpoint.exists() else 0)
        return super().forward(inputs)


def main() -> None:
    """Call the answer, and write what it did to FOLDER/result.RANK, or why it failed to
    FOLDER/failed.RANK.
    """
    folder, rank = Path(sys.argv[1]), int(os.environ["HOROVOD_RANK"])
    os.environ |= {"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"}
    os.environ |= {"HOROVOD_CROSS_RANK": str(rank), "HOROVOD_CROSS_SIZE": os.environ["HOROVOD_SIZE"]}
    _without_compiler()
    try:
        told = _play(pickle.loads((folder / "call").read_bytes()), folder / f"node{rank}", rank)
        (folder / f"result.{rank}").write_bytes(pickle.dumps(told))
    except BaseException as error:
        kind = "stub" if type(error) is NotImplementedError else "error"
        text = "".join(traceback.format_exception(error, limit=-3))
        (folder / f"failed.{rank}").write_text(f"{kind}\n{text}")
        raise


def _without_compiler() -> None:
    """Let optimizers do without torch's compiler: importing it takes longer than all the rest."""
    stub: Any = ModuleType("torch._dynamo")
    stub.disable = lambda function, *_, **__: function
    stub.graph_break = lambda: None
    sys.modules[stub.__name__] = torch._dynamo = stub


def _play(call: dict[str, Any], own: Path, rank: int) -> dict[str, Any]:
    """What the answer did on this process, as plain data. own: its node's folder."""
    checkpoint = own / "checkpoint.pt"
    models: list[Watched] = []
    gpus: list[Any] = []

    def new_model() -> nn.Module:
        models.append(Watched(checkpoint, call["values"][rank]))
        return models[-1]

    def use_gpu(number: int) -> torch.device:
        gpus.append(number)
        return torch.device("cpu")

    result = call["answer"](new_model, call["data"], own, call["epochs"], use_gpu)
    model = models[0] if models else None
    return {
        "accuracy": result[1] if type(result) is tuple and len(result) == 2 else repr(result)[:200],
        "returned": type(result) is tuple and len(result) == 2 and result[0] is model,
        "weights": [each.detach().clone() for each in model.parameters()] if model else [],
        "starts": model.starts if model else [],
        "seen": model.seen if model else [],
        "saved": model.saved if model else [],
        "gpus": gpus,
        "files": sorted(path.name for path in own.iterdir()),
        "checkpoint": _read(checkpoint),
        "written": checkpoint.read_bytes() if checkpoint.exists() else b"",
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


if __name__ == "__main__":
    main()
