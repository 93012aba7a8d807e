"""What a checkpoint adds to a training step: waiting for the disk, against writing while training goes on.

Both ways write the same state, every so many steps of the same computing, in turns, so that their ratio means
something where the seconds do not. The next checkpoint waits for the one before; what is left to write when
the last step ends is not counted, as in a training that goes on. A step is a wait, as for a GPU: the
processor is free to write meanwhile, as it is there.
"""

import os
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed.checkpoint as dcp
from tqdm import tqdm

from benchmarks.measure import Row, show

_MEGABYTES = 32
_ROUNDS, _STEPS, _EVERY = 3, 50, 25
_STEP_SECONDS = 0.03

State = dict[str, torch.Tensor]


class Write(Protocol):
    """A write that goes on; `result` waits for its end."""

    def result(self) -> object: ...


Save = Callable[[State, Path], Write | None]
"""Saves a state; returns what is still to be waited for."""


def rows() -> Iterator[Row]:
    """By a thread with torch.save, and by torch.distributed.checkpoint."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    state = {"weights": torch.randn(_MEGABYTES * 250_000)}
    ways: list[tuple[str, Save, Save]] = [
        ("torch.save", _waiting, _meanwhile),
        ("torch.distributed.checkpoint", _waiting_in_parts, _meanwhile_in_parts),
    ]
    for name, waiting, meanwhile in ways:
        plain, slow, quick = _in_turns([None, waiting, meanwhile], state)
        what = f"added to a step by {_MEGABYTES} MB every {_EVERY} steps, in the background: {name}"
        added, waited = max(quick - plain, 1e-6), slow - plain
        yield Row(what, added, waited, "waiting", "at least 1.5 times less", waited / added >= 1.5)


def _in_turns(saves: list[Save | None], state: State) -> list[float]:
    """Median seconds of a step, for each way to save."""
    seconds: list[list[float]] = [[] for _ in saves]
    for _ in tqdm(range(_ROUNDS), leave=False, disable=None, unit="round"):
        for held, save in zip(seconds, saves, strict=True):
            held.append(_seconds_a_step(save, state))
    return [statistics.median(held) for held in seconds]


def _seconds_a_step(save: Save | None, state: State) -> float:
    write = None
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        for step in range(1, _STEPS + 1):
            time.sleep(_STEP_SECONDS)
            if save and step % _EVERY == 0:
                if write:
                    write.result()
                write = save(state, Path(name) / f"step-{step}")
        seconds = (time.perf_counter() - start) / _STEPS
        if write:
            write.result()
    return seconds


def _waiting(state: State, path: Path) -> None:
    """To the disk, as torch.distributed.checkpoint does it too."""
    with path.open("wb") as file:
        torch.save(state, file)
        os.fsync(file.fileno())


class _Thread(threading.Thread):
    result = threading.Thread.join


def _meanwhile(state: State, path: Path) -> Write:
    copied = {name: tensor.clone() for name, tensor in state.items()}
    thread = _Thread(target=_waiting, args=(copied, path))
    thread.start()
    return thread


def _waiting_in_parts(state: State, path: Path) -> None:
    dcp.save(state, checkpoint_id=path, no_dist=True)


def _meanwhile_in_parts(state: State, path: Path) -> Write:
    return dcp.async_save(state, checkpoint_id=path, no_dist=True)


if __name__ == "__main__":
    show(rows())
