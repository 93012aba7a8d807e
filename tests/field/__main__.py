"""Which rows the answers of libraries do not earn: `python -m tests.field 06_tensor_parallel f`.

Those of a library beside the workbook are graded by its own Python, which is what `--told` is for.
"""

import argparse
import json
from contextlib import nullcontext

from course_lib.beside import missing
from course_lib.beside.recipes import recipe_named
from tests.field import answers, told, told_beside


def tell(recipe: str) -> None:
    """Grade the answers by this library in this process, and print one JSON object."""
    if recipe == "megatron-core":
        from course_lib.training.megatron_experts import on_cpu as context
    else:
        context = nullcontext
    # Its import may take longer than a call of an answer may.
    exec(recipe_named(recipe).check, {})
    with context():
        print(json.dumps({each.name: told(each) for each in answers() if each.beside == recipe}))


def main() -> None:
    """Print a line for each answer, and one for each row that it does not earn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("unit", nargs="?", default="")
    parser.add_argument("exercises", nargs="*")
    parser.add_argument("--told", metavar="RECIPE")
    given = parser.parse_args()
    if given.told:
        tell(given.told)
        return
    for each in answers():
        if given.unit in ("", each.unit) and each.exercise in (given.exercises or [each.exercise]):
            sentence = missing(each.beside) if each.beside else ""
            print(each.unit, each.name, sentence)
            if not sentence:
                rows = told_beside(each.beside)[each.name] if each.beside else told(each)
                for row, (verdict, seen) in rows.items():
                    if verdict != "passed":
                        print(f"    {row}: {verdict}{' (lacks)' * (row in each.lacks)}: {seen}")


if __name__ == "__main__":
    main()
