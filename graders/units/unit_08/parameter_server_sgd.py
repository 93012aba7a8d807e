"""The grader of `parameter_server_sgd`."""

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.kit import Answer, Criterion, Finding, Rng, communication, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_08.on_the_server import Pace, Training, train
from graders.units.unit_08.problems import LINK, TOLERANCES, Problem, gradient_of
from graders.units.unit_08.server_rows import STAR, W_UNCHANGED, asked

WEIGHTS = "trained weights"


def frugal(training: Training) -> Finding:
    """Passes if each worker sends its gradient and gets the weights once a step, and no more."""
    steps, workers = training.steps, training.workers
    nbytes = steps * training.problem.w.nbytes
    allowed = [
        communication.Allowance(workers * steps, workers * nbytes),
        *[communication.Allowance(steps, nbytes)] * workers,
    ]
    return communication.traffic_within(training.run, allowed, compare.counted(workers, "worker"))


def quick(training: Training) -> Finding:
    """Passes if the workers compute at the same time: a step takes one gradient and the messages."""
    messages = 2 * (training.workers + 1) * LINK.seconds(training.problem.w.nbytes)
    allowed = 1e-4 + training.steps * (1.3e-3 + messages)
    taken = max((event.end for event in training.run.events), default=0.0)
    text = f"gradients take 1 ms each, and all of it {1e3 * taken:.2f} ms"
    return Finding(taken <= allowed, f"{text}; allowed are {1e3 * allowed:.2f} ms.")


def synchronous(problem: Problem, steps: int, lr: float) -> Tensor:
    """The weights after steps with the mean of all workers' gradients, each at the same weights."""
    w = problem.w.clone()
    for step in range(steps):
        w = w - lr * torch.stack([gradient_of(worker[step], w) for worker in problem.batches[1:]]).mean(0)
    return w


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
            vary=both(milliseconds=(1,), shape=(3, 2), dtype=torch.float64)
            + both(milliseconds=(1, 1), steps=2, times=2)
            + vary(steps=(0,)),
        ),
        W_UNCHANGED,
        STAR,
        Criterion(
            "messages and bytes",
            1,
            "With K workers, K messages of the weights leave the server in a step, and K gradients come in. "
            "The last weights stay with the server.",
            needs=(WEIGHTS, STAR.name),
            how=asked(frugal),
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
    wanted = synchronous(training.problem, pace.steps, training.lr)
    right = (
        compare.close(reply.result, wanted, "the server's weights", *TOLERANCES[pace.dtype])
        for reply in training.run.results[0]
    )
    return compare.first_failure([training.workers_done(), *right]), training
