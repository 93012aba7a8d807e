"""`python -m mutants [UNIT or EXERCISE ...]`: how many mutants of the solutions the graders see."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mutants.judging import BadSolution, Judged, JudgePool, key
from mutants.making import Mutant, Solution, make_mutants, read_solutions
from mutants.report import Tally, progress, show
from mutants.reviewed import LISTS, BadList, read_lists

SOLUTIONS = Path(__file__).parents[1] / "solutions"
KEPT = Path(__file__).parents[1] / "build" / "mutants.jsonl"
"""Verdicts of earlier runs, a line each: what has not changed is not judged again."""


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Units and exercises; all without one.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Mutants judged at the same time.")] = 2,
    solutions: Annotated[Path, typer.Option(help="Where the units are.")] = SOLUTIONS,
    equivalents: Annotated[Path, typer.Option(help="The folder of the reviewed lists.")] = LISTS,
    kept: Annotated[Path, typer.Option(help="Where verdicts are kept; found again by later runs.")] = KEPT,
) -> None:
    """Judge every mutant. Exit status 1 if the graders see less than 95 % of what is not equivalent, or if an
    entry of the list does not hold.
    """
    console = Console()
    try:
        chosen = _chosen(solutions, names or [])
        listed = read_lists(equivalents)
        mutants = [mutant for solution in chosen for mutant in make_mutants(solution)]
        verdicts = _judged(mutants, jobs, kept, console)
    except (BadSolution, BadList) as error:
        sys.exit(str(error))
    if not show(Tally(chosen, mutants, verdicts, listed), console):
        sys.exit(1)


def _chosen(solutions: Path, names: list[str]) -> list[Solution]:
    """The solutions of the units and exercises of these names."""
    everything = [each for path in sorted(solutions.glob("*.py")) for each in read_solutions(path)]
    known = {name for each in everything for name in (each.unit, each.exercise)}
    for name in names:
        if name not in known:
            sys.exit(f'There is no unit and no exercise named "{name}" in {solutions}.')
    return [each for each in everything if not names or {each.unit, each.exercise} & set(names)]


def _judged(mutants: list[Mutant], jobs: int, kept: Path, console: Console) -> dict[Mutant, Judged]:
    """What became of every mutant; what an earlier run has found is taken from there."""
    known = _known(kept)
    keys = {mutant: key(mutant) for mutant in mutants}
    verdicts = {mutant: known[keys[mutant]] for mutant in mutants if keys[mutant] in known}
    left = [mutant for mutant in mutants if mutant not in verdicts]
    if not left:
        return verdicts
    kept.parent.mkdir(parents=True, exist_ok=True)
    units = sorted({mutant.solution.file for mutant in left})
    with JudgePool(units, jobs) as pool, kept.open("a") as file, progress(console, len(left)) as advance:
        for mutant, judged in pool.judge(left):
            verdicts[mutant] = judged
            line = {"key": keys[mutant], "survived": judged.survived, "how": judged.how}
            file.write(json.dumps(line) + "\n")
            file.flush()
            advance(mutant, judged)
    return verdicts


def _known(kept: Path) -> dict[str, Judged]:
    """The verdicts of earlier runs by key. A line that was cut off is none."""
    known = {}
    for line in kept.read_text().splitlines() if kept.exists() else ():
        try:
            plain = json.loads(line)
            known[plain["key"]] = Judged(plain["survived"], plain["how"])
        except (ValueError, KeyError):
            continue
    return known


if __name__ == "__main__":
    typer.run(run)
