"""The grader of `top_k_gate`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.unit_10.cases import Alone, Places
from graders.units.unit_10.rows import gradients, kept
from graders.units.unit_10.stage import both_ways


@dataclass(frozen=True, slots=True)
class Logits(Alone):
    """tokens, experts: how many. kind: drawn; small whole numbers, many of them equal; or thousands."""

    tokens: int = feature(8, "{} tokens")
    experts: int = feature(6, "{} experts")
    k: int = feature(2, "k = {}")
    kind: str = feature("drawn", lambda kind: "" if kind == "drawn" else f"{kind} logits")


def drawn_logits(rng: Rng, case: Logits) -> Places:
    """One call's logits [tokens, experts] and k."""
    logits = 2 * rng.normal(case.tokens, case.experts, dtype=torch.float64)
    if "equal" in case.kind:
        logits = rng.integers(-1, 1, case.tokens, case.experts).double()
    factor = {"large": 1000, "large and equal": 80}.get(case.kind, 1)
    return [[(factor * logits).to(case.dtype), case.k]]


@both_ways(
    base=Logits(),
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion(
            "weights and experts",
            3,
            "The k largest logits of each row, the largest first. Their weights must add up to 1 among "
            "themselves.",
            vary=vary(k=(1, 3, 6)),
        ),
        Criterion(
            "ties",
            1,
            "torch.topk, and Megatron's router with it, leaves open which of equal ones it takes; a stable "
            "sort does not, and gives the same on every device.",
            vary=vary(kind=("equal", "large and equal")) + both(kind="equal", tokens=40, k=6),
        ),
        Criterion(
            "gradient",
            1,
            "The weights are made of the logits by operations that autograd knows.",
            how=gradients,
        ),
        Criterion(
            "any logits",
            1,
            "Thousands, of any dtype, of no token at all; and they stay as they are. Of probabilities many "
            "are 0 then, and torch.topk cannot tell them apart: choose by logits. (Megatron does, and "
            "computes weights in float32, of float64 logits too.)",
            vary=vary(kind=("large",), tokens=(0,), dtype=(torch.float64,)),
            how=kept,
        ),
    ),
    hints=(
        "A softmax of all logits, and then what, so that k of them add up to 1? Is there a shorter way?",
        "Which of torch's functions promise an order among equal numbers?",
    ),
    names=("logits", "k"),
    arguments=drawn_logits,
)
def top_k_gate(case: Logits, given: Places) -> list[tuple[Tensor, Tensor]]:
    """Sorted in Python, whose sort is stable."""
    logits: Any = given[0][0]
    rows = logits.tolist()
    chosen = [sorted(range(len(row)), key=row.__getitem__, reverse=True)[: case.k] for row in rows]
    experts = torch.tensor(chosen, dtype=torch.int64).view(-1, case.k)
    return [(logits.gather(1, experts).softmax(1), experts)]
