"""Training that survives: the loss of a worker, of a node, of the allocation, and another number of ranks.

`python -m course_lib.training.elastic --folder FOLDER` is what the batch scripts start on every rank, by
srun, torchrun, mpirun or ibrun alike. It goes on from the newest complete checkpoint in FOLDER, stops with a
new one when FOLDER/stop appears, and writes FOLDER/finished at the end.

Which samples make up a step follows from the seed and the number of the step alone, so a checkpoint needs to
know no more of the data than that number: whoever resumes, with however many ranks, goes on with the sample
after the last one. The global batch is the same for any number of ranks; with the same number, on CPUs, the
final weights are equal bit for bit.

Shapes: G samples of a step's global batch, B of them a rank's, C channels, S pixels a side, K classes.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from course_lib.data import Samples, load
from course_lib.runtime.processes.rank_environment import RankInfo, join_group
from course_lib.training.checkpoints import Checkpoints, State
from course_lib.training.device import rank_device
from course_lib.training.recipe import Recipe, build_model, build_optimizer, set_learning_rate
from course_lib.training.results import fingerprint
from course_lib.training.torch_checkpoints import CheckpointFailed, SavedByTorch

STOP = "stop"
FINISHED = "finished"
LOG = "steps.jsonl"

RECIPE = Recipe(batch_size=128, learning_rate=0.05)
"""What a batch job trains that is told nothing else."""


def steps_an_epoch(recipe: Recipe, samples: int) -> int:
    """How many global batches there are in an epoch; the last may be smaller."""
    return -(-samples // recipe.batch_size)


def global_batch(recipe: Recipe, step: int, samples: int) -> Tensor:
    """The indices of a step's samples, [G]. An epoch has each sample once, in an order of its own."""
    epoch, position = divmod(step, steps_an_epoch(recipe, samples))
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(recipe.seed + epoch))
    return order[position * recipe.batch_size :][: recipe.batch_size]


@dataclass(frozen=True, slots=True)
class StepRecord:
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
    folder: Path,
    checkpoints: Checkpoints,
    after_step: Callable[[int], None] = _nothing,
    device: torch.device | str | None = None,
) -> bool:
    """Train to the end, or until `folder`/stop appears; returns whether it came to the end.

    The default group must be there. device: as for `rank_device`. Raises CheckpointFailed.
    """
    here = rank_device(device)
    data = load(recipe.dataset)
    trainer = _Trainer(recipe, data.train, build_model(data, recipe.seed, here), here, folder / STOP)
    first = trainer.restore(checkpoints)
    last = recipe.epochs * steps_an_epoch(recipe, len(data.train))
    if first:
        _say(f"going on after step {first} of {last} with {dist.get_world_size()} ranks")
    for step in range(first, last):
        record, stop = trainer.step(step)
        if dist.get_rank() == 0:
            log_step(folder, record)
        if stop or (step + 1) % checkpoints.every == 0 or step + 1 == last:
            checkpoints.save(step + 1, trainer.state())
        after_step(step + 1)
        if stop and step + 1 < last:
            _say(f"stopped after step {step + 1} of {last}")
            return False
    weights = fingerprint(trainer.model)
    if dist.get_rank() == 0:
        (folder / FINISHED).write_text(json.dumps({"steps": last, "weights": weights}) + "\n")
    _say(f"finished after {last} steps; weights {weights[:12]}")
    return True


class _Trainer:
    """A rank's replica and its optimizer, which can be saved and restored after every step."""

    def __init__(
        self, recipe: Recipe, samples: Samples, model: nn.Module, device: torch.device, stop_file: Path
    ) -> None:
        self.model = DistributedDataParallel(model)
        self._optimizer = build_optimizer(self.model, recipe)
        self._recipe = recipe
        self._samples = samples
        self._device = device
        self._stop_file = stop_file
        self._warm_up()

    def _warm_up(self) -> None:
        """A backward pass whose gradients nobody uses.

        After its first, DistributedDataParallel deals the parameters into other buckets, in which sums over
        ranks are taken in another order. Were that first one a step, a resumed training would round
        differently.
        """
        images_BCSS, _ = self._samples.batch(torch.zeros(1, dtype=torch.int64), self._device)
        self.model(images_BCSS).sum().backward()
        # get_state_dict makes an optimizer's missing state only if there are no gradients.
        self.model.zero_grad()

    def step(self, step: int) -> tuple[StepRecord, bool]:
        """One step of all ranks. The second value, the same on all, says whether they are to stop."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        # The random state is a function of the place in the training, so a checkpoint need not hold it.
        torch.manual_seed(self._recipe.seed * 1_000_003 + step * ranks + rank)
        set_learning_rate(self._optimizer, self._recipe.rate_at(step))
        indices_G = global_batch(self._recipe, step, len(self._samples))
        indices_B = torch.tensor_split(indices_G, ranks)[rank]
        loss_sum = self._update(indices_B, len(indices_G) / ranks)
        asked = float(rank == 0 and self._stop_file.exists())
        totals = torch.tensor(
            [loss_sum, asked, len(indices_B), int(indices_B.sum())], dtype=torch.float64, device=self._device
        )
        dist.all_reduce(totals)
        total_loss, stops, samples, index_sum = totals.tolist()
        record = StepRecord(step, total_loss / len(indices_G), ranks, int(samples), int(index_sum))
        return record, stops > 0

    def _update(self, indices_B: Tensor, share: float) -> float:
        """Take an optimizer step; returns the loss, summed over this rank's samples.

        share: samples of the global batch, divided by the ranks. DistributedDataParallel divides the sum of
        the gradients by the ranks, not by the samples.
        """
        images_BCSS, labels_B = self._samples.batch(indices_B, self._device)
        self._optimizer.zero_grad()
        logits_BK = self.model(images_BCSS)
        loss = functional.cross_entropy(logits_BK, labels_B, reduction="sum")
        (loss / share).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()

    def state(self) -> State:
        """What a checkpoint holds."""
        model_state, optimizer_state = get_state_dict(self.model, self._optimizer)
        return {"model": model_state, "optimizer": optimizer_state}

    def restore(self, checkpoints: Checkpoints) -> int:
        """Take up the newest checkpoint; returns the step after which it was saved, 0 if there is none."""
        state = self.state()
        step = checkpoints.restore(state)
        if step:
            set_state_dict(
                self.model,
                self._optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        return step


def _say(text: str) -> None:
    """Print a line, once for all ranks."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def log_step(folder: Path, record: StepRecord) -> None:
    """Add a step to the log of a training."""
    with (folder / LOG).open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def read_arguments(program: str, arguments: Sequence[str]) -> tuple[Recipe, Path, int]:
    """What to train, in which folder, which is made, and how many steps lie between two checkpoints."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--folder", type=Path, required=True, help="folder of checkpoints and results")
    parser.add_argument("--save-every", type=int, default=10, help="steps between two checkpoints")
    for name, value in asdict(RECIPE).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    folder, every = given.pop("folder"), given.pop("save_every")
    folder.mkdir(parents=True, exist_ok=True)
    return Recipe(**given), folder, every


def main(arguments: Sequence[str]) -> int:
    """Be one rank of a training. Returns the exit status."""
    recipe, folder, every = read_arguments("course_lib.training.elastic", arguments)
    say_hello(join_group())
    try:
        train(recipe, folder, SavedByTorch(folder / "checkpoints", every))
    except CheckpointFailed as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    leave_group()
    return 0


def leave_group() -> None:
    """Wait for all ranks, so that none ends while another still needs its connections, and leave."""
    dist.barrier()
    dist.destroy_process_group()


def say_hello(info: RankInfo) -> None:
    """Print once how many ranks there are, on how many nodes, and which launcher has started them."""
    if info.rank == 0:
        print(f"{info.ranks} ranks on {info.nodes} nodes, started by {info.launcher}", flush=True)


if __name__ == "__main__":
    _status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the store may still be there, and taking the interpreter down under them can abort it.
    os._exit(_status)
