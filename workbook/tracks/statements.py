"""What the statements of a notebook's cells define and use, as far as it can be read from their source."""

import ast
import builtins
import math
import re
import symtable
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

_MAGIC = re.compile(r"\s*[%!]")
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement at the top level of a cell. is_definition: a function or class, not a value."""

    source: str
    defines: frozenset[str]
    uses: frozenset[str]
    is_definition: bool = False


def statements_of(cell: NotebookNode) -> Iterator[Statement]:
    """The statements of a cell of code; IPython's own lines are one that uses the names in them."""
    lines = str(cell.source).splitlines()
    magics = [line for line in lines if _MAGIC.match(line)]
    named = frozenset(re.findall(r"[A-Za-z_]\w*", " ".join(magics)))
    if named:
        yield Statement("", frozenset(), named)
    plain = "\n".join("" if _MAGIC.match(line) else line for line in lines)
    # What `%%ranks` runs on ranks does not come back.
    comes_back = not any(line.startswith("%%ranks") for line in magics)
    for node in ast.parse(plain).body:
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        source = "\n".join(plain.splitlines()[first - 1 : node.end_lineno])
        defines, uses = _names(source, node)
        is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
        yield Statement(source, defines if comes_back else frozenset(), uses, is_definition)


def definitions(statements: Iterable[Statement]) -> dict[str, frozenset[str]]:
    """Name of a function or class -> what it uses."""
    found: dict[str, frozenset[str]] = {}
    for statement in statements:
        for name in statement.defines if statement.is_definition else ():
            found[name] = found.get(name, frozenset()) | statement.uses
    return found


def _names(source: str, node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a statement defines, and those that it uses, now or when it is called."""
    table = symtable.symtable(source, "<cell>", "exec")
    symbols = table.get_symbols()
    defines = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
    uses = {each.get_name() for each in symbols if each.is_referenced()}
    uses |= _globals_within(table)
    if isinstance(node, ast.AugAssign):
        uses |= defines
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        # What calls itself needs no earlier one of its name.
        uses -= defines
    elif isinstance(node, ast.For | ast.With | ast.If | ast.Try | ast.While):
        read = _first(node, ast.Load)
        uses -= {name for name, place in _first(node, ast.Store).items() if place < read[name]}
    return frozenset(defines), frozenset(uses - _BUILTINS)


def _first(node: ast.stmt, context: type[ast.expr_context]) -> defaultdict[str, tuple[float, int]]:
    """Where a name is first written, or first read; infinitely far where it is not."""
    found: defaultdict[str, tuple[float, int]] = defaultdict(lambda: (math.inf, 0))
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, context):
            found[each.id] = min(found[each.id], (each.lineno, each.col_offset))
        elif isinstance(each, ast.ExceptHandler) and each.name and context is ast.Store:
            found[each.name] = min(found[each.name], (each.lineno, each.col_offset))
    return found


def _globals_within(table: symtable.SymbolTable) -> set[str]:
    found: set[str] = set()
    for child in table.get_children():
        found |= {
            each.get_name() for each in child.get_symbols() if each.is_global() and each.is_referenced()
        }
        found |= _globals_within(child)
    return found
