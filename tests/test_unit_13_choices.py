"""Unit 13, the best of all plans: beside Alpa's own program, a chain as a graph, the graders' two ways."""

import json
import math
import random
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from course_lib.beside import interpreter, missing
from graders.grading.rng import Rng
from graders.units.unit_13.problems import Problem
from tests.answers import solved

SOLVERS = Path(__file__).parents[1] / "examples" / "alpa" / "solvers.py"
LAYERS = Path(__file__).parents[1] / "examples" / "galvatron" / "layers.py"
SOLVED = solved("13_automatic")


def drawn(rng: Rng, count: int) -> Problem:
    """A chain with some edges that skip an operator, in milliseconds, and a bound for memory."""
    edges = [*pairwise(range(count)), *((i, i + 2) for i in range(0, count - 2, 2))]
    return Problem.drawn(rng, [rng.integer(2, 4) for _ in range(count)], edges).bounded(rng, 0.5)


def _answered(recipe: str, program: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """What a program of this recipe's Python says to `asked`."""
    done = subprocess.run(
        [str(interpreter(recipe)), str(program)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(bool(missing("alpa")), reason=missing("alpa") or "it is there")
def test_alpa_finds_the_same(rng: random.Random) -> None:
    # Invariant: with a bound and without, Alpa's program and ours find what looking at all plans finds.
    source = Rng(rng.getrandbits(32))
    problems = [drawn(source, count) for count in (2, 4, 5, 6)]
    problems += [Problem(p.edges, p.node_cost, p.edge_cost, p.memory) for p in problems]
    asked: list[dict[str, Any]] = [
        {
            "nodes": p.node_cost,
            "edges": [[*ends, table] for ends, table in zip(p.edges, p.edge_cost, strict=True)],
            "memory": p.memory,
            "capacity": p.capacity or 0,
        }
        for p in problems
    ]
    answered = _answered("alpa", SOLVERS, {"intra": asked})["intra"]
    for problem, theirs in zip(problems, answered, strict=True):
        seconds, plan = SOLVED["best_intra"](*problem.arguments)
        assert math.isclose(theirs["seconds"], problem.least, rel_tol=1e-6)
        assert math.isclose(seconds, problem.least, rel_tol=1e-6)
        assert problem.fits(plan)
        assert problem.fits(theirs["choices"])


@pytest.mark.skipif(bool(missing("galvatron")), reason=missing("galvatron") or "it is there")
def test_galvatron_finds_the_same(rng: random.Random) -> None:
    # Invariant: for chains with a bound Galvatron's program and ours find what looking at all plans finds.
    source = Rng(rng.getrandbits(32))
    counts = [source.integer(1, 6) for _ in range(8)]
    chains = [Problem.chain(source, [source.integer(1, 4) for _ in range(count)]) for count in counts]
    problems = [each.bounded(source, 1 / 3) for each in chains]
    asked = [
        {"nodes": p.node_cost, "edges": p.edge_cost, "memory": p.memory, "capacity": p.capacity}
        for p in problems
    ]
    answered = _answered("galvatron", LAYERS, {"chains": asked})["chains"]
    for problem, theirs in zip(problems, answered, strict=True):
        seconds, _ = SOLVED["best_intra"](*problem.arguments)
        assert math.isclose(theirs["seconds"], problem.least, rel_tol=1e-6)
        assert math.isclose(seconds, problem.least, rel_tol=1e-6)
        assert problem.fits(theirs["choices"])


def test_a_chain_is_a_graph(rng: random.Random) -> None:
    # Invariant: both exercises agree where both can be asked, and with the table of the grader.
    source = Rng(rng.getrandbits(32))
    for _ in range(5):
        chain = Problem.chain(source, [source.integer(1, 4) for _ in range(8)])
        by_table, _ = SOLVED["best_chain"](chain.node_cost, chain.edge_cost)
        by_program, _ = SOLVED["best_intra"](*chain.arguments)
        assert math.isclose(by_table, chain.along(), rel_tol=1e-9, abs_tol=1e-15)
        assert math.isclose(by_program, by_table, rel_tol=1e-6, abs_tol=1e-12)


def test_a_ladder_is_a_graph(rng: random.Random) -> None:
    # Invariant: what the grader finds for a large graph is what looking at all plans finds for a small one.
    source = Rng(rng.getrandbits(32))
    for count in (3, 5, 6):
        ladder = Problem.ladder(source, count)
        assert math.isclose(ladder.along_ladder(), ladder.least, rel_tol=1e-9)
