"""Judges the mutants of a toy exercise: `python -m tests.toy_mutants FOLDER GRADER:LIST[:AT_MOST] ...`, a run
for each.

GRADER `half` never gives the larger number first, which is a hole; `whole` does.
LIST is the folder of reviewed mutants in FOLDER, where the verdicts of each grader are kept too.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from graders.grading import compare
from graders.grading.answer import Answer
from graders.grading.exercise import Criterion, Findings, exercise
from graders.grading.rng import Rng
from graders.units.drivers import call
from mutants import __main__ as command
from mutants import judging

SOURCE = '''\
# %% exercise="gap" points=1
def gap(a: int, b: int) -> int:
    """The distance of two numbers."""
    open("called.txt", "w").close()
    ### BEGIN SOLUTION
    while a > b:
        a, b = b, a
    return b - a if a < b else 0
    ### END SOLUTION
'''

CASES = {"half": ((2, 2), (3, 7)), "whole": ((2, 2), (3, 7), (9, 4))}


def grade_with(cases: Sequence[tuple[int, int]]) -> None:
    """Make these cases what the toy is graded by."""

    @exercise(
        unit="91_toy",
        name="gap",
        rubric=(Criterion("distance", 1, "Which of the two is larger?"),),
        minutes=1,
        difficulty=1,
    )
    def grade_gap(answer: Answer, _: Rng) -> Findings:
        values = [answer.call(call, a, b) for a, b in cases]
        yield "distance", compare.equal(values, [abs(a - b) for a, b in cases], "the gaps")


def main(folder: Path, runs: Sequence[str]) -> None:
    judging.GRACE_SECONDS, judging.TIMES_SLOWER = 0.3, 1
    (folder / "91_toy.py").write_text(SOURCE)
    for grader, listed, *at_most in (run.split(":") for run in runs):
        grade_with(CASES[grader])
        try:
            command.run(
                jobs=2,
                solutions=folder,
                equivalents=folder / listed,
                kept=folder / f"{grader}{''.join(at_most)}.jsonl",
                at_most=int(at_most[0]) if at_most else None,
            )
        except SystemExit as status:
            print(status)
        print("END OF RUN")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
