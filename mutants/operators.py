"""What may be done to a node of a syntax tree so that the program means something else.

An operator takes a node and yields edits: the node or one in it, and what to put in its place. They are
those of A. J. Offutt et al., An experimental determination of sufficient mutant operators, 1996, with the
deletions of M. E. Delamaro et al., Designing deletion mutation operators, 2014, and what people do to
tensors: rebinding instead of writing in place, leaving out `clone()`, `% size` or a keyword.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)
Item = TypeVar("Item")

Edit = tuple[ast.AST, ast.AST]
Operator = Callable[[ast.AST], Iterator[Edit]]

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE),
    ast.NotEq: (ast.Eq, ast.Lt, ast.Gt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""The neighbours of a comparison, and its opposite."""

ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitXor: (ast.BitOr, ast.BitAnd),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
}

NAMES = {
    "all": "any",
    "any": "all",
    "argmax": "argmin",
    "ceil": "floor",
    "floor": "ceil",
    "max": "min",
    "min": "max",
    "recv": "send",
    "send": "recv",
    "zeros": "ones",
    "zeros_like": "ones_like",
}
"""Functions and methods that are mistaken for one another."""

MODULES = frozenset({"dist", "functional", "math", "nn", "np", "time", "torch"})
"""Names under which units import modules: `dist.barrier()` is no method call of `dist`'s."""

WRAPPERS = frozenset({"abs", "float", "int", "list", "reversed", "sorted", "tuple"})
"""Functions of one argument that may be left out."""


def comparison(node: ast.AST) -> Iterator[Edit]:
    """`<` becomes `<=` or `>=`, `==` becomes `!=`, `<=` or `>=`, ..."""
    if isinstance(node, ast.Compare):
        for place, old in enumerate(node.ops):
            for new in COMPARISONS[type(old)]:
                yield node, changed(node, ops=replaced(node.ops, place, new()))


def arithmetic(node: ast.AST) -> Iterator[Edit]:
    """`+` becomes `-` or `*`, ..., also in `+=`."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for new in ARITHMETIC.get(type(node.op), ()):
            yield node, changed(node, op=new())


def one_operand(node: ast.AST) -> Iterator[Edit]:
    """`a + b` becomes `a` or `b`, and so with `and`, `or`, a chain of comparisons, `not` and a minus sign."""
    match node:
        case ast.BinOp(left=left, right=right) | ast.BoolOp(values=[left, right]):
            yield from ((node, left), (node, right))
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield node, operand
        case ast.Compare(ops=[first, second], comparators=[middle, last]):
            yield node, ast.Compare(node.left, [first], [middle])
            yield node, ast.Compare(middle, [second], [last])


def boolean(node: ast.AST) -> Iterator[Edit]:
    """`and` becomes `or`, and the reverse."""
    if isinstance(node, ast.BoolOp):
        yield node, changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def condition(node: ast.AST) -> Iterator[Edit]:
    """A condition becomes true, false or its opposite; one that filters a comprehension is left out."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from ((test, ast.Constant(True)), (test, ast.Constant(False)))
            if not isinstance(test, ast.Compare):  # these have their opposites already
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=tests):
            yield from ((test, ast.Constant(True)) for test in tests)


def constant(node: ast.AST) -> Iterator[Edit]:
    """A number becomes one more or one less, True becomes False, and the reverse."""
    match node:
        case ast.Constant(value=bool()):
            yield node, ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield from ((node, _number(number + 1)), (node, _number(number - 1)))


def off_by_one(node: ast.AST) -> Iterator[Edit]:
    """One more or one less in what `range` gets, in an index, and in the bounds of a slice."""
    match node:
        case ast.Call(func=ast.Name(id="range")):
            for bound in node.args:
                yield from _neighbours(bound)
        case ast.Subscript(slice=index) if not isinstance(index, ast.Slice | ast.Tuple):
            yield from _neighbours(index)
        case ast.Slice():
            for name in ("lower", "upper", "step"):
                bound = getattr(node, name)
                if bound is not None:
                    yield from _neighbours(bound)
                    yield node, changed(node, **{name: None})


def arguments(node: ast.AST) -> Iterator[Edit]:
    """Two neighbours among the positional arguments swap; the last, or one with a keyword, is left out."""
    if not isinstance(node, ast.Call):
        return
    for place in range(1, len(node.args)):
        yield node, changed(node, args=_swapped(node.args, place))
    if node.args:
        yield node, changed(node, args=node.args[:-1])
    for place, keyword in enumerate(node.keywords):
        # zip's `strict` only guards: without it nothing changes for what the exercise allows.
        if keyword.arg != "strict":
            yield node, changed(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])


def order(node: ast.AST) -> Iterator[Edit]:
    """Two neighbours in a tuple, a list, or among the values of a dictionary swap."""
    match node:
        case ast.Tuple(ctx=ast.Load(), elts=items) | ast.List(ctx=ast.Load(), elts=items):
            yield from ((node, changed(node, elts=_swapped(items, place))) for place in range(1, len(items)))
        case ast.Dict(values=items):
            yield from (
                (node, changed(node, values=_swapped(items, place))) for place in range(1, len(items))
            )


def call_left_out(node: ast.AST) -> Iterator[Edit]:
    """`x.clone()` becomes `x`, and `list(x)` becomes `x`."""
    match node:
        case ast.Call(func=ast.Attribute(value=subject)) if ast.unparse(subject) not in MODULES:
            yield node, subject
        case ast.Call(func=ast.Name(id=name), args=[subject], keywords=[]) if name in WRAPPERS:
            yield node, subject


def other_name(node: ast.AST) -> Iterator[Edit]:
    """`min` becomes `max`, `send` becomes `recv`, ..."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield node.func, ast.Name(NAMES[name], ast.Load())
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            yield node.func, changed(node.func, attr=NAMES[name])


def rebinding(node: ast.AST) -> Iterator[Edit]:
    """`x += y` becomes `x = y`, or `x = x + y`, which leaves the object that x was as it is."""
    match node:
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
            targets: list[ast.expr] = [ast.Name(name, ast.Store())]
            for new in (value, ast.BinOp(ast.Name(name, ast.Load()), op, value)):
                yield node, ast.Assign(targets, new, lineno=node.lineno)


def statement_left_out(node: ast.AST) -> Iterator[Edit]:
    """A statement becomes `pass`. Not what gives a name its value: that only raises NameError later."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case (
            ast.Expr()
            | ast.AugAssign()
            | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
            | ast.Return()
            | ast.Raise()
            | ast.If()
            | ast.For()
            | ast.While()
        ):
            yield node, ast.Pass()
        case ast.Break():
            yield from ((node, ast.Pass()), (node, ast.Continue()))
        case ast.Continue():
            yield from ((node, ast.Pass()), (node, ast.Break()))


def context_left_out(node: ast.AST) -> Iterator[Edit]:
    """`with torch.no_grad():` becomes a block like any other."""
    if isinstance(node, ast.withitem) and node.optional_vars is None:
        yield node.context_expr, ast.parse("contextlib.nullcontext()", mode="eval").body


OPERATORS: tuple[Operator, ...] = (
    comparison,
    arithmetic,
    one_operand,
    boolean,
    condition,
    constant,
    off_by_one,
    arguments,
    order,
    call_left_out,
    other_name,
    rebinding,
    statement_left_out,
    context_left_out,
)


def changed(node: Node, **fields: object) -> Node:
    """The node with other values in some of its fields."""
    new = copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def replaced(items: Sequence[Item], place: int, item: Item) -> list[Item]:
    """The items with another one at that place."""
    return [*items[:place], item, *items[place + 1 :]]


def _swapped(items: Sequence[Item], place: int) -> list[Item]:
    """The items with the one at that place before the one that precedes it."""
    return [*items[: place - 1], items[place], items[place - 1], *items[place + 1 :]]


def _number(value: float) -> ast.expr:
    """A number as it would be parsed: a minus sign is an operator."""
    return ast.UnaryOp(ast.USub(), ast.Constant(-value)) if value < 0 else ast.Constant(value)


def _neighbours(node: ast.expr) -> Iterator[Edit]:
    """One more and one less, unless the expression ends in a number, for which `constant` does that."""
    match node:
        case ast.Constant() | ast.UnaryOp() | ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant()):
            return
    for op in (ast.Add(), ast.Sub()):
        yield node, ast.BinOp(node, op, ast.Constant(1))
