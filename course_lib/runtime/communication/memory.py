"""What the ranks of a run held in memory, and when: read from its events."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from course_lib.runtime.communication.events import Event, Kind


class MemoryKind(StrEnum):
    """What a tensor's storage is for. It counts once, however many tensors lie in it."""

    PARAMETERS = "parameters"
    """`nn.Parameter`s, and the buffers of modules that the launched function was given."""
    GRADIENTS = "gradients"
    """The `grad` of parameters."""
    OPTIMIZER = "optimizer"
    """What an optimizer of `torch.optim` keeps in its `state`."""
    INPUTS = "inputs"
    """What no operation of the rank has made: the function's arguments, and what is read or unpickled."""
    ACTIVATIONS = "activations"
    """Everything else: what forward leaves for backward, results, buffers, what is being computed with."""


class MemoryNotRecorded(ValueError):
    """The run was not asked to record what its ranks hold."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Bytes that a rank holds from an instant on; a kind of which it holds nothing may be missing."""

    seconds: float
    """Since the launch, on the run's clock."""
    held: dict[str, int]
    """Kind of memory -> bytes."""

    @property
    def total(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What one rank held: a sample for each change, in their order; several may be of the same instant."""

    rank: int
    samples: tuple[MemorySample, ...]

    @property
    def peak(self) -> int:
        """The most bytes that it held at a time."""
        return max((sample.total for sample in self.samples), default=0)

    def peak_of(self, kind: str) -> int:
        """The most bytes of one kind that it held at a time."""
        return max((sample.held.get(kind, 0) for sample in self.samples), default=0)

    def at(self, seconds: float) -> dict[str, int]:
        """Kind -> bytes that it held when `seconds` had passed; of several changes then, after the last."""
        before = [sample.held for sample in self.samples if sample.seconds <= seconds]
        return before[-1] if before else {}


@dataclass(frozen=True, slots=True)
class Memory:
    """What every rank held. `memory[r]` is rank r's part."""

    ranks: tuple[RankMemory, ...]

    @classmethod
    def of(cls, events: Iterable[Event], ranks: int) -> "Memory":
        """From the events of a run of `ranks` ranks. Raises MemoryNotRecorded if there is none of memory."""
        samples: list[list[MemorySample]] = [[] for _ in range(ranks)]
        held: list[dict[str, int]] = [{} for _ in range(ranks)]
        for event in events:
            if event.kind is Kind.MEMORY:
                held[event.rank] = {**held[event.rank], event.op: event.nbytes}
                samples[event.rank].append(MemorySample(event.start, held[event.rank]))
        if not any(samples):
            raise MemoryNotRecorded(
                "This run has not recorded what its ranks held in memory. Ask for it: "
                "launch(..., memory=True)."
            )
        return cls(tuple(RankMemory(rank, tuple(own)) for rank, own in enumerate(samples)))

    def __getitem__(self, rank: int) -> RankMemory:
        return self.ranks[rank]

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def peak(self) -> int:
        """The most bytes that any rank held at a time."""
        return max(rank.peak for rank in self.ranks)

    def __str__(self) -> str:
        head = f"{'rank':>4} {'peak, bytes':>14}" + "".join(f"{kind:>14}" for kind in MemoryKind)
        rows = (
            f"{own.rank:>4} {own.peak:>14,}" + "".join(f"{own.peak_of(kind):>14,}" for kind in MemoryKind)
            for own in self.ranks
        )
        return "\n".join([head, *rows])

    __repr__ = __str__
