"""Walks through plans: where a walk stands in the long run, what it finds, and the plan that it ends with."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import exp

from course_lib.figures.plots import bar_figure, draw_lines, legend_beside
from course_lib.figures.style import COLOURS, Drawing, look, new_figure


def visits_figure(costs: Sequence[float], shares: Mapping[float, Sequence[float]]) -> Drawing:
    """How often a walk stood at each plan, beside the share that exp(-beta * cost) promises.

    costs: of the plans. shares: beta -> for each plan the share of the steps.
    """
    figure = bar_figure(
        {f"beta = {beta:g}": share for beta, share in shares.items()},
        names=[f"{number}\n({cost:g})" for number, cost in enumerate(costs)],
        y="share of the steps",
        alt="Bars for each plan, one a beta: with 0 all plans are alike, the larger beta the rarer the dear "
        "ones. A dot on each bar, where the law says, is near its top.",
    )
    (axes,) = figure.axes
    axes.set_xlabel("plan (its cost)")
    for number, (beta, bars) in enumerate(zip(shares, axes.containers, strict=True)):
        weights = [exp(-beta * cost) for cost in costs]
        middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        promised = [weight / sum(weights) for weight in weights]
        label = "in the long run" if number == 0 else None
        axes.plot(middles, promised, "o", color="black", markersize=4, label=label)
    legend_beside(axes)
    return figure


def search_figure(
    walks: Sequence[Sequence[float]],
    drawn: Sequence[Sequence[float]],
    plan: Sequence[Sequence[int]],
    weights: Sequence[float],
    devices: int,
) -> Drawing:
    """The best cost so far of walks and of plans drawn at random, and the plan that was found.

    walks, drawn: the costs in the order in which they were asked for. plan: for each operator the devices of
    its parts. weights: million weights of each operator.
    """
    figure, (left, right) = new_figure(
        alt="Left, the best cost so far: the walks fall far below the plans drawn at random. Right, which "
        "GPUs have the operators of the best plan.",
        height=4.2,
        columns=2,
        width_ratios=(3, 2),
    )
    best = {
        name: [list(accumulate(costs, min)) for costs in runs]
        for name, runs in (("walks", walks), ("drawn at random", drawn))
    }
    for number in range(len(walks)):
        lines = {name: (range(len(runs[number])), runs[number]) for name, runs in best.items()}
        draw_lines(left, lines, x="plans looked at", y="best step so far (of data parallelism's)")
    left.set_ylim(bottom=0)
    named = dict(zip(best, left.get_lines(), strict=False))
    left.legend(named.values(), named.keys(), loc="lower left")
    with look():
        for row, places in enumerate(plan):
            for device in set(places):
                right.barh(row, 1, left=device - 0.5, color=COLOURS["sky_blue"], edgecolor="white")
    right.set(
        xlim=(-0.5, devices - 0.5),
        xticks=range(devices),
        xlabel="GPUs that have it",
        yticks=range(len(plan)),
        yticklabels=[f"{each:.1f}" for each in weights],
        ylabel="operators in order, with million weights",
    )
    right.grid(visible=False)
    right.invert_yaxis()
    return figure
