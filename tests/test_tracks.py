"""Tracks: what is cut out of units runs, fits into its time, and alone counts where it is handed out."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_lib.slurm.sites import site_named
from graders import check, progress, use
from graders.grading.registry import counted, exercises
from graders.grading.track import track_file
from graders.student import given
from graders.student.sealed import FILE as SEALED
from graders.student.sealed import WrongCode, open_with, sealed
from graders.submissions.cells import definition_source
from tests.accessible import barriers
from tests.classroom import run_here
from workbook.build import build
from workbook.errors import CommandFailed
from workbook.execute import execute
from workbook.paths import Places
from workbook.release import reading_minutes
from workbook.tracks.cut import cut, questions_in, sections_of
from workbook.tracks.folder import Calendar, cut_units, efforts_of, write_folder
from workbook.tracks.mistakes import mistakes_of
from workbook.tracks.statements import statements_of
from workbook.tracks.track import cut_to, read_track, track_names
from workbook.tracks.trainer import write_trainer
from workbook.unit import Unit, read_unit

ROOT = Path(__file__).parents[1]
MORNING = Calendar(9 * 60)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
EXECUTED = "half-day"
"""The track that `handed_out` executes."""
in_one_process = pytest.mark.xdist_group("tracks")
"""For tests of `handed_out`, which takes a minute to make."""


@pytest.mark.parametrize("name", track_names())
def test_a_session_takes_the_time_that_is_stated(name: str):
    # Reading and exercises fit; talking and what goes wrong get no more than a quarter of the time.
    for session in read_track(name).sessions:
        if session.unit:
            unit = cut_to(read_unit(ROOT / "solutions" / f"{session.unit}.py"), [session])
            needed = reading_minutes(unit) + sum(
                exercises(unit.name)[each.name].minutes for each in unit.answers
            )
            assert needed <= session.minutes <= max(needed + 20, 1.25 * needed), (session.title, needed)


def test_what_is_cut_out_runs_by_itself(tmp_path: Path, rng: random.Random):
    # A semester has whole units, which `make workbook` executes. Of the others one is drawn in each run.
    name = rng.choice([name for name in track_names() if name not in ("semester", EXECUTED)])
    print(f"the track {name}")
    units = cut_units(read_track(name), Places(ROOT))
    places = Places(tmp_path)
    build(units, efforts_of(units, exercises), places)
    for unit in units:
        given = {"on": "simulated"} if "on" in unit.parameters else {}
        execute(places.of_unit(places.source, unit.name), places.of_unit(places.solved, unit.name), given)


def test_a_file_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("workbook.tracks.track.FOLDER", tmp_path)
    with pytest.raises(CommandFailed, match="There is no track evening"):
        read_track("evening")
    wrong = tmp_path / "evening.toml"
    for text, complaint in (
        ("title = 'A'\n", "about, minutes, sessions is missing"),
        (
            "title = 'A'\nabout = ''\nminutes = 60\n[[sessions]]\ntitle = 'B'\nminutes = 50\n",
            "take 50 minutes together, and it says 60",
        ),
        (
            "title = 'A'\nabout = ''\nminutes = 5\n[[sessions]]\ntitle = 'B'\nminutes = 5\nroom = 3\n",
            "a session has room",
        ),
    ):
        wrong.write_text(text)
        with pytest.raises(CommandFailed, match=complaint):
            read_track("evening")


def _small_unit(tmp_path: Path) -> Unit:
    """A unit of three sections, of which the last needs the second, and that the first."""
    path = tmp_path / "90_small.py"
    path.write_text(
        '''# %% [markdown]
# # Small

# %% tags=["parameters"]
ranks = 4

# %%
from graders import check, predict

# %% [markdown]
# **Predict.**
#
# 1. How large (section 1)?
# 2. How small (section 3)?

# %%
guesses = predict("90_small", large=None, small=None)

# %% [markdown]
# ## 1 One

# %%
size = 3
noise = print("not needed")
guesses.measured(large=size)

# %% [markdown]
# The end of one.
#
# ## 2 Two

# %% exercise="double" points=2
def double(x: int) -> int:
    """Twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


# %%
# %%needs double
twice = double(size)

# %% [markdown]
# ## 3 Three

# %% exercise="treble" points=3
def treble(x: int) -> int:
    """Three times x."""
    ### BEGIN SOLUTION
    return 3 * x
    ### END SOLUTION


# %%
for twice_more in range(twice):
    guesses.measured(small=twice_more)
'''
    )
    return read_unit(path)


def test_what_later_cells_need_is_given_and_nothing_else(tmp_path: Path):
    unit = _small_unit(tmp_path)
    assert sections_of(unit) == ["1", "2", "3"]
    small = cut(unit, ["3"], ["treble"])
    sources = [cell.source for cell in small.notebook.cells]
    [folded] = [source for source in sources if source.startswith("# Given")]
    assert "size = 3" in folded
    assert "return 2 * x" in folded
    assert "twice = double(size)" in folded
    assert "not needed" not in folded
    assert "SOLUTION" not in folded
    assert [answer.name for answer in small.answers] == ["treble"]
    # Questions about what is left out are not asked, and the others are counted anew.
    assert any(source.endswith("1. How small (section 3)?") for source in sources)
    assert any(source == 'guesses = predict(\n    "90_small",\n    small=None,\n)' for source in sources)
    assert "Left out here: sections 1, 2." in sources[0]


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "solutions").glob("*.py"))])
def test_a_track_asks_what_it_measures(name: str):
    # Invariant: each question is asked where a guess that it asks for is measured, and nowhere else.
    unit = read_unit(ROOT / "solutions" / f"{name}.py")
    found: set[str] = set()
    for section in sections_of(unit):
        items, guesses = _asked(cut(unit, [section], []))
        assert bool(items) == bool(guesses)
        assert len(items) <= len(guesses), (section, items)
        found |= items
    assert found == _asked(unit)[0]


def _asked(unit: Unit) -> tuple[set[str], list[str]]:
    """The questions before a unit measures, and what its cell has for the guesses."""
    for question, cell in pairwise(unit.notebook.cells):
        if cell.source.startswith("guesses = predict("):
            items = {item.strip() for item in questions_in(question.source)[1]}
            return items, re.findall(r"\w+(?==None)", cell.source)
    return set(), []


def test_an_exercise_that_is_not_chosen_is_given(tmp_path: Path):
    small = cut(_small_unit(tmp_path), ["2", "3"], ["treble"])
    sources = [cell.source for cell in small.notebook.cells]
    position = next(n for n, source in enumerate(sources) if "`double` is given here" in source)
    assert "return 2 * x" in sources[position + 1]
    assert small.notebook.cells[position + 1].metadata.jupyter.source_hidden
    for sections, names, complaint in (
        (["4"], [], "has no section 4"),
        (["3"], ["double"], "have no exercise double"),
    ):
        with pytest.raises(CommandFailed, match=complaint):
            cut(_small_unit(tmp_path), sections, names)


def test_statements_tell_what_they_define_and_use():
    source = "\n".join(
        [
            "from a import b as c",
            "x = y + x",
            "def f(n: T) -> int:\n    return f(n) + z",
            "for i in x:\n    print(i)",
            "try:\n    w()\nexcept E as error:\n    print(error)",
            "x += 1",
        ]
    )
    told = [(sorted(each.defines), sorted(each.uses)) for each in statements_of(new_code_cell(source))]
    assert told == [
        (["c"], []),
        (["x"], ["x", "y"]),
        (["f"], ["T", "z"]),
        (["i"], ["x"]),
        (["error"], ["E", "w"]),
        (["x"], ["x"]),
    ]
    # What runs on ranks does not come back; the names in a magic's line are used.
    [magic, inside] = statements_of(new_code_cell("%%ranks 4 --cluster pods\nlocal = 1"))
    assert "pods" in magic.uses
    assert not inside.defines


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The folders of the shortest track: what students get, and the trainer's."""
    folder = tmp_path_factory.mktemp("track")
    track = read_track(EXECUTED)
    students, trainer = folder / "students", folder / "trainer"
    told = [*write_folder(track, students, Places(ROOT), exercises, MORNING)]
    told += write_trainer(track, trainer, students, Places(ROOT), exercises, MORNING, site_named("lonestar6"))
    return SimpleNamespace(track=track, students=students, trainer=trainer, told=told)


@in_one_process
def test_only_the_exercises_of_the_track_count(
    handed_out: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    assert "9 exercises, 58 points" in handed_out.told[0]
    unit = "02_data_parallel"
    notebook = Places(handed_out.students).of_unit(handed_out.students / "notebooks", unit)
    monkeypatch.chdir(notebook.parent)
    assert [*counted(unit)] == [
        "combine_gradients",
        "shard_indices",
        "broadcast_parameters",
        "average_gradients",
        "train_ddp",
    ]
    assert not counted("05_pipeline_parallel")
    table = str(progress())
    assert "BucketedDDP" not in table
    assert "05_pipeline_parallel" not in table
    assert "0/58" in table
    # From anywhere, by where the notebook lies.
    monkeypatch.chdir(ROOT)
    command = [sys.executable, "-m", "workbook.cli", "check", str(notebook), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    graded = json.loads(done.stdout)
    assert (graded["points"], graded["max_points"]) == (0, 33)
    text = notebook.read_text()
    assert "BEGIN SOLUTION" not in text
    assert definition_source((ROOT / f"solutions/{unit}.py").read_text(), "train_ddp") not in text


@in_one_process
def test_what_has_been_worked_in_stays(handed_out: SimpleNamespace, tmp_path: Path):
    shutil.copytree(handed_out.students, tmp_path / "mine")
    path = tmp_path / "mine/notebooks/09_memory/09_memory.ipynb"
    notebook = nbformat.read(path, as_version=4)
    next(cell for cell in notebook.cells if "exercise" in cell.metadata).source = "def zero_memory(): ..."
    nbformat.write(notebook, path)
    told = [*write_folder(handed_out.track, tmp_path / "mine", Places(ROOT), exercises, MORNING)]
    assert told[0] == "Kept, since they have been worked in: 09_memory."
    assert "def zero_memory(): ..." in path.read_text()


@in_one_process
def test_a_track_is_released_and_graded_as_units_are(handed_out: SimpleNamespace):
    unit, root = "09_memory", handed_out.trainer
    done = run_here(root, "release", unit)
    assert done.returncode == 0, done.stderr
    handed_in = root / "submitted/ada" / unit / f"{unit}.ipynb"
    handed_in.parent.mkdir(parents=True)
    # The solution itself: all points of the track are all that there are.
    shutil.copyfile(Places(root).of_unit(root / "build/source", unit), handed_in)
    done = run_here(root, "grade", unit)
    assert done.returncode == 0, done.stderr
    assert "5/5" in done.stdout
    told = json.loads((root / f"results/{unit}/ada.json").read_text())
    assert [each["name"] for each in told["report"]["exercises"]] == ["zero_memory"]


@in_one_process
def test_the_day_of_hand_in_is_the_due_date_until_somebody_moves_it(
    handed_out: SimpleNamespace, tmp_path: Path
):
    # Invariant: what the track prints, the gradebook's due date, lateness, penalty and class page agree.
    unit, root = "09_memory", tmp_path / "trainer"
    # Without what other tests have graded there.
    made = ("pages", "solved", "gradebook.db*", "submitted", "autograded", "results")
    shutil.copytree(handed_out.trainer, root, ignore=shutil.ignore_patterns(*made))
    chosen = json.loads((root / "track.json").read_text())
    hand_in = datetime(2027, 2, 15, 23, 59, 59).astimezone()
    (root / "track.json").write_text(track_file(chosen["title"], chosen["exercises"], {unit: hand_in}))
    with (root / "nbgrader_config.py").open("a") as configuration:
        configuration.write("\nc.LateSubmissionPlugin.penalty_method = 'zero'\n")
    done = run_here(root, "release", unit)
    assert f"{unit} is due on 15 February 2027, 23:59" in done.stdout, done.stderr
    for student, late in (("ada", timedelta(minutes=-1)), ("bob", timedelta(hours=3))):
        handed_in = root / "submitted" / student / unit / f"{unit}.ipynb"
        handed_in.parent.mkdir(parents=True)
        shutil.copyfile(Places(root).of_unit(root / "build/source", unit), handed_in)
        (handed_in.parent / "timestamp.txt").write_text((hand_in + late).isoformat())
    done = run_here(root, "grade", unit)
    assert done.returncode == 0, done.stderr
    page = root / f"results/{unit}/class.html"
    assert "Due on 15 February 2027, 23:59" in page.read_text()
    assert page.read_text().count("5 points taken off") == 1
    assert "3 h, 5 points taken off" in page.read_text()
    # Moved, it stays so, whatever is released again, and the penalty is gone.
    later = (hand_in + timedelta(days=1)).isoformat()
    subprocess.run(
        [sys.executable, "-m", "nbgrader", "db", "assignment", "add", unit, "--duedate", later],
        cwd=root,
        check=True,
    )
    assert "is due on" not in run_here(root, "release", unit).stdout
    done = run_here(root, "grade", unit)
    assert done.returncode == 0, done.stderr
    assert "Due on 16 February 2027, 23:59" in page.read_text()
    assert "taken off" not in page.read_text()


@in_one_process
def test_the_trainers_page_has_times_codes_and_mistakes(handed_out: SimpleNamespace):
    page = (handed_out.trainer / "index.html").read_text()
    for words in (
        "09:00–09:45",
        "#SBATCH --reservation=NAME",
        "Every worker counts alike, however few samples it had.",
        "course grade 00_hello_ranks",
    ):
        assert words in page
    assert (handed_out.trainer / "build/pages/index.html").exists()
    index = (handed_out.students / "notebooks/index.ipynb").read_text()
    assert "12:45–13:00" in index
    assert 'use(\\"rank_coordinates\\")' in index


@in_one_process
def test_every_exercise_of_a_track_has_mistakes_to_tell(handed_out: SimpleNamespace):
    for unit in handed_out.track.units:
        found = mistakes_of(unit, ROOT)
        for session in handed_out.track.sessions_on(unit):
            for name in session.exercises:
                told = found[name]
                rows = {row.name for row in exercises(unit)[name].rubric}
                assert told
                assert {each.criterion for each in told} <= rows
    assert not mistakes_of("02_data_parallel", Path("/nowhere"))


@in_one_process
@pytest.mark.skipif(CHROMIUM is None, reason="install Chromium: apt-get install chromium")
def test_slides_fit_on_the_screen_and_ask_for_nothing_from_elsewhere(handed_out: SimpleNamespace):
    from playwright.sync_api import sync_playwright

    page_of_slides = (handed_out.trainer / "slides.html").as_uri()
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(page_of_slides)
        page.wait_for_function("window.Reveal && Reveal.isReady()")
        heights = page.evaluate(
            "Array.from({length: Reveal.getTotalSlides()}, (_, number) => {"
            " Reveal.slide(number); return Reveal.getCurrentSlide().scrollHeight; })"
        )
        figures = page.evaluate("document.querySelectorAll('section img').length")
        notes = page.evaluate("document.querySelectorAll('aside.notes').length")
        page.goto((handed_out.trainer / "index.html").as_uri())
        found = barriers(page)
        browser.close()
    assert not wrong
    assert found == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    # A slide asks; what the first hint then tells is for those who ask for it.
    slides = (handed_out.trainer / "slides.html").read_text()
    assert "How can all ranks have the same order without a message?" in slides
    assert "generators with the same seed" not in slides
    assert len(heights) > 20
    assert max(heights) <= 690
    assert figures >= 4
    assert notes >= 9


def test_use_puts_our_answer_in_place_which_earns_nothing(monkeypatch: pytest.MonkeyPatch):
    names: dict[str, object] = {}
    monkeypatch.setattr("graders.student.use._namespace", lambda: names)
    exec("import torch\nimport torch.distributed as dist\nfrom torch import Tensor", names)
    assert "earns no points" in str(use("shard_indices"))
    assert given.is_reference(names["shard_indices"])
    assert "it earns nothing" in str(check(names["shard_indices"]))
    assert "no exercise named" in str(use("no_such_thing"))
    assert "Say which" in str(use())


def test_what_an_answer_calls_comes_with_it(monkeypatch: pytest.MonkeyPatch):
    # Beside form_to_script stand two functions that it calls.
    names: dict[str, object] = {}
    monkeypatch.setattr("graders.student.use._namespace", lambda: names)
    exec("import re", names)
    assert "earns no points" in str(use("form_to_script"))
    called = set(names["form_to_script"].__code__.co_names)  # type: ignore[attr-defined]
    assert {"_whole", "_time"} <= called
    assert {"_whole", "_time"} <= names["form_to_script"].__globals__.keys()  # type: ignore[attr-defined]


def test_a_semester_has_days_and_a_day_has_hours():
    semester = read_track("semester")
    assert next(MORNING.times(semester)) == "until day 14"
    dated = Calendar(9 * 60, date(2027, 2, 1))
    assert next(dated.times(semester)) == "until 15 February 2027"
    # What is printed ends with its day, here; a track of one day is handed in whenever the trainer says.
    hand_ins = dated.hand_ins(semester)
    assert list(hand_ins) == list(semester.units)
    assert hand_ins["00_hello_ranks"] == datetime(2027, 2, 15, 23, 59, 59).astimezone()
    assert not MORNING.hand_ins(semester)
    assert not dated.hand_ins(read_track("half-day"))
    assert next(MORNING.times(read_track("half-day"))) == "09:00–09:45"


def test_a_code_opens_the_answers_of_its_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    names: dict[str, object] = {}
    monkeypatch.setattr("graders.student.use._namespace", lambda: names)
    monkeypatch.setattr(given, "FOLDER", tmp_path / "no solutions here")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "not part of this edition" in str(use("zero_memory"))
    source = "def zero_memory(parameters, ranks, stage, state_bytes=12):\n    return 42\n"
    closed = [sealed("One", {"zero_memory": source}, "babebo"), sealed("Two", {"other": "x"}, "dadido")]
    (tmp_path / SEALED).write_text(json.dumps(closed))
    assert "return 42" not in (tmp_path / SEALED).read_text()
    assert "still closed" in str(use("zero_memory"))
    assert "opens nothing" in str(use("zero_memory", code="nonsense"))
    assert "still closed" in str(use("zero_memory", code="dadido"))
    assert "earns no points" in str(use("zero_memory", code="BaBeBo "))
    assert names["zero_memory"](1, 1, 1) == 42  # type: ignore[operator]
    # It stays open, also in another folder of the track.
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    assert "earns no points" in str(use("zero_memory"))
    assert open_with("dadido", tmp_path) == ["other"]


def test_a_code_opens_nothing_before_the_day_of_hand_in_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    now = datetime.now().astimezone()
    for hand_in, opens in ((now - timedelta(seconds=1), True), (now + timedelta(hours=1), False)):
        (tmp_path / SEALED).write_text(json.dumps([sealed("One", {"answer": "x"}, "babebo", hand_in)]))
        if opens:
            assert open_with("babebo", tmp_path) == ["answer"]
        else:
            with pytest.raises(WrongCode, match=f"on {hand_in:%d %B %Y, %H:%M}"):
                open_with("babebo", tmp_path)


@in_one_process
def test_the_codes_on_the_trainers_page_open_what_was_handed_out(
    handed_out: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    page = (handed_out.trainer / "index.html").read_text()
    codes = re.findall(r'class="code"><code>(\w+)</code>', page)
    opened = [name for code in codes for name in open_with(code, handed_out.students)]
    assert opened == [name for session in handed_out.track.sessions for name in session.exercises]


def test_a_students_edition_holds_no_answer_and_works(tmp_path: Path):
    folder = tmp_path / "edition"
    done = run_here(ROOT, "student-edition", str(folder))
    assert done.returncode == 0, done.stderr
    assert not (folder / "solutions").exists()
    assert not (folder / "tests").exists()
    reference = definition_source((ROOT / "solutions/00_hello_ranks.py").read_text(), "amdahl_speedup")
    last = reference.strip().splitlines()[-2].strip()
    holders = [
        path
        for path in folder.rglob("*")
        if path.is_file() and last in path.read_bytes().decode("utf-8", "replace")
    ]
    assert holders == []
    readme = (folder / "README.md").read_text()
    assert "For instructors" not in readme
    assert "make lab" in readme
    # Everything comes from the edition: check, second ways, what is given, the build.
    environment = {**os.environ, "PYTHONPATH": str(folder), "COURSE_HOME": str(tmp_path)}
    python = [sys.executable, "-m", "workbook.cli"]
    for words, status, said in (
        (["check", "notebooks/00_hello_ranks/00_hello_ranks.ipynb"], 1, "not attempted"),
        (["second-way", "amdahl_speedup"], 0, "Solve amdahl_speedup first"),
        (["workbook"], 1, "The students' edition has none"),
        (["track", "half-day", str(tmp_path / "track")], 1, "use a whole clone"),
        (["student-edition", str(folder)], 1, "is not empty"),
    ):
        run = subprocess.run(
            [*python, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == status, (words, run.stdout, run.stderr)
        assert said in run.stdout + run.stderr


def test_markdown_before_the_questions_is_kept():
    cell = new_markdown_cell("1. a list\n2. of its own\n\n**Predict.**\n\n1. How far?\n")
    head, items = questions_in(cell.source)
    assert head.startswith("1. a list\n2. of its own")
    assert items == ["How far?\n"]
