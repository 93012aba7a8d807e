"""The GPU that graders lend: it refuses, and makes a program wait, where a real one does.

Each program is also run on a real one where there is one.
"""

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import launch
from graders.units.gpu import HOST, WAITS, Gpu, gpu, on_host

Program = Callable[[torch.device], object]
LABELS = [0, 2, 1, 2]


@cache
@torch.inference_mode(False)
def x(device: torch.device) -> Tensor:
    return torch.arange(12.0).reshape(4, 3).to(device)


@cache
@torch.inference_mode(False)
def y(device: torch.device) -> Tensor:
    return torch.tensor(LABELS).to(device)


def model(device: torch.device) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.1), nn.Linear(5, 3)).to(device)


def trained(device: torch.device) -> Tensor:
    net = model(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x(device)), y(device))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.detach()


def with_clipping(device: torch.device) -> Tensor:
    net = model(device)
    functional.cross_entropy(net(x(device)), y(device)).backward()  # type: ignore[no-untyped-call]
    return nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def model_moved_after_training(device: torch.device) -> Tensor:
    """Momentum stays on the host when the model goes."""
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for place in (HOST, device):
        net.to(place)
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x(place)), y(place))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss


@torch.inference_mode()
def in_inference_mode(device: torch.device) -> Tensor:
    net = model(device).eval()
    moved = (torch.as_tensor(each, device=device) for each in (x(HOST).float(), y(HOST).long()))
    inputs, targets = moved
    total = torch.zeros((), device=device)
    total += functional.cross_entropy(net(inputs), targets, reduction="sum")
    return total


def data_anew(device: torch.device) -> Tensor:
    other = x(device).clone()
    other.data = other + 1
    return other


def host_sum(device: torch.device) -> Tensor:
    return torch.zeros(()).add_(x(device).sum())


def written_into(device: torch.device) -> Tensor:
    home = torch.zeros(4, 3)
    home[:] = x(device)
    return home


def filled_where_a_mask_is(device: torch.device) -> Tensor:
    filled = x(device).clone()
    filled[filled > 2] = 0.0
    return filled


def parameters_moved_one_by_one(device: torch.device) -> Tensor:
    net = nn.Linear(3, 3)
    for parameter in net.parameters():
        parameter.data = parameter.data.to(device)
    loss = functional.cross_entropy(net(x(device)), y(device))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def without_mixed_precision(device: torch.device) -> Tensor:
    with torch.autocast(device.type, dtype=torch.float16, enabled=False):
        return model(device)(x(device))  # type: ignore[no-any-return]


def in_another_thread(device: torch.device) -> Tensor:
    def made() -> Tensor:
        return x(HOST).to(device, torch.float64) + torch.tensor([1.0, 2.0, 3.0], device=device)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(made).result() + torch.ones(3, device=device)


def gradients_by_functions(device: torch.device) -> object:
    net = nn.Linear(3, 3).to(device)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        logits = torch.func.functional_call(net, parameters, (x(device),))
        return functional.cross_entropy(logits, y(device))

    return torch.func.grad(loss)({name: each.detach() for name, each in net.named_parameters()})


def loaded(device: torch.device) -> nn.Module:
    file = io.BytesIO()
    torch.save(model(HOST).state_dict(), file)
    file.seek(0)
    net = model(device)
    net.load_state_dict(torch.load(file, map_location=device))
    return net


RUNS: dict[str, Program] = {
    "a training": trained,
    "gradients clipped": with_clipping,
    "inference mode": in_inference_mode,
    "a number of the host": lambda d: x(d) * torch.tensor(2.0),
    "a sum that begins on the host": lambda d: torch.tensor(0.0) + x(d).sum(),
    "an index of the host": lambda d: x(d)[torch.tensor([0, 2])],
    "filled with a number of the host": lambda d: x(d).masked_fill(x(d) > 2, torch.tensor(0.0)),
    "made there": lambda d: torch.zeros(3, device=d) + torch.tensor([1.0, 2.0, 3.0], device=d),
    "made like it": lambda d: (torch.ones_like(x(d)), x(d).new_zeros(3), x(d).new_tensor([1.0])),
    "moved by another": lambda d: x(HOST).to(x(d)) + x(HOST).type_as(x(d)),
    "copied to it": lambda d: torch.zeros_like(x(d)).copy_(x(HOST)),
    "labels of so many classes": lambda d: functional.one_hot(y(d), 3),
    "data set anew": data_anew,
    "filled where a mask is": filled_where_a_mask_is,
    "parameters moved one by one": parameters_moved_one_by_one,
    "mixed precision that is off": without_mixed_precision,
    "moved by another thread": in_another_thread,
    "loaded for it": loaded,
    "gradients by functions": gradients_by_functions,
    "a model copied": lambda d: copy.deepcopy(model(d))(x(d)),
    "there already": lambda d: x(d).to(d),
    "pinned first": lambda d: x(HOST).pin_memory().to(d, non_blocking=True),
    "shapes": lambda d: (len(x(d)), x(d).numel(), x(d).device.type, x(d).shape),
}
PROGRAMS_THAT_WAIT: dict[str, Program] = {
    "item": lambda d: x(d).sum().item(),
    "float": lambda d: float(x(d).sum()),
    "a condition": lambda d: bool((x(d) > 3).any()),
    "a text": lambda d: f"{x(d).sum():.2f}",
    "a print": lambda d: repr(x(d)),
    "a list": lambda d: x(d).tolist(),
    "brought home": lambda d: x(d).cpu(),
    "brought home by another": lambda d: x(d).to(x(HOST)),
    "brought home by type": lambda d: x(d).type("torch.FloatTensor"),
    "written into one of the host": written_into,
    "chosen by a mask": lambda d: x(d)[x(d) > 3],
    "chosen by a number of the device": lambda d: x(HOST)[y(d)[0]],
    "where": lambda d: torch.where(x(d) > 3),
    "unique": lambda d: torch.unique(y(d)),
    "compared": lambda d: torch.equal(x(d), x(d) + 1),
    "nearly the same": lambda d: torch.allclose(x(d), x(d)),
    "contained": lambda d: 3 in y(d),
    "labels of however many classes": lambda d: functional.one_hot(y(d)),
    "the largest by Python": lambda d: max(x(d)[0]),
    "saved": lambda d: torch.save(x(d), io.BytesIO()),
    "filled where a mask is, with a number of the device": lambda d: x(d).index_put((x(d) > 3,), x(d)[0, 0]),
    "a tensor of tensors": lambda d: torch.tensor([x(d)[0, 0], x(d)[0, 1]], device=d),
}
REFUSED: dict[str, Program] = {
    "numbers of the host": lambda d: x(d) + x(HOST),
    "a stack of both": lambda d: torch.stack([x(d)[0, 0], torch.tensor(1.0)]),
    "a list joined": lambda d: torch.cat([x(d), x(HOST)]),
    "added to one of the host": host_sum,
    "a table of the host": lambda d: torch.eye(3)[y(d)],
    "labels of the host": lambda d: functional.cross_entropy(x(d), y(HOST)),
    "a model of the host": lambda d: model(HOST)(x(d)),
    "a batch of the host": lambda d: model(d)(x(HOST)),
    "NumPy": lambda d: x(d).numpy(),
    "momentum of the host": model_moved_after_training,
}


def _each(programs: dict[str, Program]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("program", programs.values(), ids=programs.keys())


@_each(RUNS)
def test_runs_without_waiting(program: Program) -> None:
    log: list[str] = []
    with Gpu(log):
        program(gpu())
    assert not log


@_each(PROGRAMS_THAT_WAIT)
def test_waits(program: Program) -> None:
    log: list[str] = []
    with Gpu(log):
        program(gpu())
    assert log
    assert all(each.startswith(WAITS) for each in log)
    assert any(each.startswith(f"{WAITS}test_gpu.py, line ") for each in log)


@_each(REFUSED)
def test_refuses(program: Program) -> None:
    with Gpu([]), pytest.raises((RuntimeError, TypeError), match=r"same device|to numpy"):
        program(gpu())


@pytest.mark.gpu
def test_a_real_one_says_the_same() -> None:
    device = torch.device("cuda", 0)
    for program in (*RUNS.values(), *PROGRAMS_THAT_WAIT.values()):
        program(device)  # the first time some library is loaded, for which a program waits
    for name, program in PROGRAMS_THAT_WAIT.items():
        torch.cuda.set_sync_debug_mode("error")
        try:
            with pytest.raises(RuntimeError, match="synchronizing"):
                program(device)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        print(f"{name}: waits")
    for name, program in REFUSED.items():
        with pytest.raises((RuntimeError, TypeError)):
            program(device)
        print(f"{name}: refused")


def test_results_are_those_of_the_host() -> None:
    results = []
    for device in (HOST, gpu()):
        torch.manual_seed(0)
        with Gpu([]):
            results.append(on_host(trained(device)))
    assert torch.equal(*results)


def test_a_model_that_moves_keeps_its_parameters() -> None:
    with Gpu([]):
        net = nn.Linear(2, 2)
        before = list(net.parameters())
        net.to(gpu())
        assert all(one is other for one, other in zip(before, net.parameters(), strict=True))
        assert {each.device for each in net.parameters()} == {gpu()}
        net.cpu()
        assert {each.device for each in net.parameters()} == {HOST}


def test_autocast_knows_nothing_of_it() -> None:
    with Gpu([]), pytest.raises(RuntimeError, match="unsupported scalarType"), torch.autocast(gpu().type):
        pass


def test_settings_are_put_back() -> None:
    def settings() -> tuple[object, ...]:
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        of_classes = torch.autocast.__init__, Tensor.data
        return swaps, torch._C._only_lift_cpu_tensors(), torch.get_default_device(), *of_classes

    def changes_another_and_fails() -> None:
        torch.set_default_device(gpu())
        raise ValueError("within")

    before = settings()
    with pytest.raises(ValueError, match="within"), Gpu([]):
        changes_another_and_fails()
    assert settings() == before


def test_settings_stay_until_the_last_thread_has_left() -> None:
    swaps = torch.__future__.get_swap_module_params_on_conversion
    before, data = swaps(), Tensor.data
    first, second = Gpu([]), Gpu([])
    with ThreadPoolExecutor(1) as other:
        first.__enter__()
        other.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert swaps()
        assert other.submit(lambda: float(x(gpu()).sum())).result() == 66
        other.submit(second.__exit__, None, None, None).result()
    assert swaps() is before
    assert Tensor.data is data


def _sums_and_sends() -> tuple[Tensor, Tensor, str]:
    """Sums on the device while others are under way, and a message round the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with Gpu([]):
        parts = [torch.full((3,), float(rank + part), device=gpu()) for part in range(2)]
        works = [dist.all_reduce(part, async_op=True) for part in parts]
        for work in works:
            work.wait()
        come = torch.zeros(3, device=gpu())
        to, source = (rank + 1) % ranks, (rank - 1) % ranks
        messages = [dist.P2POp(dist.isend, parts[0] + rank, to), dist.P2POp(dist.irecv, come, source)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        return on_host(torch.stack(parts)), on_host(come), come.device.type


def test_simulated_ranks_send_what_is_on_it() -> None:
    run = launch(_sums_and_sends, ranks=3)
    for rank, (sums, come, device) in enumerate(run.results):
        assert device == gpu().type
        torch.testing.assert_close(sums, torch.tensor([[3.0], [6.0]]).expand(2, 3))
        torch.testing.assert_close(come, torch.full((3,), 3.0 + (rank - 1) % 3))
