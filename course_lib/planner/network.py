"""Seconds of collectives and messages that all ranks of a mesh make at once, by the simulator's own rules."""

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from course_lib.runtime.simulator.network_model import Timing


@dataclass(slots=True)
class Network:
    """Seconds of what all ranks along an axis of a mesh do at once, on a cluster."""

    cluster: Cluster
    shape: tuple[int, int, int]
    _known: dict[tuple[str, int, int, int], float] = field(default_factory=dict)

    def call(self, operation: str, nbytes: int, axis: int, stage: int | None = None) -> float:
        """Seconds of a collective of a stage's groups along axis 1, data, or 2, tensor; None: the slowest."""
        if stage is None:
            return max(self.call(operation, nbytes, axis, each) for each in range(self.shape[0]))
        key = operation, nbytes, axis, stage
        if key not in self._known:
            groups = self._mesh[stage].movedim(axis - 1, -1).tolist()
            timing = Timing(self.cluster, self._mesh.numel())
            self._known[key] = max(timing.collective(operation, nbytes, tuple(each), 0.0) for each in groups)
        return self._known[key]

    def message(self, nbytes: int, cut: int) -> float:
        """Seconds of a message from each rank of stage cut - 1 to its like in stage `cut`."""
        key = "send", nbytes, 0, cut
        if key not in self._known:
            timing = Timing(self.cluster, self._mesh.numel())
            senders, receivers = (self._mesh[stage].flatten().tolist() for stage in (cut - 1, cut))
            pairs = zip(senders, receivers, strict=True)
            self._known[key] = max(timing.message(one, other, nbytes, 0.0) for one, other in pairs)
        return self._known[key]

    @property
    def _mesh(self) -> Tensor:
        return torch.arange(prod(self.shape)).view(self.shape)
