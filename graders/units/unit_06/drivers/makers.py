"""What the passes of unit 06's answers go through: they run beside the student's code."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.models import MLP, Attention, TransformerConfig
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.models import floating_bytes

Given = dict[str, PlainData]
"""What a rank is given in a case: x, arriving, rest and parameters (see `Place`), kind of pass, layout."""
Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """What the passes go through.

    leaves: what gets gradients beside x, by name. held, kept: see `PassedReply`. given: what there is
    afterwards of that by which a module was made.
    """

    forward: Callable[[Tensor], Any]
    leaves: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, PlainData] = field(default_factory=dict)
    kept: int = 0
    given: Callable[[], dict[str, PlainData]] = dict


def _tensor(answer: AnswerFunction, given: Given, options: Options) -> Made:
    """rest: further arguments."""
    return Made(lambda x: answer(x, *given["rest"].values(), **options))


def _layer(answer: AnswerFunction, given: Given, options: Options) -> Made:
    """rest: inputs, outputs, whether there is a bias, and a seed."""
    inputs, outputs, bias, seed = given["rest"].values()
    torch.manual_seed(seed)
    torch.rand(1)
    module = answer(inputs, outputs, **options) if bias else answer(inputs, outputs, bias, **options)
    held = {**named_copies(module), "torch.rand(3)": torch.rand(3)}
    kept = floating_bytes(module)
    load_named(module, given["parameters"])
    return Made(module, dict(module.named_parameters()), held, kept)


def _half(answer: AnswerFunction, given: Given, options: Options) -> Made:
    """A part of a half of a block, of the whole. rest: see `whole_half`."""
    whole = whole_half(*given["rest"].values()).to(given["x"].dtype)
    return _part_of(whole, answer, given, options)


def _embedding(answer: AnswerFunction, given: Given, options: Options) -> Made:
    """A part of an embedding, of the whole."""
    weight = given["parameters"]["weight"]
    rows, width = weight.shape
    return _part_of(nn.Embedding(rows, width, dtype=weight.dtype), answer, given, options)


def _sequence(answer: AnswerFunction, given: Given, options: Options) -> Made:
    """A rank's part of a norm and an MLP. rest: the norm's epsilon."""
    inner, width = given["parameters"]["up.weight"].shape
    dtype = given["x"].dtype
    layer = nn.Module()
    layer.norm = nn.LayerNorm(width, eps=given["rest"]["epsilon"], dtype=dtype)
    layer.up = nn.Linear(width, inner, dtype=dtype)
    layer.down = nn.Linear(inner, width, bias=False, dtype=dtype)
    layer.bias = nn.Parameter(torch.empty(width, dtype=dtype))
    load_named(layer, given["parameters"])
    given_ones = layer.norm, layer.up, layer.down, layer.bias
    return Made(lambda x: answer(x, *given_ones, **options), dict(layer.named_parameters()))


def _part_of(whole: nn.Module, answer: AnswerFunction, given: Given, options: Options) -> Made:
    """What the answer makes of a whole module with these parameters."""
    load_named(whole, given["parameters"])
    cut = answer(whole, **options)

    def afterwards() -> dict[str, PlainData]:
        held = {f"{name} of what was given": each for name, each in named_copies(whole).items()}
        trained = all(parameter.requires_grad for parameter in whole.parameters())
        return {**held, CHANGED: [not trained, bool(whole._forward_pre_hooks)]}

    return Made(cut, dict(cut.named_parameters()), named_copies(cut), floating_bytes(cut), afterwards)


CHANGED = "Whether what was given is frozen, and has a hook,"


def whole_half(kind: str, sizes: list[int]) -> nn.Module:
    """An "mlp" or an "attention". sizes: D, heads, F."""
    width, heads, inner = sizes
    config = TransformerConfig(width=width, heads=heads, mlp_width=inner, dropout=0.0)
    return MLP(config) if kind == "mlp" else Attention(config)


def named_copies(module: nn.Module) -> dict[str, Tensor]:
    """What the parameters hold now, by name."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def load_named(module: nn.Module, parameters: dict[str, Tensor]) -> None:
    """Copy values into the parameters, which have the same names and shapes, else it raises LookupError."""
    own = dict(module.named_parameters())
    seen = {name: list(parameter.shape) for name, parameter in own.items()}
    expected = {name: list(value.shape) for name, value in parameters.items()}
    if seen != expected:
        raise LookupError(f"The parameters on rank {dist.get_rank()} are {seen}; expected are {expected}.")
    with torch.no_grad():
        for name, value in parameters.items():
            own[name].copy_(value)


MAKERS: dict[str, Callable[[AnswerFunction, Given, Options], Made]] = {
    "tensor": _tensor,
    "layer": _layer,
    "half": _half,
    "embedding": _embedding,
    "sequence": _sequence,
}
