"""The grader of `ring_reduce_scatter`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.given import one_tensor_a_rank, x_written
from graders.units.unit_07.ring import RING_RANKS, RING_TENSORS, ring_traffic, round_the_ring
from graders.units.unit_07.rows import collective, in_place, on_a_subgroup, rounds


@collective(
    minutes=25,
    difficulty=4,
    rubric=(
        Criterion(
            "its chunk of the sum",
            4,
            "Rank r returns chunk r of the sum. Add the chunk that arrives to your own, and pass "
            "on what you have just added up.",
        ),
        RING_RANKS,
        RING_TENSORS,
        in_place("x must stay as it was: add into a copy of it, and return a new tensor."),
        on_a_subgroup(),
        ring_traffic("p - 1 steps, and in each one chunk and not the whole tensor."),
        rounds("All ranks send at the same time: isend, then recv, then wait."),
    ),
    hints=(
        "Where must chunk 0 of 4 ranks start so that its last stop is rank 0? It starts at rank 1, is "
        "added up at 2, then 3.",
        "So in step s = 0, 1 ... p - 2 rank r sends chunk (r - 1 - s) % p to r + 1, and adds what arrives "
        "from r - 1 to chunk (r - 2 - s) % p.",
        "torch.tensor_split gives views: adding into a view of your copy changes the copy.",
    ),
    arguments=one_tensor_a_rank,
    allowed=round_the_ring(passes=1),
    written=x_written,
)
def ring_reduce_scatter(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """p - 1 steps round the ring, after which each rank has its chunk of the sum."""
    chunks = total([x for (x,) in given]).flatten().tensor_split(setting.ranks)
    return [Expected(chunk, {"x": x}, returned=None) for chunk, (x,) in zip(chunks, given, strict=True)]
