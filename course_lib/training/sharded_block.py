"""A tensor rank's part of a transformer block, as Megatron-LM cuts and runs it: shapes alone, for simulating.

Weights are cut by columns, then by rows, and attention by heads (M. Shoeybi et al., arXiv:1909.08053, section
3). Three operations are one kernel each: the scaled and masked softmax, bias and GELU, and bias, dropout and
addition (D. Narayanan et al., arXiv:2104.04473, section 4.2). So each reads and writes its tensors once here.

Shapes: B samples of a micro-batch, T tokens, D width, H heads of a rank, K width of a head.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.models import TransformerConfig

DEVICE, NUMBERS = "meta", torch.bfloat16
"""Shapes without data, of numbers of 16 bits."""


class ShardedBlock(nn.Module):
    """One of `tensor` parts of a block, x_BTD to [B, T, D]. The all-reduces are left to the caller."""

    def __init__(self, config: TransformerConfig, tensor: int) -> None:
        super().__init__()
        width, inner = config.width, config.inner
        self.head_width = width // config.heads
        self.attention_norm = _norm(width)
        self.query_key_value = _linear(width, 3 * width // tensor)
        self.output = _linear(width // tensor, width)
        self.mlp_norm = _norm(width)
        self.up = _linear(width, inner // tensor)
        self.down = _linear(inner // tensor, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.output(self._attention(self.attention_norm(x_BTD)))
        y_BTD: Tensor = x_BTD + self.down(functional.gelu(self.up(self.mlp_norm(x_BTD))))
        return y_BTD

    def _attention(self, x_BTD: Tensor) -> Tensor:
        parts = self.query_key_value(x_BTD).chunk(3, dim=-1)
        query_BHTK, key_BHTK, value_BHTK = (
            part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in parts
        )
        weights_BHTT = (query_BHTK @ key_BHTK.transpose(-2, -1)).softmax(-1)
        kept_BHTT, _ = torch.native_dropout(weights_BHTT, 0.1, train=True)
        mixed_BTD: Tensor = (kept_BHTT @ value_BHTK).transpose(1, 2).flatten(2)
        return mixed_BTD


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, device=DEVICE, dtype=NUMBERS)


def _norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, device=DEVICE, dtype=NUMBERS)
