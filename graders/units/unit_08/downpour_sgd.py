"""The grader of `downpour_sgd`."""

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
