"""What JupyterLab gets when a notebook is opened: the kernel's language, and in the index what is solved."""

import asyncio
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel

from workbook.opening import _load_jupyter_server_extension, marked, prepare

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
INDEX = NOTEBOOKS / "index.ipynb"
UNIT = "00_hello_ranks"
LINK = f"[{UNIT}]({UNIT}/{UNIT}.ipynb)"
POINTS = {"amdahl_speedup": 3, "rank_coordinates": 6, "pass_the_token": 6, "mend_statistics": 6}


def checked(points: dict[str, float]) -> list[dict[str, Any]]:
    return [
        {"event": "check", "unit": UNIT, "exercise": name, "points": value} for name, value in points.items()
    ]


def test_a_notebook_says_the_language_of_its_kernel_as_the_kernel_does():
    notebook = nbformat.read(INDEX, as_version=4)
    assert notebook.metadata.language_info == {"name": "python"}
    prepare(notebook, Path("somewhere.ipynb"))
    assert notebook.metadata.language_info == IPythonKernel.language_info
    # Of a kernel that another environment has, nothing is known here.
    other = nbformat.read(INDEX, as_version=4)
    other.metadata.kernelspec.name = "julia"
    prepare(other, Path("somewhere.ipynb"))
    assert other.metadata.language_info == {"name": "python"}


@pytest.mark.parametrize(
    ("points", "shown"),
    [
        ({}, LINK),
        ({"pass_the_token": 5.0}, LINK),
        ({"pass_the_token": 6.0}, f"{LINK} (1 of 4 solved)"),
        # What was solved once stays so, whatever is tried afterwards.
        ({**POINTS}, f"✔ {LINK}"),
    ],
)
def test_a_unit_is_marked_once_all_its_exercises_have_all_points(points: dict[str, float], shown: str):
    checks = [*checked(points), *checked(dict.fromkeys(points, 0.0))]
    assert marked(f"| {LINK} | a |", NOTEBOOKS, checks) == f"| {shown} | a |"
    # An index that was saved has marks already.
    for saved in (LINK, f"✔ {LINK}", f"{LINK} (3 of 4 solved)"):
        assert marked(f"| {saved} | a |", NOTEBOOKS, checks) == f"| {shown} | a |"


def test_a_unit_that_is_not_there_is_not_marked(tmp_path: Path):
    assert marked(LINK, tmp_path, checked(POINTS)) == LINK
    (tmp_path / UNIT).mkdir()
    (tmp_path / UNIT / f"{UNIT}.ipynb").write_text("<<<<<<< mine")
    assert marked(LINK, tmp_path, checked(POINTS)) == LINK


@pytest.mark.parametrize("awaited", [False, True])
def test_whatever_reads_a_sites_notebooks_is_kept(
    awaited: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(each) + "\n" for each in checked(POINTS)))

    def read(path: str, content: bool = True) -> Any:
        model = {"type": "notebook", "path": path, "content": None}
        if content:
            model["content"] = nbformat.read(NOTEBOOKS / path, as_version=4)
        return model

    async def read_later(path: str, content: bool = True) -> Any:
        return read(path, content)

    contents = SimpleNamespace(get=read_later if awaited else read, root_dir=str(NOTEBOOKS))
    _load_jupyter_server_extension(SimpleNamespace(contents_manager=contents))
    for content in (False, True):
        model = contents.get("index.ipynb", content=content)
        model = asyncio.run(model) if awaited else model
        assert bool(model["content"]) is content
    assert f"✔ {LINK}" in model["content"].cells[0].source
    assert "✔ [" not in INDEX.read_text()


def test_all_settings_of_jupyter_are_in_the_package_that_brings_them_to_a_site():
    folder = ROOT / ".jupyter"
    files = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    brought = {name for names in files.values() for name in names}
    there = {
        str(each.relative_to(folder))
        for part in ("labconfig", "jupyter_server_config.d")
        for each in (folder / part).iterdir()
    }
    assert brought == there
