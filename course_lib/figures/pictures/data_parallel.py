"""Pictures of data-parallel training: weights of shards, limits of speedup, overlap of communication."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.figures.plots import draw_lines, legend_beside
from course_lib.figures.style import COLOURS, Drawing, ink_on, look, new_figure, rank_colour

_MOST_SQUARES = 16


def averaging_picture(counts: Sequence[int]) -> Drawing:
    """Workers with some samples each, their gradients, the average of these, and the step that each takes.

    counts: see `weighted_average_picture`.
    """
    total = _checked_total(counts)
    alt = (
        f"{total} samples on {len(counts)} workers, which have "
        + ", ".join(map(str, counts))
        + " of them. Each computes a gradient; an all-reduce averages the gradients and gives the average to "
        "all; each takes the same step with it."
    )
    heads = ((1.0, "worker"), (3.0, "its samples"), (5.35, "gradient"), (7.0, "all-reduce"), (8.55, "step"))
    figure, axes = _workers_figure(counts, heads, alt)
    middle = len(counts) / 2
    for worker in range(len(counts)):
        for start, end in (((5.7, worker + 0.5), (6.45, middle)), ((7.55, middle), (8.25, worker + 0.5))):
            axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color="#444444"))
        # All take the same step: no colour of their own.
        axes.add_patch(Rectangle((8.3, worker + 0.2), 0.5, 0.6, facecolor="white", edgecolor="#222222"))
    axes.add_patch(Rectangle((6.5, middle - 0.36), 1.0, 0.72, facecolor="white", edgecolor="#222222"))
    axes.text(7.0, middle, "average", ha="center", va="center", fontsize=11)
    return figure


def weighted_average_picture(counts: Sequence[int]) -> Drawing:
    """Workers with m_k samples each, their gradients g_k, and the weights m_k / n that they get in the sum.

    counts: the samples of each of 1 to 8 workers, at least one in all; else ValueError.
    """
    total = _checked_total(counts)
    alt = (
        f"{total} samples on {len(counts)} workers. "
        + " ".join(
            f"Worker {k} has {m} of them, so its gradient g{k} has the weight {m}/{total}."
            for k, m in enumerate(counts)
        )
        + " The sum of the weighted gradients is the gradient of the whole batch."
    )
    heads = ((1.0, "worker"), (3.0, "its samples"), (5.35, "gradient"), (6.4, "weight"), (8.2, "sum"))
    figure, axes = _workers_figure(counts, heads, alt, symbols=True)
    middle = len(counts) / 2
    for worker, samples in enumerate(counts):
        axes.text(6.4, worker + 0.5, f"$\\times\\;{samples}/{total}$", ha="center", va="center", fontsize=11)
        axes.add_patch(
            FancyArrowPatch(
                (6.85, worker + 0.5), (7.6, middle), arrowstyle="-|>", mutation_scale=11, color="#444444"
            )
        )
    axes.add_patch(Rectangle((7.65, middle - 0.36), 1.1, 0.72, facecolor="white", edgecolor="#222222"))
    axes.text(8.2, middle, r"$g=\sum_k \frac{m_k}{n}\, g_k$", ha="center", va="center", fontsize=11)
    return figure


def _checked_total(counts: Sequence[int]) -> int:
    total = sum(counts)
    if not 1 <= len(counts) <= 8 or total < 1 or min(counts) < 0:
        raise ValueError(f"The picture needs 1 to 8 workers with samples; got counts {list(counts)}.")
    return total


def _workers_figure(
    counts: Sequence[int], heads: Sequence[tuple[float, str]], alt: str, symbols: bool = False
) -> tuple[Drawing, Axes]:
    """A row for each worker with its samples and its gradient, and heads at some places above the rows.

    symbols: whether to write m_k and g_k, as formulas do.
    """
    figure, axes = new_figure(alt=alt, height=0.55 * len(counts) + 0.75)
    axes.set_axis_off()
    axes.set_xlim(0, 9)
    axes.set_ylim(len(counts) + 0.1, -0.75)
    for x, head in heads:
        axes.text(x, -0.4, head, ha="center", va="center", fontsize=10, style="italic")
    for worker, samples in enumerate(counts):
        _draw_worker(axes, worker, samples, max(counts), symbols)
    return figure, axes


def _draw_worker(axes: Axes, worker: int, samples: int, most: int, symbols: bool) -> None:
    """A worker's samples as squares (a bar if they are many), and its gradient."""
    colour = rank_colour(worker)
    y = worker + 0.5
    axes.text(1.0, y, f"{worker}", ha="center", va="center", fontsize=11)
    width = 2.5 / max(most, 8)
    if most <= _MOST_SQUARES:
        for sample in range(samples):
            axes.add_patch(
                Rectangle(
                    (1.5 + sample * width, y - 0.25), width * 0.85, 0.5, facecolor=colour, edgecolor="#222222"
                )
            )
    else:
        axes.add_patch(
            Rectangle((1.5, y - 0.25), samples * width, 0.5, facecolor=colour, edgecolor="#222222")
        )
    count = f"$m_{worker}={samples}$" if symbols else f"{samples}"
    axes.text(1.6 + samples * width, y, count, ha="left", va="center", fontsize=10.5)
    axes.add_patch(Rectangle((5.1, y - 0.3), 0.5, 0.6, facecolor=colour, edgecolor="#222222"))
    if symbols:
        axes.text(5.35, y, f"$g_{worker}$", ha="center", va="center", fontsize=12, color=ink_on(colour))


def speedup_picture(
    speedup: Callable[[float, int], float],
    fractions: Sequence[float] = (0.5, 0.9, 0.95, 0.99),
    max_workers: int = 1024,
) -> Drawing:
    """Speedup against workers for several parallel fractions, by a formula that is given.

    speedup: (parallel fraction, workers) -> how many times faster than one worker.
    """
    workers = [2**power for power in range(max_workers.bit_length()) if 2**power <= max_workers]
    curves = {fraction: [float(speedup(fraction, p)) for p in workers] for fraction in fractions}
    alt = "Speedup against the number of workers. " + " ".join(
        f"With {fraction:.4g} of the work parallel it reaches {curve[-1]:.3g} on {workers[-1]} workers."
        for fraction, curve in curves.items()
    )
    figure, axes = new_figure(alt=alt, height=3.6)
    named = {f"{fraction:.4g} parallel": (workers, curve) for fraction, curve in curves.items()}
    draw_lines(axes, named, x="workers", y="speedup (times as fast as one)")
    axes.plot(workers, workers, color="#777777", linewidth=1.0, linestyle=(0, (1, 2)), label="all parallel")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(workers, [str(p) for p in workers])
    axes.set_yticks(workers, [str(p) for p in workers])
    legend_beside(axes)
    return figure


@dataclass(frozen=True, slots=True)
class Schedule:
    """When each bucket's backward and its communication begin and end."""

    backward: tuple[tuple[float, float], ...]
    communication: tuple[tuple[float, float], ...]

    @property
    def end(self) -> float:
        return max((end for _, end in (*self.backward, *self.communication)), default=0.0)


def bucket_picture(backward: Sequence[float], communication: Sequence[float]) -> Drawing:
    """Backward and the all-reduces of its buckets: all of them after it, and each as soon as it can.

    backward: how long backward takes until each further bucket is complete. communication: how long each
    bucket's all-reduce takes; one runs at a time. Both in ms.
    """
    if len(backward) != len(communication):
        raise ValueError(
            f"Every bucket needs both times; got {len(backward)} of backward and {len(communication)} of "
            f"communication."
        )
    after = schedule(backward, communication, first=sum(backward))
    overlapped = schedule(backward, communication, first=0.0)
    alt = (
        f"Two timelines of backward in {len(backward)} buckets. With all communication after backward the "
        f"step takes {after.end:.3g} ms; with each bucket sent as soon as it is complete "
        f"{overlapped.end:.3g} ms."
    )
    figure, (top, bottom) = new_figure(alt=alt, height=3.5, rows=2, sharex=True)
    for axes, plan, title in (
        (top, after, "communication after backward"),
        (bottom, overlapped, "each bucket as soon as it is complete"),
    ):
        _draw_schedule(axes, plan, f"{title}: {plan.end:.3g} ms")
    bottom.set_xlabel("time (ms)")
    top.set_xlim(0, after.end * 1.01)
    return figure


def schedule(backward: Sequence[float], communication: Sequence[float], first: float) -> Schedule:
    """Buckets complete one after another; the network takes them in that order, none before `first`."""
    computed: list[tuple[float, float]] = []
    sent: list[tuple[float, float]] = []
    ready, free = 0.0, first
    for computing, sending in zip(backward, communication, strict=True):
        computed.append((ready, ready + computing))
        ready += computing
        start = max(ready, free)
        free = start + sending
        sent.append((start, free))
    return Schedule(tuple(computed), tuple(sent))


def _draw_schedule(axes: Axes, plan: Schedule, title: str) -> None:
    """Two lanes: what the device computes, what the network carries."""
    lanes = ((plan.backward, 0, COLOURS["sky_blue"], ""), (plan.communication, 1, COLOURS["orange"], "///"))
    for intervals, lane, colour, hatch in lanes:
        for number, (start, end) in enumerate(intervals, start=1):
            axes.barh(
                lane,
                end - start,
                left=start,
                height=0.72,
                color=colour,
                edgecolor="#222222",
                linewidth=0.8,
                hatch=hatch,
                hatchcolor="#A56F00",
            )
            axes.text(
                (start + end) / 2,
                lane,
                str(number),
                ha="center",
                va="center_baseline",
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
            )
    with look():
        axes.set_yticks([0, 1], ["backward", "all-reduce"])
        axes.set_ylim(1.55, -0.55)
        axes.set_title(title, loc="left", fontsize=10)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.axvline(plan.end, color=COLOURS["vermillion"], linestyle="--", linewidth=1.4)
