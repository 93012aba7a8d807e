"""The grader of `save_checkpoint`."""

from graders.grading import compare
from graders.grading.kit import Answer, Criterion, Findings, Rng, exercise
from graders.units.unit_03.save_findings import (
    directory_synced,
    next_save_works,
    round_trip,
    synced_before_renamed,
    temporary_beside,
    whole_at_every_moment,
    writing_failed,
)
from graders.units.unit_03.saves import Saves


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
