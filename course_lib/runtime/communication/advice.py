"""What to do about a run that did not end well: how such a mistake is usually undone."""

from collections.abc import Mapping, Sequence

from course_lib.runtime.communication.errors import PendingCall, RankTraceback
from course_lib.runtime.communication.wording import ranks_in_words

NEW_GROUP = (
    "all ranks of the default group must call new_group for every group, in the same order, also for groups "
    "that they are not in. With use_local_synchronization=True only the members call it."
)
WAIT_FOR_THEM = (
    "keep the handle that isend or irecv returns, and call its wait(). Without it the message may never "
    "leave, and whoever receives it waits for ever."
)
LOOK_FOR_A_LOOP = (
    "look in the lines above for a loop that never ends, or a wait for what never comes (a lock, a file, "
    "input); if the work is just long, give your own launch a longer timeout; in a check its time is fixed: "
    "be quicker there."
)
_UNEVEN = (
    "a rank left while others averaged gradients in backward. With DistributedDataParallel that is a rank "
    "with fewer batches: deal out equally many, as DistributedSampler does, or train within "
    "`with model.join():`."
)
_MADE_ALREADY = (
    "launch has made the process group already. Take init_process_group out of the function, or call it only "
    "`if not dist.is_initialized():`, so that the program also runs without launch."
)


def on_failure(root: RankTraceback) -> str:
    """On an exception that says too little by itself; empty for all others."""
    return _MADE_ALREADY if "initialize the default process group twice" in root.message else ""


def on_open_calls(calls: Sequence[PendingCall]) -> str:
    """On calls that were never answered, or never waited for, when all ranks had returned."""
    if all(call.op == "new_group" for call in calls):
        return NEW_GROUP
    return (
        "keep the handle that isend, irecv or async_op=True returns, and call its wait() before the function "
        "returns; each message that is sent has to be received."
    )


def on_knot(calls: Mapping[int, PendingCall], cycle: Sequence[int]) -> str:
    """One sentence on how such a knot is usually undone."""
    alone = [rank for rank, call in calls.items() if call.peers == (rank,)]
    if alone:
        return (
            f"nobody sends to itself, or receives from itself, as {ranks_in_words(alone)} here. Copy what a "
            "rank has for itself."
        )
    expected = {calls[rank].expects for rank in cycle} if cycle else {c.expects for c in calls.values()}
    if cycle and expected == {"send"}:
        return (
            "all of them receive first and nobody sends. Let some rank send before it receives, "
            "or post the receive with irecv."
        )
    if cycle and expected == {"receive"}:
        return (
            "all of them send first, and a send returns only when the other side has posted its receive. "
            "Let some rank receive first, or send with isend and wait after the receive."
        )
    if all(call.op == "new_group" for call in calls.values()):
        return NEW_GROUP
    if not cycle and any(call.line and ".backward(" in str(call.line) for call in calls.values()):
        return _UNEVEN
    if not cycle:
        return (
            "a rank left before the others were done with it. Every send needs its receive, and every "
            "rank of the group must make each collective call."
        )
    return "every rank must make its calls in an order that fits the others'; follow the circle above."
