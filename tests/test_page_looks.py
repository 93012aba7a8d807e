"""Pages in a real browser: what a reader's light or dark makes of code, outputs and formulas."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.figures.style import figure_bundle, new_figure
from graders.grading.report_html import second_way_as_html
from tests.test_browser import CHROMIUM, FLAGS, PALE, playwright
from workbook.pages import Page, write_page

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Install Chromium (Debian: apt-get install chromium)."
)

CODE = (
    '%%ranks $ranks --on $on\n# A comment.\nshare = {"text": 0x10 + 2.5 ** x for x in range(3)}\nreturn True'
)

GROUND_OF_A_LINE = "code => getComputedStyle(code).backgroundColor"
SHOWN = """img => {
  const style = getComputedStyle(img), margin = parseFloat(style.paddingLeft);
  const box = img.getBoundingClientRect(), room = img.closest('.jp-OutputArea-output').clientWidth;
  return {margin, room, outer: box.width, width: box.width - 2 * margin, height: box.height - 2 * margin};
}"""
"""Pixels: a figure's margin, its size with it and without, and the width that there is for it."""

FONT = "text => getComputedStyle(text).fontFamily"


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A page with code, text and an output of each kind, as readers see it who have set light, or dark."""
    folder = tmp_path_factory.mktemp("page")
    second_way = second_way_as_html("def double(x):\n    return x + x")
    figure, _ = new_figure(alt="Empty axes.", width=5.0, height=2.5)
    outputs = [{"text/html": second_way}, figure_bundle(figure)]
    cells = [
        new_code_cell(CODE, outputs=[new_output("display_data", data=data) for data in outputs]),
        new_markdown_cell("An option, `--ntasks-per-node`, $10^{23}$, and\n\n```\nGPU0  48-63\n```"),
    ]
    nbformat.write(new_notebook(cells=cells), folder / "executed.ipynb")
    path = write_page(folder / "executed.ipynb", Page("80_sample", "A sample", 1, 2), folder)
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        window = browser.new_page(viewport={"width": 1100, "height": 800}, color_scheme=request.param)
        window.goto(Path(path).resolve().as_uri())
        yield window
        browser.close()


def test_code_stands_out_from_its_ground(page: Any) -> None:
    assert page.locator("main .highlight span").count() > 20
    assert page.evaluate(PALE, "main .highlight span") == []


def test_what_is_no_python_is_no_mistake(page: Any) -> None:
    # `$` behind a magic is none of Python's signs; it has the colour of the words beside it.
    colour = "word => getComputedStyle(word).color"
    strange = page.locator("main .highlight .err")
    assert strange.count() == 2
    assert strange.first.evaluate(colour) == page.locator("main .highlight pre").first.evaluate(colour)


def test_code_in_an_output_is_set_as_code(page: Any) -> None:
    # A second way is Python, whose indents have to be seen.
    page.locator("details summary").click()
    assert "mono" in page.locator("details pre").evaluate(FONT)


def test_a_block_without_a_language_has_one_ground(page: Any) -> None:
    assert page.locator(".jp-RenderedMarkdown pre code").evaluate(GROUND_OF_A_LINE) == "rgba(0, 0, 0, 0)"


def test_a_formula_is_in_a_font_for_formulas(page: Any) -> None:
    # Without one, exponents hang far above the line.
    assert "Math" in page.locator("math").evaluate(FONT)


def test_a_figure_keeps_its_shape_and_its_edge_is_clear_of_its_words(page: Any) -> None:
    # Invariant: round the picture is a margin of its ground, within its width and that of a narrow window.
    figure = page.locator("img[alt='Empty axes.']")
    assert figure.evaluate(SHOWN)["width"] == 480
    for window in (1100, 300):
        page.set_viewport_size({"width": window, "height": 800})
        shown = figure.evaluate(SHOWN)
        assert shown["margin"] >= 8
        assert shown["outer"] <= shown["room"]
        assert shown["width"] / shown["height"] == pytest.approx(2, rel=0.01)
    page.set_viewport_size({"width": 1100, "height": 800})
