"""Versions: what the workbook is tested with, what is installed here, and what an older torch lacks.

Nothing here imports torch, which takes more than a second: its file version.py is read alone. A site's own
build is found as well as one that pip has installed.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Range:
    """The oldest and the newest version that the tests have passed with."""

    oldest: str
    newest: str

    def __contains__(self, version: str) -> bool:
        return numbers(self.oldest) <= numbers(version)[: len(numbers(self.newest))] <= numbers(self.newest)


@dataclass(frozen=True, slots=True)
class Lacking:
    """What does not work with a torch older than `below`, and in which units."""

    below: str
    what: str
    units: tuple[str, ...]


TESTED = {"Python": Range("3.11", "3.13"), "torch": Range("2.6", "2.14")}

OLDER_TORCH = (
    Lacking(
        "2.8",
        "torchrun does not go on with fewer nodes, pipeline schedules leave messages open, FSDP2 is for GPUs "
        "only, DTensor's strategies have other names",
        ("03_multi_node", "05_pipeline_parallel", "09_memory", "12_hybrid", "13_automatic"),
    ),
    Lacking("2.11", "DTensor convolves no image that is cut by its columns", ("12_hybrid",)),
    Lacking("2.12", "Gloo has no all_to_all of lists, but for ranks that launch() has started", ()),
)
"""Where an older torch is missed. Cells that need a newer one say so (`%%needs torch>=2.8`)."""

GLIBC = "2.28"
"""The oldest for which torch's wheels from 2.7 on are built."""


@dataclass(frozen=True, slots=True)
class Installed:
    """Versions of what is here; empty for what is not. torch_for: what torch was built for."""

    python: str
    torch: str
    torch_for: str
    nccl: str
    glibc: str


def installed() -> Installed:
    """Find out what is here."""
    torch = _torch_version()
    cuda, hip = getattr(torch, "cuda", None), getattr(torch, "hip", None)
    return Installed(
        python=platform.python_version(),
        torch=getattr(torch, "__version__", ""),
        torch_for=f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPUs" if torch else "",
        nccl=_nccl() if cuda or hip else "",
        glibc=_glibc(),
    )


def findings(here: Installed) -> list[tuple[str, str]]:
    """Heading and text of each version, and then of what is outside of what is tested, for people."""
    torch = f"{here.torch}, built for {here.torch_for}" if here.torch else "not installed here"
    rows = [("Python", here.python), ("torch", torch)]
    if here.torch and here.torch_for != "CPUs":
        rows.append(("NCCL", here.nccl or "not found: ranks on GPUs need it"))
    rows.append(("glibc", here.glibc or "none: this is no Linux with glibc"))
    return rows + [("Versions", sentence) for sentence in _outside(here)]


def numbers(version: str) -> tuple[int, ...]:
    """`2.13.0a0+cpu` as (2, 13, 0)."""
    return tuple(int(each) for each in re.findall(r"\d+", re.split(r"[a-z+-]", version)[0]))


def _outside(here: Installed) -> Iterator[str]:
    for name, version in (("Python", here.python), ("torch", here.torch)):
        tested = TESTED[name]
        if version and version not in tested:
            yield f"{name} {version} is not tested: {tested.oldest} to {tested.newest} are."
    for lacking in OLDER_TORCH:
        if here.torch and numbers(here.torch) < numbers(lacking.below):
            yield (
                f"Before torch {lacking.below}: {lacking.what}. "
                f"{'In ' + ', '.join(lacking.units) + ' cells say so and go on.' if lacking.units else ''}"
            )
    if here.glibc and numbers(here.glibc) < numbers(GLIBC):
        yield (
            f"glibc {here.glibc} is too old for torch's wheels from 2.7 on, which need {GLIBC}: run in a "
            f"container image. docs/sites.md says how."
        )


def _torch_version() -> ModuleType | None:
    """torch/version.py alone; None if torch is not installed."""
    for path in (folder / "version.py" for folder in _torch_folders()):
        spec = importlib.util.spec_from_file_location("version_of_torch", path)
        if path.exists() and spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    return None


def _torch_folders() -> list[Path]:
    package = importlib.util.find_spec("torch")
    return [Path(folder) for folder in (package.submodule_search_locations or ())] if package else []


def _nccl() -> str:
    """The version of NCCL, or of ROCm's RCCL: pip's, or that of the library which a program would load."""
    for distribution in importlib.metadata.distributions():
        if re.fullmatch(r"nvidia[-_]nccl[-_]cu\d+", distribution.name or ""):
            return distribution.version
    own = [str(folder / "lib" / "librccl.so") for folder in _torch_folders()]
    for library in ("libnccl.so.2", "librccl.so.1", *own):
        try:
            number = ctypes.c_int()
            ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
        except (OSError, AttributeError):
            continue
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
    return ""


def _glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")
    except (ValueError, AttributeError):
        return ""
