"""Hostile submissions: none earns what it attacks, hangs past its limit, leaves anything, or harms another.

Each file of `tests/attacks` is an answer to one exercise of unit 00; the other answers of the submission are
right. All are handed in as one class, and graded by `course grade` as any class is. The files of its folders
are answers to an exercise of the unit that the folder names, each graded by itself.
"""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell

from graders.classroom.result_store import Graded, ResultStore
from graders.grading.run import ExerciseResult
from graders.host.fork_server_client import acquire, release
from graders.host.grade_submission import grade_submission
from graders.isolation.backends import backend_here
from graders.submissions.cells import Cell
from graders.submissions.read import Submission
from tests.classroom import (
    UNIT,
    answer_cell,
    blank,
    command,
    environment,
    folder_of,
    hand_in,
    new_course,
    solved,
)
from tests.test_classroom import ALL, scores

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("attacks"),
    pytest.mark.skipif(
        not backend_here().stands,
        reason="no sandbox can be built here: apt-get install bubblewrap, or allow it",
    ),
]

FOLDER = Path(__file__).parent / "attacks"
BYSTANDERS = ("amdahl_speedup", "rank_coordinates", "pass_the_token")
"""Answered rightly beside an attack: one that launches ranks, and two that do not."""
WORTH = {"amdahl_speedup": 3, "rank_coordinates": 6, "pass_the_token": 6, "mend_statistics": 6}


@dataclass(frozen=True)
class Verdict:
    """What an attack earns, of the exercise that it attacks, and what its author reads, as a pattern."""

    seen: str
    points: float = 0


WRONG = Verdict("expected")
STOPPED = Verdict("still running after 10 s")
KILLED = Verdict("Your code ended the whole process")
BOUNDED = Verdict("stopped|still running after (10 s|6 s of computing)")
"""For what it took, or on a busy machine for the time that it took to take it."""
ASKED = Verdict("the values are right, but it calls all_reduce")
"""That ranks were asked for them cannot be hidden."""

EXPECTED = {
    "claims_to_be_a_tensor": Verdict("TypeError"),
    "deep_answer": Verdict("RecursionError"),
    "detects_grading": WRONG,
    "disk_filler": WRONG,
    "endless_error": STOPPED,
    "equals_everything": Verdict("a subclass of float"),
    "finds_the_gradebook": WRONG,
    "forges_enormous": KILLED,
    "forges_events": ASKED,
    "forges_junk": Verdict("is no reply"),
    "fork_bomb": BOUNDED,
    "hooks": Verdict("is no reply"),
    "huge_answer": Verdict("allowed are|still running after (10 s|6 s of computing)"),
    "ignores_every_signal": STOPPED,
    "imports_the_grader": WRONG,
    "kills_the_others": KILLED,
    "late_thread": WRONG,
    "leaves_a_note": WRONG,
    "lying_tensor": Verdict("a subclass of Tensor"),
    "many_files": WRONG,
    "memory_bomb": BOUNDED,
    "memory_of_many": BOUNDED,
    "namespaces_of_its_own": WRONG,
    "network": WRONG,
    "output_flood": WRONG,
    "overwrites_others": WRONG,
    "patches_libraries": WRONG,
    "prints_verdicts": WRONG,
    "reads_memory": WRONG,
    "reads_proc": WRONG,
    "reads_surroundings": WRONG,
    "shares_memory": Verdict("KeyError"),
    "shares_pages": WRONG,
    "stops_itself": STOPPED,
    "survivors": WRONG,
    "thread_bomb": Verdict("thread"),
}

ELSEWHERE = {
    "01_single_gpu/compares_for_us": WRONG,
    "01_single_gpu/replaces_the_driver": Verdict("is no reply"),
    "02_data_parallel/hides_its_calls": Verdict("Calls of a rank: 6", points=5),
    "02_data_parallel/looks_at_the_others": WRONG,
    "03_multi_node/kills_its_parents": KILLED,
    "03_multi_node/state_with_code": Verdict("a subclass of dict"),
    "07_collectives/asks_the_group_itself": Verdict("it calls all_reduce; allowed are send, recv"),
    "07_collectives/leaves_in_the_middle": KILLED,
}
"""Those on other units: what their drivers and criteria have that unit 00's have not. Points: at the most."""


def source_of(attack: str) -> str:
    return (FOLDER / f"{attack}.py").read_text()


def attacked(attack: str) -> str:
    """The exercise that an attack is an answer to."""
    definitions = [
        node.name for node in ast.parse(source_of(attack)).body if isinstance(node, ast.FunctionDef)
    ]
    (name,) = set(definitions) & set(WORTH)
    return name


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A class of attackers, and one who hands in what everybody should; graded."""
    worker = acquire()
    try:
        if worker.no_namespaces:
            pytest.skip(f"attacks with no sandbox for each process are not tried: {worker.no_namespaces}")
    finally:
        release(worker)
    root = new_course(tmp_path_factory.mktemp("attacks") / "course")
    for attack in EXPECTED:
        notebook, untouched = solved(), blank()
        for name in WORTH.keys() - BYSTANDERS:
            answer_cell(notebook, name).source = answer_cell(untouched, name).source
        answer_cell(notebook, attacked(attack)).source = source_of(attack)
        hand_in(root, attack, notebook)
    hand_in(root, "zz_ordinary", solved())
    hand_in_others(root)
    temporary = tmp_path_factory.mktemp("temporary")
    done = subprocess.run(
        command("grade", UNIT, "--jobs", "2"),
        cwd=root,
        env={**environment(), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert left_behind() == []
    assert list(temporary.iterdir()) == []
    return root


def hand_in_others(root: Path) -> None:
    """What is hostile about these is not an answer."""
    hand_in(root, "shadows_torch", solved())
    for name in ("torch.py", "graders.py", "sitecustomize.py", "usercustomize.py"):
        (folder_of(root, "shadows_torch") / name).write_text("raise SystemExit('shadowed')")
    notebook = solved()
    notebook.cells[1:1] = [new_code_cell(f"x{number} = {number}") for number in range(2_000)]
    hand_in(root, "two_thousand_cells", notebook)


def left_behind() -> list[str]:
    """Processes of an attack that run, and files that it has written."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    places = ("/", "/tmp", "/dev/shm", "/var/tmp", str(Path.home()))
    files = [
        f"{place}/{name}" for place in places for name in ("filler", "note") if Path(place, name).exists()
    ]
    return [line for line in found if "ATTACK-SURVIVOR" in line] + files


def graded(root: Path, student: str) -> Graded:
    found = ResultStore(root / "results" / UNIT).find(student)
    assert found is not None
    return found


def result(root: Path, student: str, exercise: str) -> ExerciseResult:
    return next(each for each in graded(root, student).report.exercises if each.exercise.name == exercise)


@pytest.mark.parametrize("attack", sorted(EXPECTED))
def test_an_attack_earns_nothing_and_costs_only_itself(root: Path, attack: str) -> None:
    # Invariant: the exercise that is attacked fails for the right reason; every other that is answered has
    # all its points.
    name = attacked(attack)
    found = result(root, attack, name)
    assert not found.mistake
    assert found.points == EXPECTED[attack].points
    assert re.search(EXPECTED[attack].seen, " ".join(each.seen for each in found.criteria))
    for each in graded(root, attack).report.exercises:
        if each.exercise.name != name:
            assert each.passed == (each.exercise.name in BYSTANDERS), each.criteria


@pytest.mark.parametrize("attack", sorted(ELSEWHERE))
def test_an_attack_on_another_unit_earns_no_more(attack: str) -> None:
    # Invariant: the same, whatever a unit's drivers report and its criteria count.
    unit = attack.partition("/")[0]
    submission = Submission(attack, (Cell("<attack>", source_of(attack)),), main=True)
    (found,) = [each for each in grade_submission(submission, unit).exercises if each.attempted]
    assert not found.mistake
    assert found.points <= ELSEWHERE[attack].points
    assert re.search(ELSEWHERE[attack].seen, " ".join(each.seen for each in found.criteria))
    assert left_behind() == []


def test_every_attack_has_an_expected_verdict() -> None:
    there = [str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.py")]
    assert sorted([*EXPECTED, *ELSEWHERE]) == sorted(there)


def test_no_attack_reaches_the_gradebook(root: Path) -> None:
    # Invariant: what the gradebook has is what was judged, for every student.
    found = scores(root)
    for attack in EXPECTED:
        others = sum(WORTH[name] for name in BYSTANDERS if name != attacked(attack))
        assert found[attack][0] == others + EXPECTED[attack].points
    assert found["zz_ordinary"][0] == ALL
    assert len(found) == len(EXPECTED) + 3


@pytest.mark.parametrize("student", ["shadows_torch", "two_thousand_cells"])
def test_what_is_only_odd_is_graded_for_what_is_in_it(root: Path, student: str) -> None:
    assert scores(root)[student][0] == ALL


def test_nothing_reaches_the_json_of_a_check(root: Path) -> None:
    # Invariant: stdout is one JSON object, with the verdicts of the grader.
    path = root / "submitted" / "prints_verdicts" / UNIT / f"{UNIT}.ipynb"
    done = subprocess.run(
        command("check", str(path), "--unit", UNIT, "--json"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["points"] == WORTH["rank_coordinates"] + WORTH["pass_the_token"]
    assert len(json.loads(done.stdout)["exercises"]) == len(WORTH)
