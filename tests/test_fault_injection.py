"""What unit 03 shows and judges of failures: processes that end at any moment, and what they cost."""

import importlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from course_lib.figures.pictures import moments_picture
from course_lib.training.failure_model import drawn_overhead, expected_overhead
from graders.guest.time_limits import OutOfTime, time_limit
from graders.units.unit_03.fault_injection import RETURNED, run_forked, watched, with_short_files


def write_twice(path: Path) -> str:
    with path.open("wb", buffering=0) as file:
        file.write(b"one")
        file.write(b"two")
    return "written"


def contents(events: list[dict]) -> list[bytes | None]:
    """What the file holds, from change to change."""
    files = [event["files"] for event in events if "files" in event]
    return [held["file"]["content"] if "file" in held else None for held in files]


def test_every_change_of_a_folder_is_seen(tmp_path: Path):
    # Invariant: between two calls of the operating system nothing is missed.
    seen = run_forked(watched(tmp_path, lambda: write_twice(tmp_path / "file")))
    assert contents(seen["value"]) == [None, b"", b"one", b"onetwo"]


BY_ITS_NAME = os.fsync
"""As `from os import fsync` at a module's top has it."""


@pytest.mark.parametrize(
    ("sync", "noted"),
    [(lambda file: os.fsync(file), {"b"}), (lambda file: BY_ITS_NAME(file), {"b", "elsewhere"})],
)
def test_syncs_are_noted(tmp_path: Path, sync: Callable[[int], None], noted: set[str]):
    # Invariant: a sync is noted of the file that it is called with; if that cannot be seen, of the files that
    # are open then, in the folder or elsewhere, and of no other.
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()

    def body() -> None:
        (folder / "closed").touch()
        with (folder / "a").open("wb") as file, elsewhere.open("wb"):
            sync(file.fileno())
        os.replace(folder / "a", folder / "b")

    events = run_forked(watched(folder, body))["value"]
    synced = next(event for event in events if "synced" in event)
    inodes = {path.name: path.stat().st_ino for path in (elsewhere, *folder.iterdir())}
    assert {name for name, inode in inodes.items() if inode in synced["synced"]} == noted
    assert not synced["directory"]


def test_a_full_disk_is_an_error_or_the_end(tmp_path: Path):
    # Invariant: the same write fails, or ends the process, and the parent has no such limit afterwards.
    body = with_short_files(4, lambda: write_twice(tmp_path / "file"), deadly=False)
    run_forked(body)
    assert (tmp_path / "file").stat().st_size == 4
    deadly = with_short_files(3, lambda: write_twice(tmp_path / "file"), deadly=True)
    assert run_forked(deadly)["ended"] == "SIGXFSZ"
    assert run_forked(lambda: write_twice(tmp_path / "file")) == {"ended": RETURNED, "value": "written"}


def test_a_life_that_hangs_is_ended(tmp_path: Path):
    # Invariant: when the caller's time is up, its child is gone too.
    def hang() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    with pytest.raises(OutOfTime), time_limit(1.0):
        run_forked(hang)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_time_is_up_again_for_code_that_has_swallowed_it():
    # As Python does with whatever is raised in a weak reference's callback.
    swallowed = []

    def stubborn() -> None:
        while not swallowed:
            try:
                time.sleep(60)
            except OutOfTime as error:
                swallowed.append(str(error))
        time.sleep(60)

    with pytest.raises(OutOfTime), time_limit(0.1):
        stubborn()
    assert swallowed == ["0.1 s"]


def test_a_module_is_imported_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Invariant: half of a package fails whoever asks for it next.
    (tmp_path / "loads_slowly.py").write_text("import time\nfor _ in range(12):\n    time.sleep(0.1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def load_and_sleep() -> None:
        importlib.import_module("loads_slowly")
        time.sleep(60)

    with pytest.raises(OutOfTime), time_limit(0.5):
        load_and_sleep()
    assert sys.modules["loads_slowly"].time is time


def test_errors_and_exits_come_back_in_words():
    assert run_forked(lambda: [][1])["ended"] == "IndexError: list index out of range"
    assert run_forked(lambda: os._exit(3))["ended"] == "exit status 3"
    assert run_forked(lambda: os.kill(os.getpid(), signal.SIGTERM))["ended"] == "SIGTERM"


@pytest.mark.parametrize("interval", [400.0, 1600.0, 6400.0])
def test_drawn_failures_cost_what_is_expected(interval: float):
    # Invariant: the closed form is the mean of what is drawn.
    expected = expected_overhead(interval, 120, 11_000, 60)
    drawn = [drawn_overhead(interval, 120, 11_000, 60, pieces=500, seed=seed) for seed in range(4)]
    assert sum(drawn) / 4 == pytest.approx(expected, rel=0.1)


def test_young_s_interval_is_near_the_best():
    # Invariant: where checkpoints are short against failures, no other interval costs a hundredth less.
    best = math.sqrt(2 * 10 * 100_000)
    least = expected_overhead(best, 10, 100_000)
    assert all(expected_overhead(best * factor, 10, 100_000) > 0.99 * least for factor in (0.5, 0.9, 1.1, 2))


def test_moments_are_told_in_words_too():
    figure = moments_picture({"careless": ["old", "torn", "new"], "careful": ["old", "new"]})
    assert "careless: old, torn, new; careful: old, new" in figure.alt
