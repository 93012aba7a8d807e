"""Pages that everybody can read: axe-core finds nothing serious on them, in light and in dark."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.figures.style import figure_bundle, new_figure
from graders.classroom.pages import class_page, student_page
from graders.grading.report import Report
from tests import sample_unit
from tests.accessible import barriers
from tests.sample_unit import UNIT
from tests.test_browser import CHROMIUM, FLAGS, playwright
from tests.test_class_pages import B, F, P, graded, judged
from workbook.pages import Page, write_index, write_page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Install Chromium (Debian: apt-get install chromium)."
)
WRONG = "float32; expected int64"


def _unit_page(folder: Path) -> Path:
    """A unit's page with a verdict, a figure, a formula and long code."""
    with sample_unit.registered():
        report = Report(UNIT, (judged(sample_unit.DOUBLE, P, F, seen=WRONG),), ("A note.",))
    figure, _ = new_figure(alt="Empty axes.", width=5.0, height=2.5)
    bundles = [figure_bundle(figure), {"text/html": report._repr_mimebundle_()["text/html"]}]
    cells = [
        new_markdown_cell(
            "# A sample\n\n## 1 One\n\nA formula, $10^{23}$, and `code`.\n\n### Exercise: double"
        ),
        new_code_cell(
            f"x = {'1 + ' * 60}1  # a comment",
            outputs=[new_output("display_data", data=data) for data in bundles],
        ),
        new_markdown_cell("Next: [01_other](../01_other/01_other.ipynb) · [All units](../index.ipynb)"),
    ]
    nbformat.write(new_notebook(cells=cells), folder / "executed.ipynb")
    page = Page("80_sample", "A sample", 1, 2)
    write_index([page], folder)
    return write_page(folder / "executed.ipynb", page, folder)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, by name."""
    folder = tmp_path_factory.mktemp("pages")
    with sample_unit.registered():
        class_ = [
            graded("ann", judged(sample_unit.DOUBLE, P, P), judged(sample_unit.TOTAL, P, B)),
            graded("ben", judged(sample_unit.DOUBLE, P, F, seen=WRONG), judged(sample_unit.TOTAL, F, F)),
        ]
        (folder / "class.html").write_text(class_page(UNIT, class_))
        (folder / "student.html").write_text(student_page(class_[1]))
    return {
        "unit": _unit_page(folder),
        "index": folder / "index.html",
        "class": folder / "class.html",
        "student": folder / "student.html",
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["unit", "index", "class", "student"])
def test_nothing_keeps_a_reader_out(pages: dict[str, Path], name: str, scheme: Any) -> None:
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
        page.goto(pages[name].as_uri())
        found = barriers(page)
        browser.close()
    assert found == []


def test_a_page_lists_its_sections_which_the_keyboard_reaches(pages: dict[str, Path]) -> None:
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(pages["unit"].as_uri())
        links = page.locator("nav.contents a")
        assert links.all_inner_texts() == ["1 One", "Exercise: double"]
        # The first stop is the way back to the index, the second the list, and then its links.
        for _ in range(3):
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "1 One"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#1-One"
        # On paper there is the text alone; links lead to pages, not to notebooks.
        page.emulate_media(media="print")
        assert not page.locator("nav.contents").is_visible()
        assert page.locator("main a", has_text="01_other").get_attribute("href") == "01_other.html"
        browser.close()
