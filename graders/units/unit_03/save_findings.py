"""What is found of five saves: see `Saves`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from graders.grading import compare
from graders.grading.kit import Finding
from graders.units.unit_03.drivers.files import NO_FILE
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import SavedFile
from graders.units.unit_03.saves import Saves, Watched


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
    files = [file.content if file else None for _, file in saves.contents]
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
    for save in saves.watched:
        for source in (change.renamed[0] for change in save.changes if change.renamed):
            if str(Path(source).parent) != folder:
                text = (
                    f"To {save.path} a file is moved from {Path(source).parent}, which may be on another disk"
                )
                return Finding(False, f"{text}; expected one in the folder of path.{save.how}")
        names = {each for change in save.changes for each in change.files or ()}
        checkpoints = (save.path, saves.path, "step-3.pt")
        unlike = sorted(each for each in names if not each.endswith(".tmp") and each not in checkpoints)
        if unlike:
            text = f"While it saves there is {unlike[0]}; expected a name that ends in .tmp"
            return Finding(False, f"{text}.{save.how}")
    left = [each for each in saves.seen.others if each != "step-3.pt"]
    if left:
        return Finding(False, f"After two saves {left[0]} is still there.")
    return Finding(True, "It is written beside path under a name that ends in .tmp, and none is left.")


def synced_before_renamed(saves: Saves) -> Finding:
    """Passes if all bytes of each new file were sent to the disk before it got its name."""
    finding = compare.first_failure(map(_synced_before_renamed, saves.watched))
    if finding.passed and saves.seen.file_left_open:
        return Finding(False, "After a save its file is still open, and so after each: close it.")
    return finding


def _synced_before_renamed(save: Watched) -> Finding:
    synced: dict[int, bytes] = {}
    elsewhere: set[int] = set()
    files: Mapping[str, SavedFile] = {}
    old = save.contents[0][1]
    for change in save.changes:
        synced |= {file.inode: file.content for file in files.values() if file.inode in change.synced}
        elsewhere |= set(change.synced) - {file.inode for file in files.values()}
        files = files if change.files is None else change.files
        new = files.get(save.path)
        if new and new != old:
            # In another folder its bytes were not seen: that it was there is another row's affair.
            held = new.content if new.inode in elsewhere else None
            return _all_synced(save, new, synced.get(new.inode, held))
    return Finding(False, f"{save.path} was never replaced.")


def directory_synced(saves: Saves) -> Finding:
    """Passes if the new name was sent to the disk too."""
    if not saves.alone_right:
        came = (
            f"ends with {saves.seen.here}" if saves.seen.here != RETURNED else "does not save the state there"
        )
        return Finding(False, f"save_checkpoint(Path('step-9.pt'), ...) {came}.")
    if saves.seen.left_open:
        return Finding(False, "After a save the folder is still open, and so after each: close it.")
    return compare.first_failure(map(_directory_synced, saves.watched))


def _directory_synced(save: Watched) -> Finding:
    contents = save.contents
    # Whatever else is removed afterwards matters to nobody.
    changed = (place for (place, file), (_, old) in zip(contents[1:], contents, strict=False) if file != old)
    replaced = max(changed, default=0)
    synced = [place for place, event in enumerate(save.changes) if event.directory]
    if any(place > replaced for place in synced):
        return Finding(True, "The folder was sent to the disk after its last change.")
    text = "the folder was sent to the disk before that" if synced else "nothing sends the folder to the disk"
    return Finding(False, f"After {save.path} got its file it returns; {text}.{save.how}")


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
    for where, came, whole, kind in (
        ("When the file may not grow further", saves.seen.full, [old], ""),
        ("Of a state with a function", saves.seen.refused, [old], ""),
        (
            "Interrupted (KeyboardInterrupt) while torch.save writes",
            saves.seen.interrupted,
            [old],
            "KeyboardInterrupt",
        ),
        ("With too many open files", saves.seen.unopened, [old], ""),
        ("When fsync of the file fails", saves.seen.unsynced, [old] if in_time else [old, new], "OSError"),
        # By then the new one is there; but it may be gone after a power failure.
        ("When fsync of the folder fails", saves.seen.folder_unsynced, [old, new], "OSError"),
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
        elif came.gone:
            yield Finding(False, f"{error}, and {came.gone[0]}, another checkpoint, is gone.")
        elif came.left_open:
            yield Finding(False, f"{error} and leaves its file open, for as long as the process lives.")
        elif came.last.ended.startswith("FileNotFoundError"):
            text = "that is the removal of a file that is not there; expected what went wrong before"
            yield Finding(False, f"{error}: {text}.")
        elif not came.last.ended.startswith(kind):
            yield Finding(False, f"{error}; expected the same error as came, of the kind {kind}.")
        else:
            yield Finding(True, f"{error}, and there is a whole one.")


def _all_synced(save: Watched, new: SavedFile, held: bytes | None) -> Finding:
    """Passes if what was sent to the disk of the new file is all of it."""
    if held is None:
        text = f"The name {save.path} is given to a file that no fsync has sent to the disk"
        return Finding(False, f"{text}: a power failure now can leave it empty.{save.how}")
    if held != new.content:
        text = f"fsync was called when the file had {len(held)} of its {len(new.content)} bytes"
        return Finding(False, f"{text}: the rest was not yet with the operating system.{save.how}")
    return Finding(True, f"All {len(held)} bytes were sent to the disk before the file got its name.")
