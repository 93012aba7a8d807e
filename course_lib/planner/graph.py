"""A model as a graph of operators, taken from its code.

`torch.fx` runs each piece of the model on placeholders and writes down what is called. What depends on shapes
only (a mask, the numbers of the positions) is computed meanwhile, and is a constant of the graph. Each
operator has an einsum that says which of its dimensions can be split, and what its result is then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from course_lib.planner.alike import alike
from course_lib.planner.layouts import Einsum
from course_lib.planner.rules import RULES

INPUT = "input"
"""The name of what goes into the model."""


class NotPlannable(ValueError):
    """The model calls something of which nobody has said how it can be split."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One call on tensors.

    name: piece and FX's name, such as "3.linear_1". piece: which of the model's pieces it belongs to.
    einsum: a letter for each dimension of operands and result. A letter that cannot be split (a softmax's
    dim) has the length 1 there, and one of H heads of K numbers the length H.
    operands: for each the name of what makes it: an operator, a parameter, a constant, or INPUT.
    shapes, result: whole shapes of the operands, and of the result. compute: from the operands to the result,
    on tensors of these shapes or on parts of them.
    """

    name: str
    piece: int
    einsum: Einsum
    operands: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    compute: Callable[..., Tensor] = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        """What it does, without its number: "linear"."""
        return self.name.split(".")[1].rstrip("_0123456789")

    @property
    def nbytes(self) -> int:
        """Bytes of the result, in float32."""
        return 4 * prod(self.result)


@dataclass(frozen=True, eq=False)
class Graph:
    """The operators of a model, in an order in which they can run.

    example: what goes in, without data. parameters: name -> a tensor without data. constants: name -> a
    tensor. outputs: for each piece the name of the operator whose result it returns.
    """

    operators: tuple[Operator, ...]
    example: Tensor
    parameters: Mapping[str, Tensor]
    constants: Mapping[str, Tensor]
    outputs: tuple[str, ...]

    @cached_property
    def _by_name(self) -> dict[str, Operator]:
        return {each.name: each for each in self.operators}

    def __getitem__(self, name: str) -> Operator:
        """The operator of this name."""
        return self._by_name[name]

    @property
    def edges(self) -> Iterator[tuple[str, str, int]]:
        """(from, to, which operand) between two operators."""
        for each in self.operators:
            for place, source in enumerate(each.operands):
                if source in self._by_name:
                    yield source, each.name, place

    def of_piece(self, piece: int) -> tuple[Operator, ...]:
        """The operators of one piece."""
        return self._by_piece[piece]

    @cached_property
    def _by_piece(self) -> list[tuple[Operator, ...]]:
        pieces = range(len(self.outputs))
        return [tuple(each for each in self.operators if each.piece == piece) for piece in pieces]


def trace(pieces: Sequence[nn.Module], example: Tensor) -> Graph:
    """The graph of a model that applies its pieces one after another, the first to a tensor like `example`.

    pieces: with data or without (on the device "meta"); they stay as they are. example: [B, ...], where B is
    how many samples a replica computes at once. Of pieces that are alike one is run. Raises NotPlannable for
    calls that have no rule.
    """
    operators: list[Operator] = []
    parameters: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    outputs: list[str] = []
    given = example.to("meta")
    traced: list[_Tracer] = []
    for number, piece in enumerate(pieces):
        tracer = next((each for each in traced if each.serves(piece, given)), None)
        if tracer is None:
            tracer = _Tracer(piece, given)
            traced.append(tracer)
        names = {tracer.input: outputs[-1] if outputs else INPUT}
        for node in tracer.graph.nodes:
            if node.op == "get_attr":
                names[node] = f"{number}.{node.target}"
                value = tracer.attribute(node.target)
                if isinstance(value, nn.Parameter):
                    parameters[names[node]] = torch.empty_like(value, device="meta")
                else:
                    constants[names[node]] = value
            elif node.op in ("call_function", "call_method"):
                names[node] = f"{number}.{node.name}"
                operators.append(_operator(node, number, names))
        returned = tracer.output
        outputs.append(names[returned])
        given = returned.meta["value"]
    return Graph(tuple(operators), example.to("meta"), parameters, constants, tuple(outputs))


def _operator(node: fx.Node, piece: int, names: Mapping[fx.Node, str]) -> Operator:
    rule = RULES.get(node.target)
    if rule is None:
        raise NotPlannable(
            f"Piece {piece} calls {node.target}, of which course_lib.planner.rules has no rule. "
            f"It knows {', '.join(sorted(getattr(each, '__name__', str(each)) for each in RULES))}."
        )
    given = [*node.args, *node.kwargs.values()]
    operands = [each for each in given if isinstance(each, fx.Node)]
    others = [each for each in given if not isinstance(each, fx.Node)]
    shapes = tuple(tuple(each.meta["value"].shape) for each in operands)
    result = tuple(node.meta["value"].shape)
    return Operator(
        name=names[node],
        piece=piece,
        einsum=rule(shapes, result, others),
        operands=tuple(names[each] for each in operands),
        shapes=shapes,
        result=result,
        compute=_Call(node),
    )


class _Call:
    """A call of FX as a function of its tensors: first those given by place, then those by name."""

    def __init__(self, node: fx.Node) -> None:
        self._arguments, self._options, self._target = node.args, node.kwargs, node.target

    def __call__(self, *tensors: Tensor) -> Tensor:
        left = iter(tensors)
        arguments = [next(left) if isinstance(each, fx.Node) else each for each in self._arguments]
        options = {
            name: next(left) if isinstance(each, fx.Node) else each for name, each in self._options.items()
        }
        function = self._target if callable(self._target) else getattr(torch.Tensor, self._target)
        result: Tensor = function(*arguments, **options)
        return result


class _Shaped(fx.Proxy):
    """A placeholder that knows its shape, so that code which asks for it gets numbers."""

    @property
    def shape(self) -> torch.Size:
        shape: torch.Size = self.node.meta["value"].shape
        return shape

    @property
    def device(self) -> torch.device:
        """What is made here of numbers alone is made with data."""
        return torch.device("cpu")


class _Tracer(fx.Tracer):
    """Runs a module's code, down to the functions that its layers call; a linear layer's bias comes apart."""

    def __init__(self, module: nn.Module, example: Tensor) -> None:
        super().__init__()
        self._example = example
        # While it traces, looking up an attribute would be traced too.
        self._known = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers()])
        before = set(vars(module))
        self.graph = self.trace(module)
        for name in set(vars(module)) - before:
            # A constant that FX has put there.
            self._known[name] = vars(module)[name]
            delattr(module, name)

    def serves(self, module: nn.Module, example: Tensor) -> bool:
        """Whether tracing this module on such a tensor would give the same graph."""
        looks = [(each.shape, each.stride(), each.dtype) for each in (example, self._example)]
        return looks[0] == looks[1] and isinstance(self.root, nn.Module) and alike(module, self.root)

    @property
    def input(self) -> fx.Node:
        node: fx.Node = next(node for node in self.graph.nodes if node.op == "placeholder")
        return node

    @property
    def output(self) -> fx.Node:
        """What the module returns."""
        returned = next(node for node in self.graph.nodes if node.op == "output").args[0]
        if not isinstance(returned, fx.Node):
            raise NotPlannable("A piece returns one tensor.")
        return returned

    def attribute(self, target: Any) -> Any:
        """A parameter or a constant, by the dotted name that FX has for it."""
        return self._known[target] if target in self._known else vars(self.root)[target]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Shaped(node, self)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any
    ) -> fx.Proxy:
        if target is functional.linear and kwargs.get("bias", None) is not None:
            args, kwargs = (*args[:2], kwargs["bias"]), {}
        if target is functional.linear and len(args) == 3:
            product = self.create_proxy(kind, target, args[:2], {})
            return product if args[2] is None else product + args[2]
        made = super().create_proxy(kind, target, args, kwargs, *more, **options)
        self.value_of(made.node)
        return made

    def value_of(self, node: fx.Node) -> Any:
        """What the node's result looks like: a tensor without data."""
        if "value" not in node.meta:
            node.meta["value"] = self._value(node)
        return node.meta["value"]

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._example
        if node.op == "get_attr":
            return torch.empty_like(self.attribute(node.target), device="meta")
        if node.op == "output":
            return None
        arguments, options = fx.node.map_arg((node.args, node.kwargs), self.value_of)
        function = node.target if callable(node.target) else getattr(torch.Tensor, str(node.target))
        return function(*arguments, **options)
