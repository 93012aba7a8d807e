"""What the drivers of unit 11 return."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class HookReply(DriverReply):
    """gradients: of each parameter, after each pass. values: what the futures of the last pass held, each
    of one bucket.
    """

    gradients: list[list[Tensor]]
    values: list[PlainData]


@dataclass(frozen=True, slots=True)
class QuantisedReply(DriverReply):
    """results: of two calls in a row. again: of the same two once more. xs: of each afterwards.
    changed: the libraries whose own random state is another one than before.
    """

    results: list[PlainData]
    again: list[PlainData]
    changed: list[str]
    xs: list[Tensor]


@dataclass(frozen=True, slots=True)
class WithErrorReply(DriverReply):
    """Of each call in turn: what it returned, and afterwards its x and the error."""

    results: list[PlainData]
    xs: list[Tensor]
    errors: list[Tensor]


@dataclass(frozen=True, slots=True)
class SparseReply(DriverReply):
    """result: what the answer returned on this rank. values, indices: its arguments [k] afterwards."""

    result: PlainData
    values: Tensor
    indices: Tensor
