"""The grader of `downpour_sgd`."""

from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Rng
from graders.units.one_by_one import one_by_one
from graders.units.unit_08.on_the_server import EVERY, NEEDED, SHARED, SOON, Pace, Training, asked, train


def unhindered(training: Training) -> Finding:
    """Passes if every worker is done as soon as it has computed its gradients, messages apart."""
    for worker in training.workers:
        own = sum(float(batch["seconds"]) for batch in training.batches[worker])
        ended = max((event.end for event in training.run.communication(worker)), default=0.0)
        if ended > own + SOON:
            said = f"worker {worker} computes for {1e3 * own:.0f} ms and is done after {1e3 * ended:.1f} ms."
            return Finding(False, said)
    return Finding(True, "each is done as soon as it has computed.")


@one_by_one(
    base=Pace(milliseconds=(10, 13, 80, 17), steps=7, push=2, fetch=3),
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
            + both(milliseconds=(10,), steps=5, push=3, fetch=2),
        ),
        *SHARED,
        Criterion(
            "weights of each step",
            3,
            "In steps 0, n_fetch, 2 n_fetch ... a worker fetches the server's weights as they are then. In "
            "between its own copy moves by its own gradients.",
            needs=("messages and bytes",),
            how=asked(Training.fresh),
        ),
        Criterion(
            "waits for nobody",
            3,
            "From whom does the server receive next? A fast worker ends as early as if the slow one were not "
            "there.",
            needs=NEEDED,
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
