"""The grader of `load_latest`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

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
from graders.units.unit_03.torn_files import Left, saved_bytes, torn, with_damage, with_torn_files


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
    older = {name: good[name] for name in good if name != newest}
    each = [loads(answer, files, states[len(files) - 1], _listed(files), held) for files in (good, older)]
    first = loads(answer, {"step-0.pt": contents[0]}, states[0], "step-0.pt alone", {steps[0]: "step-0.pt"})
    yield "newest", compare.first_failure([*each, first])

    yield "nothing there", (none := nothing_there(answer))
    later = steps[-1] + 1
    yield "other files", leaves_alone(answer, good, not_counted(rng, later), states[3], held, none)

    def all_load(left: Sequence[Left]) -> Finding:
        """Passes if the state is right in each; None is asked for only where it is right in an empty one."""
        judged = [each for each in left if each[1] or none.passed]
        found = (loads(answer, files, state, f"files {what}", held) for files, state, what in judged)
        return compare.first_failure(found)

    cases = torn(rng, contents[3])
    yield "torn files", all_load(with_torn_files(good, cases, names, states))
    damaged = with_damage(good, names, states, cases["cut off"])
    yield "damaged inside", (checked := all_load(damaged))

    unfinished = {f"step-{later}.pt.tmp": cases["empty"]}
    two = {newest: cases["cut off"], names[2]: cases["empty"]}
    three = two | {names[2]: cases["another zip archive"], names[1]: cases["empty"]}
    if checked.passed:
        three[newest] = damaged[0][0][newest]
    left = [(good | three, three), (two, two)] if none.passed else [(good | three, three)]
    told = (tells_and_keeps(answer, files | unfinished, list(bad)) for files, bad in left)
    folder = leaves_a_folder_alone(answer, good, states[3], held)
    yield "tells and keeps", compare.first_failure([*told, folder])


def leaves_a_folder_alone(
    answer: Answer, good: dict[str, bytes], newest: State, held: Mapping[int, str]
) -> Finding:
    """Passes if a folder with a checkpoint's name, which cannot be opened as one, disturbs nothing."""
    folder = f"step-{newest['done'] + 1}.pt"
    finding = loads(answer, good, newest, _listed([*good, f"{folder}/"]), held, folder)
    return replace(finding, hint="" if finding.passed else "A folder may be called so: it is no checkpoint.")


def leaves_alone(
    answer: Answer,
    good: dict[str, bytes],
    others: dict[str, State],
    newest: State,
    held: Mapping[int, str],
    none: Finding,
) -> Finding:
    """Passes if what is no checkpoint counts for nothing, beside checkpoints and alone; alone only where an
    empty folder is right, `none`. others: see `not_counted`.
    """
    later = min(state["done"] for state in others.values())
    aside = {name: saved_bytes(state) for name, state in others.items()}
    aside[f"step-{later}.pt.tmp"] = aside[f"step-{later}-best.pt"][:500]
    held = {**held, **{state["done"]: name for name, state in others.items()}}
    folders = (f"step-{later + 1}.pt.tmp", "sharded")
    return compare.first_failure(
        loads(answer, files, state, _listed([*files, *(f"{name}/" for name in folders)]), held, *folders)
        for files, state in ((good | aside, newest), (aside, None))
        if state or none.passed
    )


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
