"""What a case may cost: messages and bytes, who sends to whom, and seconds on links that are easy to read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.cluster.topology import Link
from graders.grading.exercise import Finding
from graders.grading.kinds import Kind

LINK = Link(latency=2e-5, bandwidth=5e5)
"""On which rounds are counted: 20 µs and 0.5 MB/s, so that both latency and bytes show."""
ASKED = 2e-6
"""Seconds that a round may take longer: who asks again and again whether a message is there has it so much
later.
"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was sent in a case. messages: sender, receiver and bytes of each, by their places in the group.

    seconds: of virtual time, on LINK, from the moment when all ranks began.
    """

    messages: Sequence[tuple[int, int, int]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a case may cost at most: messages and bytes of one rank, and of all ranks together, if that is
    less than so much from each; and rounds, each of a message's time: how many, and all their bytes.
    """

    messages: int
    nbytes: int
    rounds: int
    nbytes_of_rounds: float
    all_messages: int | None = None
    all_nbytes: int | None = None

    @property
    def seconds(self) -> float:
        return self.rounds * LINK.latency + self.nbytes_of_rounds / LINK.bandwidth


def within(traffic: Traffic, allowed: Allowed) -> Finding:
    """Passes if no rank, and all ranks together, send no more messages and bytes than they may."""
    senders = {sender for sender, _, _ in traffic.messages}
    for sender in sorted(senders):
        sizes = [nbytes for rank, _, nbytes in traffic.messages if rank == sender]
        if len(sizes) > allowed.messages or sum(sizes) > allowed.nbytes:
            seen = f"rank {sender} sends {len(sizes):,} messages of {sum(sizes):,} bytes altogether"
            limit = f"at most {allowed.messages:,} messages, {allowed.nbytes:,} bytes are allowed"
            return Finding(False, f"{seen}; {limit}.", Kind.TOO_MUCH)
    count, total = len(traffic.messages), sum(nbytes for _, _, nbytes in traffic.messages)
    most, most_bytes = allowed.all_messages, allowed.all_nbytes
    if (most is not None and count > most) or (most_bytes is not None and total > most_bytes):
        seen = f"all ranks together send {count:,} messages, {total:,} bytes"
        return Finding(False, f"{seen}; {most:,} messages, {most_bytes:,} bytes suffice.", Kind.TOO_MUCH)
    return Finding(True, f"all ranks together send {count:,} messages, {total:,} bytes: no more than needed.")


def in_time(traffic: Traffic, allowed: Allowed) -> Finding:
    """Passes if it takes no longer than the rounds do."""
    text = f"on links of 20 µs and 0.5 MB/s it takes {traffic.seconds * 1e3:.4f} ms"
    limit = f"{allowed.rounds} rounds take {allowed.seconds * 1e3:.4f} ms"
    return Finding(traffic.seconds <= allowed.seconds + (1 + allowed.rounds) * ASKED, f"{text}; {limit}.")


def only_to(traffic: Traffic, peers: Callable[[int], Sequence[int]], whom: str) -> Finding:
    """Passes if each rank sends to these peers only. whom: what they are called, such as `the next`."""
    for sender, receiver, _ in traffic.messages:
        if receiver not in peers(sender):
            expected = " or ".join(map(str, peers(sender))) or "nobody"
            return Finding(False, f"place {sender} sends to place {receiver}; {whom} is {expected}.")
    return Finding(True, f"each rank sends to {whom} only.")
