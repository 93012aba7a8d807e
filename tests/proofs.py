"""What each proof of a unit's graders earns: `python -m tests.proofs 07_collectives ring_all_reduce`.

For those who change a grader. With --rename, wrong answers get the row that they now fail first. With --right
only solutions and right answers are graded; with --seeds 10 on ten draws each.
"""

import argparse
import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from graders.grading.exercise import Exercise, Verdict
from graders.grading.registry import exercises
from graders.grading.rng import Rng
from graders.grading.run import grade
from graders.student.kernel_answer import kernel_answer
from tests.answers import Proof, right_answers, solved, wrong_answers

PASSES = "none"
"""In place of a row: an answer that earns all points."""


def first_failed(exercise: Exercise, proof: Proof, seed: int) -> tuple[str, float]:
    """The first row that fails, and the seconds that it took to see it. Of a right answer it is printed."""
    begin = time.perf_counter()
    result = grade(exercise, kernel_answer(proof.answer, exercise.name), Rng(seed))
    assert not result.mistake, f"{proof.name}: the grader itself stopped:\n{result.mistake}"
    failed = [each for each in result.criteria if each.verdict is Verdict.FAILED]
    if failed and not proof.fails:
        row = failed[0]
        print(f"{proof.name} is right; with seed {seed} it fails {row.criterion.name}: {row.seen}")
    return failed[0].criterion.name if failed else PASSES, time.perf_counter() - begin


def proofs_of(unit: str, exercise: str, right: bool) -> Iterator[Proof]:
    """The solution and right answers, and unless only these are asked for, wrong answers."""
    yield Proof(exercise, solved(unit)[exercise], None)
    proofs = right_answers(unit) if right else right_answers(unit) + wrong_answers(unit)
    yield from (each for each in proofs if each.exercise == exercise)


def renamed(source: str, rows: dict[str, str]) -> str:
    """The source of wrong answers, of which those named fail these rows."""
    lines = source.split("\n")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in rows:
            for number in range(node.decorator_list[0].lineno - 1, node.lineno):
                lines[number] = re.sub(r'fails="[^"]*"', f'fails="{rows[node.name]}"', lines[number])
    return "\n".join(lines)


def main() -> None:
    """Print a table, an answer a line; answers whose row depends on what is drawn have several rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("unit")
    parser.add_argument("exercises", nargs="*")
    parser.add_argument("--rename", action="store_true")
    parser.add_argument("--right", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    table = Table("Exercise", "Answer", "Fails", "As written", "ms")
    rows: dict[str, str] = {}
    for name in given.exercises or exercises(given.unit):
        for proof in proofs_of(given.unit, name, given.right):
            seeds = range(1, given.seeds + 1)
            seen = [first_failed(exercises(given.unit)[name], proof, seed) for seed in seeds]
            failed = sorted({row for row, _ in seen})
            if proof.fails and failed != [proof.fails] and len(failed) == 1 and failed != [PASSES]:
                rows[proof.name] = failed[0]
            milliseconds = f"{1e3 * min(seconds for _, seconds in seen):.0f}"
            table.add_row(name, proof.name, ", ".join(failed), proof.fails or "right", milliseconds)
    Console().print(table)
    if given.rename:
        path = Path(__file__).parent / "wrong_answers" / f"{given.unit}.py"
        path.write_text(renamed(path.read_text(), rows))
        print(f"{len(rows)} renamed in {path.name}")


if __name__ == "__main__":
    main()
