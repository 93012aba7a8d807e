"""A model, an optimizer and a diary for the drivers of unit 03, small enough to be killed often."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
