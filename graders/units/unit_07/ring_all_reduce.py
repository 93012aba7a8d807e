"""The grader of `ring_all_reduce`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.given import one_tensor_a_rank, x_written
from graders.units.unit_07.ring import RING_RANKS, RING_TENSORS, ring_traffic, round_the_ring
from graders.units.unit_07.rows import collective, in_place, on_a_subgroup, rounds


@collective(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion("the sum on every rank", 4, "A reduce-scatter, then an all-gather of the summed chunks."),
        RING_RANKS,
        RING_TENSORS,
        in_place("x becomes the sum, and x itself is returned."),
        on_a_subgroup(),
        ring_traffic(
            "2 (p - 1) messages of one chunk each: 2 (p - 1) / p of the tensor. Whole tensors round the ring "
            "give the right sum too, and p / 2 times the bytes.",
        ),
        rounds("2 (p - 1) steps in which all ranks send at the same time."),
    ),
    hints=(
        "What does rank r hold after the first of the two halves that you have, and where in x does it "
        "belong?",
        "torch.tensor_split(flat, p)[rank].copy_(chunk) puts it there; flat has to be contiguous.",
    ),
    arguments=one_tensor_a_rank,
    allowed=round_the_ring(passes=2),
    written=x_written,
)
def ring_all_reduce(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """Twice round the ring: the sum on every rank, in x itself."""
    summed = total([x for (x,) in given])
    return [Expected(summed, {"x": summed}) for _ in given]
