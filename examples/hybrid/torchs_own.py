"""The model of course_lib.training.mesh_transformer as PyTorch's own tools want it: not cut yet."""

from collections.abc import Mapping

import torch
from torch import Tensor

from course_lib.models import Transformer, TransformerConfig
from course_lib.training.mesh_transformer import MeshTransformer


def whole(config: TransformerConfig) -> Transformer:
    """The model that all ranks of a mesh have together, on one."""
    model = Transformer(config)
    model.load_state_dict(renamed(MeshTransformer(config).state_dict(), config))
    return model


def renamed(parts: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Values, or gradients, under the names and in the shapes that they have in a Transformer.

    parts: by their names in MeshTransformer, of all branches.
    """
    found = {name: value for name, value in parts.items() if not name.startswith("blocks.")}
    for number in range(config.layers):
        block = f"blocks.{number}."
        heads = [f"{block}attention.branches.{head}." for head in range(config.heads)]
        units = [f"{block}mlp.branches.{head}." for head in range(config.heads)]
        for kind in ("weight", "bias"):
            of_heads = [parts[f"{head}query_key_value.{kind}"].chunk(3) for head in heads]
            for place, name in enumerate(("query", "key", "value")):
                found[f"{block}attention.{name}.{kind}"] = torch.cat([own[place] for own in of_heads])
            found[f"{block}mlp.up.{kind}"] = torch.cat([parts[f"{own}0.{kind}"] for own in units])
            for norm in ("attention_norm", "mlp_norm"):
                found[f"{block}{norm}.{kind}"] = parts[f"{block}{norm}.{kind}"]
        found[f"{block}attention.output.weight"] = torch.cat([parts[f"{h}output.weight"] for h in heads], 1)
        found[f"{block}mlp.down.weight"] = torch.cat([parts[f"{own}2.weight"] for own in units], 1)
        found[f"{block}attention.output.bias"] = parts[f"{block}attention_bias"]
        found[f"{block}mlp.down.bias"] = parts[f"{block}mlp_bias"]
    return found
