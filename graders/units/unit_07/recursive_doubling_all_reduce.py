"""The grader of `recursive_doubling_all_reduce`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.grading.traffic import Allowed
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.given import one_tensor_a_rank, x_written
from graders.units.unit_07.rows import (
    any_ranks,
    any_tensor,
    bytes_and_messages,
    collective,
    in_place,
    on_a_subgroup,
    rounds,
)

FOLDING = (
    "Let c be the largest power of two that is at most p. Ranks from c on give their tensor to rank - c, and "
    "get the result back."
)


def folded(ranks: int) -> tuple[int, int]:
    """The largest power of two of these, as an exponent, and how many are beyond it."""
    exponent = ranks.bit_length() - 1
    return exponent, ranks - (1 << exponent)


def doubling(setting: Setting) -> Allowed:
    """log2 p rounds of the whole tensor; who is beyond the power of two gives it away, and has it back."""
    exponent, beyond = folded(setting.ranks)
    core, nbytes = 1 << exponent, setting.nbytes
    most, steps = exponent + (beyond > 0), exponent + 2 * (beyond > 0)
    count = core * exponent + 2 * beyond
    return Allowed(most, most * nbytes, steps, steps * nbytes, count, count * nbytes)


@collective(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on every rank",
            3,
            "Swap with the partner and add; each round doubles what is added up.",
        ),
        any_ranks(FOLDING, 3),
        any_tensor("Nothing needs to divide here: the whole tensor travels."),
        in_place("x becomes the sum, and x itself is returned."),
        on_a_subgroup(),
        bytes_and_messages(
            "One message per round, and log2 p rounds; what a rank has added up it sends once."
        ),
        rounds(
            "Partners are rank ^ 1, then rank ^ 2, then rank ^ 4. Both send at the same time: start the "
            "send, receive, then wait for it.",
            2,
        ),
    ),
    hints=(
        "Which ranks' tensors does a rank hold the sum of after one round, after two, after three?",
        "distance = 1, 2, 4, ... and the partner is rank ^ distance.",
        "Receive into a tensor of its own: what is being sent must not change before it has been sent.",
    ),
    arguments=one_tensor_a_rank,
    allowed=doubling,
    written=x_written,
)
def recursive_doubling_all_reduce(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """An all-reduce of log2 p rounds of whole tensors."""
    summed = total([x for (x,) in given])
    return [Expected(summed, {"x": summed}) for _ in given]
