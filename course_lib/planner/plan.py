"""A plan says how a model is spread over ranks: which stage has which pieces, and what each operator splits.

The ranks are a mesh (stages, data, tensor), the last axis innermost. Along `data` the samples of a
micro-batch are split, and gradients are averaged at the end. Along `tensor` each operator splits what the
plan says; what goes into a stage and what comes out of it is whole there. A stage is a stage of a pipeline.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from course_lib.planner.graph import Graph, Operator


class BadPlan(ValueError):
    """The plan cannot be carried out."""


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """cuts: for each stage the first of its pieces; the first number is 0. data, tensor: ranks along these
    axes of every stage. micro_batches: how many a step has. split: operator's name -> the letter of its
    einsum that the ranks along `tensor` share; without one, each of these ranks computes the whole.
    """

    cuts: tuple[int, ...] = (0,)
    data: int = 1
    tensor: int = 1
    micro_batches: int = 1
    split: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The mesh: stages, data, tensor."""
        return len(self.cuts), self.data, self.tensor

    @property
    def ranks(self) -> int:
        return len(self.cuts) * self.data * self.tensor

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage and places along `data` and `tensor` of a rank."""
        return rank // (self.data * self.tensor), rank // self.tensor % self.data, rank % self.tensor

    def pieces(self, stage: int, count: int) -> range:
        """The pieces of a stage, of `count` pieces in all."""
        return range(self.cuts[stage], [*self.cuts, count][stage + 1])


def layouts(operator: Operator, letter: str | None) -> tuple[tuple[Placement, ...], Placement]:
    """How operands and result of an operator lie along an axis whose ranks share this letter, or nothing."""
    operands = tuple(_placement(letters, letter) for letters in operator.einsum.operands)
    letters = operator.einsum.result
    return operands, Partial() if letter and letter not in letters else _placement(letters, letter)


def check(plan: ParallelPlan, graph: Graph) -> None:
    """Raises BadPlan, with a sentence, where the plan does not fit the graph."""
    pieces = len(graph.outputs)
    if list(plan.cuts) != sorted(set(plan.cuts)) or tuple(plan.cuts[:1]) != (0,) or plan.cuts[-1] >= pieces:
        raise BadPlan(
            f"cuts has the first piece of each stage, ascending from 0, below {pieces}; got {plan.cuts}."
        )
    if min(plan.data, plan.tensor, plan.micro_batches) < 1:
        raise BadPlan("data, tensor and micro_batches are at least 1.")
    known = {operator.name: operator for operator in graph.operators}
    for name, letter in plan.split.items():
        if name not in known:
            raise BadPlan(f"split names {name}, and there is no such operator.")
        sizes = known[name].einsum.sizes
        if letter not in sizes or sizes[letter] % plan.tensor:
            raise BadPlan(
                f"{name} is {known[name].einsum.spec} with the lengths {dict(sizes)}: {plan.tensor} ranks "
                f"cannot share {letter!r} evenly."
            )


def _placement(letters: str, letter: str | None) -> Placement:
    return Shard(letters.index(letter)) if letter and letter in letters else Replicate()
