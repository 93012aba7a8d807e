"""What a crash leaves of a checkpoint, moment by moment."""

from collections.abc import Mapping, Sequence

from matplotlib.patches import Patch, Rectangle

from course_lib.figures.plots import legend_beside
from course_lib.figures.style import COLOURS, Drawing, ink_on, new_figure

MOMENTS = {
    "old": (COLOURS["sky_blue"], ""),
    "none": (COLOURS["black"], ""),
    "torn": (COLOURS["vermillion"], "//"),
    "new": (COLOURS["bluish_green"], ""),
}
"""What a loader may find under a checkpoint's name, with its colour and hatch."""


def moments_picture(moments: Mapping[str, Sequence[str]]) -> Drawing:
    """A row for each way to save: what a kill would leave at each of its moments, in their order.

    moments: name of the way -> keys of `MOMENTS`.
    """
    told = "; ".join(f"{name}: {', '.join(row)}" for name, row in moments.items())
    figure, axes = new_figure(
        alt=f"What a kill leaves under the checkpoint's name, from the first moment to the last. {told}.",
        height=0.5 + 0.62 * len(moments),
    )
    longest = max(len(row) for row in moments.values())
    for place, row in enumerate(moments.values()):
        width = longest / len(row)
        for moment, found in enumerate(row):
            colour, hatch = MOMENTS[found]
            corner = (moment * width, place - 0.36)
            axes.add_patch(
                Rectangle(corner, width, 0.72, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=2)
            )
            behind = "white" if hatch else colour  # Words on hatching are hard to read.
            box = {"facecolor": behind, "edgecolor": "none", "pad": 1.5}
            middle = (moment + 0.5) * width
            axes.text(middle, place, found, ha="center", va="center", color=ink_on(behind), bbox=box)
    axes.set(xlim=(0, longest), ylim=(len(moments) - 0.5, -0.5), xticks=[], xlabel="while it saves →")
    axes.set_yticks(range(len(moments)), list(moments))
    axes.grid(visible=False)
    meaning = {
        "old": "old: the one before",
        "none": "none: no file",
        "torn": "torn: a part of it",
        "new": "new",
    }
    patches = [
        Patch(facecolor=MOMENTS[key][0], hatch=MOMENTS[key][1], edgecolor="white", label=label)
        for key, label in meaning.items()
    ]
    legend_beside(axes, handles=patches)
    return figure
