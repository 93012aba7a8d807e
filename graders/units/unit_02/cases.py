"""What the exercises of unit 02 share: what replicas may send, and how buckets are filled."""

from collections.abc import Sequence
from typing import Any

from graders.grading.explanation import Tried
from graders.grading.kinds import Kind
from graders.grading.kit import Finding

ANY_CALL = (
    "all_reduce",
    "broadcast",
    "reduce",
    "gather",
    "all_gather",
    "all_gather_into_tensor",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "send",
    "recv",
    "barrier",
)
"""Which of them is needed, a row of its own says."""


def sends_once(op: str, nbytes: int, tried: Tried[Any]) -> Finding:
    """Passes if every rank makes only `op` calls, of so many bytes in all."""
    for rank, events in enumerate(tried.seen.by_rank):
        others = sorted({event.op for event in events} - {op})
        if others:
            return Finding(False, f"rank {rank} calls {', '.join(others)}; only {op} is needed.")
        seen = sum(event.nbytes for event in events)
        if seen != nbytes:
            text = f"rank {rank} gives {op} {seen:,} bytes in all; expected {nbytes:,}."
            return Finding(False, text, Kind.TOO_MUCH if seen > nbytes else Kind.OTHER)
    return Finding(True, f"every rank gives {op} what is needed, once.")


def filled(sizes: Sequence[tuple[int, int]], limit: int) -> list[list[int]]:
    """Numbers in buckets: filled in order, closed before the size that would take it above the limit.

    sizes: each number, and its bytes.
    """
    buckets: list[list[int]] = []
    room = 0
    for number, nbytes in sizes:
        if not buckets or nbytes > room:
            buckets.append([])
            room = limit
        buckets[-1].append(number)
        room -= nbytes
    return buckets
