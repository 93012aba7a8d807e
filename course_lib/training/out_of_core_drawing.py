"""Steps out of core in time: what the device computes, and what is on the link to the host beside it."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course_lib.figures.plots import legend_beside
from course_lib.figures.style import COLOURS, LIGHT_GREY, WIDTH, Drawing, ink_on, look, new_figure
from course_lib.training.out_of_core import Span, Step

_LOOKS = {
    "forward": (COLOURS["sky_blue"], ""),
    "again": (COLOURS["reddish_purple"], ""),
    "backward": (COLOURS["orange"], ""),
    "to host": (COLOURS["yellow"], "///"),
    "to device": (COLOURS["bluish_green"], "\\\\\\"),
}
"""Colour and hatch of what happens."""

_LANES = ("device", "to host", "to device")
_CHARACTER_INCHES = 0.09


def out_of_core_figure(steps: Mapping[str, Step]) -> Drawing:
    """Steps below each other, over one scale of time; the number in a box is the layer's."""
    longest = max(each.seconds for each in steps.values())
    figure, axes_of = new_figure(
        alt=" ".join(_in_words(name, each) for name, each in steps.items()),
        height=0.55 + 1.25 * len(steps),
        rows=len(steps),
        sharex=True,
    )
    all_axes: list[Axes] = [axes_of] if len(steps) == 1 else list(axes_of)
    for axes, (name, each) in zip(all_axes, steps.items(), strict=True):
        axes.add_patch(Rectangle((0, -0.4), each.seconds, 0.8, facecolor=LIGHT_GREY, linewidth=0))
        for span in each.spans:
            _draw(axes, span, longest)
        axes.set(xlim=(0, longest), ylim=(len(_LANES) - 0.5, -0.5))
        axes.set_yticks(range(len(_LANES)), _LANES)
        axes.set_title(f"{name}: {each.seconds:.2f} s")
        axes.tick_params(length=0)
        axes.grid(visible=False)
    used = {span.what for each in steps.values() for span in each.spans}
    with look():
        handles = [
            Patch(facecolor=colour, hatch=hatch, edgecolor="#444444", linewidth=0.6, label=what)
            for what, (colour, hatch) in _LOOKS.items()
            if what in used
        ]
    legend_beside(all_axes[0], handles=[*handles, Patch(facecolor=LIGHT_GREY, label="waits")])
    all_axes[-1].set_xlabel("time (s)")
    return figure


def _draw(axes: Axes, span: Span, longest: float) -> None:
    lane = {"to host": 1, "to device": 2}.get(span.what, 0)
    colour, hatch = _LOOKS[span.what]
    seconds = span.end - span.begin
    axes.add_patch(
        Rectangle(
            (span.begin, lane - 0.4),
            seconds,
            0.8,
            facecolor=colour,
            hatch=hatch,
            edgecolor="#444444",
            linewidth=0.6,
        )
    )
    if WIDTH * 0.7 * seconds / longest > _CHARACTER_INCHES * len(str(span.layer)) + 0.04:
        box = {"facecolor": colour, "edgecolor": "none", "pad": 2.0} if hatch else None
        middle = (span.begin + seconds / 2, lane)
        axes.text(
            *middle, str(span.layer), ha="center", va="center", fontsize=8, color=ink_on(colour), bbox=box
        )


def _in_words(name: str, each: Step) -> str:
    """What is drawn of a step."""
    counts = {what: sum(span.what == what for span in each.spans) for what in _LOOKS}
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    computing = sum(
        span.end - span.begin for span in each.spans if span.what in ("forward", "again", "backward")
    )
    return f"{name}: {each.seconds:.2f} s, of which the device computes for {computing:.2f} s; {told}."
