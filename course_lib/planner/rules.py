"""Which dimensions of a call's tensors belong together, and which of them can be split: a rule for each call.

A rule gets the whole shapes of the operands and of the result, and the call's other arguments; it returns the
einsum. A letter that cannot be split has the length 1 in it.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from course_lib.planner.layouts import Einsum

Shape = tuple[int, ...]
Rule = Callable[[Sequence[Shape], Shape, Sequence[Any]], Einsum]
"""(shapes of operands, shape of the result, other positional arguments) -> einsum."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def elementwise(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """Operands are aligned at their last dims; what is broadcast gets a letter of its own."""
    letters, sizes = LETTERS[: len(result)], dict(zip(LETTERS, result, strict=False))
    fresh = (letter.upper() for letter in LETTERS)
    operands = []
    for shape in shapes:
        named = ""
        for letter, length in zip(letters[len(result) - len(shape) :], shape, strict=True):
            named += letter if length == sizes[letter] else next(fresh)
        sizes |= {letter: 1 for letter in named if letter.isupper()}
        operands.append(named)
    return Einsum(f"{','.join(operands)}->{letters}", sizes)


def linear(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """x [..., I] and weight [O, I] to [..., O]. The bias is an addition of its own."""
    rows, (outputs, inputs) = LETTERS[: len(result) - 1], shapes[1]
    sizes = dict(zip(rows, result, strict=False)) | {"i": inputs, "o": outputs}
    return Einsum(f"{rows}i,oi->{rows}o", sizes)


def layer_norm(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """The normalised dims are whole; weight and bias have the same."""
    whole = len(others[0])
    letters = LETTERS[: len(result)]
    sizes = dict(zip(letters, result, strict=True)) | dict.fromkeys(letters[-whole:], 1)
    return Einsum(f"{','.join([letters] + [letters[-whole:]] * (len(shapes) - 1))}->{letters}", sizes)


def softmax(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """All but the dim that adds up to 1."""
    letters = LETTERS[: len(result)]
    sizes = dict(zip(letters, result, strict=True))
    sizes[letters[others[0]]] = 1
    return Einsum(f"{letters}->{letters}", sizes)


def embedding(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """Tokens of any shape and rows [V, D]; V is whole, for a token's row may be anywhere."""
    letters = LETTERS[: len(result)]
    sizes = dict(zip(letters, result, strict=True)) | {"v": 1}
    return Einsum(f"{letters[:-1]},v{letters[-1]}->{letters}", sizes)


def matmul(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """[..., N, K] and [..., K, M] with the same dims before."""
    before = LETTERS[: len(result) - 2]
    sizes = dict(zip(before, result, strict=False)) | {"n": result[-2], "m": result[-1], "k": shapes[0][-1]}
    return Einsum(f"{before}nk,{before}km->{before}nm", sizes)


def einsum(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """As it says itself."""
    sizes = {
        letter: length
        for letters, shape in zip(others[0].split("->")[0].split(","), shapes, strict=True)
        for letter, length in zip(letters, shape, strict=True)
    }
    return Einsum(others[0], sizes)


def transpose(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """Two dims change places."""
    letters = list(LETTERS[: len(result)])
    sizes = dict(zip(letters, shapes[0], strict=True))
    before = "".join(letters)
    first, second = others
    letters[first], letters[second] = letters[second], letters[first]
    return Einsum(f"{before}->{''.join(letters)}", sizes)


def unflatten(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """[..., H K] to [..., H, K]: a part of the dim is a part of H."""
    letters, where = LETTERS[: len(result)], others[0] % len(shapes[0])
    sizes = dict(zip(letters, result, strict=True))
    inner = letters[where + 1 : where + len(others[1])]
    sizes |= dict.fromkeys(inner, 1)
    return Einsum(f"{''.join(letter for letter in letters if letter not in inner)}->{letters}", sizes)


def flatten(shapes: Sequence[Shape], result: Shape, others: Sequence[Any]) -> Einsum:
    """[..., H, K] to [..., H K]: a part of H is a part of the dim."""
    letters, first = LETTERS[: len(shapes[0])], others[0] % len(shapes[0])
    last = (others[1] if len(others) > 1 else -1) % len(shapes[0])
    sizes = dict(zip(letters, shapes[0], strict=True))
    inner = letters[first + 1 : last + 1]
    sizes |= dict.fromkeys(inner, 1)
    return Einsum(f"{letters}->{''.join(letter for letter in letters if letter not in inner)}", sizes)


RULES: dict[Any, Rule] = {
    functional.linear: linear,
    functional.layer_norm: layer_norm,
    functional.embedding: embedding,
    operator.matmul: matmul,
    torch.einsum: einsum,
    "transpose": transpose,
    "unflatten": unflatten,
    "flatten": flatten,
    "softmax": softmax,
} | dict.fromkeys(
    (
        operator.add,
        operator.mul,
        operator.truediv,
        functional.gelu,
        functional.relu,
        torch.relu,
        functional.dropout,
        "masked_fill",
        "contiguous",
    ),
    elementwise,
)
"""What is called, a function or a method's name -> its rule."""
