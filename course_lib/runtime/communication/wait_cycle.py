"""Ranks that wait for each other in a circle."""

from collections.abc import Sequence

from course_lib.runtime.communication.errors import PendingCall


def find_cycle(waiting: Sequence[PendingCall]) -> tuple[int, ...]:
    """Ranks that wait for each other in a circle, beginning with the lowest; empty if there is no circle.

    Depth-first search in the wait-for graph (Holt, Some deadlock properties of computer systems, 1972, §3).
    """
    peers_of = {call.rank: [p for p in call.peers if p != call.rank] for call in waiting}
    done: set[int] = set()
    for start in sorted(peers_of):
        path: list[int] = []
        position: dict[int, int] = {}
        stack: list[tuple[int, int]] = [(start, 0)]
        while stack:
            rank, next_peer = stack.pop()
            if next_peer == 0:
                if rank in done:
                    continue
                position[rank] = len(path)
                path.append(rank)
            peers = peers_of[rank]
            for index in range(next_peer, len(peers)):
                peer = peers[index]
                if peer in position:
                    cycle = path[position[peer] :]
                    lowest = cycle.index(min(cycle))
                    return tuple(cycle[lowest:] + cycle[:lowest])
                if peer in peers_of and peer not in done:
                    stack.append((rank, index + 1))
                    stack.append((peer, 0))
                    break
            else:
                done.add(rank)
                path.pop()
                del position[rank]
    return ()
