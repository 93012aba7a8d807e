"""The grader of `dispatch_plan`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.unit_10.cases import Alone, Places, plan_of
from graders.units.unit_10.rows import kept
from graders.units.unit_10.stage import both_ways


@dataclass(frozen=True, slots=True)
class Choices(Alone):
    """tokens, k, count: see the exercise. capacity: None is not given."""

    tokens: int = feature(24, "{} tokens")
    k: int = feature(1, "k = {}")
    count: int = feature(7, "{} experts")
    capacity: int | None = feature(None, lambda room: "" if room is None else f"capacity {room}")


def drawn_choices(rng: Rng, case: Choices) -> Places:
    """Different experts for each token, the later ones more often; the last gets none."""
    logits = rng.normal(case.tokens, case.count - 1) + torch.arange(case.count - 1) / 3
    experts = logits.topk(case.k, 1).indices
    return [[experts, case.count, *([] if case.capacity is None else [case.capacity])]]


@both_ways(
    base=Choices(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "one choice a token",
            3,
            "Sort the choices by expert, and keep the tokens' order. experts may be in use elsewhere.",
            vary=vary(tokens=(1, 1100)),
            how=kept,
        ),
        Criterion(
            "several choices",
            3,
            "Choice n k + j is number n k + j of experts.flatten(); but all first choices come before all "
            "second ones. (Megatron keeps the tokens' order, whatever the choice: then an early token's "
            "second choice may take a late one's first.)",
            vary=vary(k=(2, 3)),
        ),
        Criterion(
            "capacity",
            3,
            "Of each expert's choices, in their order, the first `capacity`; the counts are of those. "
            "(Megatron's permute leaves this to its router.)",
            vary=vary(capacity=(3, 0)) + both(capacity=4, k=2),
        ),
        Criterion(
            "no tokens",
            1,
            "An empty batch has an empty order, and a count of 0 for every expert.",
            vary=vary(tokens=(0,)),
        ),
    ),
    hints=(
        "In which order should the choices stand before a stable sort, which keeps the order of equal ones?",
        "What is the number n k + j of the entry at (j, n) of experts.T?",
        "At which place of the sorted list does expert e's part begin? How far behind that is a choice?",
    ),
    names=("experts", "count", "capacity"),
    arguments=drawn_choices,
)
def dispatch_plan(case: Choices, given: Places) -> list[tuple[Tensor, Tensor]]:
    """One choice after another."""
    return [plan_of(given[0][0], case.count, case.capacity)]
