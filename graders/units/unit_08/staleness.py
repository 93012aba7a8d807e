"""The grader of `staleness`."""

from collections import defaultdict
from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng
from graders.units.drivers import outcome
from graders.units.functions.stage import Arguments, kept, of_function


@dataclass(frozen=True, slots=True)
class Server:
    """workers: how many talk to it. in_turns: each reads and writes in turns; else as it likes, once it has
    read.
    """

    workers: int = feature(3, lambda workers: f"{workers} worker{'s' * (workers != 1)}")
    in_turns: bool = feature(True, lambda in_turns: "" if in_turns else "several updates for one reading")


def a_log(rng: Rng, server: Server) -> Arguments:
    """What the server did; its workers have any numbers."""
    numbers = {rng.integer(0, 900) + 1000 * place for place in range(server.workers)}
    log: list[tuple[str, int]] = []
    has_read = dict.fromkeys(numbers, False)
    for _ in range(12 * server.workers):
        worker = rng.choice(sorted(numbers))
        writes = has_read[worker] and (server.in_turns or rng.integer(0, 2) > 0)
        log.append(("write" if writes else "read", worker))
        has_read[worker] = not (writes and server.in_turns)
    return [log]


def refused(answer: Answer, rng: Rng) -> Finding:
    """Passes if an update without a reading raises a ValueError that names the worker."""
    first, other = rng.integer(1000, 4000), rng.integer(5000, 9000)
    log = [("read", other), ("write", other), ("write", first), ("read", first)]
    raised = answer.call(outcome, log)
    right = "ValueError" in raised.get("raised", ()) and str(first) in raised["said"]
    said = f"{raised['raised'][0]}: {raised['said']!r:.80}" if "raised" in raised else "no error"
    return Finding(right, f"the log {log}: {said}; expected a ValueError that names {first}.")


@of_function(
    base=Server(),
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "updates in between",
            3,
            "Count the updates of the weights, by whomever, between a worker's last reading and its update.",
            vary=vary(workers=(1, 5)),
        ),
        Criterion(
            "several updates for one reading",
            1,
            "A worker may write several times for one reading; its own updates make its weights older too.",
            vary=vary(in_turns=(False,)),
        ),
        Criterion(
            "nothing read", 1, "No gradient without weights: a ValueError with its number.", ask=refused
        ),
        Criterion("log unchanged", 1, "`log` is the caller's list.", how=kept),
    ),
    hints=(
        "If the weights have a version, one more with each update, which did the worker read?",
        "What has to be kept for each worker, and when does it change?",
    ),
    arguments=a_log,
)
def staleness(server: Server, given: Arguments) -> Expected:
    """For each update how many there have been since its worker read."""
    version, read, ages = 0, defaultdict[int, int](int), []
    for what, worker in given[0]:
        if what == "read":
            read[worker] = version
        else:
            ages.append(version - read[worker])
            version += 1
    return Expected(ages, {"log": given[0]}, returned=None)
