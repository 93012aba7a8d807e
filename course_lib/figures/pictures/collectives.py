"""What every rank holds before and after a communication operation, as boxes coloured by their origin."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.figures.style import WIDTH, Drawing, ink_on, new_figure, rank_colour

_LETTERS = "ABCDEFGH"
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇"
_HIGHEST = 4.6
"""Inches."""


@dataclass(frozen=True, slots=True)
class Box:
    """A piece of data: the ranks that it came from (several: their sum), and which part of their tensor."""

    origins: tuple[int, ...]
    part: int | None = None

    @property
    def name(self) -> str:
        """`A`, `B₂`, `Σ`, `Σ₀`."""
        letter = _LETTERS[self.origins[0]] if len(self.origins) == 1 else "Σ"
        return letter if self.part is None else letter + _SUBSCRIPTS[self.part]


Row = tuple[Box | None, ...]
"""What one rank holds, slot by slot; None where it holds nothing."""

State = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Collective:
    """An operation as the states before and after it, given the number of ranks; and a sentence on it."""

    before: Callable[[int], State]
    after: Callable[[int], State]
    sentence: str


def collective_picture(name: str, ranks: int = 4) -> Drawing:
    """What every rank holds before and after the operation `name`, one of `COLLECTIVES`; 2 to 8 ranks.

    Raises ValueError for another name or number.
    """
    if name not in COLLECTIVES:
        raise ValueError(f"There is no picture of {name!r}. There is one of: {', '.join(COLLECTIVES)}.")
    if not 2 <= ranks <= len(_LETTERS):
        raise ValueError(f"The picture has room for 2 to {len(_LETTERS)} ranks, not for {ranks}.")
    collective = COLLECTIVES[name]
    before, after = collective.before(ranks), collective.after(ranks)
    slots = max(len(row) for row in (*before, *after))
    gap = 2.4 if slots < 6 else 3.2
    width = 2 * slots + gap + 1.8
    scale = min(0.62, WIDTH * 0.98 / width, _HIGHEST / (ranks + 1.9))
    figure, axes = new_figure(alt=_in_words(name, before, after), height=scale * (ranks + 1.9))
    axes.set_axis_off()
    axes.set_aspect("equal")
    room = WIDTH * 0.98 / scale
    axes.set_xlim(-1.6 - (room - width) / 2, -1.6 - (room - width) / 2 + room)
    axes.set_ylim(ranks + 0.75, -0.95)
    _draw_state(axes, before, 0.0, slots, "before")
    _draw_state(axes, after, slots + gap, slots, "after")
    _draw_arrow(
        axes, "send, recv" if name == "point_to_point" else name, slots, slots + gap, ranks / 2 - 0.06
    )
    _write_sum(axes, (*before, *after), ranks, slots + gap / 2)
    return figure


def collectives_picture(names: Sequence[str], ranks: int = 3) -> Drawing:
    """Several of `COLLECTIVES`, two in a row, so that they can be compared; 2 to 4 ranks."""
    chosen = {name: (COLLECTIVES[name].before(ranks), COLLECTIVES[name].after(ranks)) for name in names}
    rows, width = -(-len(chosen) // 2), 2 * ranks + 2.4 + 1.8
    figure, axes = new_figure(
        alt=" ".join(_in_words(name, *states) for name, states in chosen.items()),
        height=rows * (ranks + 1.9) * WIDTH * 0.48 / width,
        rows=rows,
        columns=2,
        squeeze=False,
    )
    for panel in axes.flat:
        panel.set_axis_off()
    for panel, (name, (before, after)) in zip(axes.flat, chosen.items(), strict=False):
        panel.set_aspect("equal")
        panel.set_xlim(-1.6, width - 1.6)
        panel.set_ylim(ranks + 0.75, -0.95)
        _draw_state(panel, before, 0.0, ranks, "before")
        _draw_state(panel, after, ranks + 2.4, ranks, "after")
        _draw_arrow(panel, name, ranks, ranks + 2.4, ranks / 2 - 0.06)
        _write_sum(panel, (*before, *after), ranks, ranks + 1.2)
    return figure


def _draw_state(axes: Axes, state: State, left: float, slots: int, title: str) -> None:
    """A table of boxes: a row a rank, its number to the left."""
    axes.text(left + slots / 2, -0.45, title, ha="center", va="center", fontsize=11)
    for rank, row in enumerate(state):
        if left == 0:
            axes.text(-0.2, rank + 0.45, f"rank {rank}", ha="right", va="center", fontsize=10)
        offset = (slots - len(row)) / 2
        for slot, box in enumerate(row):
            _draw_box(axes, box, left + offset + slot, float(rank))


def _draw_box(axes: Axes, box: Box | None, x: float, y: float) -> None:
    """One box; a sum is striped in the colours of all that went into it."""
    size = 0.88
    if box is None:
        axes.add_patch(Rectangle((x, y), size, size, fill=False, edgecolor="#AAAAAA", linestyle=(0, (2, 2))))
        return
    stripe = size / len(box.origins)
    for position, origin in enumerate(box.origins):
        axes.add_patch(
            Rectangle((x + position * stripe, y), stripe, size, facecolor=rank_colour(origin), linewidth=0)
        )
    axes.add_patch(Rectangle((x, y), size, size, fill=False, edgecolor="#222222", linewidth=1.0))
    single = len(box.origins) == 1
    axes.text(
        x + size / 2,
        y + size / 2,
        box.name,
        ha="center",
        va="center_baseline",
        fontsize=12,
        color=ink_on(rank_colour(box.origins[0])) if single else "black",
        bbox=None if single else {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9},
    )


def _draw_arrow(axes: Axes, words: str, left: float, right: float, y: float) -> None:
    """The arrow from before to after, with the operation's name over it."""
    axes.add_patch(
        FancyArrowPatch(
            (left + 0.2, y),
            (right - 0.3, y),
            arrowstyle="-|>",
            mutation_scale=18,
            linewidth=1.8,
            color="#222222",
        )
    )
    axes.text((left + right) / 2 - 0.06, y - 0.2, words, ha="center", va="bottom", fontsize=10)


def _write_sum(axes: Axes, rows: State, ranks: int, x: float) -> None:
    """What Σ stands for, if there is one."""
    sums = [box for row in rows for box in row if box is not None and len(box.origins) > 1]
    if not sums:
        return
    total = " + ".join(_LETTERS[:ranks])
    text = f"Σ = {total}"
    if sums[0].part is not None:
        parts = " + ".join(f"{letter}ᵢ" for letter in _LETTERS[:ranks])
        text = f"Σᵢ = {parts}"
    axes.text(x, ranks + 0.35, text, ha="center", va="center", fontsize=10)


def _in_words(name: str, before: State, after: State) -> str:
    return (
        f"{name}: {COLLECTIVES[name].sentence} Before: {_state_in_words(before)}. "
        f"After: {_state_in_words(after)}."
    )


def _state_in_words(state: State) -> str:
    return "; ".join(
        f"rank {rank} holds " + (", ".join(box.name for box in row if box is not None) or "nothing")
        for rank, row in enumerate(state)
    )


def _own(ranks: int) -> State:
    """Each rank holds a tensor of its own."""
    return tuple((Box((rank,)),) for rank in range(ranks))


def _own_in_place(ranks: int) -> State:
    """Each rank holds its tensor, in the slot where it will stand in the whole."""
    return tuple(
        tuple(Box((rank,)) if slot == rank else None for slot in range(ranks)) for rank in range(ranks)
    )


def _own_parts(ranks: int) -> State:
    """Each rank holds a tensor of its own in as many parts as there are ranks."""
    return tuple(tuple(Box((rank,), part) for part in range(ranks)) for rank in range(ranks))


def _root_only(row: Row, ranks: int) -> State:
    """Rank 0 holds `row`, the others nothing."""
    return (row, *((None,) * len(row) for _ in range(ranks - 1)))


def _all(ranks: int) -> tuple[int, ...]:
    return tuple(range(ranks))


def _whole(ranks: int) -> Row:
    """Every rank's tensor, side by side."""
    return tuple(Box((rank,)) for rank in range(ranks))


COLLECTIVES: Mapping[str, Collective] = {
    "point_to_point": Collective(
        before=lambda ranks: _root_only((Box((0,)),), ranks),
        after=lambda ranks: ((Box((0,)),), (Box((0,)),), *(((None,),) * (ranks - 2))),
        sentence="rank 0 sends its tensor to rank 1.",
    ),
    "broadcast": Collective(
        before=lambda ranks: _root_only((Box((0,)),), ranks),
        after=lambda ranks: ((Box((0,)),),) * ranks,
        sentence="all ranks get the tensor of rank 0.",
    ),
    "scatter": Collective(
        before=lambda ranks: _root_only(tuple(Box((0,), part) for part in range(ranks)), ranks),
        after=lambda ranks: tuple(
            tuple(Box((0,), rank) if slot == rank else None for slot in range(ranks)) for rank in range(ranks)
        ),
        sentence="each rank gets one part of the tensor of rank 0.",
    ),
    "gather": Collective(
        before=_own_in_place,
        after=lambda ranks: _root_only(_whole(ranks), ranks),
        sentence="rank 0 gets the tensors of all ranks.",
    ),
    "all_gather": Collective(
        before=_own_in_place,
        after=lambda ranks: (_whole(ranks),) * ranks,
        sentence="all ranks get the tensors of all ranks.",
    ),
    "reduce": Collective(
        before=_own,
        after=lambda ranks: _root_only((Box(_all(ranks)),), ranks),
        sentence="rank 0 gets the sum of all tensors.",
    ),
    "all_reduce": Collective(
        before=_own,
        after=lambda ranks: ((Box(_all(ranks)),),) * ranks,
        sentence="all ranks get the sum of all tensors.",
    ),
    "reduce_scatter": Collective(
        before=_own_parts,
        after=lambda ranks: tuple(
            tuple(Box(_all(ranks), rank) if slot == rank else None for slot in range(ranks))
            for rank in range(ranks)
        ),
        sentence="each rank gets one part of the sum of all tensors.",
    ),
    "all_to_all": Collective(
        before=_own_parts,
        after=lambda ranks: tuple(
            tuple(Box((rank,), part) for rank in range(ranks)) for part in range(ranks)
        ),
        sentence="rank i gets part i of every rank's tensor.",
    ),
}
"""Name in `torch.distributed`, or "point_to_point" -> the operation. Rooted ones have rank 0 as root."""
