"""Horovod: the door, its timeline, training by it, the tutorial's scripts, and a worker that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_lib import BadLaunch, Cluster, RankFailed, TimedOut, launch, per_rank, span
from course_lib.beside import missing
from course_lib.data import load
from course_lib.figures.horovod import horovod_figure
from course_lib.launch import horovod as door
from course_lib.launch.mpi import mpirun
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.communication.horovod_timeline import load_trace, read_timeline, timeline_of
from course_lib.training import data_parallel, elastic
from course_lib.training.data_parallel import TORCH_DDP, Pieces, Replication
from course_lib.training.elastic import LOG, train
from course_lib.training.recipe import Recipe
from course_lib.training.torch_checkpoints import SavedByTorch

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "examples" / "horovod"

pytestmark = pytest.mark.xdist_group("horovod")

needs_horovod = pytest.mark.skipif(bool(missing("horovod")), reason=missing("horovod") or "Horovod is here")
needs_tensorflow = pytest.mark.skipif(
    bool(missing("horovod-tensorflow")), reason=missing("horovod-tensorflow") or "TensorFlow is here"
)


# --- The timeline's reader


def traced(
    tensor: str, pid: int, at: int, ready: Sequence[int], *, ends: bool = True
) -> list[dict[str, Any]]:
    """A negotiation as Horovod writes it, and unless it stalls the all-reduce after it. Times in µs."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": tensor}},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, "pid": pid},
        *({"ph": "X", "name": str(r), "ts": at + 10 * n, "pid": pid, "dur": 0} for n, r in enumerate(ready)),
    ]
    if not ends:
        return events
    return [
        *events,
        {"ph": "E", "ts": at + 50, "pid": pid},
        {"ph": "B", "name": "ALLREDUCE", "ts": at + 60, "pid": pid},
        {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": at + 70, "pid": pid},
        {"ph": "E", "ts": at + 80, "pid": pid},
        {"ph": "E", "ts": at + 90, "pid": pid, "args": {"dtype": "float32", "shape": "[2, 3]"}},
    ]


TRACE = [
    {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 5_000_000}},
    *traced("a", 1, 0, [1, 0]),
    *traced("b", 2, 20, [0, 1]),
    *traced("c", 3, 200, [0, 1]),
    *traced("d", 4, 400, [1], ends=False),
]


def test_a_timeline_tells_who_was_late_what_was_fused_and_what_still_waits() -> None:
    timeline = timeline_of(TRACE)
    # Invariant: operations that overlap went in one message; others did not.
    assert [[each.tensor for each in group] for group in timeline.fused()] == [["a", "b"], ["c"]]
    first = timeline.operations[0]
    assert (first.last_ready, first.nbytes, first.detail) == (0, 24, "float32[2, 3]")
    assert [each.name for each in first.activities] == ["GLOO_ALLREDUCE"]
    assert [(each.tensor, set(each.ready)) for each in timeline.waiting] == [("d", {1})]
    assert timeline.began == 5.0
    events = list(timeline.events(ranks=2, zero=100.0))
    assert {event.op for event in events} == {"all_reduce"}
    assert [event.nbytes for event in events if event.rank == 0] == [48, 24]
    # Rank 0 submitted "a" later than rank 1, and "b" ended last.
    assert [(event.start, event.end) for event in events[:2]] == [
        (pytest.approx(100 + 10e-6), pytest.approx(100 + 110e-6)),
        (pytest.approx(100.0), pytest.approx(100 + 110e-6)),
    ]


@pytest.mark.parametrize("cut", [1, 30, 120])
def test_a_file_whose_writer_was_killed_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "timeline.json"
    file.write_text("[\n" + ",\n".join(map(json.dumps, TRACE)) + "]")
    assert load_trace(file) == TRACE
    file.write_text(file.read_text()[:-cut])
    assert load_trace(file) == TRACE[: len(load_trace(file))]
    assert len(read_timeline(file).operations) == 3
    assert load_trace(tmp_path / "nothing") == []


def test_the_figure_has_a_row_a_tensor_and_says_what_it_shows() -> None:
    figure = horovod_figure(timeline_of(TRACE))
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["a", "b", "c"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"negotiation", "GLOO_ALLREDUCE", "rank 1 ready"} <= set(words)
    assert "3 operations, carried by 2 messages" in figure.alt
    # Of a part only what is in it.
    end = horovod_figure(timeline_of(TRACE), tensors=["c"], start=260e-6)
    assert [text.get_text() for text in end.legends[0].get_texts()] == ["GLOO_ALLREDUCE"]
    with pytest.raises(ValueError, match=r"its tensors are \['a', 'b', 'c'\]"):
        horovod_figure(timeline_of(TRACE), tensors=["z"])


# --- The door


def sums(x: float) -> tuple[float, int, int]:
    import horovod.torch as hvd

    with span("adding"):
        handles = [hvd.allreduce_async(torch.full((5,), x), name=f"t{n}", op=hvd.Sum) for n in range(3)]
        totals = [hvd.synchronize(handle)[0].item() for handle in handles]
    print(f"rank {hvd.rank()} speaks")
    return totals[0], hvd.local_rank(), hvd.cross_rank()


@needs_horovod
def test_a_launch_has_results_output_and_horovods_own_timeline(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "timeline.json"))
    run = launch(sums, per_rank([1.0, 2.0, 4.0]), on="horovod", cluster=Cluster(2, 2), ranks=3, quiet=True)
    # Invariant: as on every engine; two ranks on the first node, one on the second.
    assert run.results == [(7.0, 0, 0), (7.0, 1, 0), (7.0, 0, 1)]
    assert run.outputs == [f"rank {rank} speaks\n" for rank in range(3)]
    reduced = [event for event in run.events if event.op == "all_reduce"]
    assert sum(event.nbytes for event in reduced if event.rank == 2) == 3 * 5 * 4
    spans = {event.rank: event for event in run.events if event.kind is Kind.SPAN}
    # The clocks agree: what a rank waited for ended within its span.
    assert all(spans[each.rank].start - 0.01 <= each.end <= spans[each.rank].end + 0.01 for each in reduced)
    assert run.traffic[1].sent > 0
    assert "all_reduce" in run.timeline().alt
    names = {
        each["name"] for each in json.loads(run.save_trace(tmp_path / "t.json").read_text())["traceEvents"]
    }
    assert {"all_reduce", "adding"} <= names
    # What the student's exercise gets: the file as Horovod left it, whole.
    trace = json.loads((tmp_path / "timeline.json").read_text())
    assert trace == load_trace(tmp_path / "timeline.json")
    assert {"allreduce.t0", "allreduce.t1", "allreduce.t2"} == {
        each.tensor for each in timeline_of(trace).operations
    }


def one_raises() -> None:
    import horovod.torch as hvd

    if hvd.rank() == 1:
        raise ValueError("no such thing")
    hvd.allreduce(torch.ones(3), name="a")


def one_computes() -> None:
    import horovod.torch as hvd

    hvd.allreduce(torch.ones(3), name="known")
    if hvd.rank() == 1:
        subprocess.Popen(["sleep", "987"])
        time.sleep(600)
    hvd.allreduce_async(torch.ones(3), name="fresh")
    hvd.allreduce(torch.ones(3), name="known")


def one_is_killed() -> None:
    import horovod.torch as hvd

    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(torch.ones(3), name="a")


def one_exits() -> None:
    import horovod.torch as hvd

    if hvd.rank() == 1:
        os._exit(3)
    hvd.allreduce(torch.ones(3), name="a")


@needs_horovod
@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        (one_raises, "ValueError", 'raise ValueError("no such thing")'),
        (one_is_killed, "SIGKILL", "the process was ended by signal SIGKILL"),
        (one_exits, "ProcessExit", "the process ended with exit code 3 before its function returned"),
    ],
)
def test_the_rank_that_fails_is_the_root_cause(function: Any, kind: str, said: str) -> None:
    # Invariant: in the words of on="processes", whatever Horovod makes of it on the other ranks.
    with pytest.raises(RankFailed) as failed:
        launch(function, ranks=2, on="horovod")
    assert (failed.value.root.rank, failed.value.root.type) == (1, kind)
    assert failed.value.report.startswith(f"rank 1 failed with {kind}: ")
    assert said in failed.value.report


def one_returns() -> None:
    import horovod.torch as hvd

    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(3), name="a")


@needs_horovod
def test_a_rank_that_left_early_is_named() -> None:
    with pytest.raises(TimedOut) as stopped:
        launch(one_returns, ranks=2, on="horovod", timeout=8)
    assert "allreduce.a waited for rank 1; rank 0 had submitted it" in stopped.value.report
    assert "rank 1 had already returned." in stopped.value.report


@needs_horovod
def test_a_stall_names_the_tensors_and_the_ranks_that_are_missing() -> None:
    # Invariant: also a tensor that Horovod knows from an earlier step; and nobody survives.
    with pytest.raises(TimedOut) as stopped:
        launch(one_computes, ranks=2, on="horovod", timeout=8)
    for tensor in ("fresh", "known"):
        assert f"allreduce.{tensor} waited for rank 1; rank 0 had submitted it" in stopped.value.report
    assert "time.sleep(600)" in stopped.value.report
    assert stopped.value.run is not None
    assert "all_reduce" in {event.op for event in stopped.value.run.events}
    assert not [path for path in Path("/proc").glob("[0-9]*") if _command(path) == ["sleep", "987"]]


def _command(path: Path) -> list[str]:
    try:
        return (path / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def test_what_makes_no_sense_is_said(monkeypatch: Any) -> None:
    with pytest.raises(BadLaunch, match='beside="x" is for on="processes" and on="horovod"'):
        launch(one_raises, ranks=2, beside="x")
    with pytest.raises(BadLaunch, match='not over "nccl"'):
        launch(one_raises, ranks=2, on="horovod", backend="nccl")
    with pytest.raises(BadLaunch, match="make horovod MPI=1"):
        launch(one_raises, ranks=2, on="horovod", backend="mpi")
    monkeypatch.setattr(door, "missing", lambda name: f"{name} is not installed: make {name}.")
    with pytest.raises(BadLaunch, match="make horovod"):
        launch(one_raises, ranks=2, on="horovod")


def sum_over_mpi(comm: Any) -> tuple[int, float, bool]:
    import horovod.torch as hvd

    hvd.init()
    total = hvd.allreduce(torch.tensor(float(comm.rank)), op=hvd.Sum, name="ranks")
    return hvd.rank(), total.item(), hvd.mpi_enabled()


@pytest.mark.skipif(bool(missing("horovod-mpi")), reason=missing("horovod-mpi") or "it is here")
def test_under_mpirun_horovod_negotiates_over_mpi() -> None:
    # Invariant: what the door says of backend="mpi" is so, and its ranks are MPI's.
    assert mpirun(sum_over_mpi, ranks=2, timeout=240) == [(0, 1.0, True), (1, 1.0, True)]


# --- Another environment


def keras_step(learning_rate: float) -> list[float]:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    w = tf.Variable([1.0, 2.0])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = (hvd.rank() + 1.0) * tf.reduce_sum(w)
    w.assign_sub(learning_rate * tape.gradient(loss, [w])[0])
    return [float(value) for value in w.numpy()]


@needs_tensorflow
def test_ranks_may_compute_with_tensorflow_in_an_environment_of_their_own() -> None:
    run = launch(keras_step, 0.1, ranks=2, on="horovod", beside="horovod-tensorflow", timeout=120)
    # The gradients are 1 and 2, their mean 1.5.
    assert run.results == [[pytest.approx(0.85), pytest.approx(1.85)]] * 2
    assert "all_reduce" in {event.op for event in run.events}

    def fails() -> None:
        raise KeyError("nothing")

    with pytest.raises(RankFailed, match="KeyError: 'nothing'"):
        launch(fails, ranks=1, on="horovod", beside="horovod-tensorflow", timeout=120)


def total_by_torch(x: float) -> float:
    total = torch.tensor([x])
    dist.all_reduce(total)
    return total.item()


@needs_horovod
def test_an_environment_that_sees_the_workbook_has_torchs_group_too() -> None:
    # Invariant: the ranks are a Python of their own, and their calls are logged as those of any others.
    run = launch(total_by_torch, per_rank([1.0, 2.0]), ranks=2, on="processes", beside="horovod", timeout=120)
    assert run.results == [3.0, 3.0]
    assert [event.op for event in run.events] == ["all_reduce"] * 2


# --- Training

RECIPE = Recipe(epochs=1, batch_size=128, learning_rate=0.05)


def by_horovod() -> data_parallel.TrainResult:
    from course_lib.training.horovod import train_by_horovod

    return train_by_horovod(RECIPE)


def shard_indices(length: int, epoch: int, seed: int) -> torch.Tensor:
    """As Horovod's own pieces deal them out."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    return order[dist.get_rank() :: dist.get_world_size()]


PIECES = Pieces(shard_indices, lambda correct, total: correct / total, lambda load: load())


class Averaging:
    """An optimizer that averages before it steps, as the student's DistributedOptimizer does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.zero_grad = inner.zero_grad

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        self.inner.step()


def from_rank_zero(model: torch.nn.Module) -> torch.nn.Module:
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)
    return model


BY_OPTIMIZER = Replication(
    "an optimizer", from_rank_zero, wrap_optimizer=lambda optimizer, module: Averaging(optimizer)
)


def by_torch(replication: Replication) -> data_parallel.TrainResult:
    return data_parallel.train(RECIPE, replication, PIECES)


@needs_horovod
def test_one_recipe_by_horovod_ddp_and_an_optimizer_is_one_training() -> None:
    # Invariant: what makes the replicas one changes nothing but rounding; all ranks have the same weights.
    horovod = launch(by_horovod, ranks=2, on="horovod", quiet=True).results
    ddp = launch(by_torch, TORCH_DDP, ranks=2, on="processes", quiet=True).results
    optimizer = launch(by_torch, BY_OPTIMIZER, ranks=2, on="processes", quiet=True).results
    assert horovod[0].fingerprint == horovod[1].fingerprint
    for other in (ddp, optimizer):
        assert horovod[0].losses == pytest.approx(other[0].losses, abs=1e-4)


@needs_horovod
@pytest.mark.parametrize(
    ("nccl", "gpus", "wanted", "expected"),
    [
        (1, 4, None, "cuda:2"),
        # A batch system that shows each rank its own GPU alone.
        (1, 1, None, "cuda:0"),
        (0, 4, None, "cpu"),
        (0, 4, "cuda", "cuda:2"),
        (1, 0, None, "cpu"),
        (1, 4, "cpu", "cpu"),
    ],
)
def test_a_rank_has_its_own_gpu_where_horovod_is_built_with_nccl(
    nccl: int, gpus: int, wanted: str | None, expected: str, monkeypatch: Any
) -> None:
    import horovod.torch as hvd

    from course_lib.training.horovod import horovod_device

    current: list[int] = []
    found = torch.device("cuda") if gpus else None
    monkeypatch.setattr(hvd, "local_rank", lambda: 2)
    monkeypatch.setattr(hvd, "nccl_built", lambda: nccl)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    # Set and taken away, so that what the function sets is gone with the test.
    monkeypatch.setenv("LOCAL_RANK", "")
    monkeypatch.delenv("LOCAL_RANK")
    device = horovod_device(wanted)
    assert str(device) == expected
    assert current == ([device.index] if device.type == "cuda" else [])


def horovodrun(*words: object, options: Sequence[str] = ("-np", "2"), folder: Path) -> str:
    """What a command under horovodrun prints."""
    tool = ROOT / "course_lib" / "beside" / "horovodrun.py"
    launcher = [sys.executable, "-P", str(tool), "--gloo", "--network-interface", "lo"]
    command = [*launcher, *options, sys.executable, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def undisturbed(folder: Path) -> bool:
    return train(replace(elastic.RECIPE, epochs=1), folder, SavedByTorch(folder / "checkpoints", every=99))


@needs_horovod
def test_elastic_training_survives_a_killed_worker(tmp_path: Path) -> None:
    # Invariant: after rank 1 is killed in step 6, training goes on from the commit after step 4, and learns
    # what torch's own learns undisturbed: each step has the same samples and, but for rounding, the same
    # loss.
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    folders = [tmp_path / name for name in ("killed", "undisturbed")]
    for folder in folders:
        folder.mkdir()
    options = ("-np", "2", "--min-np", "1", "--max-np", "2", "--host-discovery-script", str(hosts))
    said = horovodrun(ROOT / "tests" / "horovod_faults.py", folders[0], 6, options=options, folder=tmp_path)
    assert "finished after 12 steps" in said
    assert launch(undisturbed, folders[1], ranks=2, on="processes", quiet=True).results == [True, True]
    logs = [[json.loads(line) for line in (each / LOG).read_text().splitlines()] for each in folders]
    steps = [each["step"] for each in logs[0]]
    assert steps == [*range(6), *range(4, 12)]
    assert [each["ranks"] for each in logs[0]] == [2] * 6 + [1] * 8
    taken = {each["step"]: each for each in logs[0]}
    for each in logs[1]:
        assert taken[each["step"]]["index_sum"] == each["index_sum"]
        assert taken[each["step"]]["loss"] == pytest.approx(each["loss"], rel=1e-3)


# --- The tutorial


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The course's default data as a file such as Keras' mnist.npz."""
    data = load("digits")
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    parts = {"train": data.train, "test": data.test}
    images = {f"x_{name}": (part.images[:, 0] * 255).byte().numpy() for name, part in parts.items()}
    labels = {f"y_{name}": part.labels.numpy() for name, part in parts.items()}
    np.savez(path, **images, **labels)
    return path


@needs_horovod
def test_check_hvd_says_what_is_built_and_who_is_there(tmp_path: Path) -> None:
    said = horovodrun(TUTORIAL / "check_hvd.py", folder=tmp_path)
    assert f"for PyTorch {torch.__version__}, built with gloo" in said
    assert "rank 1 of 2, local rank 1 of 2 on" in said
    assert "the sum of all ranks is 1, as it should be" in said


def test_the_tutorials_ranks_share_the_data(digits: Path, monkeypatch: Any) -> None:
    # Invariant: every sample is one rank's, and labels are one-hot.
    monkeypatch.syspath_prepend(str(TUTORIAL))
    monkeypatch.setattr(sys, "argv", ["script", str(digits)])
    from dataset import get_dataset

    whole = get_dataset()
    parts = [get_dataset(rank, 3) for rank in range(3)]
    for part in (0, 1):
        assert sum(len(each[part][0]) for each in parts) == len(whole[part][0])
        assert np.array_equal(parts[1][part][0], whole[part][0][1::3])
    images, labels = whole[0]
    assert images.shape[1:] == (8, 8, 1)
    assert images.max() == 1.0
    assert np.array_equal(labels.sum(axis=1), np.ones(len(labels)))
