"""A student's hour in a real browser: unit 00 in JupyterLab; an answer is typed, judged, fixed; all runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.figures.style import figure_bundle, new_figure
from tests.accessible import barriers
from workbook.unit import read_unit

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install playwright, which drives a browser"
)

ROOT = Path(__file__).parents[1]
UNIT = "00_hello_ranks"
EXERCISE = "amdahl_speedup"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 200_000
"""Milliseconds for whatever takes a moment on a machine that does nothing else."""

PALE = """selector => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = colour => numbers(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + [0.2126, 0.7152, 0.0722][i] * c, 0);
  const ground = element => {
    const colour = getComputedStyle(element).backgroundColor;
    return numbers(colour)[3] === 0 ? ground(element.parentElement) : colour;
  };
  return [...document.querySelectorAll(selector)].filter(word => {
    const two = [getComputedStyle(word).color, ground(word)].map(luminance).sort((a, b) => a - b);
    return (two[1] + 0.05) / (two[0] + 0.05) < 4.5;
  }).map(word => word.textContent);
}"""
"""Of the words that a selector finds, those that stand out less than text should (WCAG 2.2: 4.5 to 1)."""

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(CHROMIUM is None, reason="Install Chromium (Debian: apt-get install chromium)."),
]

NOTHING_SERIAL = """\
def amdahl_speedup(parallel_fraction, workers):
    return parallel_fraction * workers
"""

RIGHT = """\
def amdahl_speedup(parallel_fraction, workers):
    return 1 / (1 - parallel_fraction + parallel_fraction / workers)
"""


@dataclass(frozen=True, slots=True)
class Lab:
    """A running JupyterLab, on a port that was free."""

    url: str
    token: str


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """JupyterLab as `make lab` starts it, on a copy of unit 00 in which all but one exercise is solved."""
    work = tmp_path / "work"
    (work / UNIT).mkdir(parents=True)
    nbformat.write(nearly_solved(), work / UNIT / f"{UNIT}.ipynb")
    runtime = tmp_path / "runtime"
    environment = os.environ | {
        "JUPYTER_CONFIG_PATH": str(ROOT / ".jupyter"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "COURSE_HOME": str(tmp_path / "home"),
        "HOME": str(tmp_path),
    }
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"),
            *("--ServerApp.port=0", f"--ServerApp.root_dir={work}", "--expose-app-in-browser"),
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "lab.log").open("w"),
        start_new_session=True,
    )
    try:
        yield connection(runtime, server, tmp_path / "lab.log")
    finally:
        stop(server)


def nearly_solved() -> nbformat.NotebookNode:
    """The student's notebook with every solution filled in but that of EXERCISE."""
    notebook = nbformat.read(ROOT / "notebooks" / UNIT / f"{UNIT}.ipynb", as_version=4)
    solved = {
        cell.metadata["exercise"]: cell.source
        for cell in read_unit(ROOT / "solutions" / f"{UNIT}.py").notebook.cells
        if "exercise" in cell.metadata
    }
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in solved and name != EXERCISE:
            cell.source = solved[name]
    return notebook


def connection(runtime: Path, server: "subprocess.Popen[bytes]", log: Path) -> Lab:
    """Where the server listens, once it does."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            found: dict[str, Any] = json.loads(file.read_text() or "{}")
            if found.get("port"):
                return Lab(f"http://127.0.0.1:{found['port']}", found["token"])
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()}")


def stop(server: "subprocess.Popen[bytes]") -> None:
    """End the server with its kernels; none may be left."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture
def page(lab: Lab) -> Iterator[Any]:
    """Unit 00, open in a browser window."""
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        window = browser.new_page(viewport={"width": 1400, "height": 1000})
        # A slow machine may ask which kernel it shall be, or say what it could not do in time: agreed.
        dialog = window.locator("dialog.jp-Dialog").first
        window.add_locator_handler(dialog, lambda: dialog.locator("button.jp-mod-accept").click())
        window.goto(f"{lab.url}/lab/tree/{UNIT}/{UNIT}.ipynb?token={lab.token}")
        window.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=PATIENCE)
        await_kernel(window)
        yield window
        browser.close()


def await_kernel(page: Any) -> None:
    """Wait for the notebook's kernel: JupyterLab forgets a cell that is run earlier."""
    # Without a kernel the notebook counts as idle too.
    playwright.expect(page.locator(".jp-KernelName").first).to_contain_text("Python", timeout=PATIENCE)
    indicator = page.locator(".jp-Notebook-ExecutionIndicator").first
    playwright.expect(indicator).to_have_attribute("data-status", "idle", timeout=PATIENCE)


def cell_with(page: Any, text: str) -> Any:
    """The code cell whose source contains `text`, scrolled to: the notebook draws only what is near."""
    cell = page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=text)).first
    for _ in range(200):
        if cell.count():
            cell.scroll_into_view_if_needed()
            return cell
        page.locator(".jp-WindowedPanel-outer").first.evaluate("panel => panel.scrollBy(0, 600)")
        page.wait_for_timeout(50)
    raise AssertionError(f"no cell with {text!r}")


def to_top(page: Any) -> None:
    page.locator(".jp-WindowedPanel-outer").first.evaluate("panel => panel.scrollTo(0, 0)")


def type_into(page: Any, cell: Any, source: str) -> None:
    """Replace a cell's source as a person would, with the keyboard."""
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    # Text that is typed key by key would be indented once more by the editor.
    page.keyboard.insert_text(source)


def run_cell(page: Any, cell: Any) -> None:
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def keep(page: Any, name: str) -> None:
    """Leave a screenshot where COURSE_SCREENSHOTS says, for a person to look at."""
    folder = os.environ.get("COURSE_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_a_student_solves_an_exercise_and_runs_the_unit(page: Any) -> None:
    # Of nbgrader students see what is theirs: no panel for those who grade, in the menu or at the side.
    page.get_by_role("menuitem", name="Nbgrader", exact=True).click()
    playwright.expect(page.get_by_role("menuitem", name="Assignment List")).to_be_visible()
    keep(page, "0-menu")
    for panel in ("Formgrader", "Create Assignment", "Course List"):
        assert page.get_by_text(panel).count() + page.get_by_title(panel).count() == 0, panel
    page.keyboard.press("Escape")

    run_cell(page, cell_with(page, "from graders import"))
    answer = cell_with(page, f"def {EXERCISE}")
    verdicts = cell_with(page, f"check({EXERCISE})").locator(".jp-OutputArea")

    # The stub is not attempted, which is not the same as failed.
    run_cell(page, answer)
    run_cell(page, cell_with(page, f"check({EXERCISE})"))
    playwright.expect(verdicts).to_contain_text("not attempted", timeout=PATIENCE)
    keep(page, "1-not-attempted")

    # A tired student's answer fails, and the table says what is wrong.
    type_into(page, answer, NOTHING_SERIAL)
    run_cell(page, answer)
    run_cell(page, cell_with(page, f"check({EXERCISE})"))
    playwright.expect(verdicts).to_contain_text("failed", timeout=PATIENCE)
    # The button tells the next hint, beside the table.
    verdicts.get_by_role("button", name="Hint").click()
    playwright.expect(verdicts).to_contain_text("Hint 1 of", timeout=PATIENCE)
    keep(page, "2-failed")

    # Mended, it passes.
    type_into(page, answer, RIGHT)
    run_cell(page, answer)
    run_cell(page, cell_with(page, f"check({EXERCISE})"))
    playwright.expect(verdicts).not_to_contain_text("failed", timeout=PATIENCE)
    playwright.expect(verdicts).to_contain_text("passed")
    playwright.expect(verdicts).to_contain_text("A second way to do it")
    keep(page, "3-passed")

    # With everything solved the whole unit runs: the last cell has run, and none has stopped with an error.
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(
        "() => document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"
        " && ![...document.querySelectorAll('.jp-InputPrompt')].some(p => p.textContent.includes('*'))",
        timeout=2 * PATIENCE,
        polling=500,
    )
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0

    # A slider answers with another figure.
    to_top(page)
    explored = cell_with(page, "explore(")
    figure = explored.locator(".jp-OutputArea img").first
    playwright.expect(figure).to_be_visible(timeout=PATIENCE)
    before, told = figure.get_attribute("src"), figure.get_attribute("alt")
    assert told, "a figure has alt text"
    keep(page, "4-slider-before")
    handle = explored.locator(".noUi-handle, input[type=range]").first
    handle.focus()
    page.keyboard.press("ArrowRight")
    playwright.expect(figure).not_to_have_attribute("src", before, timeout=PATIENCE)
    keep(page, "5-slider-after")


def test_a_notebook_that_was_only_opened_is_not_unsaved_and_the_index_marks_what_is_solved(
    lab: Lab, tmp_path: Path
) -> None:
    shutil.copyfile(ROOT / "notebooks" / "index.ipynb", tmp_path / "work" / "index.ipynb")
    answers = read_unit(ROOT / "solutions" / f"{UNIT}.py").answers
    solved = [
        {"event": "check", "unit": UNIT, "exercise": answer.name, "points": answer.points}
        for answer in answers
    ]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "progress.jsonl").write_text("".join(json.dumps(each) + "\n" for each in solved))
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for number, notebook in enumerate(("index.ipynb", f"{UNIT}/{UNIT}.ipynb")):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{lab.url}/lab/workspaces/{number}/tree/{notebook}?token={lab.token}")
            page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=PATIENCE)
            await_kernel(page)
            # Once the kernel has said what it is, JupyterLab notes its language in the notebook.
            kernel = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
            page.evaluate(f"async () => {{ await {kernel}.info; await new Promise(requestAnimationFrame); }}")
            unsaved = page.locator(".lm-DockPanel-tabBar .jp-mod-dirty")
            playwright.expect(unsaved).to_have_count(0)
            if not number:
                row = page.locator(".jp-RenderedMarkdown tr", has_text=UNIT)
                playwright.expect(row).to_contain_text(f"✔ {UNIT}")
                playwright.expect(page.locator(".jp-RenderedMarkdown td", has_text="✔")).to_have_count(1)
                keep(page, "7-index")
                # What is ours; JupyterLab's frame round it is not.
                assert barriers(page, ".jp-RenderedMarkdown") == []
            page.locator(".jp-CodeCell .cm-content").first.click()
            page.keyboard.type("#")
            playwright.expect(unsaved).to_have_count(1)
            page.close()
        browser.close()


RAISES = 'def wrong(x):\n    raise ValueError(f"{x} " * 3)  # Said three times.\n\n\n@wrong\ndef right(): ...'
SCRIPT = "```bash\n#!/bin/bash\n#SBATCH --nodes=2\nhead=$(hostname)\n```"


def a_traceback() -> nbformat.NotebookNode:
    """What IPython makes of an error, with its colours."""
    ipython = [sys.executable, "-m", "IPython", "--colors=neutral", "--no-banner", "-c", RAISES]
    said = subprocess.run(ipython, capture_output=True, text=True, check=False).stdout
    assert "\x1b[" in said
    return new_output("error", ename="ValueError", evalue="wrong", traceback=said.splitlines())


def test_what_is_read_in_jupyterlab_can_be_read_light_and_dark(lab: Lab, tmp_path: Path) -> None:
    figure, _ = new_figure(alt="Empty axes.", width=5.0, height=2.5)
    picture = new_output("display_data", data=figure_bundle(figure))
    cells = [
        new_markdown_cell(f"{SCRIPT}\n\n<details><summary>Answer</summary>Yes.</details>\n\nThe next."),
        new_code_cell(RAISES, outputs=[a_traceback(), picture]),
        new_code_cell("", outputs=[new_output("stream", text="many words " * 60)]),
    ]
    nbformat.write(new_notebook(cells=cells), tmp_path / "work" / "looks.ipynb")
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        dialog = page.locator("dialog.jp-Dialog").first
        page.add_locator_handler(dialog, lambda: dialog.locator("button.jp-mod-accept").click())
        for theme, dims in (("Light", "none"), ("Dark", "brightness(0.85)")):
            chosen = page.request.put(
                f"{lab.url}/lab/api/settings/@jupyterlab/apputils-extension:themes?token={lab.token}",
                data={"raw": json.dumps({"theme": f"JupyterLab {theme}"})},
                headers={"Authorization": f"token {lab.token}"},
            )
            assert chosen.ok, chosen.text()
            page.goto(f"{lab.url}/lab/workspaces/{theme}/tree/looks.ipynb?token={lab.token}")
            named = f"body[data-jp-theme-name='JupyterLab {theme}']"
            page.wait_for_selector(named, timeout=PATIENCE, state="attached")
            page.wait_for_selector(".jp-CodeCell .cm-content span", timeout=PATIENCE)
            page.wait_for_selector(".jp-RenderedText .ansi-red-fg", timeout=PATIENCE)
            keep(page, f"6-looks-{theme}")
            for words in (
                ".jp-CodeCell .cm-content span",
                ".jp-RenderedMarkdown pre span",
                ".jp-RenderedText span",
            ):
                assert page.locator(f".jp-Notebook {words}").count() >= 3, words
                assert page.evaluate(PALE, f".jp-Notebook {words}") == [], theme
            # Figures do not glare; a line ends with a whole word; what follows an answer stands clear of it.
            for element, look, value in (
                ("img[alt='Empty axes.']", "filter", dims),
                (".jp-RenderedText pre", "wordBreak", "normal"),
                (".jp-RenderedMarkdown details", "marginBottom", "14px"),
            ):
                first = page.locator(f".jp-Notebook {element}").first
                assert first.evaluate(f"element => getComputedStyle(element).{look}") == value, (theme, look)
        browser.close()


def test_those_who_grade_keep_nbgraders_panels() -> None:
    # With INSTRUCTOR=1, a folder of settings goes before the students' and switches the panels on again.
    said = "import jupyterlab_server.config as c; print(c.get_page_config([])['disabledExtensions'])"
    disabled = {}
    for folders in ("", ".jupyter", ".jupyter/instructor:.jupyter"):
        path = ":".join(str(ROOT / folder) for folder in folders.split(":") if folder)
        command = [sys.executable, "-c", said]
        environment = os.environ | {"JUPYTER_CONFIG_PATH": path}
        disabled[folders] = subprocess.check_output(command, env=environment, text=True)
    # The environment itself has the students' settings, however Jupyter is started in it.
    for folders in ("", ".jupyter"):
        assert "@jupyter/nbgrader:formgrader" in disabled[folders]
        assert "@jupyter/nbgrader:create-assignment" in disabled[folders]
    assert "nbgrader" not in disabled[".jupyter/instructor:.jupyter"]
    command = ["make", "--dry-run", "lab", "INSTRUCTOR=1"]
    assert f"{ROOT}/.jupyter/instructor:" in subprocess.check_output(command, cwd=ROOT, text=True)
