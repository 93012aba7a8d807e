"""The grader of `ring_all_gather`."""

import torch

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.given import one_chunk_a_rank, x_written
from graders.units.unit_07.ring import RING_RANKS, RING_TENSORS, ring_traffic, round_the_ring
from graders.units.unit_07.rows import collective, in_place, on_a_subgroup, rounds


@collective(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "every chunk on every rank",
            4,
            "Rank r begins with chunk r. In each step pass on the chunk that arrived in the step before.",
        ),
        RING_RANKS,
        RING_TENSORS,
        in_place("Write into x and return x itself; chunk r of rank r stays."),
        on_a_subgroup(),
        ring_traffic("p - 1 steps, and in each one chunk."),
        rounds("All ranks send at the same time: isend, then recv, then wait."),
    ),
    hints=(
        "Which chunk can rank r send in step 0, and which in step 1? In step s it sends chunk (r - s) % p "
        "and receives chunk (r - s - 1) % p.",
        "A chunk of a contiguous tensor is contiguous, so recv can write into it.",
    ),
    arguments=one_chunk_a_rank,
    allowed=round_the_ring(passes=1),
    written=x_written,
)
def ring_all_gather(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """p - 1 steps round the ring, after which each rank has every chunk."""
    own = [x.flatten().tensor_split(setting.ranks)[place] for place, (x,) in enumerate(given)]
    whole = torch.cat(own).view_as(given[0][0])
    return [Expected(whole, {"x": whole}) for _ in given]
