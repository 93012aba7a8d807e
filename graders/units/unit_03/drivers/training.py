"""Drivers of unit 03: trainings that are killed, or dealt out to other worlds."""

import json
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
from graders.units.unit_03.replies import ProcessReply, Share

State = dict[str, Any]


class Weights:
    """A model: one vector [F]."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.clone()

    def state_dict(self) -> State:
        return {"values": self.values}

    def load_state_dict(self, state: State) -> None:
        self.values.copy_(state["values"])


class Momentum:
    """An optimizer with a memory, and a rate that falls with every step."""

    def __init__(self, model: Weights) -> None:
        self.model = model
        self.velocity = torch.zeros_like(model.values)
        self.rate = 0.5

    def state_dict(self) -> State:
        return {"velocity": self.velocity, "rate": self.rate}

    def load_state_dict(self, state: State) -> None:
        self.velocity.copy_(state["velocity"])
        self.rate = state["rate"]

    def step(self, gradient: Tensor) -> None:
        """One step, gradient [F]. Written out, for autograd and torch.optim do not survive every fork."""
        self.velocity.mul_(0.9).add_(gradient)
        self.model.values.sub_(self.velocity, alpha=self.rate)
        self.rate *= 0.97


class Diary:
    """What happened in a folder, one JSON object a line: it outlives the process that writes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "diary"
        self._path.touch()

    def note(self, **what: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(what) + "\n")

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]


Course = tuple[Tensor, Tensor, int, int, int]
"""A training: samples [N, 1 + F], whose first column is the sample's number; [F], the weights at first; batch
size; epochs; steps between two checkpoints.
"""


def training(answer: AnswerFunction, course: Course, kills: list[int]) -> list[ProcessReply]:
    """What a training's processes did, one after the other in one folder.

    kills: one a process, after how many of its steps it is killed; 0: not killed. Where there are none a
    single process is not forked: its error is told with its lines.
    """
    with tempfile.TemporaryDirectory() as name:
        diary = Diary(Path(os.path.realpath(name)))
        processes = []
        for kill in kills or [0]:
            begin = len(diary.read())
            body = partial(_train, answer, course, diary, kill)
            came: PlainData = run_forked(body) if kills else {"ended": RETURNED, "value": body()}
            told = diary.read()[begin:]
            batches = [note["batch"] for note in told if "batch" in note]
            saved = [note["saved"] for note in told if "saved" in note]
            draws = [note["drawn"] for note in told if "drawn" in note]
            processes.append(ProcessReply(came["ended"], came["value"], batches, saved, draws))
        return processes


def _train(answer: AnswerFunction, course: Course, diary: Diary, kill: int) -> Tensor:
    """One process: what a script does when it is started, the same every time."""
    samples, values, batch_size, epochs, save_every = course
    torch.manual_seed(5)
    # A fork has its parent's; Python's own generator is seeded anew.
    np.random.seed()
    model = Weights(values)
    optimizer = Momentum(model)
    made = 0

    def train_step(batch: Tensor) -> None:
        nonlocal made
        drawn = torch.rand_like(model.values)
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

    parts = Training(model, optimizer, samples, batch_size, epochs, train_step)
    with hashes_salted(answer, os.getpid):
        answer(parts, diary.directory, save_every, save, load_latest)
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
