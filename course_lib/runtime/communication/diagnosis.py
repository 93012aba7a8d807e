"""Why a run stopped, in words: pure functions from what each rank was doing to a report.

Every engine uses them, so that a deadlock reads the same in the simulator and on real processes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from course_lib.runtime.communication import advice
from course_lib.runtime.communication.errors import PendingCall, RankTraceback
from course_lib.runtime.communication.wording import ranks_in_words


def deadlock_report(waiting: Sequence[PendingCall], cycle: Sequence[int], finished: Collection[int]) -> str:
    """The whole story of a deadlock: who waits for whom, in which line, and what to do about it."""
    calls = {call.rank: call for call in waiting}
    parts = ["No rank can go on."]
    if cycle:
        parts.append(_cycle_in_words(calls, cycle))
    else:
        parts.extend(_dead_ends(waiting, finished))
    parts.extend(["", *_all_waiting(waiting)])
    if finished:
        parts.append(f"{ranks_in_words(finished)} had already returned.")
    parts.extend(["", "What to do: " + advice.on_knot(calls, cycle)])
    return "\n".join(parts)


def lost_report(
    waiting: Sequence[PendingCall], cycle: Sequence[int], finished: Collection[int], lost: Mapping[int, float]
) -> str:
    """Which ranks answer nothing any more, since when, and who waits for them."""
    parts = [
        f"Rank {rank} was lost: from {after:g} s of virtual time on it answers nothing."
        for rank, after in sorted(lost.items())
    ]
    parts.extend(
        f"rank {call.rank} waits for {ranks_in_words(gone)} to {call.expects}."
        for call in sorted(waiting, key=lambda c: c.rank)[:_SHOWN]
        if (gone := sorted(set(call.peers) & lost.keys()))
    )
    if cycle:
        parts.append(_cycle_in_words({call.rank: call for call in waiting}, cycle))
    parts.extend(["", *_all_waiting(waiting)])
    if finished:
        parts.append(f"{ranks_in_words(finished)} had already returned.")
    parts.extend(
        [
            "",
            "What to do: the program is not at fault. On a real cluster this is a time-out, after which all "
            "ranks are stopped; training goes on from its last checkpoint, with another rank in place of the "
            "lost one or with fewer.",
        ]
    )
    return "\n".join(parts)


def mismatch_report(calls: Sequence[PendingCall], position: int, group: Sequence[int]) -> str:
    """What each rank of `group` called as its collective number `position` (from 0) of that group."""
    by_call: dict[str, list[PendingCall]] = {}
    for call in sorted(calls, key=lambda c: c.rank):
        by_call.setdefault(call.detail, []).append(call)
    parts = [
        f"Collective call number {position + 1} of the group of {ranks_in_words(group)} "
        "is not the same everywhere:",
        "",
    ]
    for detail, same in by_call.items():
        place = f"\n    at {same[0].line}" if same[0].line else ""
        parts.append(f"{ranks_in_words(c.rank for c in same)}: {detail}{place}")
    parts.extend(
        [
            "",
            "What to do: every rank of a group must call the same collectives in the same order, "
            "with the same shape, dtype, reduction and root. Look for a call behind an `if rank == ...`, "
            "or a tensor whose size depends on the rank.",
        ]
    )
    if all(detail.startswith("new_group(") for detail in by_call):
        parts[-1] = f"What to do: {advice.NEW_GROUP}"
    if any(", strides [" in detail for detail in by_call):
        parts[-1] += (
            " Strides have to be the same, too: Gloo puts together what lies at the same place in memory, "
            "and not what has the same index. Pass tensor.contiguous() on every rank."
        )
    return "\n".join(parts)


def message_mismatch_report(calls: Sequence[PendingCall]) -> str:
    """A send and the receive that it met, whose tensors differ in size or dtype."""
    parts = ["A message does not fit the receive that it meets:", ""]
    parts.extend(_where(call) for call in calls)
    told = "give recv a tensor with the dtype and the number of elements that are sent."
    if any(", meta" in call.detail for call in calls):
        told += (
            " A meta tensor has no data: both sides need one, or neither. What is made like x, "
            "by torch.empty_like(x) or x.new_empty(n), is on its device."
        )
    parts.extend(["", f"What to do: {told}"])
    return "\n".join(parts)


def rank_failed_report(failures: Sequence[RankTraceback], waiting: Sequence[PendingCall] = ()) -> str:
    """Every failed rank's traceback, the first of `failures` as the root cause, equal ones told once."""
    root = failures[0]
    parts = [f"rank {root.rank} failed with {root.type}: {root.message}", ""]
    told: dict[str, list[RankTraceback]] = {}
    for failure in failures:
        told.setdefault(failure.traceback, []).append(failure)
    for trace, same in told.items():
        follows = " (a consequence of another rank's end)" if same[0].secondary else ""
        parts.append(f"{ranks_in_words(f.rank for f in same)}{follows}:")
        parts.append(_once(trace.rstrip(), same[0], root))
        parts.append("")
    if waiting:
        parts.append("The other ranks were stopped while they waited:")
        parts.extend(_where(call) for call in sorted(waiting, key=lambda c: c.rank)[:_SHOWN])
        if len(waiting) > _SHOWN:
            parts.append(f"... and {len(waiting) - _SHOWN} more.")
    if help_with := advice.on_failure(root):
        parts.append(f"\nWhat to do: {help_with}")
    return "\n".join(parts).rstrip()


def _once(trace: str, failure: RankTraceback, root: RankTraceback) -> str:
    """The traceback, without a long message at its end that is the root cause's but for numbers."""
    lines = trace.removesuffix(failure.message).splitlines()
    alike = _NUMBERS.sub("", failure.message) == _NUMBERS.sub("", root.message)
    if len(failure.message) < _LONG or not alike or not trace.endswith(failure.message):
        return trace
    return "\n".join([*lines[:-1], f"{failure.type}, as above"])


_NUMBERS = re.compile(r"\d+")
_LONG = 120
"""So many characters of a message are read twice in one report, and no more."""


def timed_out_report(
    timeout: float,
    places: Mapping[int, str],
    waiting: Sequence[PendingCall] = (),
    forgotten: Sequence[PendingCall] = (),
) -> str:
    """Where each rank was when the deadline of `timeout` seconds passed.

    forgotten: calls that nobody has waited for, which may be why others wait.
    """
    parts = [f"The run was stopped after {timeout:g} s; it had not come to its end.", ""]
    parts.extend(f"rank {rank} was not communicating:\n{at.rstrip()}" for rank, at in sorted(places.items()))
    parts.extend(_where(call) for call in sorted(waiting, key=lambda c: c.rank)[:_SHOWN])
    if forgotten:
        parts.extend(["", "These calls were made, and nobody has waited for them:"])
        parts.extend(_where(call) for call in forgotten[:_SHOWN])
    parts.extend(["", "What to do: " + (advice.WAIT_FOR_THEM if forgotten else advice.LOOK_FOR_A_LOOP)])
    return "\n".join(parts)


def left_open_report(calls: Sequence[PendingCall]) -> str:
    """What was never answered or never waited for, though all ranks have returned."""
    are = "1 call is" if len(calls) == 1 else f"{len(calls)} calls are"
    told = "\n".join(f"  {call}" for call in calls[:_OPEN_SHOWN])
    return f"All ranks returned, but {are} still open:\n{told}\nWhat to do: {advice.on_open_calls(calls)}"


_OPEN_SHOWN = 3


def never_waited_for(call: PendingCall) -> PendingCall:
    """An asynchronous call that is over and that nobody has asked for, as a report shows it."""
    return replace(call, detail=f"{call.detail}, never waited for, so {_left_open(call.op)},")


def _left_open(op: str) -> str:
    """What a program does not know that never waits for a call."""
    match op:
        case "send":
            return "its tensor need not have been sent"
        case "barrier":
            return "nobody was held back"
        case _:
            return "its tensor was not filled"


_SHOWN = 16
"""So many ranks are listed one by one in a report."""


def _all_waiting(waiting: Sequence[PendingCall]) -> list[str]:
    """In which call and line each rank waits, the first of very many."""
    lines = [_where(call) for call in sorted(waiting, key=lambda c: c.rank)[:_SHOWN]]
    if len(waiting) > _SHOWN:
        lines.append(f"... and {len(waiting) - _SHOWN} more ranks wait.")
    return lines


def _where(call: PendingCall) -> str:
    place = f"\n    at {call.line}" if call.line else ""
    return f"rank {call.rank}: {call.detail}{place}"


def _cycle_in_words(calls: Mapping[int, PendingCall], cycle: Sequence[int]) -> str:
    """`rank 0 waits for rank 1 to send; rank 1 waits for rank 0 to send.`"""
    following = [*cycle[1:], cycle[0]]
    return (
        "; ".join(
            f"rank {rank} waits for rank {peer} to {calls[rank].expects}"
            for rank, peer in zip(cycle, following, strict=True)
        )
        + "."
    )


def _dead_ends(waiting: Sequence[PendingCall], finished: Collection[int]) -> list[str]:
    """Which waits end at a rank that will never act."""
    gone = set(finished)
    lines = []
    for call in sorted(waiting, key=lambda c: c.rank):
        missing = sorted(gone & set(call.peers))
        if missing:
            has = "has" if len(missing) == 1 else "have"
            lines.append(
                f"rank {call.rank} waits for {ranks_in_words(missing)} to {call.expects}, "
                f"but {ranks_in_words(missing)} {has} already returned."
            )
    return lines[:_SHOWN]
