"""Training that survives, on processes of this machine; tests/test_slurm_cluster.py has it on nodes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import RankFailed, launch
from course_lib.training.checkpoints import SavedByFunctions
from course_lib.training.elastic import LOG, STOP, train
from course_lib.training.recipe import Recipe
from course_lib.training.torch_checkpoints import SavedByTorch

# One worker makes what they are compared with, and keeps its processes warm.
pytestmark = pytest.mark.xdist_group("elastic")

RECIPE = Recipe(epochs=1, batch_size=128)
SAVE_EVERY = 4
STEPS = 12
"""Of one epoch of digits in batches of 128."""


def stopping_at(folder: Path, stop: int) -> bool:
    """Train until `stop` steps are done; rank 0 asks for it as a batch script does, one step before."""

    def ask(step: int) -> None:
        if dist.get_rank() == 0 and step == stop - 1:
            (folder / STOP).touch()

    ended = train(RECIPE, folder, SavedByTorch(folder / "checkpoints", SAVE_EVERY), ask)
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / STOP).unlink(missing_ok=True)
    return ended


def on_processes(function: Any, *arguments: Any, ranks: int) -> list[Any]:
    return launch(function, *arguments, ranks=ranks, on="processes", quiet=True, timeout=120).results


def log_of(folder: Path) -> dict[int, dict[str, Any]]:
    """The last record of each step."""
    lines = (folder / LOG).read_text().splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def weights_of(folder: Path) -> str:
    weights: str = json.loads((folder / "finished").read_text())["weights"]
    return weights


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert on_processes(stopping_at, folder, 0, ranks=2) == [True] * 2
    return folder


def test_a_stop_saves_and_changes_no_weight(tmp_path: Path, uninterrupted: Path):
    # Invariant: stopped between two regular checkpoints, then resumed: equal bit for bit.
    assert on_processes(stopping_at, tmp_path, 6, ranks=2) == [False] * 2
    assert sorted(log_of(tmp_path)) == list(range(6))
    assert on_processes(stopping_at, tmp_path, 0, ranks=2) == [True] * 2
    assert weights_of(tmp_path) == weights_of(uninterrupted)


def test_the_world_grows_and_shrinks(tmp_path: Path, uninterrupted: Path):
    # Invariant: with 2, then 3, then 1 rank every step has the samples that it has with 2 ranks throughout:
    # none is lost or seen twice; the losses agree but for rounding.
    for ranks, stop in ((2, 4), (3, 8), (1, 0)):
        on_processes(stopping_at, tmp_path, stop, ranks=ranks)
    seen, expected = log_of(tmp_path), log_of(uninterrupted)
    assert [seen[step]["ranks"] for step in range(STEPS)] == [2] * 4 + [3] * 4 + [1] * 4
    for step in range(STEPS):
        assert seen[step]["index_sum"] == expected[step]["index_sum"]
        assert seen[step]["samples"] == expected[step]["samples"]
        assert seen[step]["loss"] == pytest.approx(expected[step]["loss"], abs=1e-5)
    samples = sum(record["samples"] for record in seen.values())
    assert sum(record["index_sum"] for record in seen.values()) == samples * (samples - 1) // 2


def killed_in_second_save(folder: Path) -> None:
    """Rank 0 is killed in its second save, when the parts are written and the metadata is not."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    finish, calls = FileSystemWriter.finish, []

    def kill(*arguments: Any, **options: Any) -> None:
        calls.append(None)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        finish(*arguments, **options)

    FileSystemWriter.finish = kill  # type: ignore[method-assign]
    train(RECIPE, folder, SavedByTorch(folder / "checkpoints", SAVE_EVERY))


def test_killed_while_writing_a_checkpoint(tmp_path: Path, uninterrupted: Path):
    # Invariant: the torn checkpoint is there and is not used; training goes on from the one before.
    with pytest.raises(RankFailed, match="SIGKILL"):
        on_processes(killed_in_second_save, tmp_path, ranks=2)
    saves = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert saves == ["step-00000004", "step-00000008"]
    assert not (tmp_path / "checkpoints" / "step-00000008" / ".metadata").exists()
    on_processes(stopping_at, tmp_path, 0, ranks=2)
    lines = [json.loads(line)["step"] for line in (tmp_path / LOG).read_text().splitlines()]
    assert lines.count(4) == 2
    assert lines.count(3) == 1
    assert weights_of(tmp_path) == weights_of(uninterrupted)


def with_own_functions(folder: Path, fail_at: int) -> None:
    def load_latest(directory: Path) -> Any:
        files = sorted(directory.glob("*.pt"))
        return torch.load(files[-1]) if files else None

    def fail(step: int) -> None:
        if step == fail_at:
            raise RuntimeError("as planned")

    train(
        RECIPE,
        folder,
        SavedByFunctions(folder, lambda path, state: torch.save(state, path), load_latest, SAVE_EVERY),
        fail,
    )


def test_a_student_s_functions_fit_in_the_place_of_torch_s(tmp_path: Path, uninterrupted: Path):
    # Invariant: any save and load that keep a state give the same weights.
    with pytest.raises(RankFailed, match="as planned"):
        on_processes(with_own_functions, tmp_path, 6, ranks=2)
    on_processes(with_own_functions, tmp_path, 0, ranks=2)
    assert weights_of(tmp_path) == weights_of(uninterrupted)
