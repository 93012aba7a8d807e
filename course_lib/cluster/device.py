"""What computes for a rank: its rates, and the host that queues operations for it."""

from dataclasses import dataclass

from course_lib.errors import BadLaunch


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU and the part of its host that one rank has.

    flops: FLOP/s of matrix products; None: they take no time. half_flops: of those in bfloat16 and float16;
    None: as fast as all others.
    memory_bandwidth: bytes/s that an operation reads and writes; None: that takes no time.
    dispatch_seconds: what the host needs to queue one operation. 0: program and device go in step. Above 0
        the program runs ahead: it waits for the device only where it asks for a number (`.item()`), for a
        barrier, or for a copy (`HostMemory`), and the device idles when its queue is empty.
    copy_engines: 2: copies to the host and from it go side by side. 1: one after the other.
    cuda_kernels: operations move, and hold meanwhile, what PyTorch's CUDA kernels do beyond their arguments
        and results (`course_lib.runtime.simulator.cuda_kernels`).

    Raises BadLaunch for numbers that make no device.
    """

    flops: float | None = None
    memory_bandwidth: float | None = None
    dispatch_seconds: float = 0.0
    copy_engines: int = 2
    half_flops: float | None = None
    cuda_kernels: bool = False

    def __post_init__(self) -> None:
        for name in ("flops", "memory_bandwidth", "half_flops"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise BadLaunch(f"A device's {name} is above 0, or None; got {rate}.")
        if not self.dispatch_seconds >= 0:
            raise BadLaunch(f"Queueing an operation takes at least 0 s; got {self.dispatch_seconds}.")
        if self.copy_engines not in (1, 2):
            raise BadLaunch(f"A device has 1 or 2 copy engines here; got {self.copy_engines}.")
