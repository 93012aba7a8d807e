"""The grader of `load_balancing_loss`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding, Rng
from graders.units.unit_10.cases import NEAR, Places, Setting
from graders.units.unit_10.rows import gradients, kept
from graders.units.unit_10.stage import both_ways


@dataclass(frozen=True, slots=True)
class Load(Setting):
    """tokens: of each rank. count: experts."""

    ranks: int = feature(3, "{} ranks")
    tokens: int = feature(7, "{} tokens each")
    count: int = feature(6, "{} experts")
    k: int = feature(2, "k = {}")

    @property
    def near(self) -> tuple[float, float]:
        # A quotient of whole numbers is float32, whose digits are enough for a loss of any dtype.
        return NEAR[torch.float32]


def drawn_load(rng: Rng, case: Load) -> Places:
    """Each rank's gate leans to others; of several experts the last gets nobody's choice."""
    given = []
    for _ in range(case.ranks):
        logits = rng.normal(case.tokens, case.count) + 2 * rng.normal(case.count)
        experts = logits[:, : max(1, case.count - 1)].topk(case.k, 1).indices
        given.append([logits.softmax(1).to(case.dtype), experts])
    return given


def one_small_collective(tried: Tried[Load]) -> Finding:
    """Passes if every rank makes one call, in forward, of at most E whole numbers."""
    limit = 8 * tried.case.features.count
    for place, (forward, backward) in enumerate(tried.seen.calls):
        if len(forward) != 1 or backward:
            said = f"place {place} makes {len(forward)} calls in forward, {len(backward)} in backward"
            return Finding(False, f"{said}; expected 1 and 0.", Kind.TOO_MUCH)
        if forward[0].nbytes > limit:
            said = f"place {place} gives its call {forward[0].nbytes:,} bytes"
            return Finding(False, f"{said}; E whole numbers have {limit:,}.", Kind.TOO_MUCH)
    return Finding(True, "every rank makes one call, of E numbers.")


@both_ways(
    base=Load(),
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "value",
            3,
            "f_e: all ranks' choices of e, divided by all choices. P_e: the mean of column e on this rank.",
        ),
        Criterion(
            "gradient", 2, "Counting has no gradient; the mean of probabilities has one.", how=gradients
        ),
        Criterion(
            "one small collective",
            1,
            "The E counts are all that other ranks need. Backward needs no call.",
            how=one_small_collective,
        ),
        Criterion(
            "other sizes",
            1,
            "One rank, one token, one choice a token, any dtype. Arguments stay.",
            vary=vary(ranks=(1,), k=(1, 3), dtype=(torch.float64,)) + both(tokens=1, k=1),
            how=kept,
        ),
        Criterion("group", 1, "The collective is the group's.", vary=vary(group=(1,))),
    ),
    hints=(
        "Which of f_e and P_e is a count, which cannot be differentiated, and which is not?",
        "Ranks have as many tokens each: why is the mean over ranks of E f_e P_e the loss of all tokens, if "
        "f_e is of all of them?",
    ),
    names=("probabilities", "experts"),
    arguments=drawn_load,
)
def load_balancing_loss(case: Load, given: Places) -> list[Tensor]:
    """Equations 4 to 6 of Switch Transformers; every rank knows the counts of all."""
    chosen = torch.cat([experts.flatten() for _, experts in given]).bincount(minlength=case.count)
    parts = chosen.double() / chosen.sum()
    return [case.count * (parts * probabilities.mean(0)).sum() for probabilities, _ in given]
