"""Drivers of unit 06: they run beside the student's code, which could read an expected value here."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import Cluster, Link, mark
from course_lib.models import MLP, Attention, TransformerConfig
from graders.grading.answer import AnswerFunction, DriverReply, PlainData
from graders.units.models import floating_bytes, load_values, sent, transposed
from graders.units.ranks.drivers import copied

Given = dict[str, PlainData]
"""What a rank is given in a case: x, arriving, rest and parameters (see `Place`), kind of pass, layout."""


@dataclass(frozen=True, slots=True)
class PassedReply(DriverReply):
    """result: of forward; again: of one more, under no_grad. gradients: after two steps, by name.

    arguments: what was given, afterwards, by name. held: what a module was made with, by name. kept: bytes of
    its floating tensors' memory. changed: what else is not as it was.
    """

    result: PlainData
    again: PlainData
    gradients: dict[str, PlainData]
    arguments: dict[str, PlainData]
    held: dict[str, PlainData]
    kept: int
    changed: list[str]


@dataclass(frozen=True, slots=True)
class Made:
    """What the passes go through. beside: what gets a gradient of ones by another way, in each step."""

    forward: Callable[[Tensor], Any]
    leaves: dict[str, Tensor]
    beside: tuple[str, ...] = ("x",)
    arguments: dict[str, Tensor] | None = None
    held: dict[str, PlainData] | None = None
    kept: int = 0
    whole: nn.Module | None = None


def both_passes(
    answer: AnswerFunction, kind: str, cases: list[Given | None], members: list[list[int] | None]
) -> list[PassedReply]:
    """Both passes of each case that this rank takes part in (not None). members: of each case the ranks of
    the group that calls; None: the default group, and no `group` argument. kind: one of MAKERS.
    """
    groups: dict[tuple[int, ...], Any] = {}
    for several in filter(None, members):
        # Beside each group one of each of its ranks alone.
        for each in ([*several], *([rank] for rank in several)):
            if tuple(each) not in groups:
                groups[tuple(each)] = dist.new_group(each)
    told = []
    for number, (given, several) in enumerate(zip(cases, members, strict=True)):
        if given is None:
            continue
        options = {} if several is None else {"group": groups[tuple(several)]}
        mark(f"{number} making")
        made = MAKERS[kind](answer, given, options)
        between = _in_a_group_alone(answer, given, groups) if several and kind == "tensor" else lambda: None
        told.append(_passes(number, made, given, between))
    return told


def _in_a_group_alone(
    answer: AnswerFunction, given: Given, groups: dict[tuple[int, ...], Any]
) -> Callable[[], Any]:
    """With two groups in one model both forward passes come before both backward passes."""
    x = torch.zeros_like(given["x"]).requires_grad_()
    return lambda: answer(x, group=groups[(dist.get_rank(),)])


def _passes(number: int, made: Made, given: Given, between: Callable[[], Any]) -> PassedReply:
    x, spread = given["x"], given["layout"] == "spread"
    leaf = x.clone().requires_grad_(x.is_floating_point())
    for step in ("first", "second") if given["backward"] else ("first",):
        inside = transposed(leaf) if spread else leaf.clone()
        arriving = given["arriving"].clone()
        if spread:
            arriving = arriving.narrow(-1, 0, 1).expand_as(arriving)
        mark(f"{number} {step} forward")
        result = made.forward(inside)
        mark(f"{number} {step} backward")
        if given["backward"]:
            between()
            mark(f"{number} {step} backward begins")
            through = [sent(result, arriving)] if result.requires_grad else []
            every = {**made.leaves, "x": inside}
            names = made.beside if given["beside"] else ()
            besides = [sent(every[name], torch.ones_like(every[name])) for name in names]
            if through or besides:
                torch.autograd.backward([*through, *besides])
    mark(f"{number} without gradients")
    with torch.no_grad():
        again = made.forward(x.clone())
    gradients = {name: copied(each.grad) for name, each in {**made.leaves, "x": leaf}.items()}
    arguments = {"x": inside, "the gradient that arrived": arriving, **(made.arguments or {})}
    return PassedReply(
        copied(result),
        copied(again),
        gradients,
        {name: copied(each.detach()) for name, each in arguments.items()},
        made.held or {},
        made.kept,
        [] if made.whole is None else changes(made.whole, made.leaves),
    )


# ---------------------------------------------------------------------- what the passes go through


def _tensor(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    return Made(lambda x: answer(x, *given["rest"], **options), {})


def _loss(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    target = given["rest"][0]
    made = _tensor(answer, given, options)
    return Made(made.forward, {}, (), {"target": target})


def _layer(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    """rest: inputs, outputs, whether there is a bias, and a seed."""
    inputs, outputs, bias, seed = given["rest"]
    torch.manual_seed(seed)
    torch.rand(1)
    module = answer(inputs, outputs, **options) if bias else answer(inputs, outputs, bias, **options)
    held = {**named_copies(module), "torch.rand(3)": torch.rand(3)}
    kept = floating_bytes(module)
    load_named(module, given["parameters"])
    return Made(module, dict(module.named_parameters()), held=held, kept=kept)


def _half(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    """rest: see `whole_half`, and the parameters of the whole."""
    kind, sizes, training, parameters = given["rest"]
    whole = whole_half(kind, tuple(sizes)).to(given["x"].dtype).train(training)
    load_named(whole, parameters)
    cut = answer(whole, **options).train(training)
    leaves, arguments = dict(cut.named_parameters()), dict(whole.named_parameters())
    return Made(cut, leaves, ("x",), arguments, named_copies(cut), floating_bytes(cut), whole)


def _embedding(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    """rest: the whole weight."""
    [weight] = given["rest"]
    whole = nn.Embedding(len(weight), weight.shape[1], dtype=weight.dtype)
    load_values([whole.weight], [weight])
    cut = answer(whole, **options)
    leaves, arguments = dict(cut.named_parameters()), {"embedding.weight": whole.weight}
    return Made(cut, leaves, (), arguments, named_copies(cut), floating_bytes(cut), whole)


def _sequence_mlp(answer: AnswerFunction, given: Given, options: dict[str, Any]) -> Made:
    """rest: epsilon of the norm."""
    values = given["parameters"]
    inner, width = values["up.weight"].shape
    norm = nn.LayerNorm(width, eps=given["rest"][0])
    up, down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
    parts = nn.ModuleDict({"norm": norm, "up": up, "down": down}).to(given["x"].dtype)
    bias = nn.Parameter(torch.empty_like(values["bias"]))
    leaves = {**dict(parts.named_parameters()), "bias": bias}
    load_values([leaves[name] for name in values], list(values.values()))
    beside = ("norm.weight", "norm.bias", "bias")
    return Made(lambda x: answer(x, norm, up, down, bias, **options), leaves, beside)


MAKERS: dict[str, Callable[[AnswerFunction, Given, dict[str, Any]], Made]] = {
    "tensor": _tensor,
    "loss": _loss,
    "layer": _layer,
    "half": _half,
    "embedding": _embedding,
    "sequence mlp": _sequence_mlp,
}


def changes(whole: nn.Module, leaves: dict[str, Tensor]) -> list[str]:
    """What is no longer as it was with the module given, of which the answer has made its own."""
    own = {each.untyped_storage().data_ptr() for each in leaves.values()}
    shared = [n for n, p in whole.named_parameters() if p.untyped_storage().data_ptr() in own]
    trained = [n for n, p in whole.named_parameters() if p.grad is not None or not p.requires_grad]
    hooked = [m for m in whole.modules() if m._forward_hooks or m._forward_pre_hooks]
    return (
        [f"{name} is shared" for name in shared]
        + [f"{name} has a gradient, or gets none" for name in trained]
        + [f"a hook at its {type(each).__name__}" for each in hooked]
    )


def whole_half(kind: str, sizes: tuple[int, int, int], dropout: float = 1.0) -> nn.Module:
    """An "mlp" or an "attention", which in training drops everything. sizes: D, heads, F."""
    width, heads, inner = sizes
    config = TransformerConfig(width=width, heads=heads, mlp_width=inner, dropout=dropout)
    return MLP(config) if kind == "mlp" else Attention(config)


def named_copies(module: nn.Module) -> dict[str, PlainData]:
    """What the parameters hold now, by name."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def load_named(module: nn.Module, parameters: dict[str, Tensor]) -> None:
    """Copy values into the parameters, which have the same names and shapes, else it raises LookupError."""
    own = dict(module.named_parameters())
    seen = {name: list(parameter.shape) for name, parameter in own.items()}
    expected = {name: list(value.shape) for name, value in parameters.items()}
    if seen != expected:
        raise LookupError(f"The parameters on rank {dist.get_rank()} are {seen}; expected are {expected}.")
    load_values([own[name] for name in parameters], list(parameters.values()))
