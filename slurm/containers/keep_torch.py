"""Print constraints for pip under which the torch of an image or a site stays as it is.

What an image has of torch was built for its GPUs and its network, so it is pinned as it is found. pip's own
constraints of the image are kept, but for those that the workbook cannot run with, which are told. What the
image does not have gets the versions that the workbook has been tested with.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

try:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name
except ModuleNotFoundError:  # Whatever Python has pip has this.
    from pip._vendor.packaging.requirements import InvalidRequirement, Requirement
    from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TORCH = ("torch", "torchvision")
KEPT = re.compile(r"(torch|torchvision|torchaudio|triton|pytorch-triton.*|nvidia-.*|cuda-.*|numpy)")
"""What torch was built with, or brings."""


def constraints(
    here: dict[str, str], image: list[str], tested: list[str], wanted: dict[str, Requirement]
) -> Iterator[str]:
    """The lines of the constraints.

    here: versions by name. image, tested: lines of constraints. wanted: what the workbook needs. Raises
    SystemExit, with a sentence, if the torch that is here is too old.
    """
    kept = {name: version for name, version in here.items() if KEPT.fullmatch(name)}
    for name, version in kept.items():
        if allows(wanted.get(name), version):
            yield f"{name}=={version}"
        elif name in TORCH:
            sys.exit(f"{name} {version} is here, and the workbook needs {wanted[name]}: take another image.")
        else:
            say(name, version, wanted[name])
    for line, requirement in requirements(image):
        name = canonicalize_name(requirement.name)
        pinned = re.fullmatch(r"===?\s*([^,*]+)", str(requirement.specifier))
        if name in kept:
            continue
        if pinned and not allows(wanted.get(name), pinned[1]):
            say(name, pinned[1], wanted[name])
        else:
            yield line
    constrained = {canonicalize_name(requirement.name) for _, requirement in requirements(image)}
    for line, requirement in requirements(tested):
        name = canonicalize_name(requirement.name)
        if name not in here and name not in constrained and not KEPT.fullmatch(name):
            yield line


def allows(wanted: Requirement | None, version: str) -> bool:
    """Whether a version is one that is wanted. A site's own builds count: they call themselves 2.8.0a0."""
    return wanted is None or wanted.specifier.contains(version, prereleases=True)


def say(name: str, version: str, wanted: Requirement) -> None:
    """Tell what is replaced in the new environment. The image itself stays as it is."""
    print(f"{name} {version} of the image is not used: the workbook needs {wanted}.", file=sys.stderr)


def requirements(lines: list[str]) -> Iterator[tuple[str, Requirement]]:
    """The lines that are requirements; comments, options and empty lines are none."""
    for line in (each.partition("#")[0].strip() for each in lines):
        try:
            yield line, Requirement(line)
        except InvalidRequirement:
            continue


def of_the_image() -> list[str]:
    """The constraints that pip is told of here, by PIP_CONSTRAINT or by its configuration."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    said = dict(re.findall(r"^(:env:|global|install)\.constraint='(.*)'$", done.stdout, re.MULTILINE))
    files = next((said[source] for source in (":env:", "install", "global") if source in said), "")
    return [
        line for file in files.split() if Path(file).exists() for line in Path(file).read_text().splitlines()
    ]


def main() -> None:
    """Print the lines for this environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [
        Requirement(each) for each in project["project"]["dependencies"] + project["build-system"]["requires"]
    ]
    here = {canonicalize_name(each.name): each.version for each in distributions() if each.name}
    if missing := [name for name in TORCH if name not in here]:
        sys.exit(
            f"pip knows of no {' and no '.join(missing)} here: take the module or the image that has them."
        )
    tested = (ROOT / "constraints.txt").read_text().splitlines()
    wanted = {canonicalize_name(each.name): each for each in needed}
    print(*constraints(here, of_the_image(), tested, wanted), sep="\n")


if __name__ == "__main__":
    main()
