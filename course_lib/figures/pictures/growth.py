"""How large models have become, and on how many devices the systems were shown that train them."""

from dataclasses import dataclass

from course_lib.figures.plots import legend_beside
from course_lib.figures.style import LINE_STYLES, Drawing, new_figure


@dataclass(frozen=True, slots=True)
class Model:
    """A network, the year of its paper, and its parameters as the paper gives them."""

    name: str
    year: int
    parameters: float


MODELS = (
    Model("AlexNet", 2012, 60e6),
    Model("VGG-16", 2014, 138e6),
    Model("ResNet-50", 2015, 25.6e6),
    Model("Transformer", 2017, 213e6),
    Model("BERT-Large", 2018, 340e6),
    Model("GPT-2", 2019, 1.5e9),
    Model("T5-11B", 2020, 11e9),
    Model("GPT-3", 2020, 175e9),
    Model("PaLM", 2022, 540e9),
)
"""From the papers that introduced them: A. Krizhevsky et al., K. Simonyan and A. Zisserman, K. He et al.,
A. Vaswani et al., J. Devlin et al., A. Radford et al., C. Raffel et al., T. Brown et al.,
A. Chowdhery et al.
"""


@dataclass(frozen=True, slots=True)
class Framework:
    """A system for parallel training: what it shares out, the most devices, the largest network shown."""

    name: str
    kind: str
    devices: int
    parameters: float


FRAMEWORKS = (
    Framework("FlexFlow", "several at once", 64, 24e6),
    Framework("PipeDream", "layers dealt out", 16, 138e6),
    Framework("DDP", "data", 256, 345e6),
    Framework("GPipe", "layers dealt out", 8, 557e6),
    Framework("Mesh-TensorFlow", "layers cut up", 512, 4.9e9),
    Framework("Megatron-LM", "layers cut up", 512, 8.3e9),
    Framework("torchgpipe", "layers dealt out", 8, 15.8e9),
    Framework("KARMA", "data", 2048, 17e9),
    Framework("LBANN", "data", 3072, 78.6e9),
    Framework("ZeRO", "data", 400, 100e9),
)
"""D. Nichols et al., A Survey and Empirical Evaluation of Parallel Deep Learning Frameworks, 2021
(arXiv:2111.04949). LBANN's devices are CPUs, Mesh-TensorFlow's are cores of TPUs, all others are GPUs.
"""


def models_picture() -> Drawing:
    """Parameters against years, and what one GPU of 80 GB holds in 16 bits."""
    told = ", ".join(f"{model.name} {_in_words(model.parameters)} in {model.year}" for model in MODELS)
    figure, axes = new_figure(alt=f"Parameters of known networks against the year: {told}.", height=3.2)
    colour, _, marker = LINE_STYLES[0]
    axes.plot(
        [model.year for model in MODELS],
        [model.parameters for model in MODELS],
        linestyle="",
        marker=marker,
        color=colour,
    )
    for model in MODELS:
        axes.annotate(
            model.name,
            (model.year, model.parameters),
            _beside(model.name),
            textcoords="offset points",
            fontsize=8,
        )
    axes.axhline(80e9 / 2, color=LINE_STYLES[1][0], linestyle=LINE_STYLES[1][1], linewidth=1)
    axes.text(2011.6, 80e9 / 2 * 1.25, "16-bit weights that fill 80 GB", fontsize=8)
    axes.set(xlabel="year", ylabel="parameters", yscale="log", xlim=(2011.5, 2024), ylim=(1e7, 2e12))
    return figure


def frameworks_picture() -> Drawing:
    """Parameters of the largest network against devices, for systems of several kinds."""
    told = ", ".join(
        f"{each.name} ({each.kind}) {_in_words(each.parameters)} on {each.devices:,}" for each in FRAMEWORKS
    )
    figure, axes = new_figure(
        alt=f"Parameters of the largest network against the number of devices: {told}.", height=3.4
    )
    kinds = list(dict.fromkeys(each.kind for each in FRAMEWORKS))
    for kind, (colour, _, marker) in zip(kinds, LINE_STYLES, strict=False):
        of_kind = [each for each in FRAMEWORKS if each.kind == kind]
        xs, ys = [each.devices for each in of_kind], [each.parameters for each in of_kind]
        axes.plot(xs, ys, linestyle="", marker=marker, color=colour, label=kind)
    for each in FRAMEWORKS:
        axes.annotate(
            each.name,
            (each.devices, each.parameters),
            _beside(each.name),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set(
        xlabel="devices", ylabel="parameters", xscale="log", yscale="log", xlim=(5, 15_000), ylim=(1e7, 4e11)
    )
    legend_beside(axes, title="what is cut")
    return figure


def _beside(name: str) -> tuple[int, int]:
    """Where a name stands, in points from its dot: below where another is above."""
    return (5, -10) if name in ("Transformer", "Mesh-TensorFlow") else (5, 4)


def _in_words(parameters: float) -> str:
    """`60 million`, `8.3 billion`."""
    return f"{parameters / 1e9:g} billion" if parameters >= 1e9 else f"{parameters / 1e6:g} million"
