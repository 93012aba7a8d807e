"""Unit 06: what came out of forward, with a gradient and without, and whether all ranks have the same."""

from collections.abc import Sequence

from graders.grading.answer import PlainData
from graders.grading.kit import Finding, compare
from graders.units.unit_06.replies import HalfReply, LossReply


def results_of(
    replies: Sequence[HalfReply | LossReply],
) -> dict[str, list[PlainData]]:
    """The ranks' results, with a gradient and without, each with its name."""
    return {
        "the result": [reply.result for reply in replies],
        "the result under torch.no_grad()": [reply.without_gradient[0] for reply in replies],
        "the result for an x without gradient": [reply.without_gradient[1] for reply in replies],
    }


def alike(results: Sequence[PlainData], what: str = "the result") -> Finding:
    """Passes if all ranks have the same, to the last bit."""
    what = f"{what}, which all ranks have to have to the last bit,"
    return compare.close_on_all_ranks(results, [results[0]] * len(results), what, rtol=0, atol=0)
