"""The grader of `combine`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.unit_10.cases import Places, Setting, leaving, parts_of, plan_of
from graders.units.unit_10.rows import calls, gradients, kept
from graders.units.unit_10.stage import both_ways


@dataclass(frozen=True, slots=True)
class Back(Setting):
    """own: experts of each rank. k, capacity: of the plan."""

    ranks: int = feature(3, "{} ranks")
    own: int = feature(2, "{} experts each")
    k: int = feature(2, "k = {}")
    capacity: int | None = feature(None, lambda room: "" if room is None else f"capacity {room}")


def drawn_rows(rng: Rng, case: Back) -> Places:
    """y_TD, plan, received and weights of each place."""
    count = case.ranks * case.own
    experts = [rng.normal(rng.integer(3, 6), count).topk(case.k, 1).indices for _ in range(case.ranks)]
    plans = [plan_of(each, count, case.capacity) for each in experts]
    sent = torch.stack([counts.view(-1, case.own) for _, counts in plans])  # from, for, expert
    return [
        [
            rng.normal(int(sent[:, place].sum()), 3).to(case.dtype),
            plan,
            sent[:, place].contiguous(),
            rng.normal(*experts[place].shape).to(case.dtype),
        ]
        for place, plan in enumerate(plans)
    ]


def what_leaves(case: Back, given: Places) -> list[tuple[int, int]]:
    """Bytes of rows in forward, and of gradients in backward, but for those that stay."""
    return leaving(torch.stack([received.sum(1) for _, _, received, _ in given]), case.dtype)


@both_ways(
    base=Back(),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "sum of rows",
            3,
            "Rows come back in the plan's order: row i is of choice order[i], of token order[i] // k. "
            "Arguments stay as they are.",
            vary=vary(ranks=(1,), k=(1, 3), dtype=(torch.float64,)),
            how=kept,
        ),
        Criterion(
            "gradients",
            2,
            "Of the rows, on the rank of their expert, and of the weights.",
            how=gradients,
        ),
        Criterion(
            "dropped",
            1,
            "A token whose choices were all dropped gets zeros, another one less.",
            vary=vary(capacity=(1, 0)),
        ),
        Criterion(
            "calls and bytes",
            1,
            "One journey: everybody knows already how many rows come. Weights need not travel.",
            how=calls(["all_to_all_single"], ["all_to_all_single"], what_leaves),
        ),
        Criterion(
            "group",
            1,
            "Each collective takes a group, in backward too; and places are those in it.",
            vary=both(group=1, ranks=2),
        ),
    ),
    hints=(
        "How many rows did this rank send to rank r, and how many come back from there?",
        "Which weight belongs to row i? Look for it in weights.flatten().",
        "index_add adds rows to places, also several to one.",
    ),
    names=("y_TD", "plan", "received", "weights"),
    arguments=drawn_rows,
    possible=lambda case: case.k <= case.ranks * case.own,
)
def combine(case: Back, given: Places) -> list[Tensor]:
    """Each place's rows, in its plan's order, by a matrix of weights [N, R]."""
    parts = [parts_of(y_TD, received) for y_TD, _, received, _ in given]
    results = []
    for place, (_, (order, _), _, weights) in enumerate(given):
        rows = torch.cat([each[place] for each in parts])
        matrix = weights.new_zeros(len(weights), len(order))
        places = (order // case.k, torch.arange(len(order)))
        results.append(matrix.index_put(places, weights.flatten()[order]) @ rows)
    return results
