"""Ten frameworks, the most accelerators and the largest network that each was shown with.

From the lecture "Machine Learning and HPC" (A. Bhatele), whose table is that of D. Nichols, S. Singh, S.-H.
Lin, A. Bhatele, A survey and empirical evaluation of parallel deep learning frameworks, arXiv:2111.04949.
"""

from dataclasses import dataclass

from course_lib.figures.style import COLOURS, GREY, Drawing, new_figure

STATE_BYTES = 16
"""Of each parameter, trained with Adam in mixed precision."""

DEVICE_BYTES = 80e9
"""Of an A100 or H100; the devices of the table's years had 12 to 32 GB."""


@dataclass(frozen=True, slots=True)
class Framework:
    """kind: of its parallelism, in the table's word. shares: devices that hold one copy of the model between
    them, if it is known: 1 for data parallelism, else as the framework's paper has it.
    """

    name: str
    kind: str
    accelerators: int
    parameters: float
    shares: int | None

    @property
    def least(self) -> float:
        """Bytes a device if all devices share one copy."""
        return STATE_BYTES * self.parameters / self.accelerators

    @property
    def most(self) -> float:
        """Bytes a device if each has a copy of its own."""
        return STATE_BYTES * self.parameters

    @property
    def as_said(self) -> float | None:
        """Bytes a device by its kind of parallelism."""
        return None if self.shares is None else STATE_BYTES * self.parameters / self.shares


FRAMEWORKS = (
    Framework("FlexFlow", "hybrid", 64, 24e6, None),
    Framework("PipeDream", "inter-layer", 16, 138e6, None),
    Framework("DDP", "data", 256, 345e6, 1),
    Framework("GPipe", "inter-layer", 8, 557e6, 8),
    Framework("Mesh-TensorFlow", "intra-layer", 512, 4.9e9, None),
    Framework("Megatron-LM", "intra-layer", 512, 8.3e9, 8),
    Framework("torchgpipe", "inter-layer", 8, 15.8e9, 8),
    Framework("KARMA", "data", 2048, 17e9, 1),
    Framework("LBANN", "data", 3072, 78.6e9, 1),
    Framework("ZeRO", "data", 400, 100e9, 1),
)


def frameworks_figure() -> Drawing:
    """For each row bytes a device, from one copy for all devices to one for each."""
    said = "; ".join(
        f"{each.name}, {each.kind}, {each.accelerators} devices, {each.parameters:.3g} parameters: "
        f"{each.least / 1e9:.2g} to {each.most / 1e9:.3g} GB"
        + (f", by its kind {each.as_said / 1e9:.3g} GB" if each.as_said else "")
        for each in FRAMEWORKS
    )
    figure, axes = new_figure(alt=f"Bytes of model states on a device. {said}.", height=4.6)
    names = [f"{each.name} ({each.kind}, {each.accelerators})" for each in FRAMEWORKS]
    axes.hlines(
        names,
        [each.least for each in FRAMEWORKS],
        [each.most for each in FRAMEWORKS],
        color=GREY,
        linewidth=5,
        label="from one copy for all devices to one for each",
    )
    known = [(each.as_said, name) for each, name in zip(FRAMEWORKS, names, strict=True) if each.as_said]
    axes.plot(
        *zip(*known, strict=True),
        "D",
        color=COLOURS["vermillion"],
        linestyle="none",
        label="by its kind of parallelism",
    )
    axes.axvline(DEVICE_BYTES, color="black", linestyle=":", label="memory of a device, 80 GB")
    axes.set(xscale="log", xlabel="model states on a device (bytes)")
    axes.invert_yaxis()
    figure.legend(loc="outside upper center", ncols=3)
    return figure
