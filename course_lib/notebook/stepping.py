"""Stepping through a collective: who holds what, chunk by chunk, and whose data is in it."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from course_lib.figures.style import Drawing, ink_on, new_figure, rank_colour
from course_lib.notebook.collective_steps import Step, Steps
from course_lib.notebook.widgets import Slider, explore

_PANELS_A_ROW = 4
_MOST_DIGITS = 3
"""With more contributors the strips are too narrow for digits."""
_OUTLINE = withStroke(linewidth=3.2, foreground="#444444")
"""Yellow alone is too pale for a line on white."""


def steps_figure(steps: Steps) -> Drawing:
    """All steps side by side: a row a rank, a column a chunk, a colour and a digit for each contributor."""
    rows = -(-len(steps.steps) // _PANELS_A_ROW)
    columns = min(len(steps.steps), _PANELS_A_ROW)
    figure, axes = new_figure(
        alt=_all_in_words(steps), height=(0.36 * steps.ranks + 0.55) * rows, rows=rows, columns=columns
    )
    panels = np.atleast_1d(np.array(axes, dtype=object)).ravel()
    for panel, step in zip(panels, steps.steps, strict=False):
        _draw_step(panel, steps, step)
    for unused in panels[len(steps.steps) :]:
        unused.set_visible(False)
    return figure


def step_figure(steps: Steps, number: int) -> Drawing:
    """One step, with its messages as arrows beside the ranks."""
    step = steps.steps[number]
    figure, (state, arrows) = new_figure(
        alt=_step_in_words(steps, step),
        height=0.5 * steps.ranks + 0.7,
        columns=2,
        gridspec_kw={"width_ratios": [3, 2]},
    )
    _draw_step(state, steps, step)
    state.set_xlabel("all that it holds" if steps.chunk_bytes is None else "chunk")
    _draw_messages(arrows, steps, step)
    return figure


def step_through(steps: Steps) -> None:
    """A figure of one step, with a slider over all of them. Put it last in a cell."""
    last = len(steps.steps) - 1
    if last < 1:
        raise ValueError(f"{steps.name} sends no message on {steps.ranks} ranks, so there are no steps.")
    explore(
        lambda step: step_figure(steps, step), step=Slider(range(last + 1), start=min(1, last), label="step")
    )


def _draw_step(axes: Axes, steps: Steps, step: Step) -> None:
    for rank, contents in enumerate(step.held):
        for chunk, counts in enumerate(contents):
            _draw_cell(axes, chunk, rank, counts)
            if steps.changed(step.number, rank, chunk):
                axes.add_patch(
                    Rectangle(
                        (chunk + 0.05, rank + 0.08), 0.9, 0.84, fill=False, edgecolor="black", linewidth=2
                    )
                )
    axes.set(xlim=(0, steps.chunks), ylim=(steps.ranks, 0))
    axes.set_title("before" if step.number == 0 else f"after step {step.number}")
    numbers = range(0 if steps.chunk_bytes is None else steps.chunks)
    axes.set_xticks([chunk + 0.5 for chunk in numbers], [f"{chunk}" for chunk in numbers])
    axes.set_yticks([rank + 0.5 for rank in range(steps.ranks)], [f"rank {r}" for r in range(steps.ranks)])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_cell(axes: Axes, chunk: int, rank: int, counts: Sequence[int]) -> None:
    """A strip for each contributor, with its rank in it, and how often if not once; Σ if all are in it."""
    contributors = [source for source, count in enumerate(counts) if count]
    complete = all(count == 1 for count in counts) and len(counts) > 1
    left, width = chunk + 0.05, 0.9 / max(1, len(contributors))
    for position, source in enumerate(contributors):
        colour = rank_colour(source)
        axes.add_patch(Rectangle((left + position * width, rank + 0.08), width, 0.84, facecolor=colour))
        often = f"×{counts[source]}" if counts[source] > 1 else ""
        if not complete and len(contributors) <= _MOST_DIGITS:
            place = (left + (position + 0.5) * width, rank + 0.5)
            ink = ink_on(colour)
            axes.text(*place, f"{source}{often}", ha="center", va="center", fontsize=8, color=ink)
    if complete:
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        axes.text(chunk + 0.5, rank + 0.5, "Σ", ha="center", va="center", fontsize=8, bbox=box)


def _draw_messages(axes: Axes, steps: Steps, step: Step) -> None:
    """Senders on the left, receivers on the right, an arrow a message, its bytes on it."""
    for message in step.messages:
        start, end = (0.2, message.source + 0.5), (0.8, message.target + 0.5)
        arrow = FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=12,
            linewidth=1.8,
            color=rank_colour(message.source),
        )
        arrow.set_path_effects([_OUTLINE])
        axes.add_patch(arrow)
    for rank in range(steps.ranks):
        axes.text(0.18, rank + 0.5, f"rank {rank}", ha="right", va="center", fontsize=9)
        axes.text(0.82, rank + 0.5, f"rank {rank}", ha="left", va="center", fontsize=9)
    axes.set(xlim=(0, 1), ylim=(steps.ranks, 0), title=_messages_in_words(steps, step))
    axes.axis("off")


def _messages_in_words(steps: Steps, step: Step) -> str:
    """`4 messages of 1 chunk`; a step of the run without any was a collective's."""
    if not step.messages:
        return "a collective" if step.number else "no messages yet"
    unit, size = ("byte", 1) if steps.chunk_bytes is None else ("chunk", steps.chunk_bytes)
    sizes = sorted({message.nbytes // size for message in step.messages})
    count = " or ".join(f"{each:,}" for each in sizes)
    messages = "message" if len(step.messages) == 1 else "messages"
    return f"{len(step.messages)} {messages} of {count} {unit}{'' if count == '1' else 's'}"


def _all_in_words(steps: Steps) -> str:
    last = steps.steps[-1]
    return (
        f"{steps.name} on {steps.ranks} ranks in {len(steps.steps) - 1} steps, one panel each: what "
        f"each rank holds of every chunk, coloured by contributor. {' '.join(_states_in_words(last))}"
    )


def _step_in_words(steps: Steps, step: Step) -> str:
    sent = ", ".join(f"{message.source} to {message.target}" for message in step.messages) or "none"
    when = "Before the first message" if step.number == 0 else f"After step {step.number}"
    return f"{steps.name}: {when}. Messages: {sent}. {' '.join(_states_in_words(step))}"


def _states_in_words(step: Step) -> Iterator[str]:
    for rank, contents in enumerate(step.held):
        chunks = "; ".join("+".join(str(r) for r, count in enumerate(counts) if count) for counts in contents)
        yield f"Rank {rank} holds, chunk by chunk, contributions of: {chunks}."
