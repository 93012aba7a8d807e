"""Drivers of unit 03: they let an answer save, load and train in a folder of its own, kill it there, and
return what it has left behind.
"""

import os
import signal
import tempfile
import warnings
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.training.checkpoints import Training
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.hashing import hashes_salted
from graders.units.unit_03.fault_injection import (
    RETURNED,
    Body,
    files_of,
    in_words,
    open_files,
    run_forked,
    watched,
    with_no_more_files,
    with_short_files,
)
from graders.units.unit_03.replies import (
    Change,
    FailedSave,
    FormReply,
    LastSave,
    Loaded,
    LoadingReply,
    ProcessReply,
    SavedFile,
    SavingReply,
    Share,
    ShellReply,
    StopReply,
)
from graders.units.unit_03.shells import commands_of_bash
from graders.units.unit_03.signals import Signal, SignalledTraining
from graders.units.unit_03.toy_training import Diary, Momentum, Weights

State = dict[str, Any]


# --- save_checkpoint


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
        first, left_open = _loaded(path), directory.stat().st_ino in open_files()
        changes = _changes(run_forked(watched(directory, saves[1])))
        second, others = _loaded(path), sorted(set(os.listdir(directory)) - {path.name})

        size = int(place * path.stat().st_size) if path.exists() else 1
        last = 1 + int(place * (sum(change.files is not None for change in changes) - 1))
        killed = ended(watched(directory, saves[2], last_change=last))
        killed_writing = ended(with_short_files(size, saves[3], deadly=True))
        following = ended(saves[3])

        def failed(body: Body) -> FailedSave:
            before = set(os.listdir(directory))
            return FailedSave(ended(body), sorted(set(os.listdir(directory)) - before))

        full = failed(with_short_files(size, saves[4], deadly=False))
        refused = failed(partial(answer, path, states[4] | {"schedule": lambda step: step}))
        unopened = failed(with_no_more_files(saves[4]))
        seen = (changes, second, others, killed, killed_writing, following, full, refused, unopened)
        return SavingReply(str(directory), first, left_open, *seen)


def _changes(told: dict[str, Any]) -> list[Change]:
    """What a watched process tells of. Raises RuntimeError if it ended before it could."""
    if told["value"] is None:
        raise RuntimeError(f"a save ended its process: {told['ended']}")
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
        return Loaded(None, in_words(error) if path.exists() else "there is no such file")


# --- load_latest


def loading(answer: AnswerFunction, files: dict[str, bytes], folders: list[str]) -> LoadingReply:
    """What the answer loads from a folder with these files and folders.

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
        return LoadingReply(state, said, files_of(directory) == before)


def loading_nowhere(answer: AnswerFunction) -> PlainData:
    """What the answer makes of a folder that is not there yet."""
    with tempfile.TemporaryDirectory() as name:
        return answer(Path(name) / "checkpoints")


# --- resume


def training(
    answer: AnswerFunction,
    recipe: dict[str, Any],
    samples: Tensor,
    values: Tensor,
    kills: list[tuple[str, int]],
) -> list[ProcessReply]:
    """What a training's processes did, one after the other in one folder.

    recipe: batch_size, epochs, save_every, noisy (whether a step draws random numbers). samples: [N, 1 + F],
    whose first column is the sample's number. values: [F], the weights at first. kills: one a process but the
    last; ("step", 3): killed after its third step; ("save", 1): killed in its first save, before anything is
    written; ("nothing", 0): not killed. A single process is not forked: its error is told with its lines.
    """
    with tempfile.TemporaryDirectory() as name:
        diary = Diary(Path(os.path.realpath(name)))
        processes = []
        for kill in (*kills, None):
            begin = len(diary.read())
            body = partial(_train, answer, recipe, samples, values, diary, kill)
            came: PlainData = run_forked(body) if kills else {"ended": RETURNED, "value": body()}
            told = diary.read()[begin:]
            batches = [note["batch"] for note in told if "batch" in note]
            saved = [note["saved"] for note in told if "saved" in note]
            processes.append(ProcessReply(came["ended"], came["value"], batches, saved))
        return processes


def _train(
    answer: AnswerFunction,
    recipe: dict[str, Any],
    samples: Tensor,
    values: Tensor,
    diary: Diary,
    kill: tuple[str, int] | None,
) -> Tensor:
    """One process: what a script does when it is started, the same every time."""
    torch.manual_seed(5)
    model = Weights(values)
    optimizer = Momentum(model)
    done = {"step": 0, "save": 0}

    def count(what: str) -> bool:
        """Whether this is where the process ends."""
        done[what] += 1
        return kill is not None and tuple(kill) == (what, done[what])

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
    with hashes_salted(answer, os.getpid):
        answer(parts, diary.directory, recipe["save_every"], save, load_latest)
    return model.values


# --- elastic_batch


def world(answer: AnswerFunction, global_batch: int, world_size: int) -> list[Share]:
    """What every rank is given."""
    ranks = []
    for rank in range(world_size):
        positions, weight = answer(global_batch, world_size, rank)
        ranks.append(Share([int(position) for position in positions], float(weight)))
    return ranks


# --- container_command


def in_a_shell(answer: AnswerFunction, names: list[str], *arguments: PlainData) -> ShellReply:
    """What bash makes of the text that the answer returns, see `commands_of_bash`."""
    before = deepcopy(arguments)
    text = answer(*arguments)
    changed = arguments != before
    if type(text) is not str:
        return ShellReply("", [], "", 0, changed)
    return ShellReply(text, *commands_of_bash(text, names), changed)


# --- form_to_script


def fill_in(answer: AnswerFunction, form: dict[str, str], queues: dict[str, Any]) -> FormReply:
    """The script that the answer writes for a form, or how it refuses the form."""
    before = dict(form)
    try:
        script = answer(form, queues)
    except NotImplementedError:  # the stub
        raise
    except Exception as error:  # which ones are right is the grader's affair
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        return FormReply("", kind, str(error) or kind, form != before)
    return FormReply(script if type(script) is str else "", "", "", form != before)


# --- save_on_signal


def told_to_stop(
    answer: AnswerFunction,
    steps: int,
    plan: list[tuple[str, int, int, str]],
    before: list[tuple[str, int, int, str]] | None,
) -> StopReply:
    """A rank of a training in which signals come. plan: each as moment, step, rank, name; see `Signal`.

    before: those of a training that this process had before; None if it had none.
    """
    if before is not None:
        earlier = SignalledTraining(steps, [Signal(*each) for each in before])
        answer(earlier.train_step, steps, earlier.save, earlier.set_handler)
    training = SignalledTraining(steps, [Signal(*each) for each in plan])
    returned = answer(training.train_step, steps, training.save, training.set_handler)
    return StopReply(returned, training.made, training.saved)
