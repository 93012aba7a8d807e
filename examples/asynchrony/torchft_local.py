"""Local SGD and DiLoCo under torchft: replicas that meet once a period.

    python torchft_local.py

Two replicas, each a process of its own with data of its own, train a small model, once under torchft's
`LocalSGD` and once under its `DiLoCo`. Printed is one line of JSON: for each method the largest difference
between the replicas' weights at the end, and to those of the same training in one process and plain PyTorch.
"""

import json
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft_replicas import manager_of, start

REPLICAS, PERIOD, PERIODS = 2, 5, 3
METHODS = ("LocalSGD", "DiLoCo")


def new_model() -> nn.Linear:
    """The same on all replicas."""
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def inner_of(model: nn.Module) -> torch.optim.Optimizer:
    """Of a replica's own steps."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def outer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Of DiLoCo's steps by what the replicas have moved on average, with the paper's numbers."""
    return torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def losses(model: nn.Module, replica: int) -> Iterator[Tensor]:
    """Of this replica's batches."""
    generator = torch.Generator().manual_seed(1 + replica)
    for _ in range(PERIOD * PERIODS):
        inputs = torch.randn(8, 4, generator=generator)
        yield nn.functional.mse_loss(model(inputs), (1 + replica) * inputs[:, :2])


def trained(method: str, number: int, lighthouse: str) -> list[list[float]]:
    """The weights of this replica after training under torchft."""
    model = new_model()
    inner = inner_of(model)
    manager = manager_of(
        f"replica{number}",
        lighthouse,
        model.state_dict,
        model.load_state_dict,
        min_replica_size=REPLICAS,
        use_async_quorum=False,
        init_sync=False,  # all begin with the same weights
    )
    meeting = (
        LocalSGD(manager, model, inner, PERIOD)
        if method == "LocalSGD"
        else DiLoCo(manager, [model], inner, outer_of(model), PERIOD, pin_memory=False)
    )
    with meeting:
        for loss in losses(model, number):
            inner.zero_grad()
            loss.backward()
            inner.step()
    manager.shutdown(wait=False)
    return model.weight.tolist()


def in_one_process(method: str) -> Tensor:
    """The same training, written out."""
    start_of_period = new_model()
    outer = outer_of(start_of_period)
    models = [new_model() for _ in range(REPLICAS)]
    trainings = [(losses(model, number), inner_of(model)) for number, model in enumerate(models)]
    for _ in range(PERIODS):
        for batches, inner in trainings:
            for _ in range(PERIOD):
                inner.zero_grad()
                next(batches).backward()
                inner.step()
        with torch.no_grad():
            means = [
                torch.stack(each).mean(0) for each in zip(*(m.parameters() for m in models), strict=True)
            ]
            for weight, mean in zip(start_of_period.parameters(), means, strict=True):
                if method == "LocalSGD":
                    weight.copy_(mean)
                else:
                    weight.grad = weight - mean
        if method == "DiLoCo":
            outer.step()
        for model in models:
            model.load_state_dict(start_of_period.state_dict())
    return start_of_period.weight.detach()


def compared(method: str, weights: list[Tensor]) -> dict[str, float]:
    """How far the replicas are from one another, and from the same training in one process."""
    expected = in_one_process(method)
    return {
        "apart": max((each - weights[0]).abs().max().item() for each in weights),
        "from plain PyTorch": max((each - expected).abs().max().item() for each in weights),
        "moved": (expected - new_model().weight).abs().max().item(),
    }


def main() -> None:
    """Start the replicas, and compare their weights."""
    houses = [
        LighthouseServer(bind="127.0.0.1:0", min_replicas=REPLICAS, join_timeout_ms=3000) for _ in METHODS
    ]
    addresses = [house.address() for house in houses]
    running = [start(str(number), *addresses, script=__file__) for number in range(REPLICAS)]
    try:
        told = [json.loads(each.communicate(timeout=240)[0]) for each in running]
    finally:
        for process in running:
            process.kill()
        for house in houses:
            house.shutdown()
    weights = zip(*([torch.tensor(each) for each in replica] for replica in told), strict=True)
    print(json.dumps({method: compared(method, each) for method, each in zip(METHODS, weights, strict=True)}))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        methods = zip(METHODS, sys.argv[2:], strict=True)
        print(json.dumps([trained(method, int(sys.argv[1]), house) for method, house in methods]))
    else:
        main()
