"""The grader of `halving_doubling_all_reduce`."""

from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.grading.traffic import Allowed
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.given import one_tensor_a_rank, x_written
from graders.units.unit_07.recursive_doubling_all_reduce import FOLDING, folded
from graders.units.unit_07.rows import (
    any_ranks,
    any_tensor,
    bytes_and_messages,
    collective,
    in_place,
    on_a_subgroup,
    rounds,
)


def halving(setting: Setting) -> Allowed:
    """log2 p rounds in which a part is halved, and as many back. What a rank gives away of its part, and what
    it sends back of it in the end, are the two halves.
    """
    exponent, beyond = folded(setting.ranks)
    core, width = 1 << exponent, setting.dtype.itemsize
    chunk, longer = divmod(setting.nbytes // width, core)
    # Of a rank that cuts between chunks, and has the longer ones.
    parts = [chunk * (core >> step) + min(longer, core >> step) for step in range(exponent + 1)]
    halved, messages_of_halves = sum(parts[:exponent]) * width, 2 * sum(parts[1:]) * width
    fold = setting.nbytes if beyond else 0
    return Allowed(
        messages=2 * exponent + (beyond > 0),
        nbytes=halved + fold,
        rounds=2 * exponent + 2 * (beyond > 0),
        nbytes_of_rounds=messages_of_halves + 2 * fold,
        all_messages=2 * exponent * core + 2 * beyond,
        all_nbytes=2 * (core - 1 + beyond) * setting.nbytes,
    )


@collective(
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "the sum on every rank",
            3,
            "Halve: swap halves with the partner and add. Double: swap back what has been added up, in the "
            "reverse order.",
        ),
        any_ranks(FOLDING, 3),
        any_tensor("Both partners must cut in the same place; halves may differ by one and may be empty."),
        in_place("x becomes the sum, and x itself is returned."),
        on_a_subgroup(),
        bytes_and_messages(
            "Each round halves what is sent, down to one chunk: a half of 7 elements has 3 or 4, and nothing "
            "is padded. Whole tensors in every round are recursive doubling, which sends log2 p times the "
            "tensor.",
            2,
        ),
        rounds("2 log2 p rounds, with partners at distance p/2, p/4, ... 1 and back.", 2),
    ),
    hints=(
        "Who is whose partner if p is a power of two? rank ^ distance: with distance 4, rank 1's is 5.",
        "Keep the bounds low and high of what this rank is still in charge of. Who of the two has "
        "rank & distance == 0 keeps the lower half.",
        "Write each round down in a list (partner, kept, given), and go through it backwards to double.",
        "Then the ranks beyond the power of two: one message before, one after.",
    ),
    arguments=one_tensor_a_rank,
    allowed=halving,
    written=x_written,
)
def halving_doubling_all_reduce(setting: Setting, given: list[Arguments]) -> list[Expected]:
    """Rabenseifner's algorithm."""
    summed = total([x for (x,) in given])
    return [Expected(summed, {"x": summed}) for _ in given]
