"""Unit 03: checkpoints as crashes and disks leave them."""

import io
import zipfile

import torch

from graders.grading.kit import Rng
from graders.units.unit_03.states import State

TORN = ("cut off", "cut off at its last bytes", "empty", "all zeros", "overwritten", "another zip archive")
"""What becomes of a file, so that it cannot be read."""
DAMAGED = ("with zeros in place of weights", "with zeros in place of biases", "with another number of steps")
"""What becomes of a file of the right length, in which a block is zeros, or one bit is wrong."""


def left_of(state: State, what: str, rng: Rng) -> bytes:
    """What is left of a state's file. what: one of TORN or DAMAGED; empty: all of it."""
    content = saved_bytes(state)
    match what:
        case "cut off":
            return content[: rng.integer(200, len(content) - 200)]
        case "cut off at its last bytes":
            return content[: -rng.integer(1, 20)]
        case "empty":
            return b""
        case "all zeros":
            return bytes(len(content))
        case "overwritten":
            return bytes(rng.integers(0, 255, 500).tolist())
        case "another zip archive":
            return zipped()
        case "with zeros in place of weights":
            return zeroed(state, "weight")
        case "with zeros in place of biases":
            return zeroed(state, "bias")
        case "with another number of steps":
            return miscounted(state)
        case _:
            return content


def saved_bytes(state: State) -> bytes:
    """The state as `torch.save` writes it."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def zeroed(state: State, part: str) -> bytes:
    """As `saved_bytes`, with zeros in half of a part of the model: a block that never reached the disk."""
    content = bytearray(saved_bytes(state))
    weights = state["model"][part].numpy().tobytes()
    begin = bytes(content).index(weights)
    content[begin : begin + len(weights) // 2] = bytes(len(weights) // 2)
    return bytes(content)


def miscounted(state: State) -> bytes:
    """As `saved_bytes`, with another number where the steps that are done are told: a bit that has turned."""
    content = bytearray(saved_bytes(state))
    # Pickle writes the key, that it remembers it, and K before a small number.
    content[content.index(b"K", content.index(b"done")) + 1] ^= 64
    return bytes(content)


def zipped() -> bytes:
    """A whole archive that is no checkpoint."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("results.csv", "step,loss\n1,2.3\n")
    return file.getvalue()
