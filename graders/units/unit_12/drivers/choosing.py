"""Drivers of unit 12: a mesh for a model."""

from typing import Any

from course_lib.cluster.topology import Cluster, Link
from course_lib.models import TransformerConfig
from graders.grading.answer import AnswerFunction, PlainData


def chosen(
    answer: AnswerFunction, model: dict[str, Any], memory: float, batch: int, machine: dict[str, Any]
) -> PlainData:
    """The axes that the answer chooses, or in words what else it returns. machine: as `Cluster` takes it."""
    links = {name: Link(**machine[name]) for name in ("intra_node", "inter_node")}
    cluster = Cluster(**{**machine, **links})
    axes = answer(cluster.size, TransformerConfig(**model), memory, batch, cluster)
    return list(axes) if isinstance(axes, list | tuple) else f"a {type(axes).__name__}"
