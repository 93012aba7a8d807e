"""Pictures of tensor parallelism: two ways to cut a matrix, and a block whose branches are ranks."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.figures.style import LIGHT_GREY, Drawing, ink_on, new_figure, rank_colour

_ROWS, _INNER, _OUTPUTS = 2, 4, 4
"""How many numbers high and wide the matrices of the picture are."""


def cut_picture(ranks: int = 2) -> Drawing:
    """Y = X A with A cut by columns, and by rows, for 2 or 4 ranks; what a rank has is in its colour.

    Raises ValueError for another number.
    """
    if ranks not in (2, 4):
        raise ValueError(f"The picture has room for 2 or 4 ranks, not for {ranks}.")
    alt = (
        f"Two ways to cut A in Y = X A, for {ranks} ranks. By columns: every rank has the whole X and some "
        "columns of A, and computes the same columns of Y. By rows: every rank has some columns of X and the "
        "same rows of A, and computes a Y of full size, and Y is the sum of these."
    )
    figure, axes = new_figure(alt=alt, height=4.6)
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-0.4, 22.5)
    axes.set_ylim(11.4, -0.8)
    _write(axes, -0.2, -0.3, "cut by columns: every rank has all of X", left=True)
    _matrix(axes, 0, 1.2, (_ROWS, _INNER), "X")
    _write(axes, 5, 2.2, "·")
    _matrix(axes, 6, 0.2, (_INNER, _OUTPUTS), "A", ranks, by="columns")
    _write(axes, 11, 2.2, "=")
    _matrix(axes, 12, 1.2, (_ROWS, _OUTPUTS), "Y", ranks, by="columns")
    _write(axes, 16.6, 2.2, "each rank a part of Y", left=True)
    _write(axes, -0.2, 5.7, "cut by rows: X is cut too, the other way", left=True)
    _matrix(axes, 0, 7.2, (_ROWS, _INNER), "X", ranks, by="columns")
    _write(axes, 5, 8.2, "·")
    _matrix(axes, 6, 6.2, (_INNER, _OUTPUTS), "A", ranks, by="rows")
    _write(axes, 11, 8.2, "=")
    each = 10.4 / ranks
    wide = min(_OUTPUTS, each - 0.9)
    for rank in range(ranks):
        if rank:
            _write(axes, 12 + rank * each - 0.45, 8.2, "+")
        _box(axes, 12 + rank * each, 7.2, wide, _ROWS, rank_colour(rank), "X{0}A{0}".format("₀₁₂₃"[rank]))
    _write(axes, 12, 10.2, "each rank a whole Y that is not complete:\nY is the sum over ranks", left=True)
    return figure


def _matrix(
    axes: Axes, x: float, y: float, size: tuple[int, int], name: str, ranks: int = 1, by: str = ""
) -> None:
    """A matrix of `size` rows and columns, cut into parts of the ranks' colours; grey if all have it."""
    height, width = size
    across = ranks if by == "columns" else 1
    down = ranks if by == "rows" else 1
    for rank in range(ranks):
        colour = rank_colour(rank) if by else LIGHT_GREY
        left = x + (rank * width / ranks if by == "columns" else 0)
        top = y + (rank * height / ranks if by == "rows" else 0)
        label = f"{name}{'₀₁₂₃'[rank]}" if by else name
        _box(axes, left, top, width / across, height / down, colour, label)


def _box(axes: Axes, x: float, y: float, width: float, height: float, colour: str, label: str) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="#222222"))
    place = (x + width / 2, y + height / 2)
    axes.text(*place, label, ha="center", va="center", fontsize=11, color=ink_on(colour))


def _write(axes: Axes, x: float, y: float, text: str, *, left: bool = False) -> None:
    axes.text(x, y, text, ha="left" if left else "center", va="center", fontsize=10 if left else 16)


BRANCHES = {
    "mlp": (("A{}", "GeLU", "B{}"), "some columns of A, then the same rows of B"),
    "attention": (
        ("Q{}, K{}, V{}", "its heads", "B{}"),
        "the queries, keys and values of its heads, then its rows of B",
    ),
}
"""What of a block is drawn -> what each rank computes, one after another; and the same in words."""


def branches_picture(half: str, ranks: int = 2) -> Drawing:
    """A half of a block, "mlp" or "attention", from f to g; a branch a rank. 2 to 4 ranks.

    Raises ValueError for another half or number.
    """
    if half not in BRANCHES or not 2 <= ranks <= 4:
        raise ValueError(
            f"There are pictures of {', '.join(BRANCHES)} with 2 to 4 ranks; not of {half!r}, {ranks}."
        )
    steps, words = BRANCHES[half]
    alt = (
        f"x goes through f to {ranks} ranks. Each computes {words}, without the others. g adds up what they "
        "have. In forward f does nothing and g is an all-reduce; in backward g does nothing and f is an "
        "all-reduce."
    )
    figure, axes = new_figure(alt=alt, height=0.85 * ranks + 1.3)
    axes.set_axis_off()
    axes.set_xlim(0, 18)
    axes.set_ylim(ranks + 0.75, -0.75)
    middle = ranks / 2
    _node(axes, 0.8, middle, "x", LIGHT_GREY)
    _node(axes, 3.0, middle, "f", "white")
    _node(axes, 14.8, middle, "g", "white")
    _node(axes, 17.2, middle, "y", LIGHT_GREY)
    _arrow(axes, (1.35, middle), (2.45, middle))
    _arrow(axes, (15.35, middle), (16.65, middle))
    for rank in range(ranks):
        y = rank + 0.5
        _arrow(axes, (3.55, middle), (4.75, y))
        for place, step in enumerate(steps):
            label = step.format(*["₀₁₂₃"[rank]] * 3)
            _node(axes, 6.0 + 2.9 * place, y, label, rank_colour(rank), wide=1.2)
            if place:
                _arrow(axes, (4.3 + 2.9 * place, y), (4.75 + 2.9 * place, y))
        _arrow(axes, (13.05, y), (14.25, middle))
    for x, forward, backward in ((3.0, "nothing", "all-reduce"), (14.8, "all-reduce", "nothing")):
        axes.text(x, -0.35, f"forward:\n{forward}", ha="center", va="center", fontsize=9)
        axes.text(x, ranks + 0.4, f"backward:\n{backward}", ha="center", va="center", fontsize=9)
    return figure


def _node(axes: Axes, x: float, y: float, label: str, colour: str, wide: float = 0.5) -> None:
    axes.add_patch(Rectangle((x - wide, y - 0.32), 2 * wide, 0.64, facecolor=colour, edgecolor="#222222"))
    axes.text(x, y, label, ha="center", va="center", fontsize=10, color=ink_on(colour))


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color="#444444"))
