"""`course report UNIT`: a page that a student can hand to a tutor."""

from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from graders import check, commands, hint, predict
from tests import sample_unit

PICTURE = '<img alt="Two ranks" src="data:image/png;base64,iVBORw0KGgo="/>'


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    with sample_unit.registered():
        yield


def handed_in(folder: Path) -> Path:
    """A notebook with a wrong answer, a right one, a timeline, and things that a page must not take over."""
    drawn = f'{PICTURE}<script>alert(1)</script><img src="https://example.org/x.png"/>'
    cells = [
        new_code_cell("import torch.distributed as dist"),
        new_code_cell("def double(x):\n    return 2.0 * x  # <u>floats</u>"),
        new_code_cell(sample_unit.SOLVED["total"]),
        new_code_cell("run.timeline()", outputs=[new_output("display_data", {"text/html": drawn})]),
    ]
    path = folder / "mine.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


class Tags(HTMLParser):
    """What elements a page has, and whatever it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.loaded: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def test_a_page_for_the_tutor_says_all_and_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def double(x: float) -> float:
        return 2.0 * x

    check(double)
    hint("double", 1)
    predict("90_sample", milliseconds=16).measured(milliseconds=8)
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert commands.report("90_sample", handed_in(tmp_path), page) == commands.NOT_ALL_POINTS
    assert str(page) in capsys.readouterr().out
    html = page.read_text()
    said = unescape(html)

    # Points, each answer as it was written, the verdicts on it, how many checks and hints it took.
    assert "90_sample: 4 of 5 points" in said
    assert "return 2.0 * x  # <u>floats</u>" in said
    assert "dist.all_reduce(x)" in said
    assert "✘ failed" in said
    assert "float32[2]; expected int64[2]" in said
    assert "1 check, 1 of 2 hints." in said
    # What had been predicted, beside what was measured; and the timeline.
    assert "2 times too much" in said
    tags = Tags(html)
    assert tags.loaded == ["data:image/png;base64,iVBORw0KGgo="]
    assert 'alt="Two ranks"' in html
    # No script, and nothing of the student's is markup.
    assert not {"script", "iframe", "link", "u"} & tags.names


def test_a_report_that_cannot_be_made_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.report("90_sample", tmp_path / "none.ipynb", tmp_path / "page.html") == commands.BAD_INPUT
    assert "There is no file" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
