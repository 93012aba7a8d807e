"""Jobs on a virtual Slurm cluster: srun against torchrun, papermill inside an allocation against outside.

Both sides run in the same job or one after the other on the same machine, so their ratio means something
where the seconds do not.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Row, median_seconds
from course_lib.slurm.virtual.lifecycle import Shape, VirtualCluster, missing_programs, temporary_cluster
from graders.grading.registry import exercises
from workbook.paths import Places
from workbook.release import write_source
from workbook.unit import read_units

ROOT = Path(__file__).parents[1]
_RUNS = 3
_UNIT = "00_hello_ranks"
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
"""In which the units find torchrun."""
_JOIN = (
    "import torch; import torch.distributed as dist; "
    "from course_lib.runtime.processes.rank_environment import join_group; "
    "join_group(); dist.all_reduce(torch.ones(4)); dist.destroy_process_group()"
)
_LAUNCHES = f"""
import time
from course_lib import launch
from benchmarks.programs import small_all_reduce
times = []
for _ in range({_RUNS + 1}):
    started = time.perf_counter()
    launch(small_all_reduce, on="slurm", quiet=True)
    times.append(time.perf_counter() - started)
print(times[0], sorted(times[1:])[{_RUNS // 2}])
"""


def rows() -> Iterator[Row]:
    """All measurements; none, with a sentence, where Slurm is not installed."""
    if missing := missing_programs():
        print(f"Slurm is not measured: not installed are {', '.join(missing)}.", file=sys.stderr)
        return
    with temporary_cluster(Shape(nodes=2)) as cluster:
        first, later, by_srun, by_torchrun = _starts(cluster)
        yield _against(
            "4 tasks on 2 nodes to the first all-reduce: srun", by_srun, by_torchrun, "torchrun", 0.8
        )
        yield _against('the same, launch(on="slurm"), first', first, by_torchrun, "torchrun", 0.8)
        yield _against('the same, launch(on="slurm"), later', later, by_torchrun, "torchrun", 5)
        inside, outside = _papermill(cluster)
        yield _against(f"papermill of {_UNIT} inside an allocation", inside, outside, "outside", 0.7)


def _against(what: str, ours: float, other: float, name: str, at_least: float) -> Row:
    """A row whose aim is a ratio: the other's time is at least so many times ours."""
    return Row(what, ours, other, name, f"ratio at least {at_least:g}", other / ours >= at_least)


def _starts(cluster: VirtualCluster) -> tuple[float, float, float, float]:
    """Seconds: first launch, later launches, srun, torchrun."""
    first, later = map(float, _in_allocation(cluster, [sys.executable, "-c", _LAUNCHES]).split()[-2:])
    tasks = [sys.executable, "-c", _JOIN]
    by_srun = _timed(cluster, ["srun", "-N2", "-n4", "--ntasks-per-node=2", *tasks])
    program = cluster.shared / "join.py"
    program.write_text(_JOIN)
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nnodes=2", "--nproc-per-node=2"]
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", str(program)]
    by_torchrun = _timed(cluster, ["srun", "-N2", "-n2", "--ntasks-per-node=1", *torchrun, *meeting])
    return first, later, by_srun, by_torchrun


def _in_allocation(cluster: VirtualCluster, words: Sequence[str]) -> str:
    settings = {"PYTHONPATH": str(ROOT), "COURSE_HOME": str(cluster.shared), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    settings["PATH"] = _PATH
    environment = cluster.environment | settings
    command = ["salloc", "--quiet", "-N2", "--ntasks-per-node=2", "--time=10", *words]
    done = cluster.run(command, env=environment, stdout=subprocess.PIPE)
    done.check_returncode()
    return done.stdout


def _timed(cluster: VirtualCluster, words: Sequence[str], runs: int = _RUNS) -> float:
    """Median seconds of a command in an allocation, without the time to get that."""
    script = (
        f"start=$(date +%s.%N); {shlex.join(words)} >/dev/null 2>&1 || exit 1; echo $start $(date +%s.%N)"
    )

    def once() -> float:
        begin, end = map(float, _in_allocation(cluster, ["bash", "-c", script]).split()[-2:])
        return end - begin

    return sorted(once() for _ in range(runs))[runs // 2]


def _papermill(cluster: VirtualCluster) -> tuple[float, float]:
    """Seconds of papermill on a whole unit of the workbook, solved, on a node of an allocation and here."""
    places = Places(cluster.shared / "workbook")
    unit = next(unit for unit in read_units(ROOT / "solutions") if unit.name == _UNIT)
    notebook = write_source(unit, exercises(_UNIT), places)
    words = [sys.executable, "-m", "workbook.run_notebook", str(notebook), str(cluster.shared / "out.ipynb")]
    words += ["--cwd", str(cluster.shared), "--kernel", "python3", "--no-progress-bar"]
    settings = {"PATH": _PATH, "PYTHONPATH": str(ROOT), "COURSE_HOME": str(cluster.shared)}
    environment = os.environ | settings
    # Once: it takes as long as a unit does.
    outside = median_seconds(
        lambda: subprocess.run(words, env=environment, capture_output=True, check=True), runs=1, warm_up=0
    )
    return _timed(cluster, ["srun", "-N1", "-n1", *words], runs=1), outside


if __name__ == "__main__":
    started = time.perf_counter()
    for row in rows():
        print(f"{row.what}: {row.ours:.2f} s; {row.other_name} {row.other:.2f} s; ratio {row.ratio:.2f}")
    print(f"measured in {time.perf_counter() - started:.0f} s")
