"""A schedule in time: a row a stage, a box an action, and under it what each stage keeps for backward."""

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from course_lib.figures.plots import legend_beside
from course_lib.figures.style import (
    COLOURS,
    LIGHT_GREY,
    LINE_STYLES,
    WIDTH,
    Drawing,
    ink_on,
    look,
    new_figure,
)
from course_lib.training.pipeline.actions import (
    COMPUTING,
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
)
from course_lib.training.pipeline.costs import Timed, Timing

_LOOKS: dict[type[Action], tuple[str, str, str]] = {
    Forward: (COLOURS["sky_blue"], "", "forward"),
    Backward: (COLOURS["orange"], "", "backward"),
    BackwardInput: (COLOURS["orange"], "", "backward, input half"),
    BackwardWeight: (COLOURS["yellow"], "", "backward, weight half"),
    Recompute: (COLOURS["reddish_purple"], "", "forward once more"),
}
"""Colour, hatch, and what it is called."""

_LATER_CHUNK = "...."
"""The hatch of chunks after a stage's first."""
_DRAWN_LINES = len(LINE_STYLES)
"""Of more stages than these, this many get a line of memory."""
_TOLD_ACTIONS = 24
"""Up to so many actions a stage are told one by one."""
_ROOM = 0.78
"""The share of the figure's width that the axes have, beside names and legend."""


def schedule_figure(
    timing: Timing, title: str = "", *, unit: str = "", kept: str = "micro-batches"
) -> Drawing:
    """A schedule as a Gantt chart, and under it what every stage keeps for backward, over the same time.

    title: the schedule's name. unit: of the time, by default one forward of a stage. kept: what the
    activations of the costs are counted in.
    """
    rows = len(timing.stages)
    gantt_height = min(4.4, 0.8 + 0.3 * rows)
    figure, (gantt, memory) = new_figure(
        alt=_in_words(timing, title, kept),
        height=gantt_height + 1.9,
        rows=2,
        sharex=True,
        height_ratios=[gantt_height, 1.7],
    )
    _draw_stages(gantt, timing)
    named = f"{title}: " if title else ""
    gantt.set_title(f"{named}{timing.seconds:g} {unit or 'forwards'}, bubble {timing.bubble:.0%}")
    _draw_memory(memory, timing, kept)
    memory.set_xlabel(f"time ({unit or 'forwards of one micro-batch on one stage'})")
    return figure


def _draw_stages(axes: Axes, timing: Timing) -> None:
    """The boxes; what stays grey is the bubble."""
    stages = len(timing.stages)
    for stage, row in enumerate(timing.stages):
        axes.add_patch(Rectangle((0, stage - 0.4), timing.seconds, 0.8, facecolor=LIGHT_GREY, linewidth=0))
        for timed in row:
            _draw_box(axes, timing, timed)
    axes.set(xlim=(0, timing.seconds), ylim=(stages - 0.5, -0.5), ylabel="stage")
    every = max(1, -(-stages // 16))
    axes.set_yticks(range(0, stages, every))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    used = {type(timed.action) for row in timing.stages for timed in row}
    handles = [_patch(*_LOOKS[kind]) for kind in COMPUTING if kind in used]
    if timing.chunks > 1:
        handles.append(_patch("white", _LATER_CHUNK, "dotted: a later chunk"))
    legend_beside(axes, handles=[*handles, _patch(LIGHT_GREY, "", "bubble")])


def _draw_box(axes: Axes, timing: Timing, timed: Timed) -> None:
    """One action, with its micro-batch's number where there is room for it."""
    colour = _LOOKS[type(timed.action)][0]
    seconds, stages = timed.end - timed.begin, len(timing.stages)
    inch_wide = WIDTH * _ROOM * seconds / timing.seconds
    axes.add_patch(
        Rectangle(
            (timed.begin, timed.stage - 0.4),
            seconds,
            0.8,
            facecolor=colour,
            hatch=_LATER_CHUNK if timed.action.chunk else "",
            edgecolor="#444444" if inch_wide > 0.06 else "none",
            linewidth=0.6,
        )
    )
    text = f"{timed.action.micro_batch}"
    if inch_wide > 0.09 * len(text) + 0.04 and stages <= 16:
        box = {"facecolor": colour, "edgecolor": "none", "pad": 0.6} if timed.action.chunk else None
        middle = (timed.begin + seconds / 2, timed.stage)
        axes.text(
            *middle, text, ha="center", va="center", fontsize=8, color=ink_on(colour), bbox=box, clip_on=True
        )


def _draw_memory(axes: Axes, timing: Timing, kept: str) -> None:
    """A line a stage, of the first ones where there are many."""
    stages = len(timing.stages)
    every = max(1, -(-stages // _DRAWN_LINES))
    for place, stage in enumerate(range(0, stages, every)):
        colour, dashes, _ = LINE_STYLES[place % len(LINE_STYLES)]
        times, held = zip(*timing.memory(stage), (timing.seconds, 0.0), strict=True)
        axes.step(times, held, where="post", color=colour, linestyle=dashes, label=f"stage {stage}")
    axes.set(ylabel=f"kept\n({kept})", ylim=(0, 1.08 * max([*timing.peaks, 1e-9])))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    legend_beside(axes, ncols=1 if stages <= 5 else 2)


def _patch(colour: str, hatch: str, label: str) -> Patch:
    with look():
        return Patch(facecolor=colour, hatch=hatch, edgecolor="#444444", linewidth=0.6, label=label)


def _in_words(timing: Timing, title: str, kept: str) -> str:
    """What the figure tells, in words."""
    stages = len(timing.stages)
    peaks = ", ".join(f"{peak:g}" for peak in timing.peaks)
    text = (
        f"{title or 'A schedule'} on {stages} stages as boxes in time: {timing.seconds:g} long, of which "
        f"{timing.bubble:.0%} is a bubble. Kept for backward at most, stage by stage: {peaks} {kept}."
    )
    if max(map(len, timing.stages)) > _TOLD_ACTIONS:
        return text
    rows = (
        f"Stage {stage}: {', '.join(f'{timed.action!r} at {timed.begin:g}' for timed in row)}."
        for stage, row in enumerate(timing.stages)
    )
    return f"{text} {' '.join(rows)}"
