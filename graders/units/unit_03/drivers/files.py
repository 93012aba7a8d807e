"""Drivers of unit 03: an answer saves and loads in a folder of its own, is killed there, and what it has left
behind comes back.
"""

import os
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import torch

from graders.grading.answer import AnswerFunction, PlainData
from graders.units.unit_03.fault_injection import (
    Body,
    files_of,
    in_words,
    open_files,
    run_forked,
    watched,
    with_failing_syncs,
    with_no_more_files,
    with_short_files,
)
from graders.units.unit_03.replies import (
    Change,
    FailedSave,
    LastSave,
    Loaded,
    LoadingReply,
    SavedFile,
    SavingReply,
)

State = dict[str, Any]

NO_FILE = "there is no such file"


class _Interrupted:
    """Who comes to this part of a state is interrupted, as by Ctrl+C."""

    def __reduce__(self) -> NoReturn:
        raise KeyboardInterrupt("Ctrl+C")


def saving(answer: AnswerFunction, states: list[State], place: float) -> SavingReply:
    """What a folder holds after saves that end well, that are killed, and that have no room.

    states: five, saved one after the other under one name. place: from 0 to 1, where in a save to kill it.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(os.path.realpath(name))
        path = directory / "step-7.pt"
        (directory / "step-3.pt").write_bytes(b"another one's")
        saves = [partial(answer, path, state) for state in states]

        def ended(body: Body) -> LastSave:
            return LastSave(run_forked(body)["ended"], _loaded(path))

        saves[0]()
        size = int(place * path.stat().st_size) if path.exists() else 1
        first, still_open = _loaded(path), open_files()
        left_open = directory.stat().st_ino in still_open
        file_left_open = path.exists() and path.stat().st_ino in still_open
        here = run_forked(partial(_saved_here, answer, path, states[0]))["ended"]
        changes = _changes(run_forked(watched(directory, saves[1])))
        second, others = _loaded(path), sorted(set(os.listdir(directory)) - {path.name})

        last = 1 + int(place * (sum(change.files is not None for change in changes) - 1))
        killed = ended(watched(directory, saves[2], last_change=last))
        killed_writing = ended(with_short_files(size, saves[3], deadly=True))
        first_killed = _first_killed(answer, directory / "step-8.pt", states[3], size)
        _lengthen(directory)
        following = ended(saves[3])

        def failed(body: Body) -> FailedSave:
            before = set(os.listdir(directory))
            came = run_forked(body)
            remains = sorted(set(os.listdir(directory)) - before)
            return FailedSave(LastSave(came["ended"], _loaded(path)), remains, came["value"] == "untried")

        full = failed(with_short_files(size, saves[4], deadly=False))
        refused = failed(partial(answer, path, states[4] | {"schedule": lambda step: step}))
        interrupted = failed(partial(answer, path, states[4] | {"schedule": _Interrupted()}))
        unopened = failed(with_no_more_files(saves[4]))
        syncs = (failed(with_failing_syncs(saves[4], of_folders=folders)) for folders in (False, True))
        seen = (changes, second, others, killed, killed_writing, first_killed, following)
        refusals = (full, refused, interrupted, unopened, *syncs)
        return SavingReply(str(directory), first, here, left_open, file_left_open, *seen, *refusals)


def _first_killed(answer: AnswerFunction, path: Path, state: State, size: int) -> Loaded:
    """What is under a name that nothing had, after a save that was ended when its file had `size` bytes."""
    run_forked(with_short_files(size, partial(answer, path, state), deadly=True))
    return _loaded(path)


def _lengthen(directory: Path) -> None:
    """Make what a killed save has left as long as a larger state's would be."""
    for remains in directory.glob("*.tmp"):
        with remains.open("ab") as file:
            file.write(bytes(1 << 17))


def _saved_here(answer: AnswerFunction, path: Path, state: State) -> None:
    """Save under a path that is a name alone, in whose folder the process then is."""
    os.chdir(path.parent)
    answer(Path(path.name), state)


def _changes(told: dict[str, Any]) -> list[Change]:
    """What a watched process tells of. Raises RuntimeError if it ended before it could, or badly."""
    if told["value"] is None:
        raise RuntimeError(f"a save ended its process: {told['ended']}")
    for event in told["value"]:
        if "raised" in event:
            raise RuntimeError(event["raised"])
    return [
        Change(
            {name: SavedFile(**file) for name, file in event["files"].items()} if "files" in event else None,
            event.get("synced", []),
            event.get("directory", False),
            event.get("renamed", []),
        )
        for event in told["value"]
    ]


def _loaded(path: Path) -> Loaded:
    try:
        return Loaded(torch.load(path), "")
    except Exception as error:  # what it raises depends on which bytes are missing
        return Loaded(None, in_words(error) if path.exists() else NO_FILE)


def loading(answer: AnswerFunction, files: dict[str, bytes], folders: list[str]) -> LoadingReply:
    """What the answer loads from a folder with these files, of which some lie in folders of it, and folders.

    The files are as old as they come late, so that the times of their last changes mislead.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for age, (file, content) in enumerate(files.items()):
            (directory / file).parent.mkdir(exist_ok=True)
            (directory / file).write_bytes(content)
            os.utime(directory / file, (1e9 - age, 1e9 - age))
        for folder in folders:
            (directory / folder).mkdir()
        before = files_of(directory)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
                state = answer(directory)
        said = "\n".join(str(warning.message) for warning in caught)
        return LoadingReply(state, said, files_of(directory) == before)


def loading_nowhere(answer: AnswerFunction) -> PlainData:
    """What the answer makes of a folder that is not there yet."""
    with tempfile.TemporaryDirectory() as name:
        return answer(Path(name) / "checkpoints")
