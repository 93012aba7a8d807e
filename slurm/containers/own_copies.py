"""Print the packages of an image or a site that the new environment needs for itself, for pip.

Jupyter looks for templates, kernels and extensions in the folder of its own environment, and programs are
called from there: what another environment has of these is imported and not found.
"""

import os
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions

KEPT = ("torch", "torchvision", "distributed-training-workbook")
CALLED = ("jupyter", "nbgrader")
OF_DEVELOPERS = ("lint-imports", "mypy", "pytest", "ruff")
"""Programs that a reader of the README calls, or `make`; EXTRAS is what install.sh adds."""


def own_copies() -> Iterator[str]:
    """Such as "nbconvert==7.17.0"."""
    # Of several versions the first that Python finds counts.
    first = {found.metadata["Name"]: found for found in reversed([*distributions()])}
    for name, found in first.items():
        outside = not str(found.locate_file("")).startswith(sys.prefix)
        if outside and name not in KEPT and _is_found_by_its_folder(found):
            yield f"{name}=={found.version}"


def _is_found_by_its_folder(found: Distribution) -> bool:
    called = (*CALLED, *OF_DEVELOPERS) if os.environ.get("EXTRAS") else CALLED
    return any(
        ("jupyter" in file.parts[:-1] and ("share" in file.parts or "etc" in file.parts))
        or (file.parent.name == "bin" and file.name in called)
        for file in found.files or ()
    )


if __name__ == "__main__":
    print(*own_copies(), sep="\n")
