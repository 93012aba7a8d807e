"""Mutation testing of the graders shows a hole, believes a reason, and reports one that no longer holds."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.changed import UnknownRevision, changed_since, grader_of
from mutants.making import Solution, make_mutants, read_solutions
from mutants.reviewed import BadList, read_lists
from tests import toy_mutants

ROOT = Path(__file__).parents[1]

EQUIVALENT = """
[[equivalent]]
exercise = "gap"
line = "return b - a if a < b else 0"
mutant = "return b - a if a <= b else 0"
reason = "The difference of equal numbers is 0."

[[equivalent]]
exercise = "gap"
line = "return b - a if a < b else 0"
mutant = "return b - a if True else 0"
reason = "The loop has put the smaller one first, and the difference of equal numbers is 0."
"""
STALE = """
[[equivalent]]
exercise = "gap"
line = "return b - a if a < b else 0"
mutant = "return b - a - 1"
reason = "There is no such mutant."

[[equivalent]]
exercise = "gap"
line = "return b - a if a < b else 0"
mutant = "return b + a if a < b else 0"
reason = "Its grader sees it."
"""


def runs(folder: Path, *wanted: str) -> list[str]:
    """What each run over the toy's mutants printed, its exit status last unless it is 0."""
    command = [sys.executable, "-m", "tests.toy_mutants", str(folder), *wanted]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("END OF RUN\n")[:-1]


def counts(output: str) -> dict[str, int]:
    """The toy's row of the table."""
    row = re.search(r"│ gap" + r"\D+(\d+)" * 4, output)
    assert row, output
    return dict(zip(("mutants", "killed", "survived", "equivalent"), map(int, row.groups()), strict=True))


def test_a_hole_is_shown_and_closed(tmp_path: Path) -> None:
    for listed, text in (("some", EQUIVALENT), ("more", EQUIVALENT + STALE), ("none", "")):
        (tmp_path / listed).mkdir()
        (tmp_path / listed / "91_toy.toml").write_text(text)
    half, whole, again, few = runs(tmp_path, "half:more", "whole:some", "whole:none", "whole:some:3")

    # A mutant that differs only where the grader does not look survives and is shown with its place, one on
    # the list is not counted, entries that do not hold are told, and a mutant that hangs is killed.
    line = toy_mutants.SOURCE.splitlines().index("        a, b = b, a") + 1
    place = rf"91_toy\.py:{line}: gap, order; all points with seed 1"
    assert re.search(rf"{place}\n- a, b = b, a\n\+ a, b = a, b\n", half), half
    assert "+ return b - a if a <= b else 0" not in half
    assert "'return b - a - 1' is no mutant any more" in half
    assert "'return b + a if a < b else 0' is not equivalent, its grader sees it (distance: " in half
    verdicts = [json.loads(text) for text in (tmp_path / "half.jsonl").read_text().splitlines()]
    assert any(re.match(r"killed after [\d.]+ s", verdict["how"]) for verdict in verdicts)
    shown = counts(half)
    assert shown["equivalent"] == 2
    assert shown["survived"] == half.count("all points with seed") > 1
    assert shown["mutants"] == shown["killed"] + shown["survived"] + 2 == len(verdicts)
    assert half.endswith("\n1\n")

    # Of the same mutants a grader that looks there too sees all but the equivalent ones.
    seen = {**shown, "killed": shown["mutants"] - 2}
    assert counts(whole) == {**seen, "survived": 0}
    assert whole.endswith("┘\n")

    # One that hangs in its third call, after calls that had time limits of their own, is killed as early.
    hung = [json.loads(text)["how"] for text in (tmp_path / "whole.jsonl").read_text().splitlines()]
    assert not any("still running" in how for how in hung), hung
    assert sum("of processor time" in how for how in hung) > 1, hung

    # What was judged before is not judged again, and what is not on the list counts.
    assert counts(again) == {**seen, "survived": 2, "equivalent": 0}
    assert len((tmp_path / "whole.jsonl").read_text().splitlines()) == shown["mutants"]

    # Of a sample only what was drawn counts, from a seed that is told; no entry is stale for not being drawn.
    assert f"Of {shown['mutants']} mutants 3 are drawn: --seed=" in few
    assert counts(few)["mutants"] == len((tmp_path / "whole3.jsonl").read_text().splitlines()) == 3
    assert few.endswith("┘\n")

    # What an answer writes into the folder where it is does not stay.
    assert not (ROOT / "called.txt").exists()


def test_each_mutant_changes_the_solution_in_one_place() -> None:
    # Invariant: mutants are valid Python, differ from the solution and from each other, and only in the lines
    # that they name, which lie between the markers.
    for solution in read_solutions(ROOT / "solutions" / "00_hello_ranks.py"):
        mutants = make_mutants(solution)
        assert len({ast.dump(ast.parse(mutant.source)) for mutant in mutants}) == len(mutants)
        lines = solution.file.read_text().splitlines()
        for mutant in mutants:
            assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(solution.source))
            first = lines[mutant.line - 1].strip()
            assert mutant.before.startswith(first)
            assert first not in ("### BEGIN SOLUTION", "### END SOLUTION")


def test_what_is_not_judged_is_not_mutated() -> None:
    # Invariant: messages, annotations and what stands outside the markers stay as they are.
    source = '''\
def half(x: int = 1) -> int:
    """x / 2."""
    ### BEGIN SOLUTION
    if x < 0:
        raise ValueError(f"{x} is below {1 - 1}")
    y: int = x // 2
    ### END SOLUTION
    return y + 0
'''
    mutants = make_mutants(Solution("90_sample", "half", Path("90_sample.py"), 10, source))
    assert {mutant.line for mutant in mutants} == {13, 14, 15}
    assert [mutant.after for mutant in mutants if mutant.line == 14] == ["pass"]
    assert {mutant.after for mutant in mutants if mutant.line == 15} >= {"y: int = x % 2", "y: int = x // 3"}
    assert all('f"{x} is below {1 - 1}"' in m.source or m.after == "pass" for m in mutants)


def test_an_entry_without_a_reason_or_twice_is_refused(tmp_path: Path) -> None:
    # Invariant: nobody can put a mutant on the list without saying why.
    path = tmp_path / "90_sample.toml"
    path.write_text(EQUIVALENT.replace("The difference of equal numbers is 0.", " "))
    with pytest.raises(BadList, match=r"no reason is given for 'return b - a if a <= b else 0' in gap"):
        read_lists(tmp_path)
    path.write_text(EQUIVALENT * 2)
    with pytest.raises(BadList, match="in gap is listed twice"):
        read_lists(tmp_path)
    path.write_text(EQUIVALENT.replace("reason", "why"))
    with pytest.raises(BadList, match="An entry has exercise, line, mutant and reason"):
        read_lists(tmp_path)


def test_the_list_is_about_lines_that_there_are() -> None:
    # Invariant: every entry of the reviewed list quotes a line of today's solution. Whether that mutant is
    # still made, and no grader sees it, `make mutants` tells.
    lines = {
        solution.exercise: " ".join(line.strip() for line in solution.source.splitlines())
        for path in (ROOT / "solutions").glob("*.py")
        for solution in read_solutions(path)
    }
    assert not [entry for entry in read_lists().values() if entry.line not in lines[entry.exercise]]


CELL = """\
# %% exercise="{0}" points=1
def {0}():
    ### BEGIN SOLUTION
    return {1}
    ### END SOLUTION

"""


def test_an_exercise_has_changed_with_its_cell_or_with_what_grades_it(tmp_path: Path) -> None:
    # Its own cell, its grader's module, or a module that this one imports; not what stands beside them.
    def git(*arguments: str) -> None:
        names = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.org"]
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def changed(revision: str = "HEAD") -> list[str]:
        found = changed_since(revision, read_solutions(unit), tmp_path, lambda each: graders[each.exercise])
        return [solution.exercise for solution in found]

    unit = write("solutions/90_sample.py", CELL.format("one", 1) + CELL.format("two", 2))
    graders = {
        "one": write("graders/units/unit_90/first.py", "from graders.units.unit_90 import drivers\n"),
        "two": write("graders/units/unit_90/second.py", "from graders.units.unit_90.shared import x\n"),
    }
    write("graders/units/unit_90/drivers.py", "y = 1\n")
    write("graders/units/unit_90/shared.py", "x = 1\n")
    git("init")
    git("add", ".")
    git("commit", "--message", "first")
    assert changed() == []
    write("solutions/90_sample.py", "# %%\nz = 1\n\n" + CELL.format("one", 1) + CELL.format("two", 22))
    assert changed() == ["two"]
    write("graders/units/unit_90/drivers.py", "y = 2\n")
    assert changed() == ["one", "two"]
    git("commit", "--all", "--message", "second")
    assert changed() == []
    write("graders/units/unit_90/shared.py", "x = 2\n")
    assert changed() == ["two"]
    assert changed("HEAD~1") == ["one", "two"]
    with pytest.raises(UnknownRevision, match="HEAD~2 is not in this clone"):
        changed("HEAD~2")


def test_each_exercise_of_the_workbook_has_a_grader_that_stands_in_a_module_of_its_unit() -> None:
    # Also those whose grader is an object that judges by cases, not a function.
    for file in sorted((ROOT / "solutions").glob("*.py")):
        for solution in read_solutions(file):
            module = grader_of(solution)
            assert module.parent.name == f"unit_{file.stem[:2]}", f"{solution.exercise}: {module}"
