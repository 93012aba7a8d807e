"""Alpa's two searches, as they are in its wheel: the program within operators, and the stages between them.

Alpa 0.2.3 does not import beside today's JAX. The two functions need nothing of it but NumPy and PuLP, so
they are taken out of its source. Run by unit 13 in the environment that `course beside alpa` makes: reads one
JSON object from its standard input, and prints one.

    {"intra": [{"nodes": [[...]], "edges": [[i, j, [[...]]]], "memory": [[...]], "capacity": 0.0}]}
    {"inter": [{"layers": 4, "devices": 4, "micro_batches": 8, "submeshes": [[1, 1]], "cost": ...}]}
"""

import ast
import importlib.metadata
import json
import math
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np


def no_timer(name: str) -> SimpleNamespace:
    """In place of Alpa's timers."""
    return SimpleNamespace(start=nullcontext, stop=nullcontext)


def taken(file: str, *names: str) -> dict[str, Any]:
    """These functions of a file of Alpa's, compiled by themselves."""
    files = {str(each): each for each in importlib.metadata.files("alpa") or ()}
    tree = ast.parse(files[file].read_text())
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    assert len(wanted) == len(names), f"{file} has not all of {names}"
    namespace = {
        "np": np,
        "time": time,
        "multiprocessing": multiprocessing,
        "warnings": warnings,
        "INFINITY_COST": math.inf,
        "timers": no_timer,
        "maybe_numba_jit": lambda function: function,
    }
    exec(compile(ast.Module(wanted, []), file, "exec"), namespace)
    return namespace


def intra(solve: Callable[..., Any], problem: dict[str, Any]) -> dict[str, Any]:
    """The strategies that Alpa's integer program chooses, and what they cost together.

    nodes: seconds of each strategy of each operator. edges: from, to, seconds for each pair of strategies.
    memory: bytes of each strategy; capacity: for all operators together, 0 for no bound.
    """
    nodes, edges, memory = problem["nodes"], problem["edges"], problem["memory"]
    lengths = np.array([len(each) for each in nodes])
    flat = np.array([seconds for each in nodes for seconds in each], dtype=float)
    # What lives at the same time: at the first operator everything, and afterwards nothing.
    alive = np.array([len(nodes), *[0] * (len(nodes) - 1), *range(len(nodes))])
    none = np.array([], dtype=int)
    chosen, _, objective, _ = solve(
        len(nodes),
        problem["capacity"],
        lengths,
        np.full(len(nodes), -1),
        np.array([pair[:2] for pair in edges]).flatten(),
        none,
        alive,
        flat,
        np.zeros_like(flat),
        np.array([each for own in memory for each in own], dtype=float),
        np.array([seconds for *_, table in edges for row in table for seconds in row], dtype=float),
        none,
    )
    return {"choices": [int(each) for each in chosen], "seconds": float(objective)}


def inter(training_dp: Callable[..., Any], problem: dict[str, Any]) -> dict[str, Any]:
    """The stages that Alpa's dynamic program chooses, and the seconds of a step.

    cost[first][last][submesh]: seconds of a stage of layers first to last for one micro-batch; null where
    there is no such stage. Stages: first layer, layer after the last, number of the submesh.
    """
    layers, submeshes = problem["layers"], [tuple(each) for each in problem["submeshes"]]
    cost = np.array(problem["cost"], dtype=float)[..., None]
    cost[np.isnan(cost)] = np.inf
    seconds, stages = training_dp(
        layers,
        problem["devices"],
        problem["micro_batches"],
        submeshes,
        1,
        cost,
        np.full(cost.shape, layers),
    )
    return {
        "seconds": float(seconds),
        "stages": [[int(first), int(after), int(submesh)] for (first, after), submesh, _ in stages],
    }


def main() -> None:
    """Solve what is asked for."""
    asked = json.load(sys.stdin)
    program = taken("alpa/shard_parallel/auto_sharding.py", "_call_solver_serialized_args")
    stages = taken("alpa/pipeline_parallel/stage_construction.py", "training_dp", "training_dp_impl")
    told = {
        "intra": [intra(program["_call_solver_serialized_args"], each) for each in asked.get("intra", ())],
        "inter": [inter(stages["training_dp"], each) for each in asked.get("inter", ())],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
