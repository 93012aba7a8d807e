"""Training that survives a worker's end without starting again: Horovod's elastic mode.

`python -m course_lib.training.horovod_elastic --folder FOLDER` is what slurm/train_horovod.sbatch has
horovodrun start on every rank. FOLDER is used as by `course_lib.training.elastic`, and a step has the same
samples, whoever takes it and with how many ranks.

When a worker is lost, the others' collective fails. They take up the state of the last commit, form a new
group without it and go on; steps since then are taken again. See "Elastic Horovod" in its documentation.
With fixed hosts (horovodrun without --host-discovery-script) the job ends instead, and goes on from its
file if started again.

Shapes: G samples of a step's global batch, B of them a rank's, C channels, S pixels a side, K classes.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.data import Samples, load
from course_lib.runtime.processes.rank_environment import share_cores
from course_lib.training.elastic import (
    FINISHED,
    STOP,
    StepRecord,
    global_batch,
    log_step,
    read_arguments,
    steps_an_epoch,
)
from course_lib.training.horovod import horovod_device
from course_lib.training.recipe import Recipe, build_model, build_optimizer, set_learning_rate
from course_lib.training.results import fingerprint

SAVED = "horovod.pt"
"""What rank 0 keeps in the folder: the number of steps, the model, the optimizer."""


def _nothing(step: int) -> None:
    """Called after a step."""


def train(
    recipe: Recipe,
    folder: Path,
    every: int = 10,
    after_step: Callable[[int], None] = _nothing,
    device: torch.device | str | None = None,
) -> bool:
    """Train to the end, or until `folder`/stop appears; returns whether it came to the end.

    `hvd.init()` must have been called. every: steps between two commits, each of which is written to a file
    too. device: as for `horovod_device`.
    """
    here = horovod_device(device)
    data = load(recipe.dataset)
    last = recipe.epochs * steps_an_epoch(recipe, len(data.train))
    model = build_model(data, recipe.seed, here)
    trainer = _Trainer(recipe, data.train, model, here, folder)
    if hvd.rank() == 0:
        trainer.load()

    def go_on(state: Any) -> bool:
        """From where the state is, after every loss of a worker anew."""
        stop = False
        while state.step < last and not stop:
            stop = trainer.step(state.step)
            state.step += 1
            if stop or state.step % every == 0 or state.step == last:
                trainer.save()
                state.commit()
            after_step(state.step)
        return bool(state.step == last)

    finished: bool = hvd.elastic.run(go_on)(trainer.state)
    if hvd.rank() == 0:
        weights = fingerprint(model)
        if finished:
            (folder / FINISHED).write_text(json.dumps({"steps": last, "weights": weights}) + "\n")
        print(f"{'finished' if finished else 'stopped'} after {trainer.state.step} steps", flush=True)
    return finished


class _Trainer:
    """A rank's replica and Horovod's optimizer, and the state of both that outlives the loss of a worker."""

    def __init__(
        self, recipe: Recipe, samples: Samples, model: nn.Module, device: torch.device, folder: Path
    ) -> None:
        self._recipe = recipe
        self._samples = samples
        self._model = model
        self._device = device
        self._folder = folder
        named = model.named_parameters()
        self._optimizer = hvd.DistributedOptimizer(build_optimizer(model, recipe), named_parameters=named)
        self.state = hvd.elastic.TorchState(model=model, optimizer=self._optimizer, step=0)

    def step(self, step: int) -> bool:
        """One step of all ranks; returns, the same on all, whether they are to stop."""
        rank, ranks = hvd.rank(), hvd.size()
        torch.manual_seed(self._recipe.seed * 1_000_003 + step * ranks + rank)
        set_learning_rate(self._optimizer, self._recipe.rate_at(step))
        indices_G = global_batch(self._recipe, step, len(self._samples))
        indices_B = torch.tensor_split(indices_G, ranks)[rank]
        loss_sum = self._update(indices_B, len(indices_G) / ranks)
        asked = float(rank == 0 and (self._folder / STOP).exists())
        totals = torch.tensor([loss_sum, asked, len(indices_B), int(indices_B.sum())], dtype=torch.float64)
        total_loss, stops, samples, index_sum = hvd.allreduce(totals, op=hvd.Sum, name="totals").tolist()
        if rank == 0:
            loss = total_loss / len(indices_G)
            log_step(self._folder, StepRecord(step, loss, ranks, int(samples), int(index_sum)))
        return bool(stops > 0)

    def _update(self, indices_B: Tensor, share: float) -> float:
        """Take an optimizer step; returns the loss, summed over this rank's samples.

        share: samples of the global batch, divided by the ranks: Horovod averages over ranks, not over
        samples.
        """
        images_BCSS, labels_B = self._samples.batch(indices_B, self._device)
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._model(images_BCSS), labels_B, reduction="sum")
        (loss / share).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()

    def save(self) -> None:
        """Write the file, on rank 0; whoever is killed meanwhile leaves the last one."""
        if hvd.rank() == 0:
            parts = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
            draft = self._folder / f"{SAVED}.draft"
            torch.save(parts | {"step": self.state.step}, draft)
            draft.rename(self._folder / SAVED)

    def load(self) -> None:
        """Take up the file, if there is one; the other ranks get it from rank 0."""
        if (self._folder / SAVED).exists():
            held = torch.load(self._folder / SAVED, map_location=self._device)
            self._model.load_state_dict(held["model"])
            self._optimizer.load_state_dict(held["optimizer"])
            self.state.step = held["step"]
            self.state.save()


def main(arguments: Sequence[str]) -> None:
    """Be one rank of a training."""
    recipe, folder, every = read_arguments("course_lib.training.horovod_elastic", arguments)
    hvd.init()
    share_cores(hvd.local_size())
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks on {hvd.cross_size()} nodes, started by Horovod", flush=True)
    train(recipe, folder, every)


if __name__ == "__main__":
    main(sys.argv[1:])
