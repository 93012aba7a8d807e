"""Who sent how much: totals of a run's events."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from course_lib.runtime.communication.events import Event, Kind, LazyEvents

COMMUNICATION = (Kind.POINT_TO_POINT, Kind.COLLECTIVE)


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """What one rank sent and received, in bytes, and how many messages it sent."""

    rank: int
    sent: int
    received: int
    messages: int
    calls: dict[str, int]
    """How often it made each communication call, by the name in `torch.distributed`."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What every rank sent and received. `traffic[r]` is rank r's part."""

    ranks: tuple[RankTraffic, ...]

    @classmethod
    def of(cls, events: Iterable[Event], ranks: int) -> "Traffic":
        """Add up the communication events of a run of `ranks` ranks."""
        if isinstance(events, CountedEvents):
            return events.traffic()
        sent, received, messages = [0] * ranks, [0] * ranks, [0] * ranks
        calls: list[Counter[str]] = [Counter() for _ in range(ranks)]
        for event in events:
            if event.kind in COMMUNICATION:
                sent[event.rank] += event.sent
                received[event.rank] += event.received
                messages[event.rank] += event.messages
                calls[event.rank][event.op] += 1
        return cls(
            tuple(
                RankTraffic(rank, sent[rank], received[rank], messages[rank], dict(calls[rank]))
                for rank in range(ranks)
            )
        )

    def __getitem__(self, rank: int) -> RankTraffic:
        return self.ranks[rank]

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def sent(self) -> int:
        """Bytes sent by all ranks together."""
        return sum(rank.sent for rank in self.ranks)

    @property
    def messages(self) -> int:
        """Messages sent by all ranks together."""
        return sum(rank.messages for rank in self.ranks)

    def __str__(self) -> str:
        head = f"{'rank':>4} {'messages':>9} {'bytes sent':>12} {'received':>12}  calls"
        rows = (
            f"{r.rank:>4} {r.messages:>9,} {r.sent:>12,} {r.received:>12,}  "
            + ", ".join(f"{op} x{n}" for op, n in sorted(r.calls.items()))
            for r in self.ranks
        )
        return "\n".join([head, *rows])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{r.rank}</td><td>{r.messages:,}</td><td>{r.sent:,}</td><td>{r.received:,}</td>"
            f"<td>{', '.join(f'{op} ×{n}' for op, n in sorted(r.calls.items()))}</td></tr>"
            for r in self.ranks
        )
        return (
            "<table><thead><tr><th>rank</th><th>messages</th><th>bytes sent</th><th>received</th>"
            f"<th>calls</th></tr></thead><tbody>{rows}</tbody></table>"
        )


class CountedEvents(LazyEvents):
    """Events that nobody has made yet, of which it is known what they add up to."""

    def __init__(self, make: Callable[[], tuple[Event, ...]], traffic: Callable[[], Traffic]) -> None:
        super().__init__(make)
        self.traffic = traffic
