"""Ranks in words, for reports and figures."""

from collections.abc import Iterable


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 2`, `ranks 0-255`."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    pieces: list[str] = []
    start = previous = ordered[0]
    for rank in [*ordered[1:], -1]:
        if rank == previous + 1:
            previous = rank
            continue
        run_is_long = previous - start >= 2
        pieces.extend(
            [f"{start}-{previous}"] if run_is_long else [str(r) for r in range(start, previous + 1)]
        )
        start = previous = rank
    return "ranks " + ", ".join(pieces)
