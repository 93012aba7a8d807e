"""Unit 08, nobody waits: asynchronous training, and how old its gradients are."""

from collections import defaultdict
from itertools import chain

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_08 import drivers
from graders.units.unit_08.drivers import TrainedReply
from graders.units.unit_08.on_the_server import Training, all_of
from graders.units.unit_08.problems import Problem
from graders.units.unit_08.synchronous import STAR, kept, on_a_star

EVERY, MESSAGES = "every gradient once", "messages and bytes"
MILLISECOND = 1e-3


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            EVERY,
            3,
            "In the end the server's weights have moved by -lr times each gradient of each worker. Is the "
            "sum sent after the last step too, and empty again after it was sent?",
        ),
        Criterion("w unchanged", 1, "The server's w is the caller's: train a copy."),
        Criterion(STAR, 1, "send and recv, and each message between a worker and rank 0."),
        Criterion(
            MESSAGES,
            2,
            "steps / n_push sums from each worker and steps / n_fetch copies of the weights to it, rounded "
            "up; besides them only messages of a number or two.",
            needs=(EVERY, STAR),
        ),
        Criterion(
            "order of the steps",
            1,
            "A step fetches, if it is its turn, computes, and sends the sum, if it is its turn: then comes "
            "the next one. A sum is not kept back.",
            needs=(EVERY, STAR, MESSAGES),
        ),
        Criterion(
            "weights of each step",
            2,
            "In steps 0, n_fetch, 2 n_fetch ... a worker fetches the server's weights as they are then. In "
            "between its own copy moves by its own gradients.",
            needs=(EVERY, STAR, MESSAGES, "order of the steps"),
        ),
        Criterion(
            "waits for nobody",
            3,
            "From whom does the server receive next? A fast worker ends as early as if the slow one were not "
            "there.",
            needs=(EVERY, STAR),
        ),
    ),
    hints=(
        "How does the server know which of the two kinds of messages comes in, and from whom?",
        "A message of one number can say what comes next; dist.recv returns who sent it.",
        "How many messages will each worker send altogether? Then the server knows when it is done.",
    ),
)
def downpour_sgd(answer: Answer, rng: Rng) -> Findings:
    """Fast and slow workers, that send and fetch as often as each other, and not."""
    cases = [
        _drawn(rng, [10, 10], steps=4, push=1, fetch=1),
        _drawn(rng, [70, 11, 10], steps=3, push=4, fetch=5),
        _drawn(rng, [10, 13, 80, 17], steps=7, push=2, fetch=3),
    ]
    odd = [
        _drawn(rng, [10, 10], steps=0, push=1, fetch=1),
        _drawn(rng, [10], steps=5, push=3, fetch=2, dtype=torch.float64),
        # Gradients take no time: wishes of all workers wait for the server at once.
        _drawn(rng, [0, 0, 0, 0], steps=3, push=1, fetch=2),
    ]
    # The odd ones twice in a row: of that, the log is not judged.
    again: list[Observed[list[TrainedReply]]] = []
    runs: list[Observed[list[TrainedReply]]] = []
    twice = kept((case.launch(answer, times=2) for case in odd), again)
    once = kept((case.launch(answer) for case in cases), runs)
    yield EVERY, compare.first_failure(map(Training.learned, odd + cases, chain(twice, once)))
    yield "w unchanged", all_of(Training.untouched, odd + cases, again + runs)
    yield STAR, on_a_star(again + runs)
    yield MESSAGES, all_of(Training.frugal, cases, runs)
    yield "order of the steps", all_of(Training.in_order, cases, runs)
    yield "weights of each step", all_of(Training.fresh, cases, runs)
    yield "waits for nobody", all_of(_unhindered, cases, runs)


def _drawn(
    rng: Rng, milliseconds: list[int], steps: int, push: int, fetch: int, dtype: torch.dtype = torch.float32
) -> Training:
    """milliseconds: of a gradient, for each worker."""
    shape = rng.choice(((7,), (2, 4), (3, 1, 3)))
    lr = rng.integer(2, 9) / 100
    problem = Problem.drawn(rng, shape, [[each * MILLISECOND] * steps for each in milliseconds], dtype)
    return Training(problem, [steps, lr, push, fetch], lr, push, fetch)


def _unhindered(case: Training, run: Observed[list[TrainedReply]]) -> Finding:
    """Passes if every worker is done as soon as it has computed its gradients, messages apart."""
    for worker in range(1, case.workers + 1):
        own = sum(float(batch["seconds"]) for batch in case.problem.batches[worker])
        ended = max(event.end for event in run.communication(worker))
        if ended > own + 2 * MILLISECOND:
            text = f"worker {worker} computes for {1e3 * own:.0f} ms and is done after {1e3 * ended:.1f} ms"
            return Finding(False, f"{case}, the slowest several times as slow as the others: {text}.")
    return Finding(True, f"{case}: each is done as soon as it has computed.")


# --- How old


@exercise(
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "updates in between",
            3,
            "Count the updates of the weights, by whomever, between a worker's last reading and its update.",
        ),
        Criterion(
            "several updates for one reading",
            1,
            "A worker may write several times for one reading; its own updates make its weights older too.",
        ),
        Criterion(
            "nothing read",
            1,
            "A worker that has read nothing cannot have a gradient: a ValueError with its number.",
        ),
        Criterion("log unchanged", 1, "`log` is the caller's list."),
    ),
    hints=(
        "If the weights have a version, one more with each update, which did the worker read?",
        "What has to be kept for each worker, and when does it change?",
    ),
)
def staleness(answer: Answer, rng: Rng) -> Findings:
    """Drawn logs: each update after a reading, and not; workers with any numbers."""
    plain = [_log(rng, workers, strict=True) for workers in (1, 2, 5)]
    mixed = [_log(rng, workers, strict=False) for workers in (2, 4)]
    replies = [(log, answer.call(drivers.aged, log)) for log in ([], *plain)]
    yield (
        "updates in between",
        compare.first_failure(_ages(log, reply.result) for log, reply in replies),
    )
    replies += [(log, answer.call(drivers.aged, log)) for log in mixed]
    yield (
        "several updates for one reading",
        compare.first_failure(_ages(log, reply.result) for log, reply in replies[-2:]),
    )
    yield "nothing read", _refused(answer, rng)
    yield (
        "log unchanged",
        compare.first_failure(compare.equal(reply.log, log, "the log afterwards") for log, reply in replies),
    )


Log = list[tuple[str, int]]


def _log(rng: Rng, workers: int, strict: bool) -> Log:
    """strict: each worker reads and writes in turns. Else as it likes, once it has read."""
    numbers = {rng.integer(0, 900) + 1000 * place for place in range(workers)}
    log: Log = []
    has_read: dict[int, bool] = dict.fromkeys(numbers, False)
    for _ in range(12 * workers):
        worker = rng.choice(sorted(numbers))
        writes = has_read[worker] and (strict or rng.integer(0, 2) > 0)
        log.append(("write" if writes else "read", worker))
        has_read[worker] = not (writes and strict)
    return log


def ages_of(log: Log) -> list[int]:
    """For each update how many others the weights had had since its worker read them."""
    version, read, ages = 0, defaultdict[int, int](int), []
    for what, worker in log:
        if what == "read":
            read[worker] = version
        else:
            ages.append(version - read[worker])
            version += 1
    return ages


def _ages(log: Log, seen: object) -> Finding:
    said = ", ".join(f"{what} {worker}" for what, worker in log[:8]) + (", ..." if len(log) > 8 else "")
    return compare.equal(seen, ages_of(log), f"the log [{said}]")


def _refused(answer: Answer, rng: Rng) -> Finding:
    """Passes if an update without a reading raises a ValueError that names the worker."""
    first, other = rng.integer(1000, 4000), rng.integer(5000, 9000)
    logs: list[Log] = [
        [("write", first)],
        [("read", other), ("write", other), ("write", first), ("read", first)],
        # What was read in the log before does not count in this one.
        [("write", other)],
    ]
    for log, named in zip(logs, (first, first, other), strict=True):
        reply = answer.call(drivers.refused, log)
        expected = f"expected a ValueError that names {named}"
        if not reply.raised:
            return Finding(False, f"the log {log}: no error; {expected}.")
        if reply.raised != "ValueError" or str(named) not in reply.message:
            text = f"{reply.raised}: {compare.shown(reply.message, 80)}"
            return Finding(False, f"the log {log}: {text}; {expected}.")
    return Finding(True, f"A ValueError that names worker {first}.")
