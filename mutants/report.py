"""What a run of the mutants shows: a table, the mutants that nobody has explained, and entries gone stale."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from graders.classroom.terminal import progress_bar
from mutants import reviewed
from mutants.judging import Judged
from mutants.making import Mutant, Solution

AIM = 0.95
"""So much of what is not equivalent the graders have to see."""
AIM_OF_SAMPLE = 0.90
"""And of a sample, which may have drawn most of those that they do not see."""


@dataclass(frozen=True, slots=True)
class Tally:
    """A run's mutants, what became of each, and the reviewed list. made: all mutants of these solutions."""

    solutions: Sequence[Solution]
    made: Sequence[Mutant]
    verdicts: Mapping[Mutant, Judged]
    listed: Mapping[reviewed.Key, reviewed.Equivalent]

    @property
    def mutants(self) -> list[Mutant]:
        """Those that have been judged."""
        return [mutant for mutant in self.made if mutant in self.verdicts]

    def survivors(self) -> list[Mutant]:
        """Those that earn all points and are not on the list."""
        return [m for m in self.mutants if self.verdicts[m].survived and reviewed.key(m) not in self.listed]

    def equivalent(self) -> list[Mutant]:
        """Those that earn all points, as the list says."""
        return [m for m in self.mutants if self.verdicts[m].survived and reviewed.key(m) in self.listed]

    def stale(self) -> list[str]:
        """A sentence for every entry that no longer holds."""
        killed = {reviewed.key(m): each.how for m, each in self.verdicts.items() if not each.survived}
        names = {solution.exercise for solution in self.solutions}
        return reviewed.stale(self.listed, killed, self.made, names)

    def row(self, name: str, mutants: Sequence[Mutant]) -> tuple[str, ...]:
        """Name, mutants, killed, survived, equivalent, and the rate of those killed."""
        chosen = set(mutants)
        survived = len(chosen.intersection(self.survivors()))
        equivalent = len(chosen.intersection(self.equivalent()))
        killed = len(mutants) - survived - equivalent
        return name, *map(str, (len(mutants), killed, survived, equivalent)), _percent(killed, survived)

    def reaches_aim(self) -> bool:
        """Whether the graders see enough of the mutants, and the list holds."""
        survived = len(self.survivors())
        killed = len(self.mutants) - survived - len(self.equivalent())
        aim = AIM if len(self.mutants) == len(self.made) else AIM_OF_SAMPLE
        return killed >= aim * (killed + survived) and not self.stale()


def show(tally: Tally, console: Console) -> bool:
    """Print the survivors, the stale entries and the table; returns whether the aim is reached."""
    for mutant in tally.survivors():
        console.print(diff(mutant, tally.verdicts[mutant]), markup=False, highlight=False, soft_wrap=True)
    for sentence in tally.stale():
        console.print(f"Stale: {sentence}", markup=False, highlight=False, soft_wrap=True)
    console.print(_table(tally))
    return tally.reaches_aim()


def diff(mutant: Mutant, judged: Judged) -> str:
    """Where the mutant is, what it changes, and how it survived."""
    where = f"{mutant.solution.file.parent.name}/{mutant.solution.file.name}:{mutant.line}"
    again = f", occurrence {mutant.occurrence}" if mutant.occurrence > 1 else ""
    told = f"{where}: {mutant.solution.exercise}, {mutant.operator}{again}; {judged.how}"
    return f"{told}\n- {mutant.before}\n+ {mutant.after}\n"


@contextmanager
def progress(console: Console, count: int) -> Iterator[Callable[[Mutant, Judged], None]]:
    """A bar in a terminal, a line every hundred mutants where there is none; yields what to call for each."""
    done = survived = 0
    bar = progress_bar(console)
    task = bar.add_task("", total=count)

    def advance(mutant: Mutant, judged: Judged) -> None:
        nonlocal done, survived
        done, survived = done + 1, survived + judged.survived
        told = f"{mutant.solution.exercise}; {survived} earn all points"
        # The bar starts with the first verdict: its thread must not be there when the workers are forked.
        bar.start()
        bar.update(task, advance=1, description=told)
        if not console.is_terminal and done % 100 == 0:
            console.print(f"[{done}/{count}] {told}", markup=False, highlight=False)

    try:
        yield advance
    finally:
        bar.stop()


def _table(tally: Tally) -> Table:
    table = Table(title="Mutants of the solutions", title_justify="left")
    table.add_column("Exercise")
    for name in ("Mutants", "Killed", "Survived", "Equivalent", "Rate"):
        table.add_column(name, justify="right")
    for solution in tally.solutions:
        own = [mutant for mutant in tally.mutants if mutant.solution == solution]
        if own or len(tally.mutants) == len(tally.made):
            table.add_row(*tally.row(solution.exercise, own))
    table.add_section()
    table.add_row(*tally.row("all", tally.mutants))
    return table


def _percent(killed: int, survived: int) -> str:
    return f"{killed / (killed + survived):.1%}" if killed + survived else "-"
