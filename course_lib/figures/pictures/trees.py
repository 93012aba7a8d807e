"""Who sends to whom, round by round, where a tensor goes through a tree."""

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch

from course_lib.figures.style import Drawing, ink_on, new_figure, rank_colour


def tree_picture(ranks: int = 8) -> Drawing:
    """A broadcast from rank 0 through a binomial tree: a row of ranks before it and after each round;
    those that have the tensor are filled. 2 to 16 ranks, else ValueError.
    """
    if not 2 <= ranks <= 16:
        raise ValueError(f"The picture has room for 2 to 16 ranks, not for {ranks}.")
    rounds = _rounds(ranks)
    told = "; ".join(
        f"round {number}: " + ", ".join(f"{sender} to {receiver}" for sender, receiver in sent)
        for number, sent in enumerate(rounds, 1)
    )
    figure, axes = new_figure(
        alt=f"A binomial tree of {ranks} ranks in {len(rounds)} rounds: {told}.",
        height=1.0 + 0.8 * len(rounds),
    )
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-2.6, ranks - 0.4)
    axes.set_ylim(1.5 * len(rounds) + 0.5, -0.5)
    holders = {0}
    for row in range(len(rounds) + 1):
        axes.text(-2.5, 1.5 * row, f"after round {row}" if row else "at first", va="center", fontsize=10)
        for sender, receiver in rounds[row - 1] if row else []:
            _arrow(axes, (sender, 1.5 * (row - 1)), (receiver, 1.5 * row))
            holders.add(receiver)
        for rank in range(ranks):
            colour = rank_colour(0) if rank in holders else "#FFFFFF"
            axes.add_patch(Circle((rank, 1.5 * row), 0.32, facecolor=colour, edgecolor="#222222", zorder=3))
            axes.text(
                rank,
                1.5 * row,
                str(rank),
                ha="center",
                va="center_baseline",
                color=ink_on(colour),
                fontsize=10,
                zorder=4,
            )
    return figure


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From one disc to another."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=13,
            linewidth=1.6,
            color="#222222",
            shrinkA=14,
            shrinkB=14,
        )
    )


def _rounds(ranks: int) -> list[list[tuple[int, int]]]:
    """For each round its messages, (sender, receiver): all who have the tensor send, to those who lack it."""
    rounds, holders = [], 1
    while holders < ranks:
        rounds.append([(rank, rank + holders) for rank in range(min(holders, ranks - holders))])
        holders *= 2
    return rounds
