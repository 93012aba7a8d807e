"""Launches on="slurm", made inside an allocation by a batch script; what came of each is left as JSON."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib import LaunchError, launch, per_rank, span
from course_lib.notebook.staying import Ranks, ranks


def sums(x: int) -> dict[str, Any]:
    with span("adding"):
        total = torch.tensor([float(x)])
        dist.all_reduce(total)
    print(f"rank {dist.get_rank()} speaks")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "COLOUR")
    seen = {"host": socket.gethostname(), "sum": total.item(), "task": task_of_this_rank()}
    return seen | {name: os.environ[name] for name in names}


def task_of_this_rank() -> str:
    """The process that has imported torch: the parent of the agent, whose child a rank is."""
    return Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]


def raises() -> None:
    if dist.get_rank() == 3:
        raise ValueError("no such thing")
    dist.barrier()


def everybody_receives() -> None:
    dist.recv(torch.zeros(3), (dist.get_rank() + 2) % 4)


def not_the_same() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(3))
    else:
        dist.barrier()


def is_killed() -> None:
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def never_ends() -> None:
    subprocess.Popen(["sleep", "987"])
    while True:
        time.sleep(0.05)


def steps() -> list[str]:
    """Names of the steps of this job that are under way."""
    command = ["squeue", "--steps", "--noheader", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%j"]
    return sorted(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def steps_after_an_end(seconds: float = 60) -> list[str]:
    """The same, once no launch's step is among them, or after so long.

    srun ends when the tasks have; the controller hears of it from the nodes, which may come a moment later.
    """
    deadline = time.monotonic() + seconds
    while "course-launch" in (names := steps()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return names


def outcome(function: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        run = launch(function, *arguments, on="slurm", quiet=True, **options)
    except (LaunchError, ValueError) as error:
        seen: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
    else:
        seen = {
            "results": run.results,
            "outputs": run.outputs,
            "nodes": run.cluster.nodes,
            "calls": sorted({event.op for event in run.events}),
            "ordered": all(0 <= event.start <= event.end for event in run.events),
            "sent": run.traffic.sent,
        }
    return seen | {"seconds": time.perf_counter() - started, "steps": steps()}


def stays() -> dict[str, Any]:
    """Ranks that stay, over all nodes, from one cell to the next."""
    with ranks(on="slurm") as four:
        four.run("import socket, torch, torch.distributed as dist\nx = torch.tensor(dist.get_rank() + 1)")
        values = [answer.value for answer in four.run("dist.all_reduce(x); socket.gethostname(), x.item()")]
        return {
            "values": values,
            "fetched": four[3]["x"].item(),
            "deadlock": ended(four, "dist.recv(torch.ones(1), (dist.get_rank() + 1) % 4)"),
            "killed": ended(four, "import os\nif dist.get_rank() == 0: os._exit(3)\ndist.barrier()"),
            "kept": [answer.value for answer in four.run("x.item()", on=(1, 2, 3))],
            "meet": [
                answer.value
                for answer in four.run(
                    "import torch, torch.distributed as dist\n"
                    "x = torch.tensor(dist.get_rank() + 1)\ndist.all_reduce(x); x.item()"
                )
            ],
        }


def ended(there: Ranks, code: str) -> str:
    """What a cell's end says."""
    try:
        there.run(code)
    except LaunchError as error:
        return str(error)
    return "well"


def main(output: Path) -> None:
    other = subprocess.Popen(["srun", "--overlap", "-N1", "-n1", "--job-name=bystander", "sleep", "300"])
    os.environ["COLOUR"] = "blue"
    outcomes = {
        "sums": outcome(sums, per_rank([1, 2, 3, 4])),
        "raises": outcome(raises),
        "deadlock": outcome(everybody_receives, timeout=200),
        "mismatch": outcome(not_the_same),
        "killed": outcome(is_killed),
        "again": outcome(sums, per_rank([1, 2, 3, 4])),
        "deadline": outcome(never_ends, timeout=1) | {"steps": steps_after_an_end()},
        "too many": outcome(sums, 1, ranks=5),
        "stays": stays(),
    }
    other.kill()
    output.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
