"""Drivers of unit 12: a mesh for a model."""

from typing import Any

from course_lib.cluster.topology import Cluster, Link
from course_lib.models import TransformerConfig
from graders.grading.answer import AnswerFunction, PlainData


def chosen(
    answer: AnswerFunction, model: dict[str, Any], memory: float, batch: int, machine: dict[str, Any]
) -> list[PlainData]:
    """The axes that the answer chooses. machine: what `Cluster` takes, its links as (latency, bandwidth)."""
    links = {name: Link(*machine[name]) for name in ("intra_node", "inter_node")}
    cluster = Cluster(**{**machine, **links})
    return list(answer(cluster.size, TransformerConfig(**model), memory, batch, cluster))
