"""`make docs`: the figure of the README's first look, drawn by the README's own code."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "docs" / "first_look.svg"


def programs() -> list[str]:
    """The README's blocks of Python, in their order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block.split("```")[0] for block in text.split("```python\n")[1:]]


def drawn(program: str) -> Any:
    """What the last line of a program returns."""
    names: dict[str, Any] = {}
    *lines, last = program.strip().splitlines()
    exec("\n".join(lines), names)
    return eval(last, names)


if __name__ == "__main__":
    drawn(programs()[0]).savefig(FIGURE, metadata={"Date": None})
    print(f"Written: {FIGURE.relative_to(ROOT)}")
