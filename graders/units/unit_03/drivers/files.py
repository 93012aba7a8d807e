"""Drivers of unit 03: an answer saves and loads in a folder of its own, is killed there, and what it has left
behind comes back.
"""

import os
import tempfile
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graders.grading.answer import AnswerFunction, PlainData
from graders.units.unit_03.fault_injection import Body, in_words, run_forked, watched, with_short_files
from graders.units.unit_03.folder_watch import files_of
from graders.units.unit_03.replies import Change, Loaded, LoadingReply, Save, SavedFile, SavingReply

State = dict[str, Any]


def saving(answer: AnswerFunction, states: list[State], place: float) -> SavingReply:
    """What a folder holds after saves that end well, that are killed, and that have no room.

    states: four, saved one after the other under one name. place: from 0 to 1, where in a file to kill it.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(os.path.realpath(name))
        path = directory / "step-7.pt"
        (directory / "step-3.pt").write_bytes(b"another one's")
        saves = [partial(answer, path, state) for state in states]
        saves[0]()
        first, whole = _loaded(path), path.stat().st_size if path.exists() else 2
        changes = _changes(directory, saves[1])
        second, others = _loaded(path), sorted(set(os.listdir(directory)) - {path.name})
        killed = _save(path, with_short_files(max(1, int(place * whole)), saves[2], deadly=True))
        full = _save(path, with_short_files(whole - 1, saves[3], deadly=False))
        refused = _save(path, partial(answer, path, states[3] | {"schedule": lambda step: step}))
        return SavingReply(first, changes, second, others, killed, full, refused)


def _save(path: Path, body: Body) -> Save:
    """What came of a save in a process of its own."""
    before = {*os.listdir(path.parent), path.name}
    ended = run_forked(body)["ended"]
    added = sorted(set(os.listdir(path.parent)) - before)
    for name in added:  # Else the next save might leave the same one.
        with suppress(OSError):
            (path.parent / name).unlink()
    return Save(ended, _loaded(path), added)


def _changes(directory: Path, body: Body) -> list[Change]:
    """What happened to the files of the directory during a save. Raises RuntimeError if it ended badly."""
    told = run_forked(watched(directory, body))
    for event in told["value"] or [{"raised": f"a save ended its process: {told['ended']}"}]:
        if "raised" in event:
            raise RuntimeError(event["raised"])
    return [
        Change(
            {name: SavedFile(**file) for name, file in event["files"].items()} if "files" in event else None,
            event.get("synced", []),
            event.get("directory", False),
        )
        for event in told["value"]
    ]


def _loaded(path: Path) -> Loaded:
    try:
        return Loaded(torch.load(path), "")
    except Exception as error:  # what it raises depends on which bytes are missing
        return Loaded(None, in_words(error))


def loading(answer: AnswerFunction, files: dict[str, bytes]) -> LoadingReply:
    """What the answer loads from a folder with these files, of which some lie in folders of it.

    The files are as old as they come late, so that the times of their last changes mislead.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for age, (file, content) in enumerate(files.items()):
            (directory / file).parent.mkdir(exist_ok=True)
            (directory / file).write_bytes(content)
            os.utime(directory / file, (1e9 - age, 1e9 - age))
        before = files_of(directory)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            state = answer(directory)
        said = "\n".join(str(warning.message) for warning in caught)
        return LoadingReply(state, said, files_of(directory) == before)


def loading_nowhere(answer: AnswerFunction) -> PlainData:
    """What the answer makes of a folder that is not there yet."""
    with tempfile.TemporaryDirectory() as name:
        return answer(Path(name) / "checkpoints")
