"""The grader of `downpour_sgd`."""

import torch

from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Rng
from graders.units.one_by_one import one_by_one
from graders.units.unit_08.on_the_server import Pace, Training, train
from graders.units.unit_08.server_log import SOON, fresh, in_order
from graders.units.unit_08.server_rows import STAR, W_UNCHANGED, asked

EVERY, MESSAGES, ORDER = "every gradient once", "messages and bytes", "order of the steps"


def unhindered(training: Training) -> Finding:
    """Passes if every worker is done as soon as it has computed its gradients, messages apart."""
    for worker in range(1, training.workers + 1):
        own = sum(float(batch["seconds"]) for batch in training.problem.batches[worker])
        ended = max((event.end for event in training.run.communication(worker)), default=0.0)
        if ended > own + SOON:
            text = f"worker {worker} computes for {1e3 * own:.0f} ms and is done after {1e3 * ended:.1f} ms"
            return Finding(False, f"the slowest takes several times as long as the others: {text}.")
    return Finding(True, "each is done as soon as it has computed.")


@one_by_one(
    base=Pace(milliseconds=(10, 13, 80, 17), steps=7, push=2, fetch=3, shape=(2, 4)),
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            EVERY,
            3,
            "In the end the server's weights have moved by -lr times each gradient of each worker. Is the "
            "sum sent after the last step too, and empty again after it was sent?",
            vary=both(milliseconds=(10, 10), push=1, fetch=1)
            + both(milliseconds=(70, 11, 10), steps=3, push=4, fetch=5)
            + both(steps=0, times=2)
            + both(milliseconds=(10,), steps=5, push=3, fetch=2, times=2, dtype=torch.float64)
            # Gradients take no time: wishes of all workers wait for the server at once.
            + both(milliseconds=(0, 0, 0, 0), steps=3, push=1, fetch=2, times=2),
        ),
        W_UNCHANGED,
        STAR,
        Criterion(
            MESSAGES,
            2,
            "steps / n_push sums from each worker and steps / n_fetch copies of the weights to it, rounded "
            "up; besides them only messages of a number or two.",
            needs=(EVERY, STAR.name),
            how=asked(Training.frugal),
        ),
        Criterion(
            ORDER,
            1,
            "A step fetches, if it is its turn, computes, and sends the sum, if it is its turn: then comes "
            "the next one. A sum is not kept back.",
            needs=(EVERY, STAR.name, MESSAGES),
            how=asked(in_order),
        ),
        Criterion(
            "weights of each step",
            2,
            "In steps 0, n_fetch, 2 n_fetch ... a worker fetches the server's weights as they are then. In "
            "between its own copy moves by its own gradients.",
            needs=(EVERY, STAR.name, MESSAGES, ORDER),
            how=asked(fresh),
        ),
        Criterion(
            "waits for nobody",
            3,
            "From whom does the server receive next? A fast worker ends as early as if the slow one were not "
            "there.",
            needs=(EVERY, STAR.name),
            how=asked(unhindered),
        ),
    ),
    hints=(
        "How does the server know which of the two kinds of messages comes in, and from whom?",
        "A message of one number can say what comes next; dist.recv returns who sent it.",
        "How many messages will each worker send altogether? Then the server knows when it is done.",
    ),
)
def downpour_sgd(answer: Answer, pace: Pace, rng: Rng) -> tuple[Finding, Training]:
    """Fast and slow workers, who send and fetch as often as each other, and not."""
    training = train(answer, pace, rng, [pace.push, pace.fetch], mean=False)
    return training.learned(), training
