"""Unit 10: a model whose experts are on many ranks learns what it learns on one; the layer beside
Megatron-core's, rows beside PyTorch's all-to-all, the graders' best placement beside all that there are.

Shapes: N tokens of a rank, D the width, E experts, R rows that travel.
"""

import copy
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

from course_lib import launch, per_rank
from course_lib.beside import missing
from course_lib.data import load_text
from course_lib.models import MLP, Transformer, TransformerConfig, next_token_loss
from graders.units.unit_10.place_experts import TASKS, Task
from tests.answers import solved

SOLVED = solved("10_experts")
STEPS, EXPERTS = 8, 6
ENGINES = pytest.mark.parametrize("on", ["simulated", "processes"])


def mixture(width: int, inner: int, count: int) -> Any:
    """A layer of experts on one rank, with two of them for each token."""
    config = TransformerConfig(width=width, heads=1, mlp_width=inner)
    whole: Callable[..., Any] = SOLVED["Mixture"]
    return whole(nn.Linear(width, count, bias=False), [MLP(config) for _ in range(count)], 2)


def routing_of(layer: Any, x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and experts of tokens, by the gate of a layer on one rank."""
    logits = layer.gate(x_ND)
    return logits.softmax(1), SOLVED["top_k_gate"](logits, layer.k)[1]


def learn(samples: Tensor, balance: float) -> list[float]:
    """The mean loss over ranks in each step: the experts over all ranks, or whole where there is one.

    samples: [STEPS, B], numbers of windows of text for all ranks, the r-th part for rank r. balance: the
    second loss's factor.
    """
    torch.manual_seed(5)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Transformer(TransformerConfig(layers=1, width=16, heads=2, context=16))
    whole = mixture(16, 24, EXPERTS)
    layer = SOLVED["ExpertParallelMLP"](whole) if size > 1 else copy.deepcopy(whole)
    seen: list[Tensor] = []
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].reshape(-1, 16)))
    model.blocks[0].mlp = layer
    optimizer, text, losses = torch.optim.SGD(model.parameters(), lr=0.3), load_text(16), []
    own = set(layer.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens, following = text.train.batch(samples[step].chunk(size)[rank])
        loss = next_token_loss(model(tokens), following)
        routing = layer.routing if size > 1 else routing_of(layer, seen.pop())
        loss = loss + balance * SOLVED["load_balancing_loss"](*routing)
        loss.backward()
        for parameter in (each for each in model.parameters() if size > 1 and each not in own):
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= size
        if size > 1:
            layer.average_gradients()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / size)
    return losses


@ENGINES
def test_a_model_with_experts_on_many_ranks_learns_what_it_learns_on_one(on: Any) -> None:
    # Invariant: the losses of all steps, the second loss among them, are those of one rank with all samples:
    # so results, gradients of gate, experts and of what stands before them are the same.
    samples = torch.randint(len(load_text(16).train), (STEPS, 6), generator=torch.Generator().manual_seed(1))
    expected = launch(learn, samples, 0.5, ranks=1).results[0]
    assert expected[0] - expected[-1] > 0.3
    for losses in launch(learn, samples, 0.5, ranks=3, on=on, timeout=120).results:
        assert losses == pytest.approx(expected, abs=1e-4)


def by_torch(x_RD: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that come, and how many, by PyTorch's own all-to-all."""
    sent = counts.view(dist.get_world_size(), -1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    sizes = received.sum(1).tolist(), sent.sum(1).tolist()
    return all_to_all_single_autograd(x_RD, *sizes, dist.group.WORLD), received


def travelled(x_RD: Tensor, counts: Tensor, dispatch: Callable[..., Any]) -> list[list[Tensor]]:
    """Rows that came, how many, and the gradient of x: by the answer, and by PyTorch's own."""
    found = []
    for way in (dispatch, by_torch):
        leaf = x_RD.clone().requires_grad_()
        rows, received = way(leaf, counts)
        ((dist.get_rank() + 2) * rows.square()).sum().backward()
        assert leaf.grad is not None
        found.append([rows.detach(), received, leaf.grad])
    return found


@ENGINES
def test_rows_travel_as_by_torchs_own_all_to_all(on: Any) -> None:
    # Invariant: rows, counts and gradients are those of PyTorch's functional collective, where some ranks
    # send nothing and some get nothing too.
    counts = [torch.tensor(each) for each in ([0, 3, 0, 2, 1, 0], [0] * 6, [5, 0, 0, 1, 0, 0])]
    rows = [torch.randn(int(each.sum()), 3, dtype=torch.float64) for each in counts]
    run = launch(travelled, per_rank(rows), per_rank(counts), SOLVED["dispatch"], ranks=3, on=on)
    for yours, own in run.results:
        torch.testing.assert_close(yours, own, rtol=0, atol=0)


def both_passes(layer: Any, gate: Any, experts: Any, x_ND: Tensor) -> list[Tensor]:
    """The result, and the gradients of x, of the gate and of this rank's experts."""
    leaf = x_ND.clone().requires_grad_()
    y_ND = layer(leaf)
    y_ND.square().mean().backward()
    of_experts = [parameter.grad for expert in experts for parameter in expert.parameters()]
    return [y_ND.detach(), leaf.grad, gate.weight.grad, *of_experts]


def by_answer(whole: Any, x_ND: Tensor) -> list[Tensor]:
    """By the solution's layer, before gradients are averaged."""
    layer = SOLVED["ExpertParallelMLP"](whole)
    return both_passes(layer, layer.gate, layer.experts, x_ND)


def by_megatron(whole: Any, x_ND: Tensor) -> list[Tensor]:
    """By Megatron-core's layer with the same weights."""
    from course_lib.training.megatron_experts import megatron_layer, on_cpu

    with on_cpu():
        layer: Any = megatron_layer(whole.gate.weight, whole.experts, whole.k)
        experts = layer.experts.local_experts
        return both_passes(lambda x_ND: layer(x_ND[:, None])[0][:, 0], layer.router, experts, x_ND)


@pytest.mark.skipif(bool(missing("megatron-core")), reason=missing("megatron-core") or "it is there")
@pytest.mark.timeout(300)
def test_the_layer_is_megatron_cores() -> None:
    # Invariant: results and all gradients, as backward leaves them, are those of Megatron-core's layer, where
    # ranks have unlike numbers of tokens too.
    whole, x = mixture(8, 12, EXPERTS), per_rank([torch.randn(11, 8), torch.randn(4, 8)])
    yours = launch(by_answer, whole, x, ranks=2, on="processes", timeout=120)
    theirs = launch(
        by_megatron, whole, x, ranks=2, on="processes", beside="megatron-core", timeout=240, quiet=True
    )
    for seen, expected in zip(yours.results, theirs.results, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)
    assert theirs.traffic[0].calls == {"all_gather_into_tensor": 1, "all_to_all_single": 6}


def all_placements(experts: int, ranks: int, slots: int) -> Iterator[list[list[int]]]:
    """Every placement in which each expert is somewhere."""
    one = [list(each) for size in range(slots + 1) for each in combinations(range(experts), size)]
    for held in product(one, repeat=ranks):
        if len({expert for own in held for expert in own}) == experts:
            yield [list(own) for own in held]


@pytest.mark.parametrize("task", [task for task in TASKS if len(task.loads) < 6])
def test_the_best_known_placement_is_the_best_there_is(task: Task) -> None:
    # Invariant: what the open task is scored by is right, where all placements can be tried.
    tried = all_placements(len(task.loads), task.ranks, task.slots)
    assert task.best == min(max(task.tokens(held)) for held in tried)


@pytest.mark.parametrize("task", TASKS)
def test_the_best_known_placement_can_nearly_be_reached(task: Task) -> None:
    # Invariant: the solution comes as near as full marks ask for, and never below what is called the best.
    tokens = max(task.tokens(solved("10_experts")["place_experts"](task.loads, task.ranks, task.slots)))
    assert task.best <= tokens * (1 + 1e-9)
    assert tokens <= 1.02 * task.best
