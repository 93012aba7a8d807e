"""From a unit's source to the student's notebook, the executed one, and the page."""

import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.sample_source import EFFORTS, SOURCE, Effort, write_unit
from workbook.execute import ExecutionFailed, execute
from workbook.pages import BadFormula, FeedbackExporter, Page, mathml, write_index, write_page
from workbook.paths import Places
from workbook.release import (
    KERNEL,
    WorkInTheWay,
    has_work,
    publish,
    publish_over,
    reading_minutes,
    release,
    spoken_minutes,
    spoken_range,
    write_source,
)
from workbook.unit import BadUnit, Unit, read_unit, read_units


def built(root: Path, source: str = SOURCE) -> Places:
    """A workbook in `root` whose one unit is built and released."""
    unit = read_unit(write_unit(root, source))
    places = Places(root)
    write_source(unit, EFFORTS, places)
    release(unit.name, places)
    return places


def student_notebook(places: Places, unit: str = "80_sample") -> nbformat.NotebookNode:
    return nbformat.read(places.of_unit(places.release, unit), as_version=4)


def complaint_about(root: Path, source: str, name: str = "80_sample") -> str:
    with pytest.raises(BadUnit) as caught:
        read_unit(write_unit(root, source, name))
    return str(caught.value)


# --- the student's notebook


def test_student_gets_the_specification_without_the_answer(tmp_path):
    # Invariant: signature and docstring survive, what stood between the markers and the markers do not.
    answer = next(c for c in student_notebook(built(tmp_path)).cells if "exercise" in c.metadata)
    assert 'def one_more(number: int) -> int:\n    """The number after `number`."""' in answer.source
    assert "raise NotImplementedError" in answer.source
    text = "\n".join(cell.source for cell in student_notebook(built(tmp_path)).cells)
    assert "number + 1" not in text
    assert "SOLUTION" not in text


def test_each_answer_cell_is_followed_by_its_locked_check_cell(tmp_path):
    # Invariant: the check cell is the grade cell, carries the points, and cannot be edited or deleted.
    cells = student_notebook(built(tmp_path)).cells
    answer = next(number for number, cell in enumerate(cells) if "exercise" in cell.metadata)
    check = cells[answer + 1]
    assert check.source == "check(one_more)"
    assert check.metadata.editable is False
    assert check.metadata.deletable is False
    marks = check.metadata.nbgrader
    assert (marks.grade, marks.locked, marks.solution, marks.points) == (True, True, False, 2)
    assert cells[answer].metadata.nbgrader.solution
    assert cells[answer].metadata.get("editable", True)


def test_time_difficulty_and_points_stand_where_they_are_looked_for(tmp_path):
    # Invariant: the unit's sum under its title, the exercise's own line above its answer cell.
    cells = student_notebook(built(tmp_path)).cells
    title, summary, *_ = [line for line in cells[0].source.splitlines() if line]
    assert title == "# A sample"
    assert summary == "*about 5 minutes to read · 1 exercise · 2 points · 2 to 5 minutes for the exercises*"
    answer = next(number for number, cell in enumerate(cells) if "exercise" in cell.metadata)
    assert cells[answer - 1].source == (
        "### Exercise: one_more\n\n*2 to 5 minutes · difficulty 1 of 5 · 2 points*"
    )


def test_the_time_to_read_is_counted_from_the_text_and_the_cells_that_show(tmp_path):
    # Invariant: 200 words a minute, half a minute for each open cell, rounded up to five; what is folded
    # and what the exercises' own minutes are for do not count.
    def reading(source: str) -> int:
        return reading_minutes(read_unit(write_unit(tmp_path, source)))

    words = "\n\n# %% [markdown]\n" + "# one two three four five six seven eight nine ten\n" * 160
    cells = '\n\n# %% demo=true\nprint("seen")' * 12
    folded = '\n\n# %% demo=true jupyter={"source_hidden": true}\nprint("not seen")' * 40
    assert reading(SOURCE) == 5
    assert reading(SOURCE + words) == 10
    assert reading(SOURCE + cells) == 10
    assert reading(SOURCE + folded) == 5
    assert reading(SOURCE.replace("after `number`", "after `number`" + " one more" * 2000)) == 5


def test_the_marks_of_papermill_and_the_graders_reach_the_notebook(tmp_path):
    # Invariant: the parameters tag, the demo mark and the exercise's name survive the build, nothing else.
    cells = student_notebook(built(tmp_path)).cells
    assert [cell.metadata.tags for cell in cells if "tags" in cell.metadata] == [["parameters"]]
    assert sum(cell.metadata.get("demo", False) for cell in cells) == 2
    known = {"tags", "demo", "jupyter", "exercise", "nbgrader", "deletable", "editable"}
    assert set().union(*(cell.metadata for cell in cells)) <= known


def test_no_cell_begins_with_a_blank_line(tmp_path):
    # Invariant: a folded cell tells by its first line what is in it.
    source = (
        SOURCE + '\n# %% jupyter={"source_hidden": true}\n\n\ndef plumbing() -> None:\n    """Nothing."""\n'
    )
    cells = student_notebook(built(tmp_path, source)).cells
    assert any(cell.source.startswith("def plumbing") for cell in cells)
    assert not any(cell.source.startswith("\n") for cell in cells)


def test_the_same_source_gives_the_same_bytes(tmp_path):
    # Invariant: a notebook depends on the source alone, not on the time, the folder or a random id.
    texts = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        places = built(tmp_path / name)
        texts.append(places.of_unit(places.release, "80_sample").read_bytes())
    assert texts[0] == texts[1]


def test_cell_ids_are_valid_and_an_answer_keeps_its_own(tmp_path):
    # Invariant: ids are unique, and a cell added above leaves those of the exercise alone.
    before = [cell.id for cell in student_notebook(built(tmp_path)).cells]
    more = SOURCE.replace(
        "# %% [markdown]\n# ## One", "# %% [markdown]\n# More.\n\n# %% [markdown]\n# ## One"
    )
    after = [cell.id for cell in student_notebook(built(tmp_path, more)).cells]
    assert len(set(after)) == len(after) == len(before) + 1
    last = ["effort-one_more", "answer-one_more", "check-one_more", "links-to-units"]
    assert before[-4:] == after[-4:] == last


@pytest.mark.parametrize(
    ("minutes", "text"), [(5, "5 minutes"), (90, "90 minutes"), (120, "2 h"), (135, "2 h 15 min")]
)
def test_times_for_people(minutes, text):
    assert spoken_minutes(minutes) == text


@pytest.mark.parametrize(
    ("minutes", "text"),
    [
        (2, "1 to 2 minutes"),
        (5, "2 to 5 minutes"),
        (15, "5 to 15 minutes"),
        (40, "15 to 40 minutes"),
        (93, "30 to 95 minutes"),
        (120, "½ to 2 h"),
        (135, "1 to 2½ h"),
        (480, "2½ to 8 h"),
    ],
)
def test_ranges_of_times_for_people(minutes, text):
    assert spoken_range(minutes) == text


# --- what the build refuses


def test_a_good_unit_is_read(tmp_path):
    unit = read_unit(write_unit(tmp_path))
    assert (unit.name, unit.title, unit.points) == ("80_sample", "A sample", 2)
    assert unit.parameters == {"ranks", "on"}


ANSWER = SOURCE[SOURCE.index("# %% exercise") :]

BROKEN = {
    "is not a markdown title": SOURCE.replace("# # A sample", "# A sample"),
    "0 cells are tagged as parameters": SOURCE.replace(' tags=["parameters"]', ""),
    "the parameters cell sets colour": SOURCE.replace("ranks = 4", "colour = 4"),
    "exercise one_more has no points": SOURCE.replace(" points=2", ""),
    "exercise one_more stands here twice": SOURCE + "\n" + ANSWER,
    "exercise one_more needs its answer between": SOURCE.replace("    ### BEGIN SOLUTION\n", ""),
    "exercise one_more defines no function or class": SOURCE.replace("def one_more", "def two_more"),
    "exercise one_more has no docstring": SOURCE.replace('    """The number after `number`."""\n', ""),
    "must have the head of one_more and its docstring before": SOURCE.replace(
        "def one_more", "### BEGIN SOLUTION\n### END SOLUTION\ndef one_more"
    ),
    "but is no answer cell": SOURCE.replace('exercise="one_more" points=2', ""),
    "no cell imports check": SOURCE.replace("from graders import check", ""),
    "is not valid Python": SOURCE.replace("return number + 1", "return number +"),
}


@pytest.mark.parametrize("complaint", BROKEN)
def test_a_broken_unit_is_refused_with_a_sentence(tmp_path, complaint):
    # Invariant: the message names the file and the rule that it breaks.
    said = complaint_about(tmp_path, BROKEN[complaint])
    assert complaint in said
    assert said.startswith("80_sample.py: ")


def test_a_wrong_file_name_is_refused(tmp_path):
    assert "is named NN_name.py" in complaint_about(tmp_path, SOURCE, name="sample")


def test_all_complaints_about_all_units_come_at_once(tmp_path):
    # Invariant: who mends units need not build again to learn of the next mistake.
    write_unit(tmp_path, BROKEN["exercise one_more has no points"], "80_sample")
    write_unit(tmp_path, BROKEN["no cell imports check"], "81_other")
    with pytest.raises(BadUnit) as caught:
        read_units(tmp_path / "solutions")
    assert len(caught.value.complaints) == 2


def test_no_units_is_a_sentence(tmp_path):
    with pytest.raises(BadUnit, match="no units in"):
        read_units(tmp_path)


@pytest.mark.parametrize(
    ("efforts", "complaint"),
    [
        ({}, "exercise one_more has no grader"),
        ({"one_more": Effort(points=3)}, "worth 2 points in the unit, but its grader's criteria add up to 3"),
        ({**EFFORTS, "two_more": Effort()}, "a grader for two_more, but no answer cell"),
    ],
)
def test_units_and_graders_agree(tmp_path, efforts, complaint):
    # Invariant: every exercise has a grader, every grader an exercise, and both give the same points.
    unit = read_unit(write_unit(tmp_path))
    with pytest.raises(BadUnit, match=complaint):
        write_source(unit, efforts, Places(tmp_path))


# --- notebooks that somebody works in


def published(root: Path) -> tuple[Places, Path]:
    places = built(root)
    return places, publish("80_sample", places)


def test_an_untouched_notebook_is_replaced(tmp_path):
    # Invariant: a new version of a unit reaches those who have not begun it.
    places, path = published(tmp_path)
    path.write_text(path.read_text().replace("A sample", "An older sample"))
    publish("80_sample", places)
    assert "An older sample" not in path.read_text()


@pytest.mark.parametrize("worked", ["return number + 1", "raise NotImplementedError()  # my plan"])
def test_work_is_never_written_over(tmp_path, worked):
    # Invariant: an answer, or a cell that was run, stops the build from replacing the notebook.
    places, path = published(tmp_path)
    notebook = nbformat.read(path, as_version=4)
    answer = next(cell for cell in notebook.cells if "exercise" in cell.metadata)
    answer.source = answer.source.replace("raise NotImplementedError()", worked)
    answer.execution_count = 1
    nbformat.write(notebook, path)
    with pytest.raises(WorkInTheWay, match="has been worked in"):
        publish("80_sample", places)
    assert worked in path.read_text()
    publish_over("80_sample", places)
    assert path.read_bytes() == places.of_unit(places.release, "80_sample").read_bytes()


def test_a_fresh_notebook_holds_no_work(tmp_path):
    assert not has_work(student_notebook(built(tmp_path)))


# --- executing


def executed(root: Path, source: str) -> Path:
    places = Places(root)
    notebook, output = root / "in.ipynb", places.solved / "out.ipynb"
    parameters = new_code_cell('on = "simulated"', metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[parameters, new_code_cell(source)], metadata=KERNEL), notebook)
    execute(notebook, output, {"on": "processes"})
    return output


def test_parameters_reach_the_notebook(tmp_path):
    cells = nbformat.read(executed(tmp_path, "print(on)"), as_version=4).cells
    assert cells[-1].outputs[0].text == "processes\n"


def test_a_cell_that_raises_is_named(tmp_path):
    # Invariant: the message has the cell's first line of code, the error, and where to look.
    with pytest.raises(ExecutionFailed) as caught:
        executed(tmp_path, "# a comment\nvalue = 1\nvalue / 0")
    assert "'value = 1' raised ZeroDivisionError: division by zero" in str(caught.value)
    assert "out.ipynb" in str(caught.value)


# --- pages


def page_of(root: Path, cells: list[nbformat.NotebookNode], **metadata: object) -> BeautifulSoup:
    path = root / "executed.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)
    page = write_page(path, Page("80_sample", "A <sample>", 1, 2), root / "pages")
    return BeautifulSoup(page.read_text(), "html.parser")


def foreign_resources(page: BeautifulSoup) -> list[str]:
    """What a browser would fetch to show the page: everything but links, which wait for a click."""
    found = [tag.get("src") or tag.get("href") for tag in page.select("[src], link[href]")]
    found += re.findall(r"url\(['\"]?(?!data:)([^)'\"]+)", " ".join(tag.text for tag in page.select("style")))
    return [address for address in found if not address.startswith("data:")]


def test_a_page_needs_nothing_from_elsewhere(tmp_path):
    # Invariant: no script at all, and no style, font or picture that is not in the file itself.
    page = page_of(tmp_path, [new_markdown_cell("$x^2$"), new_code_cell("1 + 1")])
    assert not page.select("script")
    assert not foreign_resources(page)


def test_formulas_are_mathml(tmp_path):
    # Invariant: inline, displayed and environment formulas are drawn by the browser; no dollar sign is left.
    text = "Inline $\\frac{m_k}{n}$, and\n\n$$\\sum_k g_k$$\n\n\\begin{align} a &= b \\end{align}"
    page = page_of(tmp_path, [new_markdown_cell(text)])
    displays = [tag["display"] for tag in page.select("math")]
    assert displays == ["inline", "block", "block"]
    assert "$" not in page.select_one("main").text


def test_a_formula_that_cannot_be_drawn_is_quoted():
    with pytest.raises(BadFormula, match=r"x\^"):
        mathml("x^")


@pytest.mark.parametrize(
    ("formula", "drawn"),
    [
        (r"2\ln q", '<mn>2</mn><mspace width="0.167em" /><mi>ln</mi><mspace width="0.167em" /><mi>q</mi>'),
        (r"-\log_2 p", '</mo><msub><mi>log</mi><mn>2</mn></msub><mspace width="0.167em" /><mi>p</mi>'),
        (r"\log(p)", "<mrow><mi>log</mi><mo "),
        (r"2\lceil p\rceil", '<mn>2</mn><mo form="prefix" stretchy="false">&#x02308;</mo><mi>p</mi><mo '),
        (r"\big(p\big)^2", '<msup><mo stretchy="false" mathsize="1.2em">)</mo>'),
    ],
)
def test_functions_and_brackets_stand_as_tex_sets_them(formula, drawn):
    # Invariant: a thin space is between a function and a name or number, none before a bracket; two brackets
    # that belong together are equally large.
    assert drawn in mathml(formula)


def test_an_option_is_not_broken_at_its_hyphens(tmp_path):
    text = "Either `--ntasks-per-node` or `srun --ntasks-per-node=4 program`, or `x`."
    page = page_of(tmp_path, [new_markdown_cell(text)])
    whole = [tag.text for tag in page.select("code[style]")]
    assert whole == ["--ntasks-per-node"]


def test_feedback_survives_a_formula_that_a_student_got_wrong():
    # Invariant: what can be drawn is, and the rest is shown as it was typed, not lost.
    exporter = FeedbackExporter()
    html = exporter.markdown2html(
        {}, "Good $x^2$, bad $x^$, and\n\n$$y^$$\n\n\\begin{matrix} z^ \\end{matrix}"
    )
    assert html.count("<math") == 1
    assert "$x^$" in html
    assert "$$y^$$" in html


def test_a_widget_becomes_what_it_showed(tmp_path):
    # Invariant: a slider with a figure leaves the figure in the page, in the place of the slider.
    state = {
        "box": {"state": {"children": ["IPY_MODEL_slider", "IPY_MODEL_output"]}},
        "slider": {"state": {"value": 3}},
        "output": {"state": {"outputs": [{"output_type": "stream", "name": "stdout", "text": "n is 3"}]}},
    }
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "box"}, "text/plain": "interactive()"}
    cell = new_code_cell("show()", outputs=[new_output("display_data", data=view)])
    page = page_of(tmp_path, [cell], widgets={"application/vnd.jupyter.widget-state+json": {"state": state}})
    assert "n is 3" in page.select_one("main").text
    assert "interactive" not in page.select_one("main").text


def test_an_interactive_unit_becomes_a_page(tmp_path):
    # Invariant: a real slider, run by papermill, shows in the page what it showed when it was made.
    places = built(
        tmp_path,
        SOURCE.replace(
            "from graders import check", "check = print\nif not on:\n    from graders import check"
        ),
    )
    output = places.solved / "80_sample.ipynb"
    execute(places.of_unit(places.source, "80_sample"), output, {"on": "simulated"})
    unit = read_unit(tmp_path / "solutions" / "80_sample.py")
    page = BeautifulSoup(write_page(output, page_entry(unit), places.pages).read_text(), "html.parser")
    text = page.select_one("main").text
    assert "n is 3" in text
    assert "SOLUTION" not in text
    assert "# Parameters" not in text


def page_entry(unit: Unit) -> Page:
    return Page(unit.name, unit.title, len(unit.answers), unit.points)


def test_a_cell_that_jupyterlab_hides_is_folded_on_the_page(tmp_path):
    # Invariant: the source is there to open, and its output shows.
    shown = new_output("stream", name="stdout", text="it holds")
    hidden = new_code_cell(
        "assert 1 + 1 == 2", metadata={"jupyter": {"source_hidden": True}}, outputs=[shown]
    )
    page = page_of(tmp_path, [hidden, new_code_cell("2 + 2")])
    (folded,) = page.select("details")
    assert "assert 1 + 1 == 2" in folded.text
    assert "it holds" not in folded.text
    assert "it holds" in page.select_one("main").text


def test_a_cell_under_a_magic_has_the_colours_of_python(tmp_path):
    page = page_of(tmp_path, [new_code_cell("%%needs ring\ndef f():\n    return 1")])
    assert {word.text for word in page.select("main .k")} == {"def", "return"}


def test_pages_follow_the_readers_light_or_dark(tmp_path):
    # Invariant: both themes are in the page, the dark one for those who ask for it.
    page = page_of(tmp_path, [new_markdown_cell("Text.")])
    assert page.select('style[media="(prefers-color-scheme: dark)"]')


def test_the_index_links_every_page(tmp_path):
    index = write_index([Page("00_a", "A <first>", 1, 2), Page("01_b", "Second", 3, 4)], tmp_path)
    page = BeautifulSoup(index.read_text(), "html.parser")
    assert [tag["href"] for tag in page.select("a")] == ["00_a.html", "01_b.html"]
    assert page.select_one("a").text == "A <first>"
