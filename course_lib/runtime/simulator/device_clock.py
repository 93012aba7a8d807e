"""The clocks of a device, with its streams and copy engines, and of the host that queues operations for it.

A simulated rank has one (`course_lib.runtime.simulator.virtual_time`), and so has the GPU that graders lend.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from course_lib.cluster.device import Device
from course_lib.cluster.topology import Link
from course_lib.runtime.communication.events import Kind, SourceLine
from course_lib.runtime.simulator.link_reservation import LinkReservation

Record = Callable[..., None]
"""Told of each stretch of time: what happened, its kind, start and end; `nbytes` of a copy, the `line` that
waited.
"""


@dataclass(slots=True)
class DeviceClock:
    """When a device has done what it was given, and when its host has queued that; virtual seconds."""

    record: Record
    device: Device = field(default_factory=Device)
    link: Link | None = None
    """To the host; None: copies take no time."""
    clock: float = 0.0
    """When the present stream has done what it was given so far."""
    host: float = 0.0
    """When the host has queued that. Not used where host and device go in step."""
    host_since: float = 0.0
    """The host has queued without a pause since."""
    computing_since: float | None = None
    stream: int = 0
    """The present one; 0 is the default."""
    _others: dict[int, float] = field(default_factory=dict)
    """The clocks of the other streams."""
    _shared: LinkReservation | None = None
    """When the device computes, once it has two streams: for one of them at a time."""
    _engines: dict[bool, float] = field(default_factory=dict)
    """Whether to the host -> when the last copy of this engine ends."""

    @property
    def latest(self) -> float:
        """When all streams, and the host, have done everything."""
        return max(self.clock, self.host, *self._others.values())

    @property
    def host_now(self) -> float:
        """When the host has queued all that its device was given; in step, the device's clock."""
        return self.host if self.device.dispatch_seconds else self.clock

    def queue(self) -> None:
        """The host queues an operation, which the device begins no earlier than that."""
        self.host += self.device.dispatch_seconds
        self.begin_at(self.host)

    def compute(self, seconds: float) -> None:
        """The device is given so much to do."""
        if self._shared is not None:
            self.begin_at(self._shared.take([(0, seconds)], self.clock))
        if self.computing_since is None:
            self.computing_since = self.clock
        self.clock += seconds

    def begin_at(self, instant: float) -> None:
        """What the present stream is given from now on begins no earlier."""
        if instant > self.clock:
            self.end_stretch()
            self.clock = instant

    def end_stretch(self) -> None:
        """Record the time since when the device has computed without a pause."""
        # Of a device with a queue each pause ends a stretch; those of no length would be many.
        since = self.computing_since
        if since is not None and not (self.device.dispatch_seconds and since == self.clock):
            self.record("compute", Kind.COMPUTE, since, self.clock)
        self.computing_since = None

    def host_wait(self, until: float | None = None, line: SourceLine | None = None) -> None:
        """The host waits in that line until the present stream is done, or until an instant."""
        end = self.clock if until is None else until
        if self.device.dispatch_seconds and end > self.host:
            self.end_queueing()
            self.record("waits", Kind.HOST, self.host, end, line=line)
            self.host = self.host_since = end

    def end_queueing(self) -> None:
        """Record the time since when the host has queued without a pause."""
        if self.host > self.host_since:
            self.record("queues", Kind.HOST, self.host_since, self.host)
            self.host_since = self.host

    def copy(self, nbytes: int, to_host: bool, earliest: float = 0.0) -> float:
        """Begin a copy, after those under way in its direction. Returns when it ends."""
        engine = to_host and self.device.copy_engines == 2
        if self.device.dispatch_seconds:
            self.queue()
        # What leaves has to be computed first. What comes back need not wait: a host ahead asks early.
        asked = self.clock if to_host else self.host_now
        start = max(asked, self._engines.get(engine, 0.0), earliest)
        end = start + (self.link.seconds(nbytes) if self.link else 0.0)
        self._engines[engine] = end
        self.record("to host" if to_host else "to device", Kind.COPY, start, end, nbytes=nbytes)
        return end

    def switch_stream(self, number: int) -> None:
        """What is queued from now on goes to this stream, a new one if there is none of this number.

        Where host and device go in step, another stream than the default begins where the present one is.
        """
        if number == self.stream:
            return
        self.end_stretch()
        if self._shared is None:
            self._shared = LinkReservation(1)
            self._shared.free[0] = self.clock
        self._others[self.stream] = left = self.clock
        self.clock = self._others.pop(number, 0.0)
        if number and not self.device.dispatch_seconds:
            self.clock = max(self.clock, left)
        self.stream = number
