"""The planner: graphs of models, plans that run, and what they are predicted to cost."""

import random
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Shard

from course_lib import Cluster, launch
from course_lib.cluster import presets
from course_lib.cluster.device import Device
from course_lib.models import Transformer, TransformerConfig, next_token_loss
from course_lib.planner import (
    BadPlan,
    Graph,
    Model,
    NotPlannable,
    ParallelPlan,
    PlannedRank,
    Planner,
    counting,
    dimensions,
    execute,
    parameters_of,
    seconds_of_step,
    split_along,
    torchs_1f1b,
    trace,
)
from course_lib.planner import graph as graph_module
from course_lib.planner.alike import alike
from course_lib.planner.graph import INPUT
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.simulator.roofline import ComputeClock

TOKENS, VOCABULARY = 8, 32


def small(layers: int = 2) -> Transformer:
    """A transformer with drawn parameters, whose head has a weight of its own."""
    config = TransformerConfig(layers, width=16, heads=4, vocabulary=VOCABULARY, context=TOKENS, tied=False)
    return Transformer(config)


def without_data(layers: int, width: int = 512, samples: int = 16) -> Model:
    """One that is only counted."""
    config = TransformerConfig(layers, width, heads=8, vocabulary=4096, context=256, tied=False)
    with torch.device("meta"):
        tokens = torch.empty(samples, 256, dtype=torch.int64)
        return Model(Transformer(config).pieces, tokens, tokens, next_token_loss)


def drawn_split(graph: Graph, ranks: int, rng: random.Random) -> dict[str, str]:
    """For each operator some letter that so many ranks can share, or none."""
    split = {}
    for operator in graph.operators:
        shared = [letter for letter, size in operator.einsum.sizes.items() if size > 1 and size % ranks == 0]
        letter = rng.choice([None, *shared])
        if letter is not None:
            split[operator.name] = letter
    return split


def step(
    graph: Graph, plan: ParallelPlan, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor
) -> dict[str, tuple[Tensor, int | None]]:
    """A step of the plan: this rank's gradients, and along which dim they are its part."""
    rank = PlannedRank(graph, plan, parameters, next_token_loss)
    actions = torchs_1f1b(rank.stage, len(plan.cuts), plan.micro_batches)
    rank.step(actions, inputs.chunk(plan.micro_batches), targets.chunk(plan.micro_batches))
    found = {}
    for name, parameter in rank.pieces.named_parts():
        lies = rank.pieces.layouts[name].value
        assert parameter.grad is not None
        dim = lies.dim if isinstance(lies, Shard) and plan.tensor > 1 else None
        found[name] = parameter.grad, dim
    return found


def test_a_graph_computes_what_the_model_computes() -> None:
    model = small()
    tokens = torch.randint(VOCABULARY, (3, TOKENS))
    graph = trace(model.pieces, tokens)
    known = {INPUT: tokens, **parameters_of(model.pieces), **graph.constants}
    for operator in graph.operators:
        known[operator.name] = operator.compute(*(known[name] for name in operator.operands))
        assert known[operator.name].shape == operator.result
    assert torch.equal(known[graph.outputs[-1]], model(tokens))
    assert all(source in {each.name for each in graph.operators} for source, _, _ in graph.edges)


def test_dimensions_are_those_that_people_have_names_for() -> None:
    graph = trace(small(3).pieces, torch.empty(5, TOKENS, dtype=torch.int64))
    lengths = {
        name: graph[where[0][0]].einsum.sizes[where[0][1]] for name, where in dimensions(graph).items()
    }
    shared = {name: length for name, length in lengths.items() if len(dimensions(graph)[name]) > 4}
    # Samples, tokens, width; of all blocks heads (of whose columns a layer makes 16), numbers of a head (of
    # queries and keys, and of values), and units of the MLP.
    assert list(shared.values()) == [5, TOKENS, 16, 16, 4, 4, 64]
    heads, inside = list(shared)[3], list(shared)[6]
    split = split_along(graph, [heads, inside], 4)
    blocks = [
        {name.split(".")[1]: letter for name, letter in split.items() if name[0] == str(n)} for n in (1, 2)
    ]
    assert blocks[0] == blocks[1]
    assert {letter for name, letter in split.items() if name.endswith(".linear_5")} == {"i"}
    assert not any(name.startswith(("0.", "4.")) for name in split)


@pytest.mark.parametrize(
    ("cuts", "data", "tensor"),
    [
        ((0,), 1, 2),
        ((0,), 2, 1),
        ((0,), 1, 4),
        ((0, 2), 1, 1),
        ((0, 1, 3), 1, 2),
        ((0, 3), 2, 2),
        ((0, 1), 2, 1),
    ],
)
def test_whatever_is_split_the_gradients_are_those_of_one_rank(
    cuts: tuple[int, ...], data: int, tensor: int, rng: random.Random
) -> None:
    model, micro_batches = small(), rng.choice([1, 2, 3])
    samples = 4 * data * micro_batches
    inputs, targets = (torch.randint(VOCABULARY, (samples, TOKENS)) for _ in range(2))
    next_token_loss(model(inputs), targets).backward()
    expected = {name: parameter.grad for name, parameter in parameters_of(model.pieces).items()}

    graph = trace(model.pieces, inputs[:4])
    plan = ParallelPlan(cuts, data, tensor, micro_batches, drawn_split(graph, tensor, rng))
    run = launch(step, graph, plan, parameters_of(model.pieces), inputs, targets, ranks=plan.ranks)

    seen = set()
    for rank, gradients in enumerate(run.results):
        for name, (gradient, dim) in gradients.items():
            whole = expected[name]
            assert whole is not None
            place = plan.place(rank)[2]
            part = whole if dim is None else whole.chunk(tensor, dim)[place]
            torch.testing.assert_close(gradient, part, atol=1e-6, rtol=1e-4)
            seen.add(name)
    assert seen == set(expected)


def test_what_is_remembered_is_what_would_be_computed_again(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Invariant: whether calls are remembered and pieces traced once or not, each prediction is the same.
    cluster = presets.lumi_g(nodes=1)
    plans = []
    for cuts, data, tensor in (((0,), 1, 8), ((0, 2), 1, 4), ((0, 1, 3, 4), 1, 2), ((0, 3), 2, 2)):
        graph = without_data(3).graph(16 // data // 4)
        plans += [ParallelPlan(cuts, data, tensor, 4, drawn_split(graph, tensor, rng)) for _ in range(2)]
    with monkeypatch.context() as patched:
        patched.setattr(counting, "RememberingClock", lambda watch, cluster: ComputeClock(watch, 0, cluster))
        patched.setattr(graph_module, "alike", lambda one, other: False)
        alone = Planner(without_data(3), cluster, torchs_1f1b)
        expected = [alone.predict(each) for each in plans]
    planner = Planner(without_data(3), cluster, torchs_1f1b)
    assert [planner.predict(each) for each in plans] == expected


class Scaled(nn.Module):
    """x [n, width] times a number, plus a mask that is made meanwhile, plus a linear layer of it."""

    def __init__(self, width: int, scale: float, mask: Tensor) -> None:
        super().__init__()
        self.scale, self.linear = scale, nn.Linear(width, width)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.scale + self.mask.exp()
        return y


def test_pieces_that_differ_are_traced_by_themselves() -> None:
    # Invariant: the graph computes what each piece computes, whatever the pieces before it are like.
    masks = torch.arange(8.0).view(2, 4)
    pieces = [Scaled(4, scale, masks[place]) for scale, place in ((2, 0), (2, 0), (3, 0), (2, 1), (2.0, 0))]
    had = [list(vars(each)) for each in pieces]
    x = torch.rand(3, 4)
    graph = trace(pieces, x)
    known = {INPUT: x, **parameters_of(pieces), **graph.constants}
    for operator in graph.operators:
        known[operator.name] = operator.compute(*(known[name] for name in operator.operands))
    assert torch.equal(known[graph.outputs[-1]], nn.Sequential(*pieces)(x))
    assert [list(vars(each)) for each in pieces] == had


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (nn.Linear(3, 4), nn.Linear(3, 4), True),
        (nn.Linear(3, 4), nn.Linear(3, 5), False),
        (nn.Linear(3, 4), nn.Linear(3, 4, bias=False), False),
        (nn.Dropout(0.1), nn.Dropout(0.2), False),
        (nn.ReLU(), nn.GELU(), False),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), True),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), False),
        (nn.Sequential(*[nn.Linear(2, 2)] * 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), False),
        (nn.BatchNorm1d(2), nn.BatchNorm1d(2), True),
        (nn.BatchNorm1d(2), nn.BatchNorm1d(2, eps=1e-3), False),
    ],
)
def test_modules_of_one_kind_are_alike(one: nn.Module, other: nn.Module, same: bool) -> None:
    assert alike(one, other) is same
    assert alike(other, one) is same


def test_a_plan_runs_on_processes_too(rng: random.Random) -> None:
    model = small(1)
    inputs, targets = (torch.randint(VOCABULARY, (4, TOKENS)) for _ in range(2))
    graph = trace(model.pieces, inputs[:2])
    plan = ParallelPlan((0, 2), 1, 2, 2, drawn_split(graph, 2, rng))
    given = graph, plan, parameters_of(model.pieces), inputs, targets
    simulated, real = (launch(step, *given, ranks=4, on=on) for on in ("simulated", "processes"))
    for one, other in zip(simulated.results, real.results, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name][0], other[name][0], atol=1e-6, rtol=1e-4)


CLUSTERS = (
    (presets.h100_pod(1), (0,), 2, 4, 2),
    (presets.h100_pod(2), (0, 2), 1, 8, 2),
    (presets.lumi_g(1), (0, 2), 4, 1, 2),
    (Cluster(2, 3, flops=1e13, memory_bandwidth=1e12, cards_per_node=1), (0, 1, 2), 1, 2, 4),
    (presets.frontera_rtx(2), (0, 2), 2, 2, 2),
    (Cluster(1, 4, device=Device(1e13, 1e12, cuda_kernels=True)), (0,), 2, 2, 2),
    (Cluster(1, 4, device=Device(1e13, 1e12, dispatch_seconds=40e-6)), (0,), 2, 2, 2),
    (Cluster(1, 4, device=Device(1e11, 1e9, dispatch_seconds=1e-6)), (0, 2), 1, 2, 4),
)


@pytest.mark.parametrize(("cluster", "cuts", "data", "tensor", "micro_batches"), CLUSTERS)
def test_a_step_takes_what_was_predicted_and_calls_what_was_planned(
    cluster: Cluster, cuts: tuple[int, ...], data: int, tensor: int, micro_batches: int, rng: random.Random
) -> None:
    model = without_data(len(cuts), samples=8)
    graph = model.graph(model.part(data, micro_batches))
    plan = ParallelPlan(cuts, data, tensor, micro_batches, drawn_split(graph, tensor, rng))
    predicted = Planner(model, cluster, torchs_1f1b).predict(plan)
    run = execute(model, cluster, plan, torchs_1f1b)
    assert predicted.seconds == pytest.approx(seconds_of_step(run), rel=0.05)

    begin = min(event.start for event in run.events if event.kind is Kind.SPAN)
    for rank in range(plan.ranks):
        own = [event for event in run.events if event.rank == rank and event.start >= begin]
        calls = Counter(
            (each.op, each.nbytes) for each in own if each.kind is Kind.COLLECTIVE and each.nbytes
        )
        planned: Counter[tuple[str, int]] = Counter()
        for (_, operation, nbytes), times in predicted.calls[plan.place(rank)[0]].items():
            planned[operation, nbytes] += times
        assert calls == planned
        sent = sum(each.sent for each in own if each.op == "send")
        assert sent == predicted.messages[plan.place(rank)[0]]


def test_memory_is_what_ranks_hold() -> None:
    """But for what is computed with for a moment, and Adam's numbers, which a step has no use for."""
    model, cluster = without_data(2, samples=4), Cluster(1, 2, flops=1e13, memory_bandwidth=1e12)
    plan = ParallelPlan((0, 2), 1, 1, 4)
    predicted = Planner(model, cluster, torchs_1f1b).predict(plan)
    graph = model.graph(1)
    given = graph, plan, parameters_of(model.pieces), model.inputs, model.targets
    run = launch(step, *given, cluster=cluster, memory=True)
    whole = sum(parameter.nbytes for parameter in graph.parameters.values())
    for rank in range(2):
        # The function was given all parameters, has copied its own, and its gradients are as large.
        pieces = plan.pieces(rank, len(graph.outputs))
        own = sum(
            value.nbytes for name, value in graph.parameters.items() if int(name.split(".")[0]) in pieces
        )
        kept, held = predicted.memory[rank] - 4 * own, run.memory[rank].peak - whole - 2 * own
        largest = max(value.nbytes for value in graph.parameters.values())
        assert kept < held < 1.5 * kept + largest


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (ParallelPlan((1,)), "ascending from 0"),
        (ParallelPlan((0, 2, 2)), "ascending from 0"),
        (ParallelPlan((0, 4)), "below 4"),
        (ParallelPlan(data=0), "by 0 replicas"),
        (ParallelPlan(tensor=0), "at least 1"),
        (ParallelPlan(data=3), "16 samples"),
        (ParallelPlan(tensor=2, split={"1.matmul": "z"}), "cannot share"),
        (ParallelPlan(tensor=2, split={"1.softmax": "d"}), "cannot share"),
        (ParallelPlan(tensor=2, split={"9.linear": "o"}), "no such operator"),
    ],
)
def test_a_plan_that_does_not_fit_is_told_why(plan: ParallelPlan, said: str) -> None:
    with pytest.raises(BadPlan, match=said):
        Planner(without_data(2), Cluster(1, 2), torchs_1f1b).predict(plan)


def test_what_has_no_rule_is_named() -> None:
    with pytest.raises(NotPlannable, match=r"Piece 0 calls .*cumsum"):
        trace([_Cumulative()], torch.empty(2, 3))


class _Cumulative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(0)
