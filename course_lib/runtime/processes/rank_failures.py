"""What ended ranks that did not return, as text, the root cause first."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from course_lib.runtime.communication.errors import RankTraceback
from course_lib.runtime.processes.call_log import CALL_LOG_LOST, Failed, Place, line_of
from course_lib.runtime.processes.observed_run import ObservedRank

_SECONDARY_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "remote process exited",
    "NCCL communicator was aborted",
    "Horovod has been shut down",
)
"""What Gloo, NCCL and Horovod say when another rank has gone."""


def failures_of(
    ranks: Sequence[ObservedRank], stacks: Mapping[int, tuple[Place, ...]], outputs: Sequence[str]
) -> list[RankTraceback]:
    """What ended those of a launch's ranks that did not return, the root cause first.

    stacks: where crashed ranks were. outputs: what each rank has printed.
    """
    failed = [rank for rank in ranks if rank.has_failed]
    tracebacks = [
        _crash(rank, stacks.get(rank.rank, ()), outputs[rank.rank])
        if rank.failed is None
        else _raised(rank.rank, rank.failed)
        for rank in failed
    ]
    when = {rank.rank: rank.failed.at if rank.failed else 0.0 for rank in failed}
    tracebacks.sort(key=lambda each: (each.secondary, when[each.rank]))
    if tracebacks[0].secondary:
        # There is no better cause than the first of them.
        tracebacks[0] = replace(tracebacks[0], secondary=False)
    return tracebacks


def _raised(rank: int, failed: Failed) -> RankTraceback:
    lines = [f"    at {line_of(place)}" for place in failed.places]
    secondary = any(sign in failed.message for sign in _SECONDARY_SIGNS)
    text = "\n".join([*lines, failed.ending])
    return RankTraceback(rank, failed.type, failed.message, text, secondary)


def _crash(rank: ObservedRank, stack: Sequence[Place], output: str) -> RankTraceback:
    """A rank whose process ended without a word."""
    assert rank.exit_code is not None
    lines = [f"    at {line_of(place)}" for place in stack]
    if not lines and rank.last_call is not None:
        lines = [f"    after {rank.last_call}", f"    at {rank.last_call.call.line}"]
    kind, message = _exit_in_words(rank.exit_code)
    last = [f"    its last output: {line}" for line in output.splitlines()[-3:]]
    return RankTraceback(rank.rank, kind, message, "\n".join([*lines, *last, f"{kind}: {message}"]))


def _exit_in_words(code: int) -> tuple[str, str]:
    """A process's end as the name and the message of an error."""
    if code == CALL_LOG_LOST:
        said = "could not record what it does: most likely the disk of temporary files is full"
        return "CallLogLost", f"the process {said} (exit code {code})"
    if code >= 0:
        return "ProcessExit", f"the process ended with exit code {code} before its function returned"
    name = signal.Signals(-code).name
    hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
    return name, f"the process was ended by signal {name}{hint}"
