"""Batches on their way to a simulated rank's device: who prepares them, and whether the program waits for it.

Steps 3 to 5 of unit 01's fifteen. In the program, as a DataLoader without workers does it, preparing holds up
whatever the program would queue next. Workers prepare beside it, each at most `prefetch` batches ahead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from course_lib.errors import BadLaunch
from course_lib.runtime.simulator.engine import current_engine, current_rank, host_goes_on_at

Batch = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class SimulatedLoader:
    """Goes through batches on a simulated rank, in virtual time.

    seconds: what a processor needs to prepare a batch. workers: processes that prepare; 0: the program
    itself does. prefetch: batches that each worker has ready at most, as in torch's DataLoader.
    pinned: batches lie in pinned memory and are copied with `non_blocking=True`, on the cluster's `host`
    link beside the computing. If not, the program waits for each copy.

    Going through it raises BadLaunch outside of a simulated rank: elsewhere a loader takes its own time.
    """

    batches: Iterable[Batch]
    seconds: float
    workers: int = 0
    prefetch: int = 2
    pinned: bool = True

    def __iter__(self) -> Iterator[Batch]:
        rank = current_rank.get()
        if rank is None:
            raise BadLaunch("A SimulatedLoader takes virtual time, which only simulated ranks have.")
        engine = current_engine.get()
        handed_out: list[float] = []
        free = [engine.host_now(rank)] * self.workers
        for batch in self.batches:
            host_goes_on_at(engine, rank, self._ready(engine.host_now(rank), free, handed_out))
            handed_out.append(engine.host_now(rank))
            for tensor in batch:
                end = engine.copy(rank, tensor.nbytes, False, 0.0)
                if not self.pinned:
                    host_goes_on_at(engine, rank, end)
                engine.wait_until(rank, end)
            yield batch

    def _ready(self, now: float, free: list[float], handed_out: list[float]) -> float:
        """When the next batch is prepared. free: when each worker is done with those before."""
        if not free:
            return now + self.seconds
        number = len(handed_out)
        worker, asked = number % self.workers, number - self.workers * self.prefetch
        begin = free[worker] if asked < 0 else max(free[worker], handed_out[asked])
        free[worker] = begin + self.seconds
        return free[worker]
