"""Doing what a grader asks, beside the answer: runs in the kernel, or in a sandbox's process."""

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import torch

from course_lib.errors import BadLaunch
from course_lib.launch import launch
from course_lib.launch.failures import LaunchError
from course_lib.launch.run import Run
from graders.grading.answer import FailureKind, PlainData
from graders.grading.text import BoundedText, bounded, joined
from graders.guest.time_limits import OutOfTime, time_limit
from graders.guest.usual_torch import usual_torch
from graders.protocol.codec import CodecError, NotPlain, in_words
from graders.protocol.drivers import Driver, NoSuchDriver, find_driver
from graders.protocol.failures import failure_of, launch_failure, told_place
from graders.protocol.records import events_to_plain
from graders.protocol.requests import (
    CallRequest,
    Failure,
    Refusal,
    Request,
    RunRequest,
    Value,
    read_request,
    write_reply,
)


def perform(answer: Any, message: bytes) -> bytes:
    """Answer a grader's request about `answer`, both as messages; see `reply_to`."""
    try:
        request = read_request(message)
    except CodecError as error:
        return write_reply(Refusal(str(error)))
    assert isinstance(request, Request), "ranks of their own are for `graders.guest.rank_process`"
    return reply_to(request, answer)


def reply_to(request: Request, answer: Any, computing_seconds: float = 0.0) -> bytes:
    """The reply to a grader's request, as a message.

    computing_seconds: processor time that a call may take whose request says nothing of it; 0 for any.

    Whatever the student's code does comes back as a reply. Only KeyboardInterrupt passes: it is the
    student's own.
    """
    try:
        driver = find_driver(request.driver)
    except NoSuchDriver as error:
        return write_reply(Refusal(str(error)))
    printed = BoundedText()
    with redirect_stdout(printed), redirect_stderr(printed), usual_torch():
        reply = _attempt(answer, driver, request, computing_seconds)
    if isinstance(reply, Refusal):
        return write_reply(reply)
    reply = replace(reply, printed=reply.printed + printed.text())
    try:
        return write_reply(reply)
    except NotPlain as error:
        return write_reply(Failure(FailureKind.NOT_PLAIN, _not_plain(error), reply.printed))


def _attempt(
    answer: Any, driver: Driver, request: Request, computing_seconds: float
) -> Value | Failure | Refusal:
    """Run the driver; every way in which that can end is a reply."""
    try:
        match request:
            case CallRequest():
                return Value(_call(answer, driver, request, computing_seconds), "")
            case RunRequest():
                return _launch(answer, driver, request)
    except BadLaunch as error:
        # In a call it can only come from a launch of the student's own.
        return Refusal(str(error)) if isinstance(request, RunRequest) else failure_of(error)
    except LaunchError as error:
        return launch_failure(error)
    except OutOfTime as error:
        said = f"It was still running after {error}, here:"
        return Failure(FailureKind.TIMED_OUT, "\n".join([said, *told_place(error)]), "")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() in an answer must not end the kernel
        return failure_of(error)


def _call(answer: Any, driver: Driver, request: CallRequest, computing_seconds: float) -> PlainData:
    """One call, from a random state that is always the same and leaves the caller's as it was."""
    computing = request.computing or computing_seconds
    with torch.random.fork_rng(devices=[]), time_limit(request.timeout, computing):
        # Not torch.manual_seed: it notes for each kind of accelerator who asked, which takes milliseconds.
        torch.default_generator.manual_seed(0)
        return driver(answer, *request.arguments)


def _launch(answer: Any, driver: Driver, request: RunRequest) -> Value:
    run = launch(
        driver,
        answer,
        *request.arguments,
        ranks=request.ranks,
        on=request.on,
        cluster=request.cluster,
        timeout=request.timeout,
        seed=request.seed,
        quiet=True,
        memory=request.memory,
    )
    return Value(_run_to_plain(run), joined(run.outputs))


def _run_to_plain(run: Run) -> PlainData:
    """A run as `graders.grading.answer.Observed` has it."""
    return {
        "results": list(run.results),
        "outputs": [bounded(text) for text in run.outputs],
        "events": events_to_plain(run.events),
    }


def _not_plain(error: NotPlain) -> str:
    """Why a reply cannot be sent, for the student."""
    match error.path:
        case ("value", "results", int(rank), *within):
            where = in_words(f"rank {rank}'s result", tuple(within))
        case (_, *within):
            where = in_words("the result", tuple(within))
        case _:
            where = "the result"
    return f"What came back cannot be judged: {where} {error.problem}."
