"""Drivers of unit 03: an answer saves and loads in a folder of its own, is killed there, and what it has left
behind comes back.
"""

import gc
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
    RETURNED,
    Body,
    in_words,
    run_forked,
    watched,
    with_failing_syncs,
    with_no_more_files,
    with_short_files,
)
from graders.units.unit_03.folder_watch import files_of, open_files
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
        whole = path.stat().st_size if path.exists() else 2
        size = max(1, int(place * whole))
        first, still_open = _loaded(path), open_files()
        left_open = directory.stat().st_ino in still_open
        file_left_open = path.exists() and path.stat().st_ino in still_open
        here, alone, alone_saved = _alone(answer, directory, states[4])
        relative = partial(_saved_from, directory.parent, answer, path, states[1])
        ended_second, changes = _watched(directory, relative)
        if ended_second != RETURNED:
            raise RuntimeError(ended_second)
        second, others = _loaded(path), sorted(set(os.listdir(directory)) - {path.name})

        last = 1 + int(place * (sum(change.files is not None for change in changes) - 1))
        killed = ended(watched(directory, saves[2], last_change=last))
        killed_writing = ended(with_short_files(size, saves[3], deadly=True))
        new = directory / "step-8.pt"
        run_forked(with_short_files(size, partial(answer, new, states[3]), deadly=True))
        _lengthen(directory)
        following = ended(saves[3])

        failed = partial(_failed, path)
        # Without room for the last byte: it is still in Python's buffer, so that closing the file fails, too.
        full = failed(with_short_files(max(1, whole - 1), saves[4], deadly=False))
        refused = failed(partial(answer, path, states[4] | {"schedule": lambda step: step}))
        interrupted = failed(partial(answer, path, states[4] | {"schedule": _Interrupted()}))
        unopened = failed(with_no_more_files(saves[4]))
        syncs = (failed(with_failing_syncs(saves[4], of_folders=folders)) for folders in (False, True))
        begun = (str(directory), first, here, alone, alone_saved, left_open, file_left_open)
        seen = (changes, second, others, killed, killed_writing, _loaded(new), following)
        return SavingReply(*begun, *seen, full, refused, interrupted, unopened, *syncs)


def _lengthen(directory: Path) -> None:
    """Make what a killed save has left as long as a larger state's would be."""
    for remains in directory.glob("*.tmp"):
        if remains.is_file():
            with remains.open("ab") as file:
                file.write(bytes(1 << 17))


def _alone(answer: AnswerFunction, directory: Path, state: State) -> tuple[str, list[Change], Loaded]:
    """How a save ended whose path is a new name alone, what happened meanwhile, and what it saved."""
    path = directory / "step-9.pt"
    ended, changes = _watched(directory, partial(_saved_from, directory, answer, path, state))
    left = _loaded(path)
    path.unlink(missing_ok=True)
    return ended, changes, left


def _saved_from(folder: Path, answer: AnswerFunction, path: Path, state: State) -> None:
    """Save under a path that counts from a folder, in which the process then is."""
    os.chdir(folder)
    answer(path.relative_to(folder), state)


def _failed(path: Path, body: Body) -> FailedSave:
    """What came of a save that cannot go well, in a process of its own."""
    before = set(os.listdir(path.parent))
    came = run_forked(partial(_still_open, body))
    value = came["value"] or {"ended": came["ended"], "untried": False, "open": False}
    now = set(os.listdir(path.parent))
    gone = sorted(name for name in before - now if not name.endswith(".tmp"))
    last = LastSave(value["ended"], _loaded(path))
    return FailedSave(last, sorted(now - before), gone, value["open"], value["untried"])


def _still_open(body: Body) -> PlainData:
    """How a body ends, and whether it leaves a file open."""
    before, untried, ended = open_files(no_folders=True), False, RETURNED
    try:
        untried = body() == "untried"
    except BaseException as error:  # KeyboardInterrupt is one of those that come
        ended = in_words(error)
    # What an error's traceback held is let go by now; what was in a circle, after this.
    gc.collect()
    left = open_files(no_folders=True) - before
    return {"ended": ended, "untried": untried, "open": bool(left)}


def _watched(directory: Path, body: Body) -> tuple[str, list[Change]]:
    """How a save in a process of its own ended, and what happened meanwhile to the files of the directory."""
    told = run_forked(watched(directory, body))
    if told["value"] is None:
        return f"a save ended its process: {told['ended']}", []
    errors = [event["raised"] for event in told["value"] if "raised" in event]
    return errors[0] if errors else RETURNED, [
        Change(
            {name: SavedFile(**file) for name, file in event["files"].items()} if "files" in event else None,
            event.get("synced", []),
            event.get("directory", False),
            event.get("renamed", []),
        )
        for event in told["value"]
        if "raised" not in event
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
