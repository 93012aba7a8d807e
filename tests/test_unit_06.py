"""Unit 06: a cut transformer learns what the whole one learns; what the open task's grader reckons."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import launch
from course_lib.data import load_text
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from graders.grading.rng import Rng
from graders.units.unit_06 import drivers
from graders.units.unit_06.overlapped_mlp import Case
from tests.answers import solved

STEPS = 20
SOLVED = solved("06_tensor_parallel")


@dataclass(frozen=True)
class Trained:
    """losses: of each step. gradients: of the first step, by name."""

    losses: list[float]
    gradients: dict[str, Tensor]


def train(size: int) -> Trained:
    """A transformer of two blocks learns from text, cut over this rank's group of `size` neighbours.

    Every group is given the same samples. size 1: the whole model.
    """
    torch.manual_seed(0)
    model, text, order = Transformer(TransformerConfig(context=32)), load_text(32), torch.Generator()
    groups = [
        dist.new_group(list(range(first, first + size))) for first in range(0, dist.get_world_size(), size)
    ]
    own = groups[dist.get_rank() // size]
    for block in model.blocks if size > 1 else []:
        block.attention = SOLVED["parallel_attention"](block.attention, own)
        block.mlp = SOLVED["parallel_mlp"](block.mlp, own)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, gradients = [], {}
    for _ in range(STEPS):
        tokens, following = text.train.batch(torch.randint(len(text.train), (4,), generator=order))
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), following)
        loss.backward()
        gradients = gradients or {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, gradients)


def train_all() -> dict[int, Trained]:
    """Cut over groups of two, and over all four."""
    return {size: train(size) for size in (2, 4)}


@pytest.mark.parametrize("on", ["simulated", "processes"])
def test_a_cut_transformer_learns_what_the_whole_one_learns(on):
    # Invariant: every rank's losses are the single rank's to 1e-4; a parameter that all have gets the whole
    # gradient on each of them, and the parts of one that is cut are, together, the whole gradient.
    whole = launch(train, 1, ranks=1).results[0]
    assert whole.losses[0] - whole.losses[-1] > 1
    found = launch(train_all, ranks=4, on=on, timeout=200, quiet=True).results
    for size in (2, 4):
        of_ranks = [each[size] for each in found]
        for trained in of_ranks:
            assert trained.losses == pytest.approx(whole.losses, abs=1e-4)
        for first in range(0, 4, size):
            together([each.gradients for each in of_ranks[first : first + size]], whole.gradients)


def together(parts: list[dict[str, Tensor]], whole: dict[str, Tensor]) -> None:
    """Assert that a group's gradients are the whole model's."""
    cut = 0
    for name, expected in whole.items():
        found = [part[name] for part in parts]
        along = [d for d in range(expected.dim()) if found[0].shape[d] != expected.shape[d]]
        for seen in [torch.cat(found, along[0])] if along else found:
            torch.testing.assert_close(seen, expected, rtol=1e-3, atol=1e-6)
        cut += bool(along)
    assert cut == 20


def test_the_open_task_reckons_as_the_simulator():
    # Invariant: chunks of any sizes take as long on the simulator as the grader of overlapped_mlp says, but
    # for what puts them together.
    def timed(case: Case, sizes: list[int]) -> float:
        def in_chunks(x: Tensor, up: nn.Linear, down: nn.Linear) -> None:
            works = []
            for chunk in x.split(sizes):
                part = functional.linear(functional.gelu(up(chunk)), down.weight, down.bias)
                works.append(dist.all_reduce(part, async_op=True))
            for work in works:
                work.wait()

        inner, width = case.up[0].shape
        layers = [nn.Linear(*widths).requires_grad_(False) for widths in ((width, inner), (inner, width))]
        machine = drivers.machine(len(case.up), *case.machine)
        return launch(in_chunks, case.x, *layers, ranks=len(case.up), cluster=machine).seconds

    for ratio in (0.5, 2.0):
        case = Case.drawn(Rng(1), ratio)
        for sizes in ([len(case.x)], case.chunks(4, 1), case.chunks(5, 0.5)):
            assert timed(case, sizes) == pytest.approx(case.seconds(sizes), rel=1e-6)
