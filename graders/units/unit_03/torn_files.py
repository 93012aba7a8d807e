"""Unit 03: folders of checkpoints as crashes and disks leave them."""

import io
import zipfile
from collections.abc import Sequence

import torch

from graders.grading.kit import Rng
from graders.units.unit_03.states import State

Left = tuple[dict[str, bytes], State | None, str]
"""A folder's files, the state that is to be loaded, and what they are, for a sentence."""


def with_torn_files(
    good: dict[str, bytes], cases: dict[str, bytes], names: Sequence[str], states: Sequence[State]
) -> list[Left]:
    """Folders with torn files.

    names, states: of the checkpoints, the newest last. cases: what is left of a file, by what became of it.
    """
    newest = names[-1]
    three = good | {newest: cases["cut off"], names[2]: cases["empty"], names[1]: cases["all zeros"]}
    all_torn = dict(zip(good, cases.values(), strict=False))
    return [
        *((good | {newest: bad}, states[2], f"of which the newest is {what}") for what, bad in cases.items()),
        (three, states[0], "of which the three newest are torn"),
        (all_torn, None, "that are all torn"),
    ]


def with_damage(
    good: dict[str, bytes], names: Sequence[str], states: Sequence[State], cut: bytes
) -> list[Left]:
    """As `with_torn_files`, with files of the right length in which a block is zeros, or one bit is wrong."""
    weights, biases = ({names[3]: zeroed(states[3], part)} for part in ("weight", "bias"))
    before = {names[2]: zeroed(states[2], "weight")}
    return [
        (good | weights, states[2], "of which the newest has zeros in place of some weights"),
        (good | biases, states[2], "of which the newest has zeros in place of some biases"),
        (
            good | {names[3]: miscounted(states[3])},
            states[2],
            "of which the newest says another number of steps",
        ),
        (good | weights | before, states[1], "of which the two newest have zeros in place of some weights"),
        (
            {names[2]: cut} | weights,
            None,
            "that are two, the newer with zeros in place of some weights, and one cut off",
        ),
    ]


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


def torn(rng: Rng, content: bytes) -> dict[str, bytes]:
    """What may be left of a file, by what became of it."""
    return {
        "cut off": content[: rng.integer(200, len(content) - 200)],
        "cut off at its last bytes": content[: -rng.integer(1, 20)],
        "empty": b"",
        "all zeros": bytes(len(content)),
        "overwritten": bytes(rng.integers(0, 255, 500).tolist()),
        "another zip archive": zipped(),
    }


def zipped() -> bytes:
    """A whole archive that is no checkpoint."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("results.csv", "step,loss\n1,2.3\n")
    return file.getvalue()
