"""One door to every engine: `launch` runs a plain `torch.distributed` function on many ranks.

It runs in the launching process: a kernel, a script, a batch job. A thin module an engine, loaded when it is
asked for, checks what only that engine asks, has `runtime` do the work, and makes a `Run` or an error of what
comes back. It imports runtime, cluster, slurm, and figures where one is drawn: never training or notebook.
"""

import importlib
from collections.abc import Callable
from typing import Any

from course_lib.cluster.topology import UNDISTURBED, Cluster
from course_lib.errors import BadLaunch
from course_lib.launch.run import Run
from course_lib.runtime.request import LaunchRequest, PerRank, check_per_rank, per_rank

__all__ = ["ENGINES", "launch", "per_rank"]

ENGINES = {
    "simulated": "course_lib.launch.simulated",
    "processes": "course_lib.launch.processes",
    "slurm": "course_lib.launch.slurm",
    "horovod": "course_lib.launch.horovod",
}
"""Engine name -> module with a function `run(request: LaunchRequest) -> Run`.

A module may also have `place(ranks: int | None) -> tuple[int, Cluster]`: how many ranks a launch has, and
where they sit, when it names no cluster.
"""

_BESIDE = ("processes", "horovod")
"""Engines whose ranks may run in an environment of their own."""


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int | None = None,
    on: str = "simulated",
    cluster: Cluster | None = None,
    backend: str | None = None,
    timeout: float = 60.0,
    seed: int = 0,
    quiet: bool = False,
    beside: str | None = None,
    memory: bool = False,
) -> Run:
    """Call `function(*arguments)` on every rank of an initialised default process group, and wait for all.

    function: plain `torch.distributed` code. Its group is ready; it calls no `init_process_group`.
    arguments: an argument made by `per_rank` gives rank r its item r; any other goes to every rank (simulated
        ranks get the very same object unless it is a tensor or a module, which each gets a copy of).
    ranks: how many; by default as many as `cluster` holds, or as the `per_rank` arguments have values, or on
        "slurm" as the allocation has tasks.
    on: "simulated" (in this process, virtual time, deterministic), "processes" (real ones on this
        machine, on a GPU each with NCCL where there are enough, else on CPUs with Gloo), "slurm" (on the
        nodes of the allocation that this process runs in) or "horovod" (real ones on this machine,
        `hvd.init()` done, and no torch group).
    cluster: where the ranks sit, and in the simulator how fast its links are and what is wrong with them (see
        `Cluster` and `course_lib.cluster.presets`); by default one node, on "slurm" those of the allocation.
    backend: for real processes: "gloo" or "nccl". By default each rank has a GPU of its own, and NCCL for
        tensors on it; or, where there are fewer GPUs than ranks, Gloo, and the ranks see no GPU. With "gloo"
        they share the GPUs that there are: `rank_device("cuda")` is one of them.
    timeout: seconds of real time after which the ranks are stopped.
    seed: each rank's random state starts from it and from nothing else, the same on every rank, as after
        `torch.manual_seed(seed)`.
    quiet: do not show what the ranks print; `Run.outputs` has it in any case.
    beside: for "processes" and "horovod", the environment in which the ranks run, by its name in `course
        beside`: "horovod-tensorflow". By default that of this process.
    memory: record what each rank's tensors hold, for `Run.memory` and the timeline; it slows the ranks down.

    For thousands of simulated ranks pass meta tensors, `torch.empty(n, device="meta")`: they have a shape and
    no data. If all tensors among the arguments are such, then each rank's function is run by itself, waiting
    for nobody, and who met whom and when is found out afterwards. That takes some microseconds a message, and
    times, traffic, events and reports are those of a run with data. A function that asks what only time or
    data can tell (`Work.is_completed`, a receive from any rank, a message of a tensor with data) is run again
    from its beginning, in turns, as functions on data are.

    On Gloo `is_completed` of an `isend` or `irecv` stays False until somebody waits for it, so a loop that
    asks comes to no end there; simulated ranks, and NCCL, say when the message is over.

    Raises BadLaunch (the call makes no sense), RankFailed, Deadlock, RankLost, CollectiveMismatch, LeftOpen,
    TimedOut.
    """
    if on not in ENGINES:
        known = ", ".join(f'"{name}"' for name in ENGINES)
        raise BadLaunch(f'There is no engine "{on}". The engines are {known}.')
    if not callable(function):
        raise BadLaunch(
            f"launch runs a function, but got {function!r}, a {type(function).__name__}. "
            f"Pass the function itself: launch(f, ranks=4), not launch(f(), ranks=4)."
        )
    engine = importlib.import_module(ENGINES[on])
    ranks, cluster = placed(ranks, on, cluster, arguments)
    check_per_rank(arguments, ranks)
    if on != "simulated" and cluster.disturbances != UNDISTURBED:
        raise BadLaunch(
            f'Only simulated ranks can be slowed down or lost, and this launch is on "{on}". '
            f'Leave out the cluster\'s with_... calls, or launch on="simulated".'
        )
    check_timeout(timeout)
    if beside is not None and on not in _BESIDE:
        raise BadLaunch(f'beside="{beside}" is for on="processes" and on="horovod", and this is on="{on}".')
    if beside is not None and memory:
        raise BadLaunch(
            f'memory=True follows PyTorch\'s tensors, which ranks beside="{beside}" may not have.'
        )
    request = LaunchRequest(function, arguments, ranks, cluster, timeout, seed, backend, beside, memory)
    run: Run = engine.run(request)
    if not quiet:
        show_outputs(run.outputs)
    return run


def show_outputs(outputs: list[str]) -> None:
    """Print what each rank printed, every line marked with its rank."""
    for rank, text in enumerate(outputs):
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")


def placed(
    ranks: int | None, on: str, cluster: Cluster | None, arguments: tuple[Any, ...] = ()
) -> tuple[int, Cluster]:
    """How many ranks there are on an engine, and where. arguments: of the launch. Raises BadLaunch."""
    engine = importlib.import_module(ENGINES[on])
    if cluster is None and hasattr(engine, "place"):
        ranks, cluster = engine.place(ranks)
    ranks = _rank_count(ranks, cluster, arguments)
    cluster = cluster or Cluster(devices_per_node=ranks)
    if ranks > cluster.size:
        raise BadLaunch(
            f"{ranks} ranks do not fit on a cluster of {cluster.nodes} x {cluster.devices_per_node} "
            f"devices. Ask for at most {cluster.size} ranks, or for a larger cluster."
        )
    return ranks, cluster


def check_timeout(seconds: float) -> None:
    """Raise BadLaunch for a deadline that has passed already."""
    if seconds <= 0:
        raise BadLaunch(f"timeout is {seconds} s; it must be above 0.")


def _rank_count(ranks: int | None, cluster: Cluster | None, arguments: tuple[Any, ...]) -> int:
    """The number of ranks that the caller asked for, or that follows from the other arguments."""
    if ranks is None and cluster is not None:
        ranks = cluster.size
    if ranks is None:
        ranks = next((len(value) for value in arguments if isinstance(value, PerRank)), None)
    if ranks is None:
        raise BadLaunch("How many ranks? Say launch(f, ranks=4), or give a cluster.")
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise BadLaunch(f"ranks is {ranks!r}, a {type(ranks).__name__}; it must be a whole number.")
    if ranks < 1:
        raise BadLaunch(f"ranks is {ranks}; a launch needs at least one rank.")
    return ranks
