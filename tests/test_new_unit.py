"""`course new-unit`: one command writes a unit in which all is green, and what it cannot write it refuses."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbook.new_unit import UnitRefused, write_unit

ROOT = Path(__file__).parents[1]
UNIT = "14_quantisation"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the checkout; whatever runs in it imports its packages, not this one's."""
    root = tmp_path_factory.mktemp("checkout")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    yield root
    shutil.rmtree(root)


def run(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def files(checkout: Path) -> set[Path]:
    kept = ("solutions", "graders/units", "tests", "notebooks")
    found = {path for folder in kept for path in (checkout / folder).rglob("*") if path.is_file()}
    return {path.relative_to(checkout) for path in found if path.suffix != ".pyc"}


def test_a_new_unit_is_whole_and_green(checkout: Path) -> None:
    # Invariant: after the one command the unit has source, graders, proofs and notebook; its stub earns
    # nothing, its solution all, in the sandbox too; its proofs hold; its code passes lint and types.
    before = files(checkout)
    made = run(checkout, "workbook.cli", "new-unit", UNIT)
    assert made.returncode == 0, made.stderr
    assert {str(path) for path in files(checkout) - before} == {
        f"solutions/{UNIT}.py",
        *(f"graders/units/unit_14/{name}" for name in ("__init__.py", "quantisation_example.py")),
        "graders/units/unit_14/released_cells.json",
        *(f"tests/{proofs}_answers/{UNIT}.py" for proofs in ("wrong", "right")),
        f"notebooks/{UNIT}/{UNIT}.ipynb",
    }
    options = ("-q", "-p", "no:cacheprovider", "-k", f"quantisation or {UNIT}")
    tested = run(checkout, "pytest", *options, "tests/test_graders.py")
    assert tested.returncode == 0, tested.stdout
    # The stub, the solution, the proofs' number, the points, the order; eight proofs; the sandbox.
    assert tested.stdout.count(".") == 15, tested.stdout
    written = sorted(str(path) for path in files(checkout) - before if path.suffix == ".py")
    for order in (("check", "-q"), ("format", "--check", "--diff")):
        linted = run(checkout, "ruff", *order, *written)
        assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("quantisation", "is no unit's name"),
        ("15_Quantisation", "is no unit's name"),
        ("15_two words", "is no unit's name"),
        ("15_../../name", "is no unit's name"),
        ("00_hello_ranks", "that unit is there already"),
        ("07_quantisation", "07 is the number of 07_collectives"),
    ],
)
def test_what_cannot_be_a_unit_is_refused(checkout: Path, name: str, said: str) -> None:
    # Invariant: a sentence, and nothing is written.
    before = files(checkout)
    with pytest.raises(UnitRefused, match=said):
        write_unit(name, checkout)
    assert files(checkout) == before


def test_a_refusal_is_a_sentence_and_status_2(checkout: Path) -> None:
    refused = run(checkout, "workbook.cli", "new-unit", "07_quantisation")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "07_quantisation cannot be made: 07 is the number of 07_collectives. Give it a number of its own.\n"
    )
