"""What a rank holds in memory, counted by hand, on simulated ranks and on real processes."""

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential

from course_lib import BadLaunch, Cluster, Run, launch, mark
from course_lib.models import Transformer
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import Memory, MemoryNotRecorded
from course_lib.runtime.communication.memory_tracker import call_followed
from tests.newer_torch import SINCE_2_8

WIDTH, SAMPLES, LAYERS = 16, 32, 4
WEIGHTS = LAYERS * WIDTH * WIDTH * 4
"""Bytes of the parameters of `layers()`."""
ACTIVATION = SAMPLES * WIDTH * 4
"""Bytes of what one layer gives to the next."""


def layers(count: int = LAYERS) -> nn.Sequential:
    """Linear layers without biases: for backward each needs its inputs, and nothing more."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)))


def step(model: nn.Sequential, x: Tensor) -> None:
    """A step on one rank after the other, a message between them, and a step of a model that they share."""
    y = model(x)
    mark("forward")
    y.sum().backward()
    del y
    mark("backward")
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    mark("step")
    optimizer.zero_grad()
    mark("zero_grad")
    if dist.get_rank() == 0:
        dist.isend(x + 1, 1).wait()
    else:
        received = torch.empty_like(x)
        dist.recv(received, 0)
    mark("message")
    received = None


def sharded_step(x: Tensor) -> None:
    """A step with FSDP2, which gathers a layer's parameters when they are needed and lets go of them."""
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    loss = model(x).sum()
    mark("sharded forward")
    loss.backward()
    mark("sharded backward")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.step()
    del loss
    mark("sharded step")


def both(model: nn.Sequential, x: Tensor) -> None:
    step(model, x)
    sharded_step(x)


@pytest.fixture(
    scope="module", params=[pytest.param(on, marks=SINCE_2_8) for on in ("simulated", "processes")]
)
def run(request: pytest.FixtureRequest) -> Run:
    return launch(both, layers(), torch.ones(SAMPLES, WIDTH), ranks=2, on=request.param, memory=True)


def held(run: Run, label: str) -> list[dict[str, int]]:
    """What each rank held when it marked an instant; kinds without bytes are left out."""
    now: list[dict[str, int]] = [{} for _ in range(run.ranks)]
    found: list[dict[str, int]] = [{} for _ in range(run.ranks)]
    for event in run.events:
        if event.kind is Kind.MEMORY:
            now[event.rank][event.op] = event.nbytes
        elif event.op == label:
            found[event.rank] = {kind: nbytes for kind, nbytes in now[event.rank].items() if nbytes}
    return found


# --- Counted by hand


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("forward", {"activations": LAYERS * ACTIVATION}),
        ("backward", {"gradients": WEIGHTS}),
        # Adam has two moments for each parameter, and counts its steps, once for each tensor.
        ("step", {"gradients": WEIGHTS, "optimizer": 2 * WEIGHTS + 4 * LAYERS}),
        ("zero_grad", {"optimizer": 2 * WEIGHTS + 4 * LAYERS}),
    ],
)
def test_a_step_holds_what_can_be_counted_by_hand(run: Run, label: str, expected: dict[str, int]) -> None:
    # After forward each layer's output waits for backward; after backward none does, and gradients are there.
    assert held(run, label) == [{"parameters": WEIGHTS, "inputs": ACTIVATION, **expected}] * 2


def test_what_is_received_is_held_and_what_the_engine_copies_is_not(run: Run) -> None:
    # Rank 0 sent a sum that it has let go of; rank 1 holds what it received.
    assert [rank.get("activations", 0) for rank in held(run, "message")] == [0, ACTIVATION]


def test_a_sharded_model_holds_a_share_between_its_steps(run: Run) -> None:
    # Beside the other model: half of the weights and of the gradients stay on each of two ranks; in forward
    # whole layers are there.
    before, after = held(run, "zero_grad"), held(run, "sharded step")
    for own_before, own_after in zip(before, after, strict=True):
        assert own_after["parameters"] - own_before["parameters"] == WEIGHTS // 2
        assert own_after["gradients"] == WEIGHTS // 2
    for rank in run.memory.ranks:
        assert rank.peak_of("parameters") > WEIGHTS + WEIGHTS // 2


def test_the_end_of_a_run_leaves_what_was_given(run: Run) -> None:
    for rank in run.memory.ranks:
        assert rank.samples[-1].held["inputs"] == ACTIVATION
        # Index tensors of FSDP2, in circles that the garbage collector has not come to.
        assert rank.samples[-1].held["activations"] < 100


def test_samples_are_in_order_and_no_kind_is_ever_negative(run: Run) -> None:
    for rank in run.memory.ranks:
        times = [sample.seconds for sample in rank.samples]
        assert times == sorted(times)
        assert min(min(sample.held.values()) for sample in rank.samples) >= 0
        assert rank.peak <= sum(rank.peak_of(kind) for kind in rank.samples[-1].held)


def test_engines_agree_change_by_change() -> None:
    # What is held, in which order, does not depend on what runs the ranks.
    changes = []
    for on in ("simulated", "processes"):
        memory = launch(step, layers(), torch.ones(SAMPLES, WIDTH), ranks=2, on=on, memory=True).memory
        changes.append([[sample.held for sample in rank.samples] for rank in memory.ranks])
    assert changes[0] == changes[1]


# --- Ways to hold less


def test_recomputation_lowers_the_peak() -> None:
    # Of 16 layers in 4 segments: instead of 16 outputs, 4 and those of the segment that is computed again.
    def f(model: nn.Sequential, x: Tensor, segments: int) -> None:
        y = checkpoint_sequential(model, segments, x, use_reentrant=False) if segments else model(x)
        y.sum().backward()

    model, x = layers(16), torch.ones(SAMPLES, WIDTH)
    peaks = [
        launch(f, model, x, n, ranks=1, memory=True).memory.ranks[0].peak_of("activations") for n in (0, 4)
    ]
    # Besides what is kept: the gradient that comes, the one that goes, and a weight's.
    working = 2 * ACTIVATION + WIDTH * WIDTH * 4
    assert 16 * ACTIVATION <= peaks[0] <= 16 * ACTIVATION + working
    assert 7 * ACTIVATION <= peaks[1] <= 8 * ACTIVATION + working


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_shapes_alone_hold_what_data_would(device: str) -> None:
    def f(device: str) -> Any:
        with torch.device(device):
            model = Transformer()
            tokens = torch.zeros(2, 64, dtype=torch.int64)
        model(tokens).sum().backward()
        dist.all_reduce(model.head.norm.weight.grad)
        mark("done")

    # Its inputs are made by an operation.
    weights = 4 * sum(weight.numel() for weight in Transformer().parameters())
    expected = {"parameters": weights, "gradients": weights, "activations": 2 * 64 * 8}
    assert held(launch(f, device, ranks=2, memory=True), "done") == [expected] * 2


def test_shapes_beside_data_hold_nothing() -> None:
    def f(x: Tensor) -> Any:
        skeleton = nn.Linear(WIDTH, WIDTH, device="meta")
        mark("done")
        return skeleton.weight.shape, x

    given = {"inputs": SAMPLES * WIDTH * 4}
    assert held(launch(f, torch.ones(SAMPLES, WIDTH), ranks=1, memory=True), "done") == [given]


# --- What it costs and leaves


def test_following_memory_changes_nothing_else() -> None:
    # Virtual time, calls and results are the same; without it there is no event of memory.
    def f(model: nn.Sequential, x: Tensor) -> Tensor:
        model(x).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        return torch.stack([parameter.grad for parameter in model.parameters() if parameter.grad is not None])

    model, cluster = layers(), Cluster(devices_per_node=2, flops=1e9, memory_bandwidth=1e9)
    plain, followed = (
        launch(f, model, torch.ones(SAMPLES, WIDTH), cluster=cluster, memory=memory)
        for memory in (False, True)
    )
    assert [event for event in followed.events if event.kind is not Kind.MEMORY] == list(plain.events)
    assert followed.seconds == plain.seconds
    assert torch.equal(followed.results[0], plain.results[0])
    with pytest.raises(MemoryNotRecorded, match="memory=True"):
        _ = plain.memory


def test_ranks_of_another_environment_are_not_followed() -> None:
    with pytest.raises(BadLaunch, match="follows PyTorch's tensors"):
        launch(print, ranks=1, on="processes", beside="horovod-tensorflow", memory=True)


class Recorder:
    """Lets go of a tensor while a change is being recorded, as the garbage collector may."""

    communicating = False

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.kept: list[Tensor] = []

    def record_memory(self, kind: str, nbytes: int) -> None:
        self.kept.clear()
        self.told.append((kind, nbytes))


def test_a_change_while_another_is_recorded_comes_after_it() -> None:
    # Invariant: the last that is told of a kind is what is held.
    recorder = Recorder()

    def f() -> list[Tensor]:
        recorder.kept.append(torch.ones(8))
        return [torch.ones(4)]

    result = call_followed(recorder, f, ())
    assert [nbytes for kind, nbytes in recorder.told if kind == "activations"] == [32, 48, 16]
    assert len(result) == 1


def test_parameters_are_left_without_hooks_and_nothing_is_told_afterwards() -> None:
    recorder, model = Recorder(), layers(1)
    loss = call_followed(recorder, lambda: model(torch.ones(1, WIDTH)).sum(), ())
    told = len(recorder.told)
    loss.backward()
    del loss
    gc.collect()
    assert len(recorder.told) == told
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


# --- From events


def _change(rank: int, at: float, kind: str, nbytes: int) -> Event:
    return Event(rank, kind, Kind.MEMORY, at, at, 0, nbytes)


def test_peaks_are_of_what_is_held_at_a_time() -> None:
    # Rank 0 never holds both at their largest; rank 1 holds nothing.
    changes = [("parameters", 5), ("activations", 10), ("activations", 2), ("parameters", 9)]
    events = [_change(0, second, *change) for second, change in enumerate(changes)]
    memory = Memory.of([*events, _change(1, 0.0, "parameters", 0)], 2)
    assert (memory[0].peak, memory[0].peak_of("activations"), memory[0].peak_of("parameters")) == (15, 10, 9)
    assert memory[0].at(2.5) == {"parameters": 5, "activations": 2}
    assert memory[0].at(-1.0) == {}
    assert (memory.peak, memory[1].peak, len(memory)) == (15, 0, 2)
    assert str(memory).splitlines()[1].split() == ["0", "15", "9", "0", "0", "0", "10"]
