"""Drivers of unit 03: trainings that are killed, told to stop, or dealt out to other worlds."""

import os
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.training.checkpoints import Training
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.hashing import hashes_salted
from graders.units.unit_03.fault_injection import RETURNED, run_forked
from graders.units.unit_03.replies import ProcessReply, Share, StopReply
from graders.units.unit_03.signals import Signal, SignalledTraining
from graders.units.unit_03.toy_training import Diary, Momentum, Weights

State = dict[str, Any]


def training(
    answer: AnswerFunction,
    recipe: dict[str, Any],
    samples: Tensor,
    values: Tensor,
    kills: list[int],
) -> list[ProcessReply]:
    """What a training's processes did, one after the other in one folder.

    recipe: batch_size, epochs, save_every, noisy (whether a step draws random numbers). samples: [N, 1 + F],
    whose first column is the sample's number. values: [F], the weights at first. kills: one a process, after
    how many of its steps it is killed; 0: not killed. Where there are none a single process is not forked:
    its error is told with its lines.
    """
    with tempfile.TemporaryDirectory() as name:
        diary = Diary(Path(os.path.realpath(name)))
        processes = []
        for kill in kills or [0]:
            begin = len(diary.read())
            body = partial(_train, answer, recipe, samples, values, diary, kill)
            came: PlainData = run_forked(body) if kills else {"ended": RETURNED, "value": body()}
            told = diary.read()[begin:]
            batches = [note["batch"] for note in told if "batch" in note]
            saved = [note["saved"] for note in told if "saved" in note]
            draws = [note["drawn"] for note in told if "drawn" in note]
            processes.append(ProcessReply(came["ended"], came["value"], batches, saved, draws))
        return processes


def _train(
    answer: AnswerFunction,
    recipe: dict[str, Any],
    samples: Tensor,
    values: Tensor,
    diary: Diary,
    kill: int,
) -> Tensor:
    """One process: what a script does when it is started, the same every time."""
    torch.manual_seed(5)
    # A fork has its parent's; Python's own generator is seeded anew.
    np.random.seed()
    model = Weights(values)
    optimizer = Momentum(model)
    made = 0

    def train_step(batch: Tensor) -> None:
        nonlocal made
        drawn = torch.rand_like(model.values) if recipe["noisy"] else torch.ones_like(model.values)
        optimizer.step(torch.tanh(model.values * batch[:, 1:].mean(0)) * (drawn > 0.3))
        diary.note(batch=[int(number) for number in batch[:, 0]], drawn=drawn.tolist())
        made += 1
        if made == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def save(path: Path, state: State) -> None:
        torch.save(state, path)
        diary.note(saved=path.name)

    def load_latest(directory: Path) -> Any:
        saved = [note["saved"] for note in diary.read() if "saved" in note]
        return torch.load(directory / saved[-1]) if saved else None

    batch_size, epochs = recipe["batch_size"], recipe["epochs"]
    parts = Training(model, optimizer, samples, batch_size, epochs, train_step)
    with hashes_salted(answer, os.getpid):
        answer(parts, diary.directory, recipe["save_every"], save, load_latest)
    return model.values


def world(answer: AnswerFunction, global_batch: int, world_size: int) -> list[Share]:
    """What every rank is given."""
    ranks = []
    for rank in range(world_size):
        match answer(global_batch, world_size, rank):
            case (range() as positions, float() | int() as weight):
                ranks.append(Share(list(positions), float(weight), ""))
            case other:
                ranks.append(Share([], 0.0, repr(other)[:80]))
    return ranks


def told_to_stop(
    answer: AnswerFunction, steps: int, plan: list[tuple[str, int, int, str]], again: bool
) -> StopReply:
    """A rank of a training in which signals come. plan: each as moment, step, rank, name; see `Signal`.

    again: whether this process had a training before, which was stopped.
    """
    if again:
        earlier = SignalledTraining(steps, [Signal("before", 0, 0, "SIGTERM")])
        answer(earlier.train_step, steps, earlier.save, earlier.set_handler)
    training = SignalledTraining(steps, [Signal(*each) for each in plan])
    returned = answer(training.train_step, steps, training.save, training.set_handler)
    return StopReply(returned, training.made, training.saved, training.unset)
