"""The fifteen steps of training on one device, and their picture."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.path import Path

from course_lib.figures.style import COLOURS, Drawing, look, new_figure


class Repeats(StrEnum):
    """How often a step is taken."""

    RUN = "once"
    EPOCH = "every epoch"
    BATCH = "every batch"


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One of the fifteen: what it is called, what stands for it in code, how often it is taken.

    changes: whether training on many devices makes something else of it. row, column: where it is drawn.
    """

    number: int
    name: str
    code: str
    repeats: Repeats
    row: int
    column: int
    changes: bool = False


STEPS = (
    TrainingStep(1, "read the data", "load(dataset)", Repeats.RUN, 0, 0, changes=True),
    TrainingStep(2, "shuffle and\npartition", "shuffle=True", Repeats.EPOCH, 0, 1, changes=True),
    TrainingStep(3, "take a batch", "for x, y in loader", Repeats.BATCH, 1, 1),
    TrainingStep(4, "preprocess", "random_shift(x)", Repeats.BATCH, 1, 2),
    TrainingStep(5, "copy to\nthe device", "x.to(device)", Repeats.BATCH, 1, 3),
    TrainingStep(6, "clear the\ngradients", "zero_grad()", Repeats.BATCH, 1, 4),
    TrainingStep(7, "forward", "model(x)", Repeats.BATCH, 1, 5),
    TrainingStep(8, "loss", "cross_entropy()", Repeats.BATCH, 2, 1),
    TrainingStep(9, "backward", "loss.backward()", Repeats.BATCH, 2, 2, changes=True),
    TrainingStep(10, "update the\nweights", "optimizer.step()", Repeats.BATCH, 2, 3),
    TrainingStep(11, "add up\nmetrics", "+= loss.detach()", Repeats.BATCH, 2, 4),
    TrainingStep(12, "set the\nlearning rate", "scheduler.step()", Repeats.EPOCH, 3, 1),
    TrainingStep(13, "validate", "evaluate()", Repeats.EPOCH, 3, 2, changes=True),
    TrainingStep(14, "write a\ncheckpoint", "torch.save()", Repeats.EPOCH, 3, 3, changes=True),
    TrainingStep(15, "return", "return history", Repeats.RUN, 3, 0),
)

_BOX_WIDTH, _BOX_HEIGHT = 0.86, 0.72
"""In units of a column and a row."""

_PLAIN, _CHANGED = "white", COLOURS["orange"]


def steps_picture() -> Drawing:
    """The fifteen steps in their order, framed by how often they are taken."""
    figure, axes = new_figure(alt=_in_words(), height=4.7)
    axes.set_axis_off()
    axes.set_xlim(-0.5, 5.62)
    axes.set_ylim(3.62, -0.62)
    with look():
        _frame(axes, Repeats.EPOCH, left=0.47, right=5.6, top=-0.6, bottom=3.6, colour="#F3F3F3")
        _frame(axes, Repeats.BATCH, left=0.52, right=5.55, top=0.53, bottom=2.47, colour="#E2E2E2")
        for step in STEPS:
            _box(axes, step)
        for step, following in pairwise(STEPS):
            if step.row == following.row and step.column + 1 == following.column:
                _arrow(axes, step)
            else:
                _arrow_round(axes, step, following)
        _legend(axes)
    return figure


def _in_words() -> str:
    """The picture for those who do not see it."""
    told = []
    for repeats in Repeats:
        names = [f"{s.number} {_one_line(s.name)}" for s in STEPS if s.repeats is repeats]
        told.append(f"{repeats}: {', '.join(names)}")
    changed = ", ".join(str(step.number) for step in STEPS if step.changes)
    return (
        f"The fifteen steps of training. {'; '.join(told)}. "
        f"Marked are those that change when many devices train together: {changed}."
    )


def _one_line(name: str) -> str:
    return name.replace("\n", " ")


def _frame(
    axes: Axes, repeats: Repeats, *, left: float, right: float, top: float, bottom: float, colour: str
) -> None:
    """A rectangle round the steps of a loop, with its name in the lower right corner."""
    style = "round,pad=0,rounding_size=0.06"
    axes.add_patch(
        FancyBboxPatch(
            (left, top), right - left, bottom - top, boxstyle=style, facecolor=colour, edgecolor="#777777"
        )
    )
    axes.text(
        right - 0.06, bottom - 0.07, f"{repeats} ↻", ha="right", va="bottom", fontsize=10, style="italic"
    )


def _box(axes: Axes, step: TrainingStep) -> None:
    corner = step.column - _BOX_WIDTH / 2, step.row - _BOX_HEIGHT / 2
    axes.add_patch(
        FancyBboxPatch(
            corner,
            _BOX_WIDTH,
            _BOX_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.05",
            facecolor=_CHANGED if step.changes else _PLAIN,
            edgecolor="black",
            linewidth=2.2 if step.changes else 0.9,
        )
    )
    axes.text(
        step.column, step.row - 0.08, f"{step.number}  {step.name}", ha="center", va="center", fontsize=9
    )
    axes.text(
        step.column, step.row + 0.25, step.code, ha="center", va="center", fontsize=7.5, family="monospace"
    )


def _arrow(axes: Axes, step: TrainingStep) -> None:
    """From a step to the one at its right."""
    start, end = step.column + _BOX_WIDTH / 2, step.column + 1 - _BOX_WIDTH / 2
    axes.add_patch(
        FancyArrowPatch(
            (start, step.row), (end, step.row), arrowstyle="-|>", mutation_scale=9, color="#222222"
        )
    )


def _arrow_round(axes: Axes, step: TrainingStep, following: TrainingStep) -> None:
    """From a step down, along between the rows, and on to one that is below it, or in its row."""
    below = step.row < following.row
    leaves = step.row + _BOX_HEIGHT / 2
    turns = leaves + (0.18 if below and step.repeats is not following.repeats else 0.13)
    enters = following.row + (-_BOX_HEIGHT / 2 if below else _BOX_HEIGHT / 2)
    corners = [(step.column, leaves), (step.column, turns), (following.column, turns)]
    path = Path([*corners, (following.column, enters)])
    axes.add_patch(
        FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=9, color="#222222", fill=False)
    )


def _legend(axes: Axes) -> None:
    changed = Patch(facecolor=_CHANGED, edgecolor="black", linewidth=2.2, label="changes with many devices")
    plain = Patch(facecolor=_PLAIN, edgecolor="black", linewidth=0.9, label="stays as it is")
    axes.legend(
        handles=[changed, plain], loc="upper right", bbox_to_anchor=(0.985, 0.985), ncols=2, frameon=False
    )
