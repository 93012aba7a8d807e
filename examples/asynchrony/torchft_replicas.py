"""Replicas under torchft: one of them is killed, started again, and healed by another.

    python torchft_replicas.py

Three replicas train a small model, each a process of its own. After five steps together the last one ends
itself, as a machine does that loses its power. The others go on with two. It is started again, gets weights
and optimizer from one of them, and joins in; after ten more steps together all end. Printed is one line of
JSON: how many took part in each step, as each process saw it, and the weights at the end.
"""

import json
import os
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

REPLICAS, UNTIL_DEATH, UNTIL_END = 3, 5, 10


def replica(name: str, lighthouse: str, dies: bool) -> None:
    """Train until all have been together for UNTIL_END steps; prints who took part, and the weights."""
    torch.manual_seed(int(name[-1]))  # each would begin with weights of its own
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def state() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(saved: dict) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=name,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
    )
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


def start(number: int, lighthouse: str, dies: bool) -> subprocess.Popen[str]:
    """This script again, as a replica."""
    command = [sys.executable, __file__, f"replica{number}", lighthouse, *(["dies"] if dies else [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def main() -> None:
    """Start all, wait for the one that dies, start it again."""
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=3000)
    address = lighthouse.address()
    running = [start(number, address, number == REPLICAS - 1) for number in range(REPLICAS)]
    try:
        died = running[-1].wait(240)
        running[-1] = start(REPLICAS - 1, address, False)
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
