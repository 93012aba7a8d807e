"""What figures, their texts and trace files ask of a run, whichever engine it ran on."""

from collections.abc import Sequence
from typing import Protocol

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.events import Event
from course_lib.runtime.communication.traffic import Traffic


class DrawnRun(Protocol):
    """A run: `course_lib.launch.run.Run` is one."""

    @property
    def events(self) -> Sequence[Event]: ...

    @property
    def cluster(self) -> Cluster: ...

    @property
    def ranks(self) -> int: ...

    @property
    def engine(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def traffic(self) -> Traffic: ...
