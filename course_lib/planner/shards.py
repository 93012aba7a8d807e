"""One rank's part of a plan: the operators of its stage, on its parts of the tensors."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn
from torch.distributed.tensor import Shard

from course_lib.planner.graph import Operator
from course_lib.planner.moving import WHOLE, Axis, Layout, made_as, move, wanted_as
from course_lib.planner.plan import BadPlan, layouts

Split = Mapping[str, str]
"""Operator's name -> the letter that the ranks share."""


def wanted(operator: Operator, letter: str | None) -> tuple[Layout, ...]:
    """How an operator wants its operands, if ranks share this letter."""
    return tuple(wanted_as(each, letter is not None) for each in layouts(operator, letter)[0])


def made(operator: Operator, letter: str | None) -> Layout:
    """How an operator makes its result, if ranks share this letter."""
    return made_as(layouts(operator, letter)[1])


class ShardedPieces(nn.Module):
    """Operators in their order, with this rank's parts of the parameters: a stage of a pipeline, or less.

    It takes the whole of what comes in, along the axis, and returns the whole of what comes out last.
    """

    def __init__(
        self,
        operators: Sequence[Operator],
        split: Split,
        axis: Axis,
        parameters: Mapping[str, Tensor],
        constants: Mapping[str, Tensor],
    ) -> None:
        """parameters, constants: at least those of the operators, whole, on the device where it will run."""
        super().__init__()
        self._operators, self._split, self._axis = list(operators), split, axis
        self._last = _last_uses(self._operators)
        self.layouts: dict[str, Layout] = {}
        """Of each parameter."""
        self._mine: dict[str, nn.Parameter] = {}
        self._constants: dict[tuple[str, Layout], Tensor] = {}
        for operator in self._operators:
            for name, layout in zip(operator.operands, self._wanted(operator), strict=True):
                if name in parameters and self.layouts.setdefault(name, layout) != layout:
                    raise BadPlan(f"Two operators want {name} in two layouts.")
                if name in constants:
                    self._constants[name, layout] = part(constants[name], layout, axis)
        for name, layout in self.layouts.items():
            self._mine[name] = nn.Parameter(part(parameters[name].detach(), layout, axis).clone())
            self.register_parameter(name.replace(".", "/"), self._mine[name])

    def named_parts(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The names that the graph has for the parameters, and this rank's parts."""
        return self._mine.items()

    def forward(self, x: Tensor) -> Tensor:
        """x: the whole, along the axis."""
        results: dict[str, tuple[Tensor, Layout]] = {}
        moved: dict[tuple[str, Layout], Tensor] = {}
        for operator, last in zip(self._operators, self._last, strict=True):
            operands: list[Tensor] = []
            for name, layout in zip(operator.operands, self._wanted(operator), strict=True):
                if name in self._mine:
                    operands.append(self._mine[name])
                    continue
                key = name, layout
                if key in self._constants:
                    operands.append(self._constants[key])
                    continue
                if key not in moved:
                    # Who wants it in the same layout shares it, and the gradients are added before they move.
                    value, lies = results.get(name, (x, WHOLE))
                    moved[key] = move(value, lies, layout, self._axis)
                operands.append(moved[key])
            results[operator.name] = operator.compute(*operands), made(operator, self._letter(operator))
            for name in last:
                results.pop(name, None)
                moved = {key: tensor for key, tensor in moved.items() if key[0] != name}
        result, lies = results[self._operators[-1].name]
        return move(result, lies, WHOLE, self._axis)

    def _letter(self, operator: Operator) -> str | None:
        return self._split.get(operator.name) if self._axis.ranks > 1 else None

    def _wanted(self, operator: Operator) -> tuple[Layout, ...]:
        return wanted(operator, self._letter(operator))


def part(whole: Tensor, layout: Layout, axis: Axis) -> Tensor:
    """This rank's part of a tensor that it has whole."""
    if isinstance(layout.value, Shard) and axis.ranks > 1:
        return whole.chunk(axis.ranks, layout.value.dim)[axis.place].contiguous()
    return whole


def _last_uses(operators: Sequence[Operator]) -> list[list[str]]:
    """For each operator the operands that are used for the last time."""
    seen: set[str] = {operators[-1].name}
    last: list[list[str]] = []
    for operator in reversed(operators):
        last.append([name for name in dict.fromkeys(operator.operands) if name not in seen])
        seen.update(operator.operands)
    return last[::-1]
