"""Tensors of other dimensions than one: a number without one, and a matrix."""

from dataclasses import replace

import torch

from graders.grading.kit import Answer, AnswerFailed, FailureKind, Finding, Rng, compare
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import Played, play, results
from graders.units.unit_07.worlds import World


def in_other_shapes(world: World, of_numbers: torch.dtype, of_others: torch.dtype) -> list[World]:
    """Numbers without a dimension, fewer elements than ranks, and matrices of which no rows are the parts."""
    return [
        replace(world, length=1, single=True, dtype=of_numbers),
        replace(world, length=world.ranks - 1, dtype=of_others),
        replace(world, length=5, columns=3, dtype=of_others),
    ]


def other_dimensions(
    answer: Answer, rng: Rng, collective: Collective, model: World
) -> tuple[list[Played], Finding]:
    """That of a `single_number`, and the finding `of_a_matrix` behind its own."""
    plays, finding = single_number(answer, rng, collective, model)
    return plays, of_a_matrix(answer, rng, collective, model) if finding.passed else finding


def single_number(
    answer: Answer, rng: Rng, collective: Collective, model: World
) -> tuple[list[Played], Finding]:
    """`with_the_world` of tensors without a dimension, such as a loss."""
    return with_the_world(answer, rng, collective, replace(model, length=1, single=True))


def of_a_matrix(answer: Answer, rng: Rng, collective: Collective, model: World) -> Finding:
    """`results` of five rows of three: cut flat, the parts are others than if rows are cut. The same on one
    rank; and on one, a single number.
    """
    several = replace(model, length=5, columns=3)
    alone = replace(several, ranks=1, root=0, node=min(model.node, 1))
    number = replace(alone, length=1, columns=0, single=True)
    found = (with_the_world(answer, rng, collective, world)[1] for world in (several, alone, number))
    return compare.first_failure(found)


def with_the_world(
    answer: Answer, rng: Rng, collective: Collective, world: World
) -> tuple[list[Played], Finding]:
    """A launch, and its `results`; no launch if it comes to no end, which is no other row's affair."""
    try:
        plays = [play(answer, rng, collective, [world])]
    except AnswerFailed as failure:
        return [], Finding(False, f"With {world}: {_in_a_line(failure)}")
    return plays, results(*plays)


def takes_a_number(answer: Answer, rng: Rng, collective: Collective, model: World) -> bool:
    """Whether the answer is right for a number without a dimension. Who cuts rows is told there of that."""
    return single_number(answer, rng, collective, model)[1].passed


def _in_a_line(failure: AnswerFailed) -> str:
    """The first line of what went wrong, in which an error has its name."""
    line = failure.report.partition("\n")[0]
    return line if failure.kind is FailureKind.RANK_FAILED else f"{failure.kind}: {line}"
