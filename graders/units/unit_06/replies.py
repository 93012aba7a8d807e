"""What unit 06's drivers tell of dropout, of the vocabulary, of the sequence and of layouts."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.answer import DriverReply, PlainData


@dataclass(frozen=True, slots=True)
class DrawnReply(DriverReply):
    """What a rank drew in each block, float64 [count] a draw; escaped: which blocks an exception left."""

    drawn: list[list[Tensor]]
    escaped: list[int]


@dataclass(frozen=True, slots=True)
class EmbeddingReply(DriverReply):
    """result: what forward returned, [*tokens, D]; again: for tokens.flip(0).

    parameters: name -> values. gradient: of the first of them. held: how many tensors of the layer lie in the
    whole weight's memory. kept: bytes of its floating tensors' memory. whole, tokens: afterwards.
    """

    result: PlainData
    again: PlainData
    parameters: dict[str, Tensor]
    gradient: PlainData
    held: int
    kept: int
    whole: Tensor
    tokens: Tensor


@dataclass(frozen=True, slots=True)
class LossReply(DriverReply):
    """result: the losses [N]; without_gradient: twice more, under no_grad and for logits that need no
    gradient. gradient: of the logits. logits, target: the arguments afterwards.
    """

    result: PlainData
    without_gradient: tuple[PlainData, PlainData]
    gradient: PlainData
    logits: Tensor
    target: Tensor


@dataclass(frozen=True, slots=True)
class SequenceReply(DriverReply):
    """result: of forward. gradients: of x and then of each parameter. x: afterwards."""

    result: PlainData
    gradients: list[PlainData]
    x: Tensor


@dataclass(frozen=True, slots=True)
class LayoutReply(DriverReply):
    """result: what the answer returned. raised: "ValueError" or "KeyError", also of a subclass; or nothing.

    layout: afterwards.
    """

    result: PlainData
    raised: str
    layout: PlainData


@dataclass(frozen=True, slots=True)
class HalfReply(DriverReply):
    """parameters: of what the answer returned, by name; kept: bytes of its floating tensors' memory.

    result: of forward; without_gradient: of two more, under no_grad and for an x that needs no gradient.
    gradients: of two steps, by name; of x it is "x". x, arriving: the arguments afterwards. given: the
    parameters of the module given, afterwards; changed: what else of it is not as it was; alone: its result
    and the gradient of its x.
    """

    parameters: dict[str, Tensor]
    kept: int
    given: dict[str, Tensor]
    changed: list[str]
    alone: tuple[Tensor, Tensor]
    result: PlainData
    without_gradient: tuple[PlainData, PlainData]
    gradients: dict[str, Tensor | None]
    x: Tensor
    arriving: Tensor


@dataclass(frozen=True, slots=True)
class OverlapReply(DriverReply):
    """result: y [T, D]. x, layers (up's and down's parameters by name): of the arguments afterwards."""

    result: PlainData
    x: Tensor
    layers: list[dict[str, Tensor]]
