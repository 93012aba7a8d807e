"""Puts off what takes most of the time of importing nbformat, and is not used: a grammar of IRIs.

nbformat imports jsonschema, which imports `rfc3987_syntax` if it is installed (JupyterLab brings it) to check
strings of the format "iri". That builds its parser when it is imported: 1.4 s of processor time, as much as
torch. No schema of a notebook has such a string, so the module that stands in for it loads it when asked.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

_NAME = "rfc3987_syntax"


class _Lazy(ModuleType):
    """Stands for the module until it checks its first string."""

    @staticmethod
    def is_valid_syntax(term: str, value: str) -> bool:
        return bool(_load().is_valid_syntax(term=term, value=value))

    def __getattr__(self, name: str) -> Any:
        # The import system asks for names like __path__; they are no reason to load it.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_load(), name)


def _load() -> ModuleType:
    if isinstance(sys.modules.get(_NAME), _Lazy):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)


if _NAME not in sys.modules and importlib.util.find_spec(_NAME) is not None:
    sys.modules[_NAME] = _Lazy(_NAME)
