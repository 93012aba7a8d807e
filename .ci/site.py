"""What an environment on a site's packages leaves as it is, and what it needs a copy of: lines for pip.

It imports nothing that has to be installed first: `.ci/site` runs it before anything is.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distributions, version

KEPT = ("torch", "torchvision")
"""What a site has installed, often built for its machines, and what nobody else may replace."""

WORKBOOK = "distributed-training-workbook"
_CALLED = ("course", "jupyter", "lint-imports", "mypy", "nbgrader", "pytest", "ruff")
"""Programs that `make` calls, or a reader of the README."""


def kept() -> list[str]:
    """Lines for pip by which `KEPT` stay as they are. Raises PackageNotFoundError where one is not there."""
    # Three signs: the version of a site's own build need not be one that Python's rules for versions know.
    return [f"{name}==={version(name)}" for name in KEPT]


def to_be_copied() -> Iterator[str]:
    """Packages of the site, with their versions, that this environment needs for itself.

    Jupyter looks for templates, kernels and extensions in the folder of its own environment, and programs are
    called from there.
    """
    # Of several versions the first that Python finds counts.
    first = {found.metadata["Name"]: found for found in reversed([*distributions()])}
    for name, found in first.items():
        outside = not str(found.locate_file("")).startswith(sys.prefix)
        if outside and name not in (*KEPT, WORKBOOK) and _is_found_by_its_folder(found):
            yield f"{name}=={found.version}"


def _is_found_by_its_folder(found: Distribution) -> bool:
    return any(
        ("jupyter" in file.parts[:-1] and ("share" in file.parts or "etc" in file.parts))
        or (file.parent.name == "bin" and file.name in _CALLED)
        for file in found.files or ()
    )


def main(which: str) -> int:
    """Print them, a line each."""
    try:
        print(*(kept() if which == "kept" else to_be_copied()), sep="\n")
    except PackageNotFoundError as error:
        print(
            f"SITE=1 builds on the packages of this machine, but {sys.executable} finds no {error.name}. "
            f"Load the site's module that has it, or leave SITE out, and pip downloads it.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
