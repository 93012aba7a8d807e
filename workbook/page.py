"""`python -m workbook.page NOTEBOOK DIRECTORY`: an executed notebook as a page, for batch scripts."""

import sys
from pathlib import Path

import nbformat

from workbook.pages import Page, write_page


def page_of(executed: Path, directory: Path) -> Path:
    """Write the page of an executed notebook into `directory`, and return where it is."""
    cells = nbformat.read(executed, as_version=4).cells
    titles = [line[2:] for cell in cells for line in cell.source.splitlines() if line.startswith("# ")]
    title = titles[0] if cells and cells[0].cell_type == "markdown" and titles else executed.stem
    return write_page(executed, Page(executed.stem, title, 0, 0), directory)


if __name__ == "__main__":
    print(page_of(Path(sys.argv[1]), Path(sys.argv[2])))
