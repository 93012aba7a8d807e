"""Unit 03, a checkpoint that is whole or not there: saving."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graders.grading import compare
from graders.grading.kit import Answer, AnswerFailed, Criterion, FailureKind, Finding, Findings, Rng, exercise
from graders.units.unit_03.drivers import files as drivers
from graders.units.unit_03.drivers.files import NO_FILE
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import SavedFile, SavingReply
from graders.units.unit_03.states import State, draw_state


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
            "after a crash",
            1,
            'A crash leaves a temporary file behind, and opening it with mode "xb" fails from then on.',
        ),
        Criterion(
            "when writing fails",
            1,
            "Let the error through; but first remove the temporary file, whatever the error is: "
            "`except BaseException`. A full disk is an OSError or torch.save's RuntimeError, and may be "
            "noticed at fsync only.",
            needs=("whole at every moment", "after a crash"),
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
    """Real files of real processes, killed at every step."""
    saves = Saves.drawn(answer, rng)
    yield "can be loaded", round_trip(saves)
    yield "whole at every moment", whole_at_every_moment(saves)
    yield "temporary file", temporary_beside(saves)
    yield "on the disk before its name", (synced := synced_before_renamed(saves))
    yield "the directory too", directory_synced(saves)
    yield "after a crash", next_save_works(saves)
    yield "when writing fails", compare.first_failure(writing_failed(saves, synced.passed))


@dataclass(frozen=True)
class Saves:
    """Five states, and what a folder held while they were saved there."""

    states: Sequence[State]
    seen: SavingReply
    path: str = "step-7.pt"

    @classmethod
    def drawn(cls, answer: Answer, rng: Rng) -> "Saves":
        """Five saves, of which one is killed at a place that is drawn."""
        states = [draw_state(rng, step) for step in range(5)]
        # The one that is watched is so small that Python's buffer may keep all of it.
        states[1]["model"] = {name: values[:5].clone() for name, values in states[1]["model"].items()}
        saves = cls(states, answer.call(drivers.saving, states, rng.integer(100, 900) / 1000))
        if not saves.contents():
            raise AnswerFailed(FailureKind.UNREADABLE, "Nobody told what the folder held.")
        return saves

    def contents(self) -> list[tuple[int, SavedFile | None]]:
        """Place of each change among all, and the checkpoint's file after it, None if it has none."""
        changes = enumerate(self.seen.changes)
        return [(place, each.files.get(self.path)) for place, each in changes if each.files is not None]


def round_trip(saves: Saves) -> Finding:
    """Passes if what was saved can be loaded, the second time too, and no other file was touched."""
    for which, left, expected in (
        ("first", saves.seen.first, saves.states[0]),
        ("second", saves.seen.second, saves.states[1]),
    ):
        if left.error:
            return Finding(False, f"After the {which} save torch.load(path) says: {left.error}.")
        if not compare.same(left.state, expected):
            return Finding(False, f"After the {which} save torch.load(path) gives another state.")
    if saves.seen.others[:1] != ["step-3.pt"]:
        others = saves.seen.others or "nothing"
        return Finding(False, f"Beside step-7.pt there was step-3.pt; after two saves there is {others}.")
    return Finding(True, "torch.load(path) gives the state, and after a second save the second state.")


def whole_at_every_moment(saves: Saves) -> Finding:
    """Passes if a kill at no moment leaves anything but the old checkpoint or the new one."""
    files = [file.content if file else None for _, file in saves.contents()]
    old, new = files[0], files[-1]
    for place, content in enumerate(files):
        if content is None:
            return Finding(False, f"Killed at change {place} of {len(files) - 1}, it leaves no step-7.pt.")
        if content not in (old, new):
            text = f"Killed at change {place} of {len(files) - 1}, it leaves a step-7.pt with {len(content)}"
            return Finding(False, f"{text} of {len(new or b'')} bytes, and the old one is gone.")
    for how, left, saved in (
        ("killed", saves.seen.killed.left, 2),
        ("killed while writing", saves.seen.killed_writing.left, 3),
    ):
        if left.error:
            before = f"{how}, it left a step-7.pt of which torch.load says: {left.error}"
            return Finding(False, f"Really {before}.")
        if not any(compare.same(left.state, state) for state in saves.states[1 : saved + 1]):
            return Finding(False, f"Really {how}, it left neither the old state nor the new one.")
    first = saves.seen.first_killed
    if first.error not in ("", NO_FILE):
        text = (
            "Killed while writing the first checkpoint of a name, it left one there of which torch.load says"
        )
        return Finding(False, f"{text}: {first.error}.")
    text = f"Killed at any of {len(files) - 1} changes, or while writing, it leaves the old or the new one."
    return Finding(True, text)


def temporary_beside(saves: Saves) -> Finding:
    """Passes if what is being written is in the same folder, under a name that is no checkpoint's."""
    folder = saves.seen.directory
    for source in (change.renamed[0] for change in saves.seen.changes if change.renamed):
        if str(Path(source).parent) != folder:
            text = f"The new file is moved in from {Path(source).parent}, which may be on another disk"
            return Finding(False, f"{text}; expected one in the folder of path.")
    names = {each for change in saves.seen.changes for each in change.files or ()}
    unlike = sorted(
        each for each in names if not each.endswith(".tmp") and each not in (saves.path, "step-3.pt")
    )
    if unlike:
        return Finding(False, f"While it saves there is {unlike[0]}; expected a name that ends in .tmp.")
    left = [each for each in saves.seen.others if each != "step-3.pt"]
    if left:
        return Finding(False, f"After two saves {left[0]} is still there.")
    return Finding(True, "It is written beside path under a name that ends in .tmp, and none is left.")


def synced_before_renamed(saves: Saves) -> Finding:
    """Passes if all bytes of the new file were sent to the disk before it got its name."""
    synced: dict[int, bytes] = {}
    elsewhere: set[int] = set()
    files: Mapping[str, SavedFile] = {}
    old = saves.contents()[0][1]
    for change in saves.seen.changes:
        synced |= {file.inode: file.content for file in files.values() if file.inode in change.synced}
        elsewhere |= set(change.synced) - {file.inode for file in files.values()}
        files = files if change.files is None else change.files
        new = files.get(saves.path)
        if new and new != old:
            # In another folder its bytes were not seen: that it was there is another row's affair.
            held = new.content if new.inode in elsewhere else None
            finding = _all_synced(new, synced.get(new.inode, held))
            if finding.passed and saves.seen.file_left_open:
                return Finding(False, "After a save its file is still open, and so after each: close it.")
            return finding
    return Finding(False, "step-7.pt was never replaced.")


def directory_synced(saves: Saves) -> Finding:
    """Passes if the new name was sent to the disk too."""
    contents = saves.contents()
    # Whatever else is removed afterwards matters to nobody.
    changed = (place for (place, file), (_, old) in zip(contents[1:], contents, strict=False) if file != old)
    replaced = max(changed, default=0)
    synced = [place for place, event in enumerate(saves.seen.changes) if event.directory]
    if saves.seen.here != RETURNED:
        return Finding(False, f"save_checkpoint(Path({saves.path!r}), ...) ends with {saves.seen.here}")
    if saves.seen.left_open:
        return Finding(False, "After a save the folder is still open, and so after each: close it.")
    if any(place > replaced for place in synced):
        return Finding(True, "The folder was sent to the disk after its last change.")
    text = "the folder was sent to the disk before that" if synced else "nothing sends the folder to the disk"
    return Finding(False, f"After step-7.pt was replaced it returns; {text}.")


def next_save_works(saves: Saves) -> Finding:
    """Passes if what two killed saves have left behind does not disturb the next one."""
    came = saves.seen.following
    if came.ended != RETURNED:
        return Finding(False, f"After saves that were killed, the next one ends with {came.ended}.")
    if not compare.same(came.left.state, saves.states[3]):
        return Finding(False, "After saves that were killed, the next one does not save its state.")
    return Finding(True, "After saves that were killed, the next one works.")


def writing_failed(saves: Saves, in_time: bool) -> Iterator[Finding]:
    """Pass if a full disk, a state that cannot be saved, a file that cannot be opened or sent to the disk is
    an error that the caller hears of, and costs nothing. in_time: whether the file is sent to the disk before
    it gets its name, as another row wants it; where it is not, the new one is there by then.
    """
    old, new = saves.states[3], saves.states[4]
    for where, came, whole in (
        ("When the file may not grow further", saves.seen.full, [old]),
        ("Of a state with a function", saves.seen.refused, [old]),
        ("Interrupted (KeyboardInterrupt) while torch.save writes", saves.seen.interrupted, [old]),
        ("With too many open files", saves.seen.unopened, [old]),
        ("When fsync of the file fails", saves.seen.unsynced, [old] if in_time else [old, new]),
        # By then the new one is there; but it may be gone after a power failure.
        ("When fsync of the folder fails", saves.seen.folder_unsynced, [old, new]),
    ):
        error = f"{where} it raises ({came.last.ended})"
        if came.untried:
            continue
        if came.last.ended == RETURNED:
            yield Finding(False, f"{where} it returns as if it had saved; expected the error.")
        elif not any(compare.same(came.last.left.state, state) for state in whole):
            yield Finding(False, f"{error}, and the old one is gone.")
        elif came.remains:
            yield Finding(False, f"{error} and leaves {came.remains[0]} there, which fills the disk.")
        elif came is saves.seen.interrupted and not came.last.ended.startswith("KeyboardInterrupt"):
            yield Finding(False, f"{error}; expected the same error as came.")
        elif came.last.ended.startswith("FileNotFoundError"):
            text = "that is the removal of a file that is not there; expected what went wrong before"
            yield Finding(False, f"{error}: {text}.")
        else:
            yield Finding(True, f"{error}, and there is a whole one.")


def _all_synced(new: SavedFile, held: bytes | None) -> Finding:
    """Passes if what was sent to the disk of the new file is all of it."""
    if held is None:
        text = "step-7.pt is replaced by a file that no fsync has sent to the disk"
        return Finding(False, f"{text}: a power failure now can leave it empty.")
    if held != new.content:
        text = f"fsync was called when the file had {len(held)} of its {len(new.content)} bytes"
        return Finding(False, f"{text}: the rest was not yet with the operating system.")
    return Finding(True, f"All {len(held)} bytes were sent to the disk before step-7.pt was replaced.")
