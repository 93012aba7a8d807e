"""The grader of `parameter_server_sgd`."""

import torch

from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_08.on_the_server import STAR, W_UNCHANGED, Pace, Training, asked, train
from graders.units.unit_08.problems import LINK, gradient_of

WEIGHTS = "trained weights"


def quick(training: Training) -> Finding:
    """Passes if the workers compute at the same time: a step takes one gradient and the messages."""
    messages = 2 * (len(training.workers) + 1) * LINK.seconds(training.w.nbytes)
    allowed = 1e-4 + training.pace.steps * (1.3e-3 + messages)
    taken = max((event.end for event in training.run.events), default=0.0)
    text = f"gradients take 1 ms each, and all of it {1e3 * taken:.2f} ms"
    return Finding(taken <= allowed, f"{text}; allowed are {1e3 * allowed:.2f} ms.")


@one_by_one(
    base=Pace(milliseconds=(1, 1, 1, 1)),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            WEIGHTS,
            4,
            "In each step all workers compute at the same weights, and the server takes one step with the "
            "mean of what they send. A worker returns None: its weights are a step old.",
            vary=both(milliseconds=(1,)) + both(milliseconds=(1, 1), steps=2),
        ),
        W_UNCHANGED,
        STAR,
        Criterion(
            "messages and bytes",
            1,
            "With K workers, K messages of the weights leave the server in a step, and K gradients come in. "
            "The last weights stay with the server.",
            needs=(WEIGHTS, STAR.name),
            how=asked(lambda training: training.frugal(short=False)),
        ),
        Criterion(
            "side by side",
            2,
            "When does worker 2 get its weights: before worker 1 has answered, or after?",
            needs=(WEIGHTS, STAR.name),
            how=asked(quick),
        ),
    ),
    hints=(
        "Which loops does the server have in each step, one after the other, and what is in each?",
        "What does worker 2 do while the server waits for worker 1's gradient?",
        "dist.recv fills a tensor that you give it: torch.empty_like(w).",
    ),
)
def parameter_server_sgd(answer: Answer, pace: Pace, rng: Rng) -> tuple[Finding, Training]:
    """The weights of all-reduce SGD, on the server alone."""
    training = train(answer, pace, rng, [], mean=True)
    w, workers = training.w, training.batches[1:]
    for step in range(pace.steps):
        w = w - training.lr * torch.stack([gradient_of(batches[step], w) for batches in workers]).mean(0)
    right = compare.close(training.run.results[0].result, w, "the server's weights", 1e-4, 1e-5)
    return compare.first_failure([training.workers_done(), right]), training
