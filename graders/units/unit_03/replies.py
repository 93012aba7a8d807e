"""What the drivers of unit 03 return: what answers saved, loaded, trained and dealt out."""

from dataclasses import dataclass

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class Loaded(DriverReply):
    """What `torch.load` makes of the checkpoint: a state, or an error in words."""

    state: PlainData
    error: str


@dataclass(frozen=True, slots=True)
class SavedFile(DriverReply):
    """A file of the folder."""

    inode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Change(DriverReply):
    """Something that happened in the folder.

    files: what is there from now on, by name, None if nothing has changed. synced: inodes of files that were
    sent to the disk; directory: whether the folder was.
    """

    files: dict[str, SavedFile] | None
    synced: list[int]
    directory: bool


@dataclass(frozen=True, slots=True)
class Save(DriverReply):
    """How a save ended, see `fault_injection.run_forked`, what it left under the checkpoint's name, and the
    names of other files that it added.
    """

    ended: str
    left: Loaded
    added: list[str]


@dataclass(frozen=True, slots=True)
class SavingReply(DriverReply):
    """What a folder held during several saves under one name.

    first, second: what could be loaded after the first two, which nothing disturbs. changes: during the
    second. others: names of all other files after it. killed: a save ended while it writes. full: one
    on a full disk. refused: one of a state that torch.save refuses.
    """

    first: Loaded
    changes: list[Change]
    second: Loaded
    others: list[str]
    killed: Save
    full: Save
    refused: Save


@dataclass(frozen=True, slots=True)
class LoadingReply(DriverReply):
    """state: what was loaded. said: by warnings, meanwhile. unchanged: whether the folder's files are."""

    state: PlainData
    said: str
    unchanged: bool


@dataclass(frozen=True, slots=True)
class ProcessReply(DriverReply):
    """What one process of a training did.

    ended: see `fault_injection.run_forked`. weights: [F], those that it ended with, None if it was killed.
    batches: numbers of the samples of each step. saved: names of its checkpoints, in order. draws: the random
    numbers of each step.
    """

    ended: str
    weights: PlainData
    batches: list[list[int]]
    saved: list[str]
    draws: list[list[float]]


@dataclass(frozen=True, slots=True)
class Share(DriverReply):
    """What one rank is given: positions in the global batch, and the weight of its mean loss.

    other: what the answer returned if that is no range and a number; empty if it is.
    """

    positions: list[int]
    weight: float
    other: str


@dataclass(frozen=True, slots=True)
class ShellReply(DriverReply):
    """What a shell made of a text, empty if the answer returned none.

    commands: each command that it ran of those that were watched, as its words. said: what it complained of.
    status: that of the text's last command. changed: whether the answer changed its arguments.
    """

    text: str
    commands: list[list[str]]
    said: str
    status: int
    changed: bool


@dataclass(frozen=True, slots=True)
class FormReply(DriverReply):
    """What became of a form: a script, empty if it was no text; or an exception: its class, "ValueError" for
    those derived from it too, and its words.
    """

    script: str
    kind: str
    error: str


@dataclass(frozen=True, slots=True)
class StopReply(DriverReply):
    """What a rank did of a training that may be told to stop.

    returned: what the answer returned on it. made: its steps, in order. saved: for each of its checkpoints,
    the number of steps that the answer gave, and that of the steps that it had made. unset: names of the
    signals that have no handler.
    """

    returned: PlainData
    made: list[int]
    saved: list[list[int]]
    unset: list[str]
