"""Answers by Alpa, which stands beside the workbook: unit 13.

`examples/alpa` takes its searches out of its source.
"""

import math
import runpy
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np

from tests.field.answers import field

UNIT = "13_automatic"
LIBRARY = {"library": "Alpa", "beside": "alpa"}
INFINITY_COST = 1e13
"""As in its `global_env`."""
MICRO = 1e6
"""Both searches have tolerances that are absolute, and are asked in microseconds."""
EXAMPLE = Path(__file__).parents[2] / "examples/alpa/solvers.py"


def as_alpas(seconds: list[float]) -> list[float]:
    """In microseconds; what cannot be is merely dear."""
    return [min(MICRO * each, INFINITY_COST) for each in seconds]


@cache
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


@field(UNIT, "best_intra", **LIBRARY, lacks=["several edges", "the solver's tolerances"])
def program(
    graph: list[tuple[int, int]],
    node_cost: list[list[float]],
    edge_cost: list[list[list[float]]],
    memory: list[list[int]] | None = None,
    capacity: int | None = None,
) -> tuple[float, list[int]]:
    solve = example()["taken"]("alpa/shard_parallel/auto_sharding.py", "_call_solver_serialized_args")
    problem = {
        "nodes": [as_alpas(own) for own in node_cost],
        "edges": [
            [*pair, [as_alpas(row) for row in table]] for pair, table in zip(graph, edge_cost, strict=True)
        ],
        "memory": memory or [[0] * len(own) for own in node_cost],
        # 0 stands for no bound there.
        "capacity": 0 if capacity is None else max(capacity, 0.5),
    }
    try:
        chosen = example()["intra"](solve["_call_solver_serialized_args"], problem)["choices"]
    except RuntimeError as error:
        raise ValueError(f"Alpa: {error}") from error
    seconds = sum(own[each] for own, each in zip(node_cost, chosen, strict=True))
    seconds += sum(table[chosen[i]][chosen[j]] for (i, j), table in zip(graph, edge_cost, strict=True))
    if seconds == math.inf:
        raise ValueError("Alpa has chosen what cannot be.")
    return seconds, chosen


@field(UNIT, "best_inter", **LIBRARY, lacks=["a large model"])
def stages(
    stage_seconds: Callable[[int, int, int], float],
    layers: int,
    devices: int,
    micro_batches: int,
    sizes: Sequence[int],
) -> list[tuple[int, int]]:
    functions = example()["taken"](
        "alpa/pipeline_parallel/stage_construction.py",
        "training_dp_2",
        "training_dp_impl_2",
        "get_optimal_submeshes",
    )
    usable = [size for size in sizes if size <= devices]
    cost = np.full((layers, layers, len(usable), 1), np.inf)
    for first, last in combinations_with_replacement(range(layers), 2):
        for number, size in enumerate(usable):
            cost[first, last, number] = MICRO * stage_seconds(first, last + 1, size)
    submeshes = [(1, size) for size in usable]
    given = devices, micro_batches, submeshes, cost, np.full(cost.shape, layers)
    try:
        _, found = functions["training_dp_2"](*given)
    except AssertionError as error:
        raise ValueError(f"Alpa: {error}") from error
    return [(int(after - first), usable[number]) for (first, after), number, _ in found]
