"""Replicas under torchft: one of them is killed, started again, and healed by another.

    python torchft_replicas.py

Three replicas train a small model, each a process of its own. After five steps together the last one ends
itself, as a machine does that loses its power. The others go on with two. It is started again, gets weights
and optimizer from one of them, and joins in; after ten more steps together all end. Printed is one line of
JSON: how many took part in each step, as each process saw it, and the weights at the end.
"""

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

REPLICAS, UNTIL_DEATH, UNTIL_END = 3, 5, 10


def manager_of(name: str, lighthouse: str, state: Callable, load: Callable, **options: object) -> Manager:
    """What finds out who takes part. state, load: what a replica that joins gets, and does with it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=state,
        replica_id=name,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
        **{"min_replica_size": 1, **options},
    )
    atexit.register(lambda: store)  # the store has to live as long as the process
    return manager


def replica(name: str, lighthouse: str, dies: bool) -> None:
    """Train until all have been together for UNTIL_END steps; prints who took part, and the weights."""
    torch.manual_seed(int(name[-1]))  # each would begin with weights of its own
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def state() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(saved: dict) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    manager = manager_of(name, lighthouse, state, load)
    wrapped, stepped = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    seen: list[tuple[int, int]] = []
    together = 0
    while together < UNTIL_END:
        if dies and together == UNTIL_DEATH:
            os._exit(1)
        stepped.zero_grad()  # here replicas agree on who takes part in this step
        inputs = torch.randn(8, 4)
        nn.functional.mse_loss(wrapped(inputs), inputs[:, :2]).backward()
        stepped.step()
        seen.append((manager.current_step(), manager.num_participants()))
        together = together + 1 if seen[-1][1] == REPLICAS else 0
        time.sleep(0.1)
    weights = [round(number, 5) for number in model.weight.flatten().tolist()]
    print(json.dumps({"name": name, "steps": seen, "weights": weights}), flush=True)
    manager.shutdown(wait=False)


def start(*arguments: str, script: str = __file__) -> subprocess.Popen[str]:
    """A script of this folder once more, as a replica."""
    return subprocess.Popen(
        [sys.executable, script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def main() -> None:
    """Start all, wait for the one that dies, start it again."""
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=3000)
    address = lighthouse.address()
    names = [f"replica{number}" for number in range(REPLICAS)]
    running = [start(name, address, *(["dies"] if name == names[-1] else [])) for name in names]
    try:
        died = running[-1].wait(240)
        running[-1] = start(names[-1], address)
        told = [json.loads(process.communicate(timeout=240)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
        lighthouse.shutdown()
    print(json.dumps({"died_with": died, "replicas": told}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        replica(sys.argv[1], sys.argv[2], "dies" in sys.argv)
    else:
        main()
