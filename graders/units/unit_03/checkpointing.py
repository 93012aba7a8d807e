"""What the graders of unit 03 draw and judge about checkpoints: how they are written and read."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graders.grading.answer import Answer, PlainData
from graders.grading.exercise import Finding
from graders.grading.rng import Rng
from graders.units.unit_03.lives import RETURNED

State = dict[str, Any]


def draw_state(rng: Rng, step: int) -> State:
    """What a small training would save: nested, with tensors of several dtypes and a plain number."""
    return {
        "step": step,
        "model": {"weight": rng.normal(64, 48), "bias": rng.normal(48, dtype=torch.float64)},
        "random": rng.integers(0, 255, 400).to(torch.uint8),
    }


def same_state(seen: Any, expected: Any) -> bool:
    """Whether two nests of dictionaries are equal in every bit of every tensor, and in types."""
    if type(seen) is not type(expected):
        return False
    if isinstance(expected, Tensor):
        return seen.dtype == expected.dtype and seen.shape == expected.shape and torch.equal(seen, expected)
    if isinstance(expected, dict):
        return seen.keys() == expected.keys() and all(same_state(seen[k], expected[k]) for k in expected)
    return bool(seen == expected)


# --- save_checkpoint


@dataclass(frozen=True)
class Saves:
    """What a folder held while checkpoints were saved there. See `drivers.unit_03.saving`."""

    states: Sequence[State]
    seen: dict[str, Any]
    path: str = "step-7.pt"

    @classmethod
    def drawn(cls, answer: Answer, rng: Rng) -> "Saves":
        """Five saves, of which one is killed at a place that is drawn."""
        states = [draw_state(rng, step) for step in range(5)]
        return cls(states, answer.call("unit_03.saving", states, rng.integer(100, 900) / 1000))

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.seen["events"])

    def contents(self) -> Iterator[tuple[int, Any]]:
        """Place of each change among the events, and the checkpoint's file after it, None if it has none."""
        for place, event in enumerate(self.events):
            if "files" in event:
                yield place, event["files"].get(self.path)


def round_trip(saves: Saves) -> Finding:
    """Passes if what was saved can be loaded, the second time too, and no other file was touched."""
    name = "can be loaded"
    for which, expected in zip(("first", "second"), saves.states, strict=False):
        left = saves.seen[which]
        if "error" in left:
            return Finding(name, False, f"After the {which} save torch.load(path) says: {left['error']}.")
        if not same_state(left["state"], expected):
            return Finding(name, False, f"After the {which} save torch.load(path) gives another state.")
    if saves.seen["others"][:1] != ["step-3.pt"]:
        others = saves.seen["others"] or "nothing"
        return Finding(
            name, False, f"Beside step-7.pt there was step-3.pt; after two saves there is {others}."
        )
    return Finding(name, True, "torch.load(path) gives the state, and after a second save the second state.")


def whole_at_every_moment(saves: Saves) -> Finding:
    """Passes if a kill at no moment leaves anything but the old checkpoint or the new one."""
    name = "whole at every moment"
    files = [file and file["content"] for _, file in saves.contents()]
    old, new = files[0], files[-1]
    for place, content in enumerate(files):
        if content is None:
            return Finding(
                name, False, f"Killed at change {place} of {len(files) - 1}, it leaves no step-7.pt."
            )
        if content not in (old, new):
            text = f"Killed at change {place} of {len(files) - 1}, it leaves a step-7.pt with {len(content)}"
            return Finding(name, False, f"{text} of {len(new)} bytes, and the old one is gone.")
    for how, saved in (("killed", 2), ("killed while writing", 3)):
        left = saves.seen[how]["left"]
        before = f"{how}, it left a step-7.pt of which torch.load says: {left.get('error')}"
        if "error" in left:
            return Finding(name, False, f"Really {before}.")
        if not any(same_state(left["state"], state) for state in saves.states[1 : saved + 1]):
            return Finding(name, False, f"Really {how}, it left neither the old state nor the new one.")
    text = f"Killed at any of {len(files) - 1} changes, or while writing, it leaves the old or the new one."
    return Finding(name, True, text)


def temporary_beside(saves: Saves) -> Finding:
    """Passes if what is being written is in the same folder, under a name that is no checkpoint's."""
    name = "temporary file"
    folder = saves.seen["directory"]
    for event in saves.events:
        source = event.get("renamed", [f"{folder}/none"])[0]
        if str(Path(source).parent) != folder:
            text = f"The new file is moved in from {Path(source).parent}, which may be on another disk"
            return Finding(name, False, f"{text}; expected one in the folder of path.")
    names = {each for event in saves.events for each in event.get("files", {})}
    unlike = sorted(
        each for each in names if not each.endswith(".tmp") and each not in (saves.path, "step-3.pt")
    )
    if unlike:
        return Finding(
            name, False, f"While it saves there is {unlike[0]}; expected a name that ends in .tmp."
        )
    left = [each for each in saves.seen["others"] if each != "step-3.pt"]
    if left:
        return Finding(name, False, f"After two saves {left[0]} is still there.")
    return Finding(name, True, "It is written beside path under a name that ends in .tmp, and none is left.")


def synced_before_renamed(saves: Saves) -> Finding:
    """Passes if all bytes of the new file were sent to the disk before it got its name."""
    name = "on the disk before its name"
    synced: dict[int, bytes] = {}
    files: Mapping[str, Any] = {}
    old = next(saves.contents())[1]
    for event in saves.events:
        if "synced" in event:
            now = {file["inode"]: file["content"] for file in files.values()}
            synced |= {inode: now[inode] for inode in event["synced"]}
        files = event.get("files", files)
        new = files.get(saves.path)
        if new and new != old:
            held = synced.get(new["inode"])
            if held is None:
                text = "step-7.pt is replaced by a file that no fsync has sent to the disk"
                return Finding(name, False, f"{text}: a power failure now can leave it empty.")
            if held != new["content"]:
                text = f"fsync was called when the file had {len(held)} of its {len(new['content'])} bytes"
                return Finding(name, False, f"{text}: the rest was not yet with the operating system.")
            return Finding(
                name, True, f"All {len(held)} bytes were sent to the disk before step-7.pt was replaced."
            )
    return Finding(name, False, "step-7.pt was never replaced.")


def directory_synced(saves: Saves) -> Finding:
    """Passes if the new name was sent to the disk too."""
    name = "the directory too"
    replaced = max(place for place, _ in saves.contents())
    synced = [place for place, event in enumerate(saves.events) if event.get("directory")]
    if saves.seen["left open"]:
        return Finding(name, False, "After a save the folder is still open, and so after each: close it.")
    if any(place > replaced for place in synced):
        return Finding(name, True, "The folder was sent to the disk after its last change.")
    text = "the folder was sent to the disk before that" if synced else "nothing sends the folder to the disk"
    return Finding(name, False, f"After step-7.pt was replaced it returns; {text}.")


def next_save_works(saves: Saves) -> Finding:
    """Passes if what two killed saves have left behind does not disturb the next one."""
    name = "after a crash"
    came = saves.seen["next"]
    if came["ended"] != RETURNED:
        return Finding(name, False, f"After saves that were killed, the next one ends with {came['ended']}.")
    if not same_state(came["left"].get("state"), saves.states[3]):
        return Finding(name, False, "After saves that were killed, the next one does not save its state.")
    return Finding(name, True, "After saves that were killed, the next one works.")


def full_disk(saves: Saves) -> Finding:
    """Passes if a full disk is an error that the caller hears of, and costs nothing."""
    name = "a full disk"
    came = saves.seen["full"]
    if came["ended"] == RETURNED:
        return Finding(name, False, "On a full disk it returns as if it had saved; expected the error.")
    if not same_state(came["left"].get("state"), saves.states[3]):
        return Finding(name, False, f"On a full disk it raises ({came['ended']}), and the old one is gone.")
    if came["remains"]:
        text = f"On a full disk it raises ({came['ended']}) and leaves {came['remains'][0]} there"
        return Finding(name, False, f"{text}, which fills the disk.")
    return Finding(name, True, f"On a full disk it raises ({came['ended']}); the old one is intact.")


# --- load_latest


def saved_bytes(state: State) -> bytes:
    """The state as `torch.save` writes it."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def zeroed(state: State) -> bytes:
    """As `saved_bytes`, with zeros in place of a part of the weights: a block that never reached the disk."""
    content = bytearray(saved_bytes(state))
    weights = state["model"]["weight"].numpy().tobytes()
    begin = bytes(content).index(weights)
    content[begin : begin + len(weights) // 2] = bytes(len(weights) // 2)
    return bytes(content)


def torn(rng: Rng, content: bytes) -> dict[str, bytes]:
    """What may be left of a file, by what became of it."""
    return {
        "cut off": content[: rng.integer(200, len(content) - 200)],
        "cut off at its last bytes": content[: -rng.integer(1, 20)],
        "empty": b"",
        "all zeros": bytes(len(content)),
        "overwritten": bytes(rng.integers(0, 255, 500).tolist()),
    }


def loads(
    criterion: str,
    answer: Answer,
    files: Mapping[str, bytes],
    expected: State | None,
    folder: str,
    *folders: str,
) -> Finding:
    """Passes if the answer loads `expected` from these files. folder: what they are, for a sentence."""
    seen = answer.call("unit_03.loading", dict(files), list(folders))
    if same_state(seen["state"], expected):
        return Finding(criterion, True, f"From {folder} it loads {_called(expected)}.")
    text = f"From {folder} it loads {_called(seen['state'])}; expected {_called(expected)}"
    return Finding(criterion, False, f"{text}{_same_step(seen['state'], expected)}.")


def first_failed(findings: Sequence[Finding]) -> Finding:
    """Of findings on one criterion the first that failed, else the last."""
    return next((finding for finding in findings if not finding.passed), findings[-1])


def nothing_there(answer: Answer) -> Finding:
    """Passes if an empty folder and one that is not there give None."""
    name = "nothing there"
    empty = loads(name, answer, {}, None, "an empty folder")
    if not empty.passed:
        return empty
    seen = answer.call("unit_03.loading_nowhere")
    return Finding(name, seen is None, f"From an empty folder and from none at all it loads {_called(seen)}.")


def _called(state: PlainData) -> str:
    if isinstance(state, dict) and "step" in state:
        return f"the state of step {state['step']}"
    return "nothing (None)" if state is None else repr(state)[:80]


def _same_step(seen: PlainData, expected: State | None) -> str:
    """Said where the step is right and what is in it is not."""
    both = isinstance(seen, dict) and expected is not None and seen.get("step") == expected["step"]
    return ", with all its numbers" if both else ""


def tells_and_keeps(
    criterion: str, answer: Answer, files: Mapping[str, bytes], bad: Sequence[str]
) -> Finding:
    """Passes if every file that was skipped is named to the user, and all files stay as they are."""
    seen = answer.call("unit_03.loading", dict(files), [])
    silent = [name for name in bad if name not in seen["said"]]
    if silent:
        return Finding(criterion, False, f"{silent[0]} was skipped, and nobody is told.")
    if not seen["unchanged"]:
        return Finding(
            criterion, False, "Files of the folder were changed or removed; expected to only read."
        )
    return Finding(criterion, True, f"It names {', '.join(bad)}, and changes no file.")
