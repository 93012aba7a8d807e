"""Many nodes: how a job comes to them, where its ranks land, which cores are beside which GPU."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from course_lib.figures.style import COLOURS, Drawing, ink_on, new_figure, rank_colour

_EDGE = "#444444"
_PALE = "#F2F2F2"


def cluster_picture(nodes: int = 3, gpus_per_node: int = 4) -> Drawing:
    """From a browser or a terminal over login node and batch system to the nodes, at most 4 of 4 GPUs."""
    if not (1 <= nodes <= 4 and 1 <= gpus_per_node <= 4):
        raise ValueError(f"The picture has room for 4 nodes of 4 GPUs, not for {nodes} of {gpus_per_node}.")
    alt = (
        "You reach the login node with a terminal, or through a portal with a browser. There a job is handed "
        f"to the batch system, which runs it on compute nodes: here {nodes} with {gpus_per_node} GPUs "
        "each, which reach each other over a network of their own. All nodes see the shared file system."
    )
    figure, axes = new_figure(alt=alt, height=3.1)
    axes.set_axis_off()
    axes.set_xlim(0, 13.8)
    axes.set_ylim(0, 5.2)
    _box(axes, (0.1, 2.9), (1.9, 1.1), "you", "terminal\nor browser")
    _box(axes, (3.1, 2.9), (2.1, 1.1), "login node", "edit, submit")
    _box(axes, (6.2, 2.9), (1.9, 1.1), "Slurm", "who gets\nwhich nodes")
    _arrow(axes, (2.0, 3.45), (3.1, 3.45), "ssh, portal")
    _arrow(axes, (5.2, 3.45), (6.2, 3.45), "sbatch")
    height = 3.5 / nodes
    for node in range(nodes):
        bottom = 5.0 - (node + 1) * height
        _box(axes, (9.3, bottom + 0.08), (3.6, height - 0.16), "", "")
        axes.text(9.45, bottom + height / 2, f"node {node}", va="center", fontsize=9.5)
        _arrow(axes, (8.1, 3.45), (9.3, bottom + height / 2), "")
        axes.plot([12.9, 13.2], [bottom + height / 2] * 2, color=_EDGE, linestyle="-", linewidth=1.8)
        for gpu in range(gpus_per_node):
            side = 0.42
            corner = (10.85 + gpu * 0.5, bottom + height / 2 - side / 2)
            axes.add_patch(Rectangle(corner, side, side, facecolor=COLOURS["sky_blue"], edgecolor=_EDGE))
    axes.plot(
        [13.2, 13.2], [5.0 - 3.5 + height / 2, 5.0 - height / 2], color=_EDGE, linestyle="-", linewidth=1.8
    )
    axes.text(13.5, 3.25, "network", rotation=90, ha="center", va="center", fontsize=9.5)
    axes.add_patch(Rectangle((3.1, 0.2), 9.8, 0.8, facecolor=_PALE, edgecolor=_EDGE))
    axes.text(8.0, 0.6, "shared file system: code, environment, data, checkpoints", ha="center", va="center")
    for x, top in ((4.15, 2.9), (11.1, 5.0 - nodes * height + 0.08)):
        axes.plot([x, x], [1.0, top], color=_EDGE, linestyle="-", linewidth=1.2)
    return figure


def placement_picture(node_of_rank: Sequence[int], title: str = "") -> Drawing:
    """Ranks on their nodes, and the ring 0, 1, ..., 0 through them. node_of_rank: for each rank its node.

    Neighbours on one node are joined by a thin line, those on two by a thick one. At most 32 ranks, 4 nodes.
    """
    nodes = max(node_of_rank) + 1
    if len(node_of_rank) > 32 or nodes > 4:
        raise ValueError(
            f"The picture has room for 32 ranks on 4 nodes, not for {len(node_of_rank)} on {nodes}."
        )
    crossing = network_hops(node_of_rank)
    held = [[rank for rank, node in enumerate(node_of_rank) if node == own] for own in range(nodes)]
    alt = (
        "; ".join(f"node {node} holds the ranks {', '.join(map(str, own))}" for node, own in enumerate(held))
        + f". Of the ring's {len(node_of_rank)} connections {crossing} lead from one node to another."
    )
    figure, axes = new_figure(alt=alt, height=0.4 + 1.0 * nodes)
    axes.set_axis_off()
    widest = max(map(len, held))
    axes.set_xlim(-1.6, max(widest, 8) + 0.1)
    axes.set_ylim(1.5 * nodes - 0.2, -0.5)
    axes.set_title(title, fontsize=10.5)
    places = {
        rank: (x + 0.5, 1.5 * node + 0.4) for node, own in enumerate(held) for x, rank in enumerate(own)
    }
    for node, own in enumerate(held):
        corner = (-0.1, 1.5 * node - 0.15)
        axes.add_patch(Rectangle(corner, len(own) + 0.2, 1.1, facecolor=_PALE, edgecolor=_EDGE))
        axes.text(-0.3, 1.5 * node + 0.4, f"node {node}", ha="right", va="center")
    _draw_ring(axes, node_of_rank, places)
    for rank, (x, y) in places.items():
        colour = rank_colour(rank)
        axes.add_patch(
            Rectangle((x - 0.34, y - 0.34), 0.68, 0.68, facecolor=colour, edgecolor="#222222", zorder=3)
        )
        axes.text(x, y, str(rank), ha="center", va="center", color=ink_on(colour), zorder=4)
    return figure


def network_hops(node_of_rank: Sequence[int]) -> int:
    """How many of the ring's connections, from each rank to the next, lead from one node to another."""
    ranks = len(node_of_rank)
    return sum(node_of_rank[rank] != node_of_rank[(rank + 1) % ranks] for rank in range(ranks))


def binding_picture(
    numa_of_gpu: Sequence[int], cores: Sequence[Sequence[int]], bound: Sequence[int], title: str = ""
) -> Drawing:
    """A node's GPUs below their NUMA nodes, and the core to which each GPU's rank is bound.

    cores: for each NUMA node its cores. bound: for each GPU a core. A rank that has to cross to another NUMA
    node on its way to its GPU has a thick line. At most 4 NUMA nodes of 16 cores and 8 GPUs.
    """
    if len(cores) > 4 or max(map(len, cores)) > 16 or len(numa_of_gpu) > 8:
        raise ValueError("The picture has room for 4 NUMA nodes of 16 cores and 8 GPUs.")
    home = {core: node for node, own in enumerate(cores) for core in own}
    far = [gpu for gpu, core in enumerate(bound) if home[core] != numa_of_gpu[gpu]]
    pairs = ", ".join(f"GPU {gpu} to core {core}" for gpu, core in enumerate(bound))
    alt = (
        f"A node with {len(cores)} NUMA nodes. The rank of {pairs}. {len(numa_of_gpu) - len(far)} of "
        f"{len(numa_of_gpu)} ranks sit beside their GPU."
    )
    figure, axes = new_figure(alt=alt, height=2.7)
    axes.set_axis_off()
    axes.set_xlim(-0.1, 4.15 * len(cores))
    axes.set_ylim(3.6, -0.45)
    axes.set_title(title, fontsize=10.5)
    seats = {}
    for node, own in enumerate(cores):
        left = 4.15 * node
        axes.add_patch(Rectangle((left, -0.35), 4.0, 1.55, facecolor=_PALE, edgecolor=_EDGE))
        axes.text(left + 0.1, -0.08, f"NUMA node {node}: cores {own[0]}-{own[-1]}", fontsize=8.5, va="center")
        for number, core in enumerate(own):
            seats[core] = (left + 0.1 + number % 8 * 0.48, 0.2 + number // 8 * 0.48)
    for core, (x, y) in seats.items():
        _draw_core(axes, x, y, core, bound.index(core) if core in bound else None)
    _draw_gpus(axes, numa_of_gpu, seats, bound, far)
    return figure


def _draw_core(axes: Axes, x: float, y: float, core: int, rank: int | None) -> None:
    """A core with its number, in the colour of the rank that is bound to it."""
    colour = "white" if rank is None else rank_colour(rank)
    box = Rectangle((x, y), 0.42, 0.42, facecolor=colour, edgecolor="#888888", linewidth=0.7, zorder=3)
    axes.add_patch(box)
    ink = "#595959" if rank is None else ink_on(colour)
    weight = "normal" if rank is None else "bold"
    axes.text(
        x + 0.21,
        y + 0.22,
        str(core),
        ha="center",
        va="center",
        fontsize=8,
        color=ink,
        weight=weight,
        zorder=5,
    )


def _draw_gpus(
    axes: Axes,
    numa_of_gpu: Sequence[int],
    seats: dict[int, tuple[float, float]],
    bound: Sequence[int],
    far: Sequence[int],
) -> None:
    """The GPUs, each below its NUMA node, with a line to its rank's core."""
    drawn: dict[int, int] = {}
    for gpu, node in enumerate(numa_of_gpu):
        number = drawn[node] = drawn.get(node, -1) + 1
        x, colour = 4.15 * node + 0.2 + 1.95 * number, rank_colour(gpu)
        axes.add_patch(Rectangle((x, 2.75), 1.65, 0.7, facecolor=colour, edgecolor="#222222", zorder=3))
        axes.text(x + 0.82, 3.1, f"GPU {gpu}", ha="center", va="center", color=ink_on(colour), zorder=4)
        core_x, core_y = seats[bound[gpu]]
        # From the upper row down through the gap beside its core, so that no line seems to leave from
        # another core.
        start = [(core_x + 0.21, core_y + 0.42)]
        if core_y < 0.5:
            start = [(core_x + 0.42, core_y + 0.21), (core_x + 0.45, core_y + 0.21), (core_x + 0.45, 1.2)]
        crossing = gpu in far
        axes.plot(
            [*(there for there, _ in start), x + 0.82],
            [*(there for _, there in start), 2.75],
            color=COLOURS["vermillion"] if crossing else "#222222",
            linewidth=2.4 if crossing else 1.1,
            linestyle="-",
            zorder=2,
        )


def _draw_ring(axes: Axes, node_of_rank: Sequence[int], places: dict[int, tuple[float, float]]) -> None:
    """Lines from each rank to the next; those within a node bend round what lies between."""
    for rank, node in enumerate(node_of_rank):
        following = (rank + 1) % len(node_of_rank)
        crossing = node_of_rank[following] != node
        axes.add_patch(
            FancyArrowPatch(
                places[rank],
                places[following],
                arrowstyle="-",
                connectionstyle="arc3,rad=0.08",
                color=COLOURS["vermillion"] if crossing else "#222222",
                linewidth=2.4 if crossing else 1.1,
                zorder=2,
            )
        )


def _box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], title: str, text: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            corner, *size, boxstyle="round,pad=0,rounding_size=0.1", facecolor=_PALE, edgecolor=_EDGE
        )
    )
    (x, y), (width, height) = corner, size
    axes.text(x + width / 2, y + height - 0.28, title, ha="center", va="center", fontsize=10.5)
    axes.text(x + width / 2, y + 0.36, text, ha="center", va="center", fontsize=8.5)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color="#222222", shrinkB=1)
    )
    if text:
        axes.text((start[0] + end[0]) / 2, start[1] + 0.75, text, ha="center", va="center", fontsize=8.5)
