"""Alpa's searches without Alpa: it asks for a JAX of 2022, but they are plain functions of arrays.

They are taken out of the source of the installed package (`course beside alpa`), which is not imported.
"""

import ast
from collections.abc import Collection
from importlib.metadata import files
from typing import Any


def cut_out(path: str, names: Collection[str], stand_ins: dict[str, Any]) -> dict[str, Any]:
    """The functions of these names in a file of the package, such as "alpa/util.py", without decorators.

    stand_ins: what else the functions refer to, by name.
    """
    source = next(file for file in files("alpa") or () if str(file) == path)
    tree = ast.parse(source.read_text())
    found: list[ast.stmt] = []
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name in names:
            each.decorator_list = []
            found.append(each)
    namespace = dict(stand_ins)
    exec(compile(ast.Module(found, []), path, "exec"), namespace)
    return {name: namespace[name] for name in names}
