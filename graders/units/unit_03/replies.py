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

    files: what is there from now on, by name, None if nothing has changed. synced: inodes of files, there or
    elsewhere, that were sent to the disk; directory: whether the folder was. renamed: source and target of
    what is about to move.
    """

    files: dict[str, SavedFile] | None
    synced: list[int]
    directory: bool
    renamed: list[str]


@dataclass(frozen=True, slots=True)
class LastSave(DriverReply):
    """How a save ended, see `fault_injection.run_forked`, and what it left under the checkpoint's name."""

    ended: str
    left: Loaded


@dataclass(frozen=True, slots=True)
class FailedSave(DriverReply):
    """last: a save that cannot go well. remains: the files that it has added, gone: those that it has removed
    and that are not temporary. left_open: whether it has left a file open. untried: it did not come to what
    was to fail.
    """

    last: LastSave
    remains: list[str]
    gone: list[str]
    left_open: bool
    untried: bool


@dataclass(frozen=True, slots=True)
class SavingReply(DriverReply):
    """What a folder held during several saves.

    directory: the folder. first, second: after the first two saves, which nothing disturbs; the second's path
    is relative. here: how a save ended whose path is a new name alone, see `fault_injection.run_forked`, what
    happened meanwhile, and what it saved. left_open,
    file_left_open: whether the folder, or the file, was still open after the first. changes: during the
    second. others: names of all other files after it. killed, killed_writing: two more saves, ended in
    between. first_killed: what one that was ended while writing has left under another name, of which there
    was none. following: a save after these, whose remains have grown. full: one on a full disk. refused:
    one of a state that torch.save refuses. interrupted: one in which KeyboardInterrupt comes. unopened:
    one of a process that may open no file any more. unsynced, folder_unsynced: one where fsync of the
    file fails, and of the folder.
    """

    directory: str
    first: Loaded
    here: str
    here_changes: list[Change]
    here_saved: Loaded
    left_open: bool
    file_left_open: bool
    changes: list[Change]
    second: Loaded
    others: list[str]
    killed: LastSave
    killed_writing: LastSave
    first_killed: Loaded
    following: LastSave
    full: FailedSave
    refused: FailedSave
    interrupted: FailedSave
    unopened: FailedSave
    unsynced: FailedSave
    folder_unsynced: FailedSave


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
    numbers of each step; ones in a training without.
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
    those derived from it too, and its words. changed: whether the form is another one afterwards.
    """

    script: str
    kind: str
    error: str
    changed: bool


@dataclass(frozen=True, slots=True)
class StopReply(DriverReply):
    """What a rank did of a training that may be told to stop.

    returned: what the answer returned on it. made: its steps, in order. saved: for each of its checkpoints,
    the number of steps that the answer gave, and that of the steps that it had made. outside: names of its
    module's variables that were changed when a signal came. deaf: names of the signals that have no handler
    any more; unset: of those that never had one. line: before which line of the answer a signal came, counted
    from its first; 0: before none. after: how many steps it had made by then.
    """

    returned: PlainData
    made: list[int]
    saved: list[list[int]]
    outside: list[str]
    deaf: list[str]
    unset: list[str]
    line: int
    after: int
