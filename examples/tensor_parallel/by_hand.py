"""A transformer of course_lib.models, cut over all ranks by hand, with the functions of unit 06."""

from collections.abc import Callable

from torch import nn

from course_lib.models import Transformer

Cut = Callable[[nn.Module], nn.Module]


def cut(model: Transformer, parallel_attention: Cut, parallel_mlp: Cut) -> None:
    """Replace both halves of every block by this rank's part of them."""
    for block in model.blocks:
        block.attention = parallel_attention(block.attention)
        block.mlp = parallel_mlp(block.mlp)
