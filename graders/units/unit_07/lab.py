"""What the graders of unit 07's deadlock lab share."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from graders.grading.kit import Answer, AnswerFailed, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_07 import drivers
from graders.units.unit_07.drivers import MendedReply

ENDS = "comes to an end"


CAUSES = {
    "swap": "all receive first",
    "shift": "all send first",
    "report": "a collective that some ranks skip",
    "grid_sums": "groups made in different orders",
    "collect": "more receives than sends",
    "chain": "a barrier after an error",
}
"""The programs of the lab, by name, and why each hangs."""


def tensors(rng: Rng, ranks: int, whole: bool = False) -> list[Tensor]:
    """One tensor [2, 3] a rank: neither shape nor dtype may be taken for granted. It is float64 or, if
    `whole`, int64, of numbers that no floating-point type holds.
    """
    if whole:
        return [rng.integers(-(2**58), 2**58, 2, 3) for _ in range(ranks)]
    return [rng.normal(2, 3, dtype=torch.float64) for _ in range(ranks)]


def launched(answer: Answer, given: Sequence[object], *more: object) -> Observed[MendedReply]:
    """The answer on as many ranks as `given` has items, each with its own, and with `more` on all of them."""
    return answer.launch(drivers.mended, per_rank(given), *more, ranks=len(given))


def ends(observed: Sequence[Observed[MendedReply]]) -> Finding:
    """Passes: who hangs, or leaves a call open, never comes here."""
    sizes = ", ".join(str(len(run.results)) for run in observed)
    return Finding(True, f"All ranks returned, in worlds of {sizes}.")


def all_inputs_kept(runs: Sequence[Observed[MendedReply]], given: Sequence[Sequence[Tensor]]) -> Finding:
    """Passes if in each run each rank's argument is as it was."""
    return compare.first_failure(
        compare.close_on_all_ranks(
            [told.argument for told in run.results], tensors, f"with {len(tensors)} ranks, x after the call"
        )
        for run, tensors in zip(runs, given, strict=True)
    )


def its_own(
    answer: Answer,
    runs: Sequence[Observed[MendedReply]],
    given: Sequence[Sequence[Tensor]],
    *more: object,
    layouts: Sequence[str] = ("meta",),
    parts: int = 1,
) -> Finding:
    """Passes if each rank's argument is as it was, and what is returned is made like x, for each call anew:
    of the first run's x [2, 3], of a float32 number without a dimension, and of x in each of `layouts`.
    more: what that run was given beside x. parts: how many tensors are returned.
    """
    kept = all_inputs_kept(runs, given)
    singles = [x.flatten()[0].float() for x in given[0]]
    ways = [(given[0], "contiguous"), (singles, "contiguous"), *((given[0], layout) for layout in layouts)]
    found = (_like_x(answer, list(xs), layout, more, parts) for xs, layout in ways)
    return compare.first_failure(chain([kept], found))


def _like_x(answer: Answer, given: list[Tensor], layout: str, more: Sequence[object], parts: int) -> Finding:
    """Passes if what two calls return has x's dtype, shape and device, and memory of its own."""
    like = {
        "meta": "on the device meta, as it may be on a GPU",
        "transposed": "transposed, not contiguous",
    }.get(layout, f"{given[0].dtype}{list(given[0].shape)}")
    text = f"where x is {like}, and the function is called twice,"
    try:
        ways = (layout, *more)
        observed = answer.launch(drivers.mended_twice, per_rank(given), *ways, ranks=len(given))
    except AnswerFailed as failure:
        return Finding(False, f"{text} {failure.kind}: {failure.report}")
    kind = f"{given[0].dtype}{list(given[0].shape)} on {'meta' if layout == 'meta' else 'cpu'}"
    wanted = [kind] * parts
    for rank, told in enumerate(observed.results):
        if told.result != wanted:
            return Finding(False, f"{text} rank {rank} returns {told.result!s:.80}; expected {wanted}.")
        if told.same:
            said = "returns a tensor in the memory of x, or of what it had returned before"
            return Finding(False, f"{text} rank {rank} {said}; expected a new tensor.")
    return Finding(True, "What is returned is made like x, for each call anew.")


def numbers(
    observed: Observed[MendedReply],
    given: Sequence[float],
    expected: Sequence[float | None],
    rtol: float = 1e-6,
) -> Finding:
    """Passes if each rank returned its number, or None where None is expected. given: a number a rank."""
    size = sum(map(abs, given)) / len(given)

    def one(rank: int, wanted: float | None) -> Finding:
        seen = observed.results[rank].result
        name = f"with {list(given)} on the ranks, what was returned on rank {rank}"
        if wanted is None:
            return Finding(seen is None, f"{name} is {seen!r:.60}; expected None.")
        # Of the size that losses have: they may be small.
        return compare.near(seen, wanted, name, rtol=rtol * min(1.0, size))

    return compare.first_failure(one(*each) for each in enumerate(expected))
