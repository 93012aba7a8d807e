"""Training that survives: the loss of a worker, of a node, of the allocation, and another number of ranks.

`python -m course_lib.training.elastic --folder FOLDER` is what the batch scripts start on every rank, by
srun, torchrun, mpirun or ibrun alike. It goes on from the newest complete checkpoint in FOLDER, stops with a
new one when FOLDER/stop appears, and writes FOLDER/finished at the end.

Which samples make up a step follows from the seed and the number of the step alone, so a checkpoint needs to
know no more of the data than that number: whoever resumes, with however many ranks, goes on with the sample
after the last one. The global batch is the same for any number of ranks; with the same number the final
weights are equal bit for bit.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_lib.data import Dataset, load
from course_lib.runtime.processes.rank_environment import RankInfo, join_group
from course_lib.training.data_parallel import build_model, fingerprint

STOP = "stop"
FINISHED = "finished"
LOG = "steps.jsonl"

State = dict[str, Any]


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written; the message says why, and that the one before is intact."""


class Checkpoints(Protocol):
    """How training is saved. Every rank calls each method; what they do in common is their own business."""

    def save(self, step: int, state: State) -> None:
        """Keep `state` as that after `step` steps. An interrupted save must leave the last one usable."""

    def restore(self, state: State) -> int:
        """Fill `state` in place from the newest usable save; returns its step, 0 if there is none."""


@dataclass(frozen=True, slots=True)
class SavedByTorch:
    """Sharded checkpoints by torch.distributed.checkpoint: every rank writes its part.

    It writes `.metadata` last, under another name first; a folder without it is a save that did not end.
    """

    directory: Path
    kept: int = 2

    def save(self, step: int, state: State) -> None:
        try:
            state_dict_saver.save(state, checkpoint_id=self.directory / f"step-{step:08}")
        except (OSError, CheckpointException) as error:
            free = shutil.disk_usage(self.directory).free
            raise CheckpointFailed(_why(error, free, self._complete())) from error
        if dist.get_rank() == 0:
            for old in self._complete()[: -self.kept]:
                shutil.rmtree(old, ignore_errors=True)

    def restore(self, state: State) -> int:
        newest = _from_rank_zero(self._complete()[-1:])
        if not newest:
            return 0
        state_dict_loader.load(state, checkpoint_id=newest[0])
        return int(newest[0].name.removeprefix("step-"))

    def _complete(self) -> list[Path]:
        return sorted(path.parent for path in self.directory.glob("step-*/.metadata"))


@dataclass(frozen=True, slots=True)
class SavedByFunctions:
    """Checkpoints by two functions, such as the answers of unit 03: rank 0 writes, every rank reads.

    save(path, state) and load_latest(directory), which returns the newest state that can be read, or None.
    """

    directory: Path
    write: Callable[[Path, State], None]
    load_latest: Callable[[Path], State | None]

    def save(self, step: int, state: State) -> None:
        if dist.get_rank() == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.write(self.directory / f"step-{step:08}.pt", {"step": step, "state": state})
        dist.barrier()

    def restore(self, state: State) -> int:
        held = self.load_latest(self.directory) if self.directory.exists() else None
        if held is None:
            return 0
        state.update(held["state"])
        return int(held["step"])


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is trained. batch_size: samples of all ranks together in one step."""

    dataset: str = "digits"
    epochs: int = 3
    batch_size: int = 128
    learning_rate: float = 0.05
    momentum: float = 0.9
    seed: int = 0
    save_every: int = 10
    """Steps between two checkpoints."""

    def steps_an_epoch(self, samples: int) -> int:
        return -(-samples // self.batch_size)

    def samples_of(self, step: int, samples: int) -> Tensor:
        """The indices of a step's global batch. An epoch has each sample once, in an order of its own."""
        epoch, position = divmod(step, self.steps_an_epoch(samples))
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(self.seed + epoch))
        return order[position * self.batch_size :][: self.batch_size]


@dataclass(frozen=True, slots=True)
class Step:
    """One step as rank 0 logs it: the mean loss, over how many ranks, and which samples in short."""

    step: int
    loss: float
    ranks: int
    samples: int
    index_sum: int
    """Sum of the samples' indices, by which a log shows that none was lost or seen twice."""


def _nothing(step: int) -> None:
    """Called after a step."""


def train(
    recipe: Recipe,
    run: Path,
    checkpoints: Checkpoints,
    after_step: Callable[[int], None] = _nothing,
) -> bool:
    """Train to the end, or until `run`/stop appears; returns whether it came to the end.

    The default group must be there. Raises CheckpointFailed.
    """
    data = load(recipe.dataset)
    model = DistributedDataParallel(build_model(data, recipe.seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
    _warm_up(model, data)
    first = _restore(model, optimizer, checkpoints)
    last = recipe.epochs * recipe.steps_an_epoch(len(data.train))
    if first and dist.get_rank() == 0:
        print(f"going on after step {first} of {last} with {dist.get_world_size()} ranks", flush=True)
    for step in range(first, last):
        done, stop = _one_step(recipe, step, data, model, optimizer, run)
        if dist.get_rank() == 0:
            _log(run, done)
        if stop or (step + 1) % recipe.save_every == 0 or step + 1 == last:
            checkpoints.save(step + 1, _state(model, optimizer))
        after_step(step + 1)
        if stop and step + 1 < last:
            if dist.get_rank() == 0:
                print(f"stopped after step {step + 1} of {last}", flush=True)
            return False
    if dist.get_rank() == 0:
        (run / FINISHED).write_text(json.dumps({"steps": last, "weights": fingerprint(model)}) + "\n")
        print(f"finished after {last} steps; weights {fingerprint(model)[:12]}", flush=True)
    return True


def _warm_up(model: nn.Module, data: Dataset) -> None:
    """A backward pass whose gradients nobody uses.

    After its first, DistributedDataParallel deals the parameters into other buckets, in which sums over ranks
    are taken in another order. Were that first one a step, a resumed training would round differently.
    """
    model(data.train.images[:1]).sum().backward()
    # get_state_dict makes an optimizer's missing state only if there are no gradients.
    model.zero_grad()


def _one_step(
    recipe: Recipe,
    step: int,
    data: Dataset,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Path,
) -> tuple[Step, bool]:
    """One step of all ranks. The second value, the same on all, says whether they were asked to stop."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    # The random state is a function of the place in the training, so a checkpoint need not hold it.
    torch.manual_seed(recipe.seed * 1_000_003 + step * ranks + rank)
    batch = recipe.samples_of(step, len(data.train))
    mine = torch.tensor_split(batch, ranks)[rank]
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(data.train.images[mine]), data.train.labels[mine], reduction="sum")
    # DDP divides the sum of the gradients by the ranks, not by the samples.
    (loss * ranks / len(batch)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    asked = float(rank == 0 and (run / STOP).exists())
    totals = torch.tensor([loss.item(), asked, len(mine), int(mine.sum())], dtype=torch.float64)
    dist.all_reduce(totals)
    loss_sum, stop, samples, index_sum = totals.tolist()
    return Step(step, loss_sum / len(batch), ranks, int(samples), int(index_sum)), stop > 0


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoints: Checkpoints) -> int:
    state = _state(model, optimizer)
    step = checkpoints.restore(state)
    if step:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return step


def _log(run: Path, step: Step) -> None:
    with (run / LOG).open("a") as file:
        file.write(json.dumps(asdict(step)) + "\n")


def _from_rank_zero(paths: Sequence[Path]) -> list[Path]:
    """Rank 0's view of a shared folder: other nodes may see it a moment later."""
    held = [list(paths)]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def _why(error: BaseException, free: int, complete: Sequence[Path]) -> str:
    """Why a checkpoint could not be written. torch's own message hides that the disk is full."""
    causes = error.failures.values() if isinstance(error, CheckpointException) else [error]
    first = next(iter(causes), error)
    cause = first[0] if isinstance(first, tuple) else first
    before = f"The one before, {complete[-1].name}, is intact." if complete else "There is none before it."
    return (
        f"The checkpoint could not be written ({str(cause).strip()}); {free / 1e6:.1f} MB are free on its "
        f"disk. {before} Make room and submit again."
    )


def main(arguments: Sequence[str]) -> int:
    """Be one rank of a training. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.training.elastic")
    parser.add_argument("--folder", type=Path, required=True, help="folder of checkpoints and results")
    defaults = Recipe()
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    run: Path = given.pop("folder")
    run.mkdir(parents=True, exist_ok=True)
    _say_hello(join_group())
    try:
        train(Recipe(**given), run, SavedByTorch(run / "checkpoints"))
    except CheckpointFailed as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    leave_group()
    return 0


def leave_group() -> None:
    """Wait for all ranks, so that none ends while another still needs its connections, and leave."""
    dist.barrier()
    dist.destroy_process_group()


def _say_hello(info: RankInfo) -> None:
    if info.rank == 0:
        print(f"{info.ranks} ranks on {info.nodes} nodes, started by {info.launcher}", flush=True)


if __name__ == "__main__":
    _status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the store may still be there, and taking the interpreter down under them can abort it.
    os._exit(_status)
