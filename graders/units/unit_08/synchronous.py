"""Unit 08, a step with a server: synchronous training on a star."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    communication,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_08 import drivers
from graders.units.unit_08.drivers import TrainedReply
from graders.units.unit_08.problems import LINK, TOLERANCES, Problem, gradient_of, star

Run = TypeVar("Run")

WEIGHTS, STAR = "trained weights", "the star"


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            WEIGHTS,
            2,
            "In each step all workers compute at the same weights, and the server takes one step with the "
            "mean of what they send.",
        ),
        Criterion(
            "nothing from workers", 1, "A worker returns None: its weights are a step old.", needs=(WEIGHTS,)
        ),
        Criterion("w unchanged", 1, "The server's w is the caller's: train a copy.", needs=(WEIGHTS,)),
        Criterion(STAR, 1, "send and recv, and each of them between a worker and rank 0."),
        Criterion(
            "messages and bytes",
            2,
            "With K workers, K messages of the weights leave the server in a step, and K gradients come in. "
            "The last weights stay with the server.",
            needs=(WEIGHTS, STAR),
        ),
        Criterion(
            "side by side",
            2,
            "When does worker 2 get its weights: before worker 1 has answered, or after?",
            needs=(WEIGHTS, STAR),
        ),
    ),
    hints=(
        "Which loops does the server have in each step, one after the other, and what is in each?",
        "What does worker 2 do while the server waits for worker 1's gradient?",
        "dist.recv fills a tensor that you give it: torch.empty_like(w).",
    ),
)
def parameter_server_sgd(answer: Answer, rng: Rng) -> Findings:
    """One, two and four workers; two trainings in each launch, of other shapes and dtypes."""
    worlds = [World.drawn(rng, workers) for workers in (1, 2, 4)]
    runs: list[Observed[Any]] = []
    yield (
        WEIGHTS,
        compare.first_failure(
            map(World.right, worlds, kept((world.launch(answer) for world in worlds), runs))
        ),
    )
    yield "nothing from workers", compare.first_failure(map(World.silent, worlds, runs))
    yield "w unchanged", compare.first_failure(map(World.untouched, worlds, runs))
    yield STAR, on_a_star(runs)
    yield "messages and bytes", compare.first_failure(map(World.frugal, worlds, runs))
    yield "side by side", compare.first_failure(map(World.quick, worlds, runs))


def kept(runs: Iterable[Run], into: list[Run]) -> Iterator[Run]:
    """The same runs, each kept when it is asked for: after a failure nobody asks, and nothing is launched."""
    for run in runs:
        into.append(run)
        yield run


@dataclass(frozen=True, slots=True)
class World:
    """Trainings, one after another, each with its steps and its learning rate."""

    cases: list[tuple[Problem, int, float]]

    @classmethod
    def drawn(cls, rng: Rng, workers: int) -> "World":
        def case(shape: tuple[int, ...], steps: int, dtype: torch.dtype) -> tuple[Problem, int, float]:
            seconds = [[1e-3] * steps] * workers
            return Problem.drawn(rng, shape, seconds, dtype), steps, rng.integer(5, 25) / 100

        usual = case((rng.integer(3, 9),), rng.integer(3, 5), torch.float32)
        return cls([usual, case((2, 3), 0, torch.float32), case((3, 2), 2, torch.float64)])

    @property
    def ranks(self) -> int:
        return self.cases[0][0].workers + 1

    def launch(self, answer: Answer) -> Observed[list[TrainedReply]]:
        told = [
            [
                (problem.weights_of(rank), problem.batches[rank], [steps, lr])
                for problem, steps, lr in self.cases
            ]
            for rank in range(self.ranks)
        ]
        return answer.launch(drivers.trained, per_rank(told), ranks=self.ranks, cluster=star(self.ranks))

    def right(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if the server returned the weights of all-reduce SGD, in every case."""
        where = f"with {compare.counted(self.ranks - 1, 'worker')}"
        return compare.first_failure(
            compare.close(
                reply.result,
                synchronous(*case),
                f"{where}, w after {case[1]} steps",
                *TOLERANCES[case[0].w.dtype],
            )
            for reply, case in compare.side_by_side(run.results[0], self.cases)
        )

    def silent(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if workers returned None."""
        return compare.first_failure(
            compare.equal(reply.result, None, f"what worker {rank} of {self.ranks - 1} returned")
            for rank, replies in enumerate(run.results[1:], start=1)
            for reply in replies
        )

    def untouched(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if the server's argument is as it was."""
        return compare.first_failure(
            compare.close(reply.w, case[0].w, "the server's w afterwards", 0, 0)
            for reply, case in compare.side_by_side(run.results[0], self.cases)
        )

    def frugal(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if each worker sends its gradient and gets the weights once a step, and no more."""
        steps = sum(steps for _, steps, _ in self.cases)
        nbytes = sum(steps * problem.w.nbytes for problem, steps, _ in self.cases)
        workers = self.ranks - 1
        allowed = [
            communication.Allowance(workers * steps, workers * nbytes),
            *[communication.Allowance(steps, nbytes)] * workers,
        ]
        return communication.traffic_within(run, allowed, compare.counted(workers, "worker"))

    def quick(self, run: Observed[list[TrainedReply]]) -> Finding:
        """Passes if the workers compute at the same time: a step takes one gradient and the messages."""
        workers = self.ranks - 1
        allowed = sum(
            steps * (1.3e-3 + 2 * (workers + 1) * LINK.seconds(problem.w.nbytes))
            for problem, steps, _ in self.cases
        )
        taken = max((event.end for event in run.events), default=0.0)
        text = f"{compare.counted(workers, 'worker')}, gradients of 1 ms: it takes {1e3 * taken:.2f} ms"
        return Finding(taken <= allowed, f"{text}; allowed are {1e3 * allowed:.2f} ms.")


def synchronous(problem: Problem, steps: int, lr: float) -> Tensor:
    """The weights after steps with the mean of all workers' gradients, each at the same weights."""
    w = problem.w.clone()
    for step in range(steps):
        w = w - lr * torch.stack([gradient_of(worker[step], w) for worker in problem.batches[1:]]).mean(0)
    return w


def on_a_star(runs: Sequence[Observed[Any]]) -> Finding:
    """Passes if all calls are messages, each with rank 0 at one end."""
    if not (only := communication.only_messages(runs, "the answer")).passed:
        return only
    for run in runs:
        for event in run.events:
            if event.op == "send" and event.peer is not None and 0 not in (event.rank, event.peer):
                return Finding(
                    False, f"rank {event.rank} sends to rank {event.peer}, and neither is the server."
                )
    return Finding(True, "Every message comes from the server or goes to it.")
