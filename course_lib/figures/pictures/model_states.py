"""What each GPU holds of a model's states, under the stages of ZeRO."""

from collections.abc import Sequence

from course_lib.figures.plots import legend_beside
from course_lib.figures.style import COLOURS, HATCHES, Drawing, new_figure

STAGES = ("data parallelism", "stage 1: optimizer", "stage 2: and gradients", "stage 3: and weights")
_COLOURS = ("sky_blue", "orange", "bluish_green")


def gigabytes_of_kind(parameters: int, totals: Sequence[float]) -> dict[str, list[float]]:
    """Of each kind of model states the GB on a GPU under the four stages, of the GB of all of them.

    What a stage saves is of one kind, and each weight and each gradient takes 2 bytes.
    """
    whole = 2 * parameters / 1e9
    weights = [whole] * 3 + [whole - (totals[2] - totals[3])]
    gradients = [whole] * 2 + [whole - (totals[1] - totals[2])] * 2
    optimizer = [taken - w - g for taken, w, g in zip(totals, weights, gradients, strict=True)]
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer}


def model_states_figure(parameters: int, gpus: int, totals: Sequence[float]) -> Drawing:
    """A bar for each of the four stages, of the three kinds. totals: GB on each GPU under each stage."""
    size = f"{parameters / 1e9:g} billion parameters"
    told = ", ".join(f"{name} {taken:,.1f} GB" for name, taken in zip(STAGES, totals, strict=True))
    figure, axes = new_figure(
        height=2.6,
        alt=f"Four bars of what each of {gpus} GPUs holds of {size}: {told}. "
        "Three quarters of the first bar are the optimizer's.",
    )
    left = [0.0] * len(STAGES)
    kinds = gigabytes_of_kind(parameters, totals)
    for (kind, taken), colour, hatch in zip(kinds.items(), _COLOURS, HATCHES, strict=False):
        axes.barh(
            STAGES,
            taken,
            left=left,
            color=COLOURS[colour],
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            label=kind,
        )
        left = [before + more for before, more in zip(left, taken, strict=True)]
    for place, total in enumerate(totals):
        axes.text(total + totals[0] / 120, place, f"{total:,.1f} GB", va="center")
    axes.invert_yaxis()
    axes.set(xlabel="model states on each GPU (GB)", xlim=(0, 1.2 * totals[0]))
    axes.grid(visible=False, axis="y")
    legend_beside(axes)
    return figure
