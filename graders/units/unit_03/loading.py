"""Unit 03, a checkpoint that is whole or not there: loading."""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence

import torch

from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    Finding,
    Findings,
    PlainData,
    Rng,
    compare,
    exercise,
)
from graders.units.raised import raised_in
from graders.units.unit_03.drivers import files as drivers
from graders.units.unit_03.states import State, draw_state


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "newest",
            2,
            "Compare the numbers in the names as numbers: as texts step-9 comes after step-10. Do not go by "
            "modification times: copying changes them. A single checkpoint is the newest, of step 0 too.",
        ),
        Criterion("nothing there", 1, "A first start finds an empty folder, or none. That is no error."),
        Criterion(
            "other files",
            1,
            "Only step-N.pt counts, with digits for N: not step-12.pt.tmp, which is a save that did not end, "
            "not step-12-best.pt, and nothing that lies in folders of the folder.",
        ),
        Criterion(
            "torn files",
            2,
            "Try the newest, then the one before, and so on. What torch.load raises depends on which bytes "
            "are missing: RuntimeError, OSError, EOFError, UnpicklingError, IndexError.",
        ),
        Criterion(
            "damaged inside",
            2,
            "torch.load reads numbers without checking them. The file is a zip archive, which has a checksum "
            "of each part: zipfile.ZipFile(path).testzip() returns None if all are right.",
            needs=("torn files",),
        ),
        Criterion(
            "tells and keeps",
            1,
            "warnings.warn names the file that was skipped; somebody will want to look at it, so leave it.",
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
def load_latest(answer: Answer, rng: Rng) -> Findings:
    """Folders as crashes leave them."""
    steps = range(rng.integer(7, 9), 40, 10)
    states = [draw_state(rng, step) for step in steps]
    contents = [saved_bytes(state) for state in states]
    # The newest first: the drivers make the first file the one that was changed last.
    # Some with zeros: the longest name's number is not the largest.
    names = [f"step-{step:0{width}}.pt" for step, width in zip(steps, (1, 5, 1, 4), strict=True)]
    good = {names[each]: contents[each] for each in (1, 3, 0, 2)}
    newest = names[3]
    held = dict(zip(steps, names, strict=True))
    every = loads(answer, good, states[3], _listed(good), held)
    first = loads(answer, {"step-0.pt": contents[0]}, states[0], "step-0.pt alone", {steps[0]: "step-0.pt"})
    yield "newest", compare.first_failure([every, first])

    yield "nothing there", nothing_there(answer)

    later = steps[-1] + 1
    others = not_counted(rng, later)
    files = good | {name: saved_bytes(state) for name, state in others.items()}
    files[f"step-{later}.pt.tmp"] = contents[0][:500]
    all_held = held | {state["done"]: name for name, state in others.items()}
    folders = (f"step-{later + 1}.pt.tmp", "sharded")
    there = [*files, *(f"{name}/" for name in folders)]
    yield "other files", loads(answer, files, states[3], _listed(there), all_held, *folders)

    cases = torn(rng, contents[3])
    left = with_torn_files(good, cases, names, states)
    whole = (loads(answer, files, state, f"files {what}", held) for files, state, what in left)
    yield "torn files", compare.first_failure(whole)

    damaged = with_damage(good, names, states)
    inside = (loads(answer, files, state, f"files {what}", held) for files, state, what in damaged)
    yield "damaged inside", (checked := compare.first_failure(inside))

    none = {newest: cases["cut off"], names[2]: cases["empty"]}
    two = good | none
    if checked.passed:
        two[newest] = damaged[0][0][newest]
    told = (tells_and_keeps(answer, files, list(none)) for files in (two, none))
    yield "tells and keeps", compare.first_failure(told)


def not_counted(rng: Rng, later: int) -> dict[str, State]:
    """Files of other names, and what they hold: each a later step than the one before."""
    names = (
        f".step-{later}.pt.x7",
        "best.pt",
        f"old-step-{later}.pt",
        "steps.jsonl",
        f"step-{later}-best.pt",
        f"step-{later}-pt",
        f"old/step-{later}.pt",
    )
    return {name: draw_state(rng, step) for step, name in enumerate(names, later)}


def with_torn_files(
    good: dict[str, bytes], cases: dict[str, bytes], names: Sequence[str], states: Sequence[State]
) -> list[tuple[dict[str, bytes], State | None, str]]:
    """Folders with torn files, the state that is to be loaded, and what they are.

    names, states: of the checkpoints, the newest last. cases: what is left of a file, by what became of it.
    """
    newest = names[-1]
    three = good | {newest: cases["cut off"], names[2]: cases["empty"], names[1]: cases["all zeros"]}
    all_torn = dict(zip(good, cases.values(), strict=False))
    return [
        *((good | {newest: bad}, states[2], f"of which the newest is {what}") for what, bad in cases.items()),
        (three, states[0], "of which the three newest are torn"),
        (all_torn, None, "that are all torn"),
    ]


def with_damage(
    good: dict[str, bytes], names: Sequence[str], states: Sequence[State]
) -> list[tuple[dict[str, bytes], State, str]]:
    """As `with_torn_files`, with files of the right length in which a block is zeros, or one bit is wrong."""
    weights, biases = ({names[3]: zeroed(states[3], part)} for part in ("weight", "bias"))
    before = {names[2]: zeroed(states[2], "weight")}
    return [
        (good | weights, states[2], "of which the newest has zeros in place of some weights"),
        (good | biases, states[2], "of which the newest has zeros in place of some biases"),
        (
            good | {names[3]: miscounted(states[3])},
            states[2],
            "of which the newest says another number of steps",
        ),
        (good | weights | before, states[1], "of which the two newest have zeros in place of some weights"),
    ]


def saved_bytes(state: State) -> bytes:
    """The state as `torch.save` writes it."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def zeroed(state: State, part: str) -> bytes:
    """As `saved_bytes`, with zeros in half of a part of the model: a block that never reached the disk."""
    content = bytearray(saved_bytes(state))
    weights = state["model"][part].numpy().tobytes()
    begin = bytes(content).index(weights)
    content[begin : begin + len(weights) // 2] = bytes(len(weights) // 2)
    return bytes(content)


def miscounted(state: State) -> bytes:
    """As `saved_bytes`, with another number where the steps that are done are told: a bit that has turned."""
    content = bytearray(saved_bytes(state))
    # Pickle writes the key, that it remembers it, and K before a small number.
    content[content.index(b"K", content.index(b"done")) + 1] ^= 64
    return bytes(content)


def torn(rng: Rng, content: bytes) -> dict[str, bytes]:
    """What may be left of a file, by what became of it."""
    return {
        "cut off": content[: rng.integer(200, len(content) - 200)],
        "cut off at its last bytes": content[: -rng.integer(1, 20)],
        "empty": b"",
        "all zeros": bytes(len(content)),
        "overwritten": bytes(rng.integers(0, 255, 500).tolist()),
        "another zip archive": zipped(),
    }


def zipped() -> bytes:
    """A whole archive that is no checkpoint."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("results.csv", "step,loss\n1,2.3\n")
    return file.getvalue()


def loads(
    answer: Answer,
    files: Mapping[str, bytes],
    expected: State | None,
    what: str,
    held: Mapping[int, str],
    *folders: str,
) -> Finding:
    """Passes if the answer loads `expected` from these files. what: what they are, for a sentence. held: the
    file of each state, by its step.
    """
    try:
        seen = answer.call(drivers.loading, dict(files), list(folders)).state
    except AnswerFailed as failure:
        return raised_in(f"From {what}", failure)
    wanted = _called(expected, held)
    if compare.same(seen, expected):
        return Finding(True, f"From {what} it loads {wanted}.")
    text = f"From {what} it loads {_called(seen, held)}; expected {wanted}"
    return Finding(False, f"{text}{_same_step(seen, expected)}.")


def _listed(files: Iterable[str]) -> str:
    """All names, for a sentence."""
    return f"a folder with {', '.join(sorted(files))}"


def nothing_there(answer: Answer) -> Finding:
    """Passes if an empty folder and one that is not there give None."""
    empty = loads(answer, {}, None, "an empty folder", {})
    if not empty.passed:
        return empty
    try:
        seen = answer.call(drivers.loading_nowhere)
    except AnswerFailed as failure:
        return raised_in("From a folder that is not there", failure)
    return Finding(seen is None, f"From an empty folder and from none at all it loads {_called(seen, {})}.")


def _called(state: PlainData, held: Mapping[int, str]) -> str:
    """A state by its file, for a sentence."""
    step = state.get("done") if isinstance(state, dict) else None
    if type(step) is int and step in held:
        return held[step]
    return "nothing (None)" if state is None else repr(state)[:80]


def _same_step(seen: PlainData, expected: State | None) -> str:
    """Said where the step is right and what is in it is not."""
    both = isinstance(seen, dict) and expected is not None and seen.get("done") == expected["done"]
    return ", with all its numbers" if both else ""


def tells_and_keeps(answer: Answer, files: Mapping[str, bytes], bad: Sequence[str]) -> Finding:
    """Passes if every file that was skipped is named to the user, and all files stay as they are."""
    where = f"Of {_listed(files)} {' and '.join(bad)} cannot be read"
    try:
        seen = answer.call(drivers.loading, dict(files), [])
    except AnswerFailed as failure:
        return raised_in(where, failure)
    silent = [name for name in bad if name not in seen.said]
    if silent:
        return Finding(False, f"{where}: {silent[0]} was skipped, and no warning says so.")
    if not seen.unchanged:
        return Finding(False, f"{where}: files were changed or removed; expected to only read.")
    return Finding(True, f"It names {', '.join(bad)}, and changes no file.")
