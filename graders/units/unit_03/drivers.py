"""Drivers of unit 03: they let an answer save, load and train in a folder of its own, kill it there, and
return what it has left behind.
"""

import json
import os
import signal
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.training.checkpoints import Training
from graders.grading.answer import PlainData
from graders.units.unit_03.lives import files_of, in_words, lived, open_files, watched, with_short_files

Answer = Callable[..., Any]
State = dict[str, Any]


# --- save_checkpoint


def saving(answer: Answer, states: list[State], place: float) -> PlainData:
    """What a folder holds after saves that end well, that are killed, and that have no room.

    states: five, saved one after the other under one name. place: from 0 to 1, where in a save to kill it.
    """
    first, second, third, fourth, fifth = states
    with tempfile.TemporaryDirectory() as name:
        directory = Path(os.path.realpath(name))
        path = directory / "step-7.pt"
        (directory / "step-3.pt").write_bytes(b"another one's")
        answer(path, first)
        seen: dict[str, PlainData] = {"directory": str(directory), "first": _loaded(path)}
        seen["left open"] = directory.stat().st_ino in open_files()
        seen["events"] = lived(watched(directory, lambda: answer(path, second)))["value"]
        seen["second"], seen["others"] = _loaded(path), sorted(set(os.listdir(directory)) - {path.name})

        size = int(place * path.stat().st_size) if path.exists() else 1
        changes = sum("files" in event for event in seen["events"]) - 1
        last = 1 + int(place * changes)
        life = watched(directory, lambda: answer(path, third), last_change=last)
        seen["killed"] = lived(life) | {"left": _loaded(path)}
        life = with_short_files(size, lambda: answer(path, fourth), deadly=True)
        seen["killed while writing"] = lived(life) | {"left": _loaded(path)}
        seen["next"] = lived(lambda: answer(path, fourth)) | {"left": _loaded(path)}

        before = set(os.listdir(directory))
        life = with_short_files(size, lambda: answer(path, fifth), deadly=False)
        seen["full"] = lived(life) | {"left": _loaded(path)}
        seen["full"]["remains"] = sorted(set(os.listdir(directory)) - before)
    return seen


def _loaded(path: Path) -> PlainData:
    """What `torch.load` makes of a file: {"state"} or {"error"}."""
    try:
        return {"state": torch.load(path)}
    except Exception as error:  # what it raises depends on which bytes are missing
        return {"error": in_words(error) if path.exists() else "there is no such file"}


# --- load_latest


def loading(answer: Answer, files: dict[str, bytes], folders: list[str]) -> PlainData:
    """What the answer loads from a folder with these files and folders, and what it says meanwhile.

    The files are as old as they come late, so that the times of their last changes mislead.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for age, (file, content) in enumerate(files.items()):
            (directory / file).write_bytes(content)
            os.utime(directory / file, (1e9 - age, 1e9 - age))
        for folder in folders:
            (directory / folder).mkdir()
        before = files_of(directory)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
                state = answer(directory)
        said = "\n".join([*(str(warning.message) for warning in caught), printed.getvalue()])
        return {"state": state, "said": said, "unchanged": files_of(directory) == before}


def loading_nowhere(answer: Answer) -> PlainData:
    """What the answer makes of a folder that is not there yet."""
    with tempfile.TemporaryDirectory() as name:
        return answer(Path(name) / "checkpoints")


# --- resume


class _Weights:
    """A model: one vector."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.clone()

    def state_dict(self) -> State:
        return {"values": self.values}

    def load_state_dict(self, state: State) -> None:
        self.values.copy_(state["values"])


class _Momentum:
    """An optimizer with a memory, and a rate that falls with every step."""

    def __init__(self, model: _Weights) -> None:
        self.model = model
        self.velocity = torch.zeros_like(model.values)
        self.rate = 0.5

    def state_dict(self) -> State:
        return {"velocity": self.velocity, "rate": self.rate}

    def load_state_dict(self, state: State) -> None:
        self.velocity.copy_(state["velocity"])
        self.rate = state["rate"]

    def step(self, gradient: Tensor) -> None:
        """One step. Written out, for autograd and torch.optim do not survive every fork."""
        self.velocity.mul_(0.9).add_(gradient)
        self.model.values.sub_(self.velocity, alpha=self.rate)
        self.rate *= 0.97


class _Diary:
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


def training(
    answer: Answer,
    recipe: dict[str, Any],
    samples: Tensor,
    values: Tensor,
    deaths: list[tuple[str, int]],
) -> PlainData:
    """A training's lives, one after the other in one folder: what each did, and the weights it ended with.

    recipe: batch_size, epochs, save_every, noisy (whether a step draws random numbers). samples: [N, F],
    whose first column is the sample's number. deaths: one a life but the last; ("step", 3): killed after its
    third step; ("save", 1): killed in its first save, before anything is written; ("nothing", 0): not killed.
    A single life is not forked, so that its error is told with its lines.
    """
    with tempfile.TemporaryDirectory() as name:
        diary = _Diary(Path(os.path.realpath(name)))
        lives = []
        for death in (*deaths, None):
            begin = len(diary.read())
            life = partial(_train, answer, recipe, samples, values, diary, death)
            came = lived(life) if deaths else {"ended": "returned", "value": life()}
            told = diary.read()[begin:]
            lives.append(
                {
                    "ended": came["ended"],
                    "weights": came["value"],
                    "batches": [note["batch"] for note in told if "batch" in note],
                    "saved": [note["saved"] for note in told if "saved" in note],
                }
            )
        return lives


def _train(
    answer: Answer,
    recipe: dict[str, Any],
    samples: Tensor,
    values: Tensor,
    diary: _Diary,
    death: tuple[str, int] | None,
) -> Tensor:
    """One life: what a script does when it is started, the same every time."""
    torch.manual_seed(5)
    model = _Weights(values)
    optimizer = _Momentum(model)
    done = {"step": 0, "save": 0}

    def count(what: str) -> bool:
        """Whether this is where the life ends."""
        done[what] += 1
        return death is not None and tuple(death) == (what, done[what])

    def train_step(batch: Tensor) -> None:
        kept = torch.rand_like(model.values) > 0.3 if recipe["noisy"] else torch.ones_like(model.values)
        optimizer.step(torch.tanh(model.values * batch[:, 1:].mean(0)) * kept)
        diary.note(batch=[int(number) for number in batch[:, 0]])
        if count("step"):
            os.kill(os.getpid(), signal.SIGKILL)

    def save(path: Path, state: State) -> None:
        if count("save"):
            os.kill(os.getpid(), signal.SIGKILL)
        torch.save(state, path)
        diary.note(saved=os.path.relpath(path, diary.directory))

    def load_latest(directory: Path) -> Any:
        saved = [note["saved"] for note in diary.read() if "saved" in note]
        return torch.load(directory / saved[-1]) if saved else None

    batch_size, epochs = recipe["batch_size"], recipe["epochs"]
    parts = Training(model, optimizer, samples, batch_size, epochs, train_step)
    answer(parts, diary.directory, recipe["save_every"], save, load_latest)
    return model.values


# --- elastic_batch


def world(answer: Answer, global_batch: int, world_size: int) -> PlainData:
    """For every rank the positions and the weight that it is given."""
    ranks = []
    for rank in range(world_size):
        positions, weight = answer(global_batch, world_size, rank)
        ranks.append({"positions": [int(position) for position in positions], "weight": float(weight)})
    return ranks
