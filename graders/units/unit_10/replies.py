"""What unit 10's drivers tell."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class LayerReply(DriverReply):
    """names: of the layer's parameters. kept: bytes of the memory of its floating tensors.

    changed: what is not as it was with the layer given. results: of each forward. routing: after each, with
    the gradient that the gate gets by it.
    rows: what each of the own experts was called with, forward by forward. gradients: after two steps, by
    name, and of x in each step. replaced: names of those whose .grad average_gradients replaced. x: after.
    """

    names: list[str]
    kept: int
    changed: list[str]
    results: list[PlainData]
    routing: list[PlainData]
    rows: list[list[int]]
    gradients: dict[str, Tensor | None]
    replaced: list[str]
    x: Tensor
