"""The grader of `halving_doubling_all_reduce`."""

from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.grading.traffic import Allowed, in_time
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.collective import collective
from graders.units.unit_07.given import one_tensor_a_rank, x_written
from graders.units.unit_07.recursive_doubling_all_reduce import folded
from graders.units.unit_07.rows import (
    A_SLOW_RANK,
    ANY_TENSOR,
    IN_ROUNDS,
    any_length,
    any_ranks,
    bytes_and_messages,
    in_place,
    on_a_subgroup,
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


def folds_and_halves_in_time(tried: Tried[Setting]) -> Finding | None:
    """Passes if those beyond the power of two send to the rank so many places before, and if it takes no
    longer than the rounds.
    """
    ranks = tried.case.features.ranks
    core = 1 << folded(ranks)[0]
    for sender, receiver, _ in tried.seen.traffic.messages:
        if sender >= core and receiver != sender - core:
            expected = f"expected only {sender - core}, which is {core} places before it"
            return Finding(False, f"place {sender} sends to place {receiver}; {expected}.")
    if tried.seen.allowed is None:
        return None
    return in_time(tried.seen.traffic, tried.seen.allowed)


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
        any_ranks(
            "Let c be the largest power of two that is at most p. Ranks from c on give their tensor to "
            "rank - c, and get the result back. Name the source of each recv.",
            2,
            IN_ROUNDS,
        ),
        any_length("Both partners must cut in the same place; halves may differ by one and may be empty."),
        ANY_TENSOR,
        in_place("x becomes the sum, and x itself is returned."),
        on_a_subgroup(),
        A_SLOW_RANK,
        bytes_and_messages(
            "Each round halves what is sent, down to one chunk: a half of 7 elements has 3 or 4, and nothing "
            "is padded. Whole tensors in every round are recursive doubling, which sends log2 p times the "
            "tensor.",
            2,
        ),
        Criterion(
            "rounds",
            2,
            "2 log2 p rounds, with partners at distance p/2, p/4, ... 1 and back.",
            needs=("bytes and messages",),
            how=folds_and_halves_in_time,
        ),
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
