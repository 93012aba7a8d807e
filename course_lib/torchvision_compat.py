"""torchvision beside a torch that its compiled operators were not built for.

torchvision from PyPI is built against a CUDA torch. Beside a CPU torch its library of operators does not
load, and then `import torchvision` itself ends with "operator torchvision::nms does not exist", because it
describes two operators to the compiler without asking whether they are there. Data sets, transforms and
models need none of these operators; `torchvision.ops.nms` stays unusable.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""The two operators that torchvision describes whether they are there or not."""

_declared: list[torch.library.Library] = []
"""Keeps the declarations: a library that is collected takes its operators with it."""


def import_torchvision() -> ModuleType:
    """The module torchvision, importable also beside a CPU torch.

    Import it where it is used and nowhere else: it takes more than a second. Raises ModuleNotFoundError
    where torchvision is not installed.
    """
    if "torchvision" not in sys.modules and not _declared and not _operators_load():
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in _SCHEMAS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    # On the way an older PyTorch computes a little, which it could not on a device without data.
    with torch.device("cpu"):
        return importlib.import_module("torchvision")


def _operators_load() -> bool:
    """Whether torch accepts torchvision's compiled operators; if so, they are loaded now."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # the import itself will say what is missing
    compiled = sorted(Path(spec.origin).parent.glob("_C*"))
    try:
        for library in compiled:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except (ImportError, OSError):
        return False
    return bool(compiled)
