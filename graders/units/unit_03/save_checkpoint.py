"""The grader of `save_checkpoint`: real files of real processes, killed while they write."""

from collections.abc import Iterator, Sequence

from graders.grading import compare
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Rng,
    exercise,
)
from graders.units.unit_03.drivers import files as drivers
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import Change, SavedFile, SavingReply
from graders.units.unit_03.states import State, draw_state

PATH = "step-7.pt"


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("can be loaded", 1, "torch.save(state, file) writes it; the last name it gets is path."),
        Criterion(
            "whole at every moment",
            3,
            "Never open path itself for writing, never remove it, never move it away. Write another file and "
            "let os.replace put it in the place of the old one: that is one step, which happens or does not.",
        ),
        Criterion(
            "temporary file",
            1,
            "Within one folder a rename is one step; to another disk it is a copy. A name that ends in .tmp "
            "tells load_latest what to leave alone.",
            needs=("whole at every moment",),
        ),
        Criterion(
            "on the disk before its name",
            2,
            "What you have written waits in Python's buffer, then in the operating system's memory. flush() "
            "empties the first (torch.save does it itself), os.fsync(file.fileno()) the second: before the "
            "file gets its name.",
            needs=("whole at every moment",),
        ),
        Criterion(
            "the directory too",
            1,
            "A name stands in its directory, which is written to the disk like a file: os.open(folder, "
            "os.O_RDONLY), os.fsync, os.close, after os.replace.",
            needs=("on the disk before its name",),
        ),
        Criterion(
            "when writing fails",
            2,
            "Let the error through; but first remove the temporary file, whatever the error is: "
            "`except BaseException`. A full disk is an OSError or torch.save's RuntimeError.",
            needs=("whole at every moment",),
        ),
    ),
    hints=(
        "At which moments could the power fail, and what would be found under the name at each of them?",
        "Four steps: write beside it, fsync, os.replace, fsync of the directory. torch.save flushes itself.",
        'path.with_name(path.name + ".tmp") is a name beside path.',
        "try: ... except BaseException: remove the temporary file; raise.",
    ),
)
def save_checkpoint(answer: Answer, rng: Rng) -> Findings:
    """Four states under one name: two saves end well, one is killed, one cannot end."""
    states = [draw_state(rng, step) for step in range(4)]
    # The one that is watched is so small that Python's buffer may keep all of it.
    states[1]["model"] = {name: values[:5].clone() for name, values in states[1]["model"].items()}
    seen = answer.call(drivers.saving, states, rng.integer(100, 900) / 1000)
    yield "can be loaded", _round_trip(seen, states)
    yield "whole at every moment", _whole_at_every_moment(seen, states)
    before, new, folder_synced = _replaced(seen.changes)
    yield "temporary file", _temporary_beside(seen, before, new)
    yield "on the disk before its name", _synced_before_renamed(before, new)
    text = f"After {PATH} got its file, {'the folder' if folder_synced else 'nothing'} was sent to the disk"
    yield "the directory too", Finding(folder_synced, f"{text}; expected the folder.")
    yield "when writing fails", compare.first_failure(_writing_failed(seen, states[1:3]))


def _replaced(changes: Sequence[Change]) -> tuple[Sequence[Change], SavedFile, bool]:
    """What came before the checkpoint's name got its new file, that file, and whether the folder was sent to
    the disk afterwards.
    """
    old = changes[0].files if changes else None
    for place, change in enumerate(changes):
        new = (change.files or {}).get(PATH)
        if new and old is not None and new != old.get(PATH):
            return changes[:place], new, any(later.directory for later in changes[place + 1 :])
    raise AnswerFailed(FailureKind.UNREADABLE, f"Nobody told when {PATH} was replaced.")


def _round_trip(seen: SavingReply, states: Sequence[State]) -> Finding:
    for which, left, expected in (("first", seen.first, states[0]), ("second", seen.second, states[1])):
        if left.error or not compare.same(left.state, expected):
            said = f"says: {left.error}" if left.error else "gives another state"
            return Finding(False, f"After the {which} save torch.load(path) {said}.")
    return Finding(True, "torch.load(path) gives the state, and after a second save the second state.")


def _whole_at_every_moment(seen: SavingReply, states: Sequence[State]) -> Finding:
    files = [change.files.get(PATH) for change in seen.changes if change.files is not None]
    contents = [file.content if file else None for file in files]
    old, new = contents[0], contents[-1]
    for place, content in enumerate(contents):
        killed = f"Killed at change {place} of {len(files) - 1}, it leaves"
        if content is None:
            return Finding(False, f"{killed} no {PATH}.")
        if content not in (old, new):
            text = f"{killed} a {PATH} with {len(content)} of {len(new or b'')} bytes"
            return Finding(False, f"{text}, and the old one is gone.")
    left = seen.killed.left
    if not any(compare.same(left.state, state) for state in states[1:3]):
        said = left.error or "another state"
        return Finding(False, f"Really killed while writing, it left a {PATH}; torch.load: {said}.")
    text = f"Killed at any of {len(files) - 1} changes, or while writing, it leaves the old or the new one."
    return Finding(True, text)


def _temporary_beside(seen: SavingReply, before: Sequence[Change], new: SavedFile) -> Finding:
    named = [file for change in before for file in (change.files or {}).items()]
    if not any(file.inode == new.inode and name.endswith(".tmp") for name, file in named):
        text = f"{PATH} gets a file that had no name before in the folder of path that ends in .tmp"
        return Finding(False, f"{text}; expected one.")
    if seen.others != ["step-3.pt"]:
        return Finding(False, f"After two saves there is {seen.others}; expected step-3.pt alone, as before.")
    return Finding(True, "It is written beside path under a name that ends in .tmp, and none is left.")


def _synced_before_renamed(before: Sequence[Change], new: SavedFile) -> Finding:
    sent, files = None, dict[str, SavedFile]()
    for change in before:
        files = files if change.files is None else change.files
        if new.inode in change.synced:
            sent = next((file.content for file in files.values() if file.inode == new.inode), sent)
    if sent is None:
        text = f"The name {PATH} is given to a file that no fsync has sent to the disk"
        return Finding(False, f"{text}: a power failure now can leave it empty.")
    text = f"{len(sent)} of its {len(new.content)} bytes were sent to the disk before the file got its name."
    return Finding(sent == new.content, text)


def _writing_failed(seen: SavingReply, old: Sequence[State]) -> Iterator[Finding]:
    """Pass if an error reaches the caller, and costs neither the old checkpoint nor room on the disk."""
    for where, came in (("On a full disk", seen.full), ("Of a state with a function", seen.refused)):
        error = f"{where} it raises ({came.ended})"
        if came.ended == RETURNED:
            yield Finding(False, f"{where} it returns as if it had saved; expected the error.")
        elif not any(compare.same(came.left.state, state) for state in old):
            yield Finding(False, f"{error}, and the old one is gone.")
        elif came.added:
            yield Finding(False, f"{error} and leaves {came.added[0]} there, which fills the disk.")
        else:
            yield Finding(True, f"{error}, and the old one is there.")
