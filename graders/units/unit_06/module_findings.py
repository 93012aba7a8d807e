"""What a layer and a half of a block are judged by alike: what they give, and what they keep."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from graders.grading.kit import Finding, Observed, compare
from graders.units.unit_06.conjugates import alike, results_of


def results(run: Observed[Any], expected: list[Tensor], *, whole: bool) -> Finding:
    """Passes if every rank has this result, with a gradient and without. whole: all ranks have the same, to
    the last bit.
    """
    seen = results_of(run.results)
    near = [compare.close_on_all_ranks(each, expected, what, 1e-4, 1e-4) for what, each in seen.items()]
    return compare.first_failure((*near, *(alike(each, what) for what, each in seen.items() if whole)))


def memory(kept: Sequence[int], parts: Sequence[Mapping[str, Tensor]]) -> Finding:
    """Passes if no rank's module keeps more bytes than its parameters have."""
    return compare.first_failure(
        compare.at_most(
            seen, sum(each.nbytes for each in part.values()), f"Bytes in memory by rank {rank}'s module"
        )
        for rank, (seen, part) in enumerate(compare.side_by_side(kept, parts))
    )
