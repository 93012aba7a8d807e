"""Training on real processes of which one is killed: with a parameter server, and by all-reduce.

    python killed_worker.py server [--kill STEP]
    python killed_worker.py all-reduce [--kill STEP]

Three workers make 40 steps each on a small problem. With --kill, the last worker kills itself with SIGKILL
before that step, as a machine does that loses its power. The server speaks by RPC: whoever wants the weights
calls `read` on it, and whoever has a gradient calls `update`. Printed is one line of JSON.
"""

import argparse
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc

WORKERS, STEPS, LR = 3, 40, 0.1
TARGET = torch.arange(8.0)
"""The loss is half the squared distance to it; each batch sees it with some noise."""


class ParameterServer:
    """The weights [8], a count of their updates, and how old each gradient was when it came."""

    def __init__(self) -> None:
        self.weights, self.version, self.ages = torch.zeros(8), 0, list[int]()
        self.lock = threading.Lock()  # calls of several workers run in several threads

    def read(self) -> tuple[Tensor, int]:
        with self.lock:
            return self.weights.clone(), self.version

    def update(self, gradient: Tensor, version: int) -> None:
        with self.lock:
            self.weights -= LR * gradient
            self.ages.append(self.version - version)
            self.version += 1


SERVER = ParameterServer()


def read() -> tuple[Tensor, int]:
    """Called from other processes, on the one whose SERVER counts."""
    return SERVER.read()


def update(gradient: Tensor, version: int) -> None:
    """Likewise."""
    SERVER.update(gradient, version)


def gradient_at(weights: Tensor) -> Tensor:
    """Of one noisy batch, after a millisecond's work."""
    time.sleep(0.001)
    return weights - TARGET + 0.1 * torch.randn(8)


def join_rpc(name: str, rank: int, meeting: str) -> None:
    """Become one of the processes that can call each other."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}", rpc_timeout=20)
    rpc.init_rpc(name, rank=rank, world_size=WORKERS + 1, rpc_backend_options=options)


def serve(meeting: str, done: Event, results: SimpleQueue) -> None:
    """Answer calls until there is nobody left who could call."""
    join_rpc("server", 0, meeting)
    done.wait()
    ages = SERVER.ages
    distance = (SERVER.weights - TARGET).norm().item()
    results.put({"updates": SERVER.version, "mean_age": sum(ages) / len(ages), "distance": distance})
    rpc.shutdown(graceful=False)


def work_with_server(worker: int, meeting: str, kill_at: int | None) -> None:
    """Read, compute, push; nobody else is asked."""
    join_rpc(f"worker{worker}", worker + 1, meeting)
    for step in range(STEPS):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        weights, version = rpc.rpc_sync("server", read)
        rpc.rpc_sync("server", update, (gradient_at(weights), version))
    rpc.shutdown(graceful=False)


def work_by_all_reduce(worker: int, meeting: str, kill_at: int | None, results: SimpleQueue) -> None:
    """Compute and average with everybody, in each step."""
    dist.init_process_group(
        "gloo", f"file://{meeting}", timeout=timedelta(seconds=20), rank=worker, world_size=WORKERS
    )
    weights = torch.zeros(8)
    for step in range(STEPS):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = gradient_at(weights)
        try:
            dist.all_reduce(gradient)
        except RuntimeError as error:
            results.put({"steps": step, "error": str(error).splitlines()[0]})
            os._exit(1)  # a group with a dead member cannot be left in order
        weights -= LR * gradient / WORKERS
    results.put({"steps": STEPS, "error": ""})


def main() -> None:
    """Start everybody, wait for the workers, and tell what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=["server", "all-reduce"])
    parser.add_argument("--kill", type=int)
    asked = parser.parse_args()
    processes = multiprocessing.get_context("fork")
    results, done = processes.SimpleQueue(), processes.Event()
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        kills = [None] * (WORKERS - 1) + [asked.kill]
        if asked.how == "server":
            server = processes.Process(target=serve, args=(meeting, done, results))
            jobs = [(work_with_server, (worker, meeting, kill)) for worker, kill in enumerate(kills)]
            server.start()
        else:
            jobs = [
                (work_by_all_reduce, (worker, meeting, kill, results)) for worker, kill in enumerate(kills)
            ]
        workers = [processes.Process(target=target, args=arguments) for target, arguments in jobs]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
        done.set()
        told = results.get()
        if asked.how == "server":
            server.join()
    print(json.dumps({"exit_codes": [process.exitcode for process in workers], **told}))


if __name__ == "__main__":
    main()
