"""The grader of `load_latest`."""

import io
import re
import zipfile
from dataclasses import dataclass
from functools import cache

import torch

from graders.grading.cases import vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, PlainData, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_03.drivers import files as drivers
from graders.units.unit_03.replies import LoadingReply
from graders.units.unit_03.states import State, draw_state

# The drivers make the first file the one that was changed last.
FILES = ("step-17.pt", "step-37.pt", "step-7.pt", "step-27.pt")
LATER = ("old-step-39.pt", "best.pt", "step-40-best.pt", "old/step-42.pt")
"""Files of other names, which hold later steps."""
UNFINISHED = "step-38.pt.tmp"
TORN = ("cut off", "empty", "another zip archive")
ZEROED = "with zeros in place of weights"


@dataclass(frozen=True, slots=True)
class Folder:
    """files: its checkpoints. torn: what has become of the newest, of the one before it, and so on. others:
    whether there are files of other names. there: whether it is there at all.
    """

    files: tuple[str, ...] = feature(FILES, lambda files: f"checkpoints {', '.join(files) or '(none)'}")
    torn: tuple[str, ...] = feature((), lambda torn: f"the newest {' and '.join(torn)}" if torn else "")
    others: bool = feature(False, lambda on: f"and {', '.join((*LATER, UNFINISHED))}" if on else "")
    there: bool = feature(True, lambda on: "" if on else "a folder that is not there")

    @property
    def newest_first(self) -> list[str]:
        return sorted(self.files, key=step_of, reverse=True)

    @property
    def bad(self) -> list[str]:
        """The names of those that cannot be read."""
        return self.newest_first[: len(self.torn)]


def step_of(name: str) -> int:
    """The number in a name; 0 if there is none."""
    found = re.search("[0-9]+", name)
    return int(found[0]) if found else 0


@cache
def state_of(name: str) -> State:
    """What was saved under a name; the same in all cases, for it takes time to draw."""
    return draw_state(Rng(step_of(name)), step_of(name))


@cache
def file_of(name: str, damage: str) -> bytes:
    """What is left of it. damage: one of TORN, ZEROED, or empty."""
    state, file = state_of(name), io.BytesIO()
    if damage == "another zip archive":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("results.csv", "step,loss\n1,2.3\n")
        return file.getvalue()
    torch.save(state, file)
    content = file.getvalue()
    if damage == ZEROED:  # a block that never reached the disk
        weights = state["model"]["weight"].numpy().tobytes()
        return content.replace(weights, bytes(len(weights)))
    return {"cut off": content[:5000], "empty": b""}.get(damage, content)


def _called(state: PlainData, states: dict[str, State]) -> str:
    """A state by its file, for a sentence."""
    done = state.get("done") if isinstance(state, dict) else None
    named = [name for name, each in states.items() if type(done) is int and each["done"] == done]
    return named[0] if named else "nothing (None)" if state is None else repr(state)[:80]


def tells_and_keeps(tried: Tried[Folder]) -> Finding | None:
    """Passes if every file that was skipped is named to the user, and all files stay as they are."""
    if tried.seen is None:
        return None
    silent = [name for name in tried.case.features.bad if name not in tried.seen.said]
    if silent:
        return Finding(False, f"{silent[0]} was skipped, and no warning says so.")
    if not tried.seen.unchanged:
        return Finding(False, "files were changed or removed; expected to only read.")
    return Finding(True, "it only reads.")


def possible(folder: Folder) -> bool:
    """A folder that is not there has nothing in it, and no more files are torn than there are."""
    return (folder.there or folder == Folder(there=False)) and len(folder.torn) <= len(folder.files)


@one_by_one(
    base=Folder(),
    possible=possible,
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "newest",
            2,
            "Compare the numbers in the names as numbers: as texts step-9 comes after step-10. Do not go by "
            "modification times: copying changes them.",
            vary=vary(files=(("step-9.pt", "step-10.pt"), ("step-0.pt",))),
        ),
        Criterion(
            "nothing there",
            1,
            "A first start finds an empty folder, or none. That is no error.",
            vary=vary(files=((),), there=(False,)),
        ),
        Criterion(
            "other files",
            1,
            "Only step-N.pt counts, with digits for N: not step-12.pt.tmp, which is a save that did not end, "
            "not step-12-best.pt, and nothing that lies in folders of the folder.",
            vary=vary(others=(True,)),
        ),
        Criterion(
            "torn files",
            2,
            "Try the newest, then the one before, and so on. What torch.load raises depends on which bytes "
            "are missing: RuntimeError, OSError, EOFError, UnpicklingError, IndexError.",
            vary=vary(torn=(*((each,) for each in TORN), TORN)),
        ),
        Criterion(
            "damaged inside",
            2,
            "torch.load reads numbers without checking them. The file is a zip archive, which has a checksum "
            "of each part: zipfile.ZipFile(path).testzip() returns None if all are right.",
            vary=vary(torn=((ZEROED,), (ZEROED, ZEROED))),
            needs=("torn files",),
        ),
        Criterion(
            "tells and keeps",
            1,
            "warnings.warn names the file that was skipped; somebody will want to look at it, so leave it.",
            how=tells_and_keeps,
            needs=("torn files",),
        ),
    ),
    hints=(
        "How can a file of the right length be told from a whole one?",
        're.fullmatch(r"step-([0-9]+)\\.pt", name) finds the number.',
        "Sort the paths by number, newest first, and return from within the loop.",
        "Put everything that reads a file into one `try`, and nothing else; catch `Exception`.",
    ),
)
def load_latest(answer: Answer, folder: Folder, rng: Rng) -> tuple[Finding, LoadingReply | None]:
    """Folders as crashes leave them."""
    if not folder.there:
        seen = answer.call(drivers.loading_nowhere)
        return Finding(seen is None, f"it loads {_called(seen, {})}; expected nothing (None)."), None
    names = (*folder.files, *LATER * folder.others)
    states = {name: state_of(name) for name in names}
    damage = dict(zip(folder.newest_first, folder.torn, strict=False))
    files = {name: file_of(name, damage.get(name, "")) for name in names}
    if folder.others:
        files[UNFINISHED] = b"half"
    reply = answer.call(drivers.loading, files)
    whole = [name for name in folder.newest_first if name not in folder.bad]
    told = f"it loads {_called(reply.state, states)}; expected {whole[0] if whole else 'nothing (None)'}"
    return Finding(compare.same(reply.state, states[whole[0]] if whole else None), f"{told}."), reply
