"""`python -m mutants [UNIT or EXERCISE ...]`: how many mutants of the solutions the graders see."""

import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mutants.changed import UnknownRevision, changed_since
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
    changed: Annotated[
        str | None, typer.Option("--changed-since", help="Only of exercises that differ from this revision.")
    ] = None,
    at_most: Annotated[int | None, typer.Option(min=1, help="Judge a sample of so many, drawn.")] = None,
    minutes: Annotated[float, typer.Option(help="Judge no more of them after so long.")] = math.inf,
    seed: Annotated[int | None, typer.Option(help="What the sample is drawn from; by default anew.")] = None,
) -> None:
    """Judge every mutant. Exit status 1 if the graders see less than 95 % of what is not equivalent (of a
    sample 90 %), or if an entry of the list does not hold.
    """
    console = Console()
    try:
        chosen = _chosen(solutions, names or [])
        if changed is not None:
            chosen = changed_since(changed, chosen, solutions.parent)
            console.print(
                f"Changed since {changed}: {', '.join(each.exercise for each in chosen) or 'nothing'}."
            )
        listed = read_lists(equivalents)
        made = [mutant for solution in chosen for mutant in make_mutants(solution)]
        until = time.monotonic() + 60 * minutes
        verdicts = _judged(_sample(made, at_most, seed, console), jobs, kept, console, until)
    except (BadSolution, BadList) as error:
        sys.exit(str(error))
    except UnknownRevision as error:
        console.print(f"{error} No mutants are judged.", soft_wrap=True)
        return
    if chosen and not show(Tally(chosen, made, verdicts, listed), console):
        sys.exit(1)


def _sample(mutants: list[Mutant], at_most: int | None, seed: int | None, console: Console) -> list[Mutant]:
    """So many of them, drawn; all if there are no more."""
    if at_most is None or len(mutants) <= at_most:
        return mutants
    seed = random.randrange(10**6) if seed is None else seed
    console.print(f"Of {len(mutants)} mutants {at_most} are drawn: --seed={seed}")
    return random.Random(seed).sample(mutants, at_most)


def _chosen(solutions: Path, names: list[str]) -> list[Solution]:
    """The solutions of the units and exercises of these names."""
    everything = [each for path in sorted(solutions.glob("*.py")) for each in read_solutions(path)]
    known = {name for each in everything for name in (each.unit, each.exercise)}
    for name in names:
        if name not in known:
            sys.exit(f'There is no unit and no exercise named "{name}" in {solutions}.')
    return [each for each in everything if not names or {each.unit, each.exercise} & set(names)]


def _judged(
    mutants: list[Mutant], jobs: int, kept: Path, console: Console, until: float
) -> dict[Mutant, Judged]:
    """What became of every mutant, or of those judged before the monotonic clock stood at `until`; what an
    earlier run has found is taken from there.
    """
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
            if time.monotonic() > until:
                break
    if len(verdicts) < len(mutants):
        console.print(f"The time was up: {len(mutants) - len(verdicts)} mutants have not been judged.")
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
