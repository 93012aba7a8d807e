"""A transformer on a mesh of data x pipeline x tensor: the part of it that one rank has.

A block is a sum of branches, one for each head: a branch of its attention is one head, and a branch of its
MLP some of the hidden units. Along "tensor" ranks have other branches, along "pipeline" other blocks, along
"data" the same. A parameter has one name on every mesh, and a value that follows from it: so what ranks have
together is the same model, however many there are.

B samples, T tokens, D numbers a token, H heads, K = D / H, F hidden units.
"""

import zlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from course_lib.models import Embedding, Head, TransformerConfig

AXES = ("data", "pipeline", "tensor")
"""The axes of a mesh, by name, in order."""


class MeshTransformer(nn.Module):
    """This rank's part of a transformer: a stage of it, and of each block some branches.

    config: of the whole model, without dropout; F divides by H. mesh: with AXES; None is one rank that has
    all. device: "meta" for shapes without data. seed: another one draws another model.

    The first stage takes tokens [B, T], int64, the others x_BTD from the stage before; the last returns
    logits_BTV, the others x_BTD for the stage behind. All ranks along "tensor" call it with the same input,
    get the same output, and the same gradient of the input; its all-reduces, two in forward and two in
    backward for each block, are its own affair. So are the gradients of all parameters, but for what this
    replica and this stage do not see.

    Each parameter says who else has it, as in Megatron-LM. `tensor_model_parallel`: True if ranks along
    "tensor" have other parts, False if all of them have it. `shared`: True for the embedding of a tied model,
    of which the first and the last stage have a copy each.
    """

    def __init__(
        self,
        config: TransformerConfig,
        mesh: DeviceMesh | None = None,
        *,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        group = mesh.get_group("tensor") if mesh else None
        stage, stages = (mesh.get_local_rank("pipeline"), mesh.size(1)) if mesh else (0, 1)
        share, shares = (mesh.get_local_rank("tensor"), mesh.size(2)) if mesh else (0, 1)
        own_blocks = _dealt(config.layers, stage, stages)
        own_branches = _dealt(config.heads, share, shares)
        self.first, self.last = stage == 0, stage == stages - 1
        with torch.device("meta"):
            self.embedding = Embedding(config) if self.first else None
            self.blocks = nn.ModuleDict(
                {str(number): _Block(config, own_branches, group) for number in own_blocks}
            )
            self.head = Head(config) if self.last else None
        self.to_empty(device=device)
        self._tie()
        self._describe()
        if device != "meta":
            self._draw(seed)

    def forward(self, x: Tensor) -> Tensor:
        for piece in (self.embedding, *self.blocks.values(), self.head):
            x = x if piece is None else piece(x)
        return x

    def empty(self, samples: int, tokens: int) -> Tensor:
        """Room for what crosses from stage to stage: x_BTD of so many samples and tokens, not filled."""
        like = next(self.parameters())
        return like.new_empty(samples, tokens, self.config.width)

    def _tie(self) -> None:
        if self.config.tied and self.embedding is not None and self.head is not None:
            self.head.logits.weight = self.embedding.tokens.weight

    def _describe(self) -> None:
        """Set the attributes of all parameters."""
        for name, parameter in self.named_parameters():
            marked: Any = parameter
            marked.tensor_model_parallel = ".branches." in name
            marked.shared = self.config.tied and name in ("embedding.tokens.weight", "head.logits.weight")

    @torch.no_grad()
    def _draw(self, seed: int) -> None:
        """A parameter's numbers follow from its name alone, and the tied ones have one name."""
        for name, parameter in self.named_parameters():
            marked: Any = parameter
            known = "embedding.tokens.weight" if marked.shared else name
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {known}".encode()))
            deviation = self.config.width**-0.5 if parameter.dim() > 1 else 0.05
            parameter.copy_(deviation * torch.randn(parameter.shape, generator=generator))
            if name.endswith("norm.weight"):
                parameter.add_(1)


class _Block(nn.Module):
    """Attention, then MLP, each behind a norm and added to what came in; x_BTD to [B, T, D]."""

    def __init__(
        self, config: TransformerConfig, own: Iterable[int], group: dist.ProcessGroup | None
    ) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        numbers = list(own)
        self.attention = _Branches({number: _OneHead(config) for number in numbers}, group)
        self.mlp = _Branches({number: _hidden_units(config) for number in numbers}, group)
        self.attention_bias = nn.Parameter(torch.zeros(config.width))
        self.mlp_bias = nn.Parameter(torch.zeros(config.width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD)) + self.attention_bias
        y_BTD: Tensor = x_BTD + self.mlp(self.mlp_norm(x_BTD)) + self.mlp_bias
        return y_BTD


class _Branches(nn.Module):
    """The sum of all branches, of which a rank computes its own: x_BTD to [B, T, D], everywhere the same."""

    def __init__(self, branches: dict[int, nn.Module], group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({str(number): branch for number, branch in branches.items()})
        self.group = group

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = _Summed.apply(x_BTD, self, *self.parameters())  # type: ignore[no-untyped-call]
        return y_BTD

    def own(self, x_BTD: Tensor) -> Tensor:
        """The sum of this rank's branches."""
        first, *others = self.branches.values()
        y_BTD: Tensor = first(x_BTD)
        for branch in others:
            y_BTD = y_BTD + branch(x_BTD)
        return y_BTD


class _Linear(nn.Linear):
    """A layer that draws nothing when it is made: without data that takes the most of making it."""

    def reset_parameters(self) -> None:
        """Nothing: the model draws all parameters, each by its name."""


class _OneHead(nn.Module):
    """Causal attention with a single head of K numbers, x_BTD to [B, T, D]; the output's bias is the block's.

    Of few operations: each takes a fraction of a millisecond on tensors without data, and all ranks do it.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.width // config.heads
        self.query_key_value = _Linear(config.width, 3 * width)
        self.output = _Linear(width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        query_BTK, key_BTK, value_BTK = self.query_key_value(x_BTD).chunk(3, dim=-1)
        mixed_BTK = functional.scaled_dot_product_attention(query_BTK, key_BTK, value_BTK, is_causal=True)
        y_BTD: Tensor = self.output(mixed_BTK)
        return y_BTD


class _Summed(torch.autograd.Function):
    """Own branches in both passes, and after each of them a sum over all ranks."""

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, branches: _Branches, *parameters: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x_BTD.detach().requires_grad_()
            own = branches.own(leaf)
        ctx.kept = leaf, own, parameters, branches.group
        total = own.detach().clone()
        _add_up(total, branches.group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        leaf, own, parameters, group = ctx.kept
        of_x, *of_parameters = torch.autograd.grad(own, (leaf, *parameters), gradients)
        _add_up(of_x, group)
        return of_x, None, *of_parameters


def _add_up(x: Tensor, group: dist.ProcessGroup | None) -> None:
    if group is not None and dist.get_world_size(group) > 1:
        dist.all_reduce(x, group=group)


def _hidden_units(config: TransformerConfig) -> nn.Module:
    """An MLP with F / H hidden units."""
    units = config.inner // config.heads
    return nn.Sequential(_Linear(config.width, units), nn.GELU(), _Linear(units, config.width, bias=False))


def _dealt(count: int, place: int, ranks: int) -> range:
    """Which of so many things, in order, the rank at this place has: as torch.tensor_split deals them."""
    each, more = divmod(count, ranks)
    first = place * each + min(place, more)
    return range(first, first + each + (place < more))
