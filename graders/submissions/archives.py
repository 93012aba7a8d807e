"""Zip archives that students hand in: only notebooks and Python files are taken out, within bounds.

Nothing is written but to names of our own, so no name in an archive leads anywhere.
"""

import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from graders.submissions.read import LARGEST, BadSubmission

ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
"""What an archive's name ends with; only the first kind is opened."""
LARGEST_ARCHIVE = 20 * 2**20
"""Bytes: so many hold the table of contents of hundreds of thousands of files."""
MOST_FILES = 2000
_CHUNK = 2**20
_LOCKED = 0x1
"""A file's flag: a password is needed."""


def take_out(archive: Path, suffixes: tuple[str, ...], target: Path) -> list[Path]:
    """Copy the files with these suffixes from a zip into a folder; returns where they are, under their names.

    Raises BadSubmission, with what to do, for whatever is no plain archive with such files in it.
    """
    if archive.suffix != ".zip":
        raise _refused(archive, "is an archive of a kind that is not opened")
    if archive.stat().st_size > LARGEST_ARCHIVE:
        raise _refused(archive, f"has more than {LARGEST_ARCHIVE:,} bytes")
    try:
        with zipfile.ZipFile(archive) as opened:
            members = list(_members(archive, opened, suffixes))
            return [
                _copied(archive, opened, member, target / str(number))
                for number, member in enumerate(members)
            ]
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError) as error:
        if isinstance(error, BadSubmission):
            raise
        raise _refused(archive, f"is a damaged archive ({error})") from error
    except NotImplementedError as error:
        raise _refused(archive, f"is packed in a way that is not known here ({error})") from error


def _members(archive: Path, opened: zipfile.ZipFile, suffixes: tuple[str, ...]) -> Iterator[zipfile.ZipInfo]:
    """The files to take out. Raises BadSubmission for an archive that cannot be meant honestly, or helped."""
    everything = [info for info in opened.infolist() if not info.is_dir()]
    if len(everything) > MOST_FILES:
        raise _refused(archive, f"holds {len(everything):,} files")
    for info in everything:
        if _leads_out(info):
            raise _refused(
                archive, f"holds a file named {info.filename[:80]!r}, which leads out of the archive"
            )
    found = [info for info in everything if not _is_left_behind(info)]
    for info in found:
        if PurePosixPath(info.filename).suffix in suffixes:
            if stat.S_ISLNK(info.external_attr >> 16):
                raise _refused(archive, f"holds {info.filename[:80]!r} as a link, not as a file")
            if info.flag_bits & _LOCKED:
                raise _refused(archive, "is locked with a password")
            yield info
    if not any(PurePosixPath(info.filename).suffix in suffixes for info in found):
        inner = [info.filename for info in found if PurePosixPath(info.filename).suffix in ARCHIVES]
        if inner:
            raise _refused(archive, f"holds another archive, {inner[0][:80]}, which is not opened")
        raise _refused(archive, "holds no notebook")


def _is_left_behind(info: zipfile.ZipInfo) -> bool:
    """Whether editors and systems made it: __MACOSX, .ipynb_checkpoints."""
    parts = PurePosixPath(info.filename).parts
    return any(part.startswith(("__", ".")) and part != ".." for part in parts)


def _leads_out(info: zipfile.ZipInfo) -> bool:
    name = info.filename
    windows = PureWindowsPath(name)
    return ".." in windows.parts or PurePosixPath(name).is_absolute() or bool(windows.drive or windows.root)


def _copied(archive: Path, opened: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> Path:
    """Write a file of the archive into a new folder. Raises BadSubmission if it is larger than it may be."""
    folder.mkdir()
    path = folder / PurePosixPath(member.filename).name
    left = LARGEST
    # What the archive says about a file's size need not be true: what comes out is counted.
    with opened.open(member) as packed, path.open("wb") as file:
        while part := packed.read(_CHUNK):
            left -= len(part)
            if left < 0:
                raise _refused(archive, f"holds {member.filename[:80]!r}, of more than {LARGEST:,} bytes")
            file.write(part)
    return path


def _refused(archive: Path, why: str) -> BadSubmission:
    return BadSubmission(f"{archive} {why}. Hand in the notebook itself, not an archive.")
