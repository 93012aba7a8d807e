"""What a launch takes and what it gives back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.errors import PendingCall
from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.memory import Memory
from course_lib.runtime.communication.traffic import Traffic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Run:
    """What a launch gives back: results, output and events of every rank.

    results[r] is what rank r's function returned, outputs[r] what it printed. `seconds` is the time until the
    last rank ended: virtual in the simulator, measured elsewhere. `wall_seconds` is what it took here. `lost`
    are the ranks that the cluster had lost before they returned; their results are None.
    """

    results: list[Any]
    outputs: list[str]
    events: Sequence[Event]
    cluster: Cluster
    engine: str
    seconds: float
    wall_seconds: float
    unmatched: tuple[PendingCall, ...] = field(default=())
    lost: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.outputs)

    @cached_property
    def traffic(self) -> Traffic:
        """Bytes and messages a rank."""
        return Traffic.of(self.events, self.ranks)

    @cached_property
    def memory(self) -> Memory:
        """What each rank held, of a run with `launch(..., memory=True)`. Raises MemoryNotRecorded."""
        return Memory.of(self.events, self.ranks)

    def timeline(self, **options: Any) -> "Figure":
        """The events as a figure, one row a rank; see `course_lib.figures.timeline.timeline_figure`."""
        from course_lib.figures.timeline import timeline_figure

        return timeline_figure(self, **options)

    def save_trace(self, path: str | Path) -> Path:
        """Write the events as a Chrome trace, which https://ui.perfetto.dev opens."""
        from course_lib.figures.chrome_trace import save_trace

        return save_trace(self, path)

    def __repr__(self) -> str:
        return (
            f"<Run of {self.ranks} ranks on {self.engine}: {self.seconds:.6f} s, {self.traffic.messages} "
            f"messages, {self.traffic.sent} bytes>"
        )
