"""Where ranks sit and who is whose neighbour."""

import math

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from course_lib.cluster.topology import Cluster
from course_lib.figures.style import WIDTH, Drawing, ink_on, new_figure, rank_colour
from course_lib.runtime.communication.wording import ranks_in_words


def ring_picture(ranks: int = 4) -> Drawing:
    """The ring of ranks: each sends to the next, the last to rank 0. 2 to 24 ranks, else ValueError."""
    if not 2 <= ranks <= 24:
        raise ValueError(f"The picture has room for 2 to 24 ranks, not for {ranks}.")
    alt = (
        f"A ring of {ranks} ranks: rank 0 sends to rank 1, rank 1 to {'rank 2' if ranks > 2 else 'rank 0'}"
        + (f" and so on, rank {ranks - 1} to rank 0." if ranks > 2 else ".")
    )
    figure, axes = new_figure(alt=alt, height=3.6)
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-3.3, 3.3)
    axes.set_ylim(-1.32, 1.32)
    radius = min(0.24, 0.3 * 2 * math.pi / ranks)
    places = [_on_circle(rank, ranks) for rank in range(ranks)]
    for rank, (x, y) in enumerate(places):
        colour = rank_colour(rank)
        axes.add_patch(Circle((x, y), radius, facecolor=colour, edgecolor="#222222", zorder=3))
        axes.text(
            x, y, str(rank), ha="center", va="center_baseline", color=ink_on(colour), fontsize=11, zorder=4
        )
        _arc(axes, rank, ranks, radius)
    axes.text(0, 0, "each rank sends\nto the next one", ha="center", va="center", fontsize=10)
    return figure


def layout_picture(nodes: int, gpus_per_node: int) -> Drawing:
    """Nodes with their devices, on each its rank and its local rank. At most 64 devices, else ValueError."""
    cluster = Cluster(nodes=nodes, devices_per_node=gpus_per_node)
    if cluster.size > 64 or gpus_per_node > 8:
        raise ValueError(
            f"The picture has room for 64 devices, 8 a node; {nodes} nodes of {gpus_per_node} have more."
        )
    node_width = gpus_per_node * 1.08 + 0.5
    across = max(1, min(nodes, int(WIDTH * 0.98 // (node_width * 0.72))))
    rows = math.ceil(nodes / across)
    scale = min(0.85, WIDTH * 0.98 / (across * node_width))
    places = [
        ranks_in_words(range(node * gpus_per_node, (node + 1) * gpus_per_node)) for node in range(nodes)
    ]
    alt = (
        "Nodes with their devices. "
        + "; ".join(f"node {node} holds {ranks}" for node, ranks in enumerate(places))
        + f". Local {ranks_in_words(range(gpus_per_node))} on each node."
    )
    figure, axes = new_figure(alt=alt, height=scale * rows * 1.95 + 0.1)
    axes.set_axis_off()
    axes.set_aspect("equal")
    room = WIDTH * 0.98 / scale
    axes.set_xlim((across * node_width - room) / 2, (across * node_width + room) / 2)
    axes.set_ylim(rows * 1.95, 0)
    for node in range(nodes):
        _draw_node(axes, cluster, node, (node % across) * node_width, (node // across) * 1.95)
    return figure


def _draw_node(axes: Axes, cluster: Cluster, node: int, left: float, top: float) -> None:
    """A node's box with its devices in it."""
    width = cluster.devices_per_node * 1.08 + 0.2
    axes.add_patch(
        FancyBboxPatch(
            (left + 0.15, top + 0.1),
            width,
            1.7,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor="#F2F2F2",
            edgecolor="#444444",
        )
    )
    axes.text(left + 0.15 + width / 2, top + 0.34, f"node {node}", ha="center", va="center", fontsize=10.5)
    for local in range(cluster.devices_per_node):
        rank = node * cluster.devices_per_node + local
        x = left + 0.3 + local * 1.08
        colour = rank_colour(rank)
        axes.add_patch(Rectangle((x, top + 0.6), 0.98, 1.08, facecolor=colour, edgecolor="#222222"))
        for y, text in ((0.92, f"rank {rank}"), (1.36, f"local {local}")):
            axes.text(x + 0.49, top + y, text, ha="center", va="center", fontsize=9, color=ink_on(colour))


def _on_circle(rank: float, ranks: int) -> tuple[float, float]:
    """Rank 0 on top, the others clockwise."""
    angle = 2 * math.pi * rank / ranks
    return math.sin(angle), math.cos(angle)


def _arc(axes: Axes, rank: int, ranks: int, radius: float) -> None:
    """An arrow along the circle from a rank's disc to the next one's."""
    gap = 2 * math.asin(radius / 2) * ranks / (2 * math.pi) + 0.02 * ranks / 4
    start, end = _on_circle(rank + gap, ranks), _on_circle(rank + 1 - gap, ranks)
    bend = math.tan(math.pi / ranks * (1 - 2 * gap) / 2)
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle=f"arc3,rad={-bend:.3f}",
            arrowstyle="-|>",
            mutation_scale=14 if ranks <= 12 else 9,
            linewidth=1.8,
            color="#222222",
            shrinkA=0,
            shrinkB=0,
        )
    )
