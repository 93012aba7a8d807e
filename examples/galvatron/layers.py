"""Galvatron's dynamic program over the layers of a model: its class, and the compiled loop that it calls.

`import galvatron.core` asks for apex. The class DPAlg needs nothing of that but NumPy and the module
galvatron_dp_core, so it is taken out of the source. Run by unit 13 in the environment that
`course beside galvatron` makes: reads one JSON object from its standard input, and prints one.

    {"chains": [{"nodes": [[...]], "edges": [[[...]]], "memory": [[...]], "capacity": 0}]}
"""

import ast
import importlib.metadata
import json
import sys
from typing import Any

import numpy as np

FILE = "galvatron/core/search_engine/dynamic_programming.py"


def program() -> Any:
    """The class DPAlg of Galvatron's source, compiled by itself."""
    files = {str(each): each for each in importlib.metadata.files("hetu-galvatron") or ()}
    tree = ast.parse(files[FILE].read_text())
    wanted = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DPAlg"]
    namespace: dict[str, Any] = {"np": np}
    exec(compile(ast.Module(wanted, []), FILE, "exec"), namespace)
    return namespace["DPAlg"]


def chain(algorithm: Any, problem: dict[str, Any]) -> dict[str, Any]:
    """The strategies that the program chooses for a chain of layers, and what they cost together.

    nodes: seconds of each strategy of each layer. edges: seconds from each strategy of a layer to each of the
    next. memory: of each strategy, in whole units; capacity: for all layers together. It has a row for each
    unit of memory, and as many strategies for each layer: those that are missing cost infinitely much. It
    writes over the table that it reads, which is right only where each strategy needs some memory: so each
    gets a unit more, and so many more there are in all.
    """
    nodes = problem["nodes"]
    most = max(map(len, nodes))
    seconds = np.full((len(nodes), most), np.inf)
    memory = np.ones((len(nodes), most), dtype=np.int32)
    between = np.zeros((len(nodes), most, most))  # from the layer before; nothing is before the first
    for number, own in enumerate(nodes):
        seconds[number, : len(own)] = own
        memory[number, : len(own)] += problem["memory"][number]
        if number:
            table = np.array(problem["edges"][number - 1])
            between[number, : table.shape[0], : table.shape[1]] = table
    # Key 1: the ways to share the vocabulary, which it plans beside; here there is one, and it costs nothing.
    capacity = problem["capacity"] + len(nodes)
    found = algorithm(capacity, {1: 0}, {1: 0.0}, layer_num=len(nodes), strategy_num=most)
    found.set_v_and_cost(memory, seconds, between)
    total, choices, _ = found.fit()
    return {"seconds": float(total[1]), "choices": [int(each) for each in choices[1]]}


def main() -> None:
    """Solve what is asked for."""
    algorithm = program()
    print(json.dumps({"chains": [chain(algorithm, each) for each in json.load(sys.stdin)["chains"]]}))


if __name__ == "__main__":
    main()
