"""The grader of `peak_activations`."""

from course_lib.training.pipeline.actions import Action, Backward, BackwardWeight, Forward, Recompute
from graders.grading.cases import vary
from graders.grading.expected import ANYTHING, Expected
from graders.grading.kit import Criterion
from graders.units.functions.stage import Arguments, of_function
from graders.units.unit_05.actions import OfActions, Order, drawn_order


@of_function(
    base=Order(),
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "whole backwards",
            2,
            "Go through the actions and count up and down; the answer is the largest count on the way.",
            vary=vary(micro_batches=(0, 1, 4, 9)),
        ),
        Criterion(
            "backward in halves",
            1,
            "Both halves need what forward has kept: only BackwardWeight frees it.",
            vary=vary(halves=(True,)),
        ),
        Criterion(
            "chunks",
            1,
            "Forward(2) and Forward(2, chunk=1) keep activations of their own.",
            vary=vary(chunks=(2, 3)),
        ),
        Criterion(
            "recomputed",
            2,
            "A Forward that is recomputed later keeps nothing that counts; its Recompute does.",
            vary=vary(recomputed=(True,)),
        ),
    ),
    hints=(
        "Which actions make the number that waits larger, which smaller, and which leave it as it is?",
        "Whether a Forward keeps anything you know only when you have seen all actions.",
    ),
    arguments=drawn_order,
    kind=OfActions,
)
def peak_activations(order: Order, given: Arguments) -> Expected:
    """The most micro-batches that are kept at once."""
    return Expected(peak(given[0]), {"actions": ANYTHING}, returned=None)


def peak(actions: list[Action]) -> int:
    """Of all moments the most micro-batches that are kept and not yet freed."""
    kept: dict[tuple[int, int], tuple[int, int]] = {}
    for moment, action in enumerate(actions):
        where = (action.micro_batch, action.chunk)
        if isinstance(action, Forward | Recompute):
            kept[where] = (moment, len(actions))
        elif isinstance(action, Backward | BackwardWeight):
            kept[where] = (kept[where][0], moment)
    counts = (sum(begin <= now < end for begin, end in kept.values()) for now in range(len(actions)))
    return max(counts, default=0)
