"""The grader of `recursive_doubling_all_reduce`."""

from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.grading.traffic import Allowed
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, total
from graders.units.unit_07.collective import collective
from graders.units.unit_07.given import one_tensor_a_rank, x_written
from graders.units.unit_07.rows import (
    A_SLOW_RANK,
    ANY_TENSOR,
    IN_ROUNDS,
    any_length,
    any_ranks,
    bytes_and_messages,
    in_place,
    on_a_subgroup,
    rounds,
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


def nearest_first(tried: Tried[Setting]) -> Finding:
    """Passes if each rank's partners are at distance 1, 2, 4 ..., in this order, and those beyond the power
    of two are answered last.
    """
    ranks = tried.case.features.ranks
    exponent, beyond = folded(ranks)
    core = 1 << exponent
    for place in range(ranks):
        peers = [to for sender, to, _ in tried.seen.traffic.messages if sender == place]
        expected = [place ^ (1 << bit) for bit in range(exponent)] if place < core else [place - core]
        expected += [place + core] * (place < beyond)
        if peers != expected and not tried.case.features.then:
            return Finding(False, f"place {place} sends to {peers}; expected {expected}, in this order.")
    return Finding(True, "partners are at distance 1, 2, 4 ..., in this order.")


@collective(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on every rank",
            3,
            "Swap with the partner and add; each round doubles what is added up.",
        ),
        any_ranks(
            "Let c be the largest power of two that is at most p. Ranks from c on give their tensor to "
            "rank - c, and get the result back. Name the source of each recv.",
            2,
            IN_ROUNDS,
        ),
        any_length("Nothing needs to divide here: the whole tensor travels."),
        ANY_TENSOR,
        in_place("x becomes the sum, and x itself is returned."),
        on_a_subgroup(),
        A_SLOW_RANK,
        bytes_and_messages(
            "One message per round, and log2 p rounds; what a rank has added up it sends once."
        ),
        Criterion(
            "nearest partner first",
            1,
            "Partners differ in one bit of their numbers: rank ^ 1, then rank ^ 2, then rank ^ 4.",
            needs=("bytes and messages",),
            how=nearest_first,
        ),
        rounds(
            "Both partners send at the same time: start the send, receive, then wait for the send.",
            needs=("bytes and messages", "nearest partner first"),
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
