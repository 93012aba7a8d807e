"""Unit 06, the open task: a cut MLP whose sums travel while it computes, scored by virtual time."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.runtime.communication.events import Kind
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    PlainData,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_06 import drivers

Replies = Observed[PlainData]


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion("result", 2, "Every token once, every bias once, and every sum waited for."),
        Criterion("half of what can be saved", 2, "While a chunk's sum is under way, compute the next one."),
        Criterion(
            "within a tenth of the best known",
            2,
            "How many chunks are best follows from the numbers of the machine: reckon, then choose.",
            needs=("result", "half of what can be saved"),
        ),
        Criterion(
            "within a thirtieth of the best known",
            2,
            "While the first chunk is computed, nothing is under way; while the last sum is, nothing is "
            "computed. Do all chunks have to be of one size?",
            needs=("result", "within a tenth of the best known"),
        ),
    ),
    hints=(
        "What does the network do until the first chunk is ready, and what the GPU after the last one?",
        "Write down when each chunk is computed and when its sum has ended, one after another.",
        "If computing takes longer than communicating, which chunk should be small: the first, the last?",
    ),
)
def overlapped_mlp(answer: Answer, rng: Rng) -> Findings:
    """Drawn machines on which communicating takes less, as much, and more time than computing."""
    cases = [Case.drawn(rng, ratio) for ratio in (0.5, 1.0, 2.0)]
    runs = [case.launch(answer) for case in cases]
    yield "result", compare.first_failure(map(Case.right, cases, runs))
    limits = {
        "half of what can be saved": [(case.at_once() + case.best) / 2 for case in cases],
        "within a tenth of the best known": [1.1 * case.best for case in cases],
        "within a thirtieth of the best known": [(1 + 1 / 30) * case.best for case in cases],
    }
    for name, allowed in limits.items():
        yield name, compare.first_failure(map(Case.within, cases, runs, allowed))


@dataclass(frozen=True)
class Case:
    """An MLP, cut over ranks, and a machine.

    x [T, D]. up, up_bias: every rank's part of F, [part, D] and [part]; down: [D, part]. down_bias: [D].
    machine: latency, bandwidth, flops, memory bandwidth.
    """

    x: Tensor
    up: list[Tensor]
    up_bias: list[Tensor]
    down: list[Tensor]
    down_bias: Tensor
    machine: tuple[float, float, float, float]

    @classmethod
    def drawn(cls, rng: Rng, ratio: float) -> "Case":
        """ratio: of the seconds of one all-reduce of everything to those of the products."""
        ranks, tokens, width, inner = rng.integer(2, 4), rng.integer(200, 300), 32, rng.choice((48, 64))
        flops = rng.choice((1e9, 4e9))
        products = 4 * tokens * width * inner / flops
        rounds = 2 * (ranks - 1)
        bandwidth = rounds * 4 * tokens * width / ranks / (ratio * products)
        latency = rng.choice((0.005, 0.02)) * products / rounds
        return cls(
            rng.normal(tokens, width),
            [rng.normal(inner, width) for _ in range(ranks)],
            [rng.normal(inner) for _ in range(ranks)],
            [rng.normal(width, inner) for _ in range(ranks)],
            rng.normal(width),
            (latency, bandwidth, flops, flops),
        )

    def launch(self, answer: Answer) -> Replies:
        layers = [per_rank(each) for each in (self.up, self.up_bias, self.down)]
        machine = drivers.machine(len(self.up), *self.machine)
        given = (self.x, *layers, self.down_bias, self.machine)
        return answer.launch(drivers.overlapped, *given, ranks=len(self.up), cluster=machine)

    def right(self, run: Replies) -> Finding:
        """Passes if every rank has what the whole MLP makes of x."""
        hidden = functional.gelu(functional.linear(self.x, torch.cat(self.up), torch.cat(self.up_bias)))
        expected = functional.linear(hidden, torch.cat(self.down, 1), self.down_bias)
        wanted = [expected] * len(run.results)
        return compare.close_on_all_ranks(run.results, wanted, "the result", 1e-3, 1e-3)

    def within(self, run: Replies, allowed: float) -> Finding:
        """Passes if the last rank had its result in time."""
        spans = [event for event in run.events if event.kind is Kind.SPAN]
        begins = min((event.end for event in spans if event.op == "begins"), default=0.0)
        taken = max((event.end for event in spans if event.op == "done"), default=begins) - begins
        latency, bandwidth, flops, _ = self.machine
        machine = f"{latency * 1e6:.2f} µs, {bandwidth / 1e6:.0f} MB/s and {flops / 1e9:.0f} GFLOP/s"
        text = f"with {len(self.x)} tokens on {len(self.up)} ranks, {machine} it takes {taken * 1e6:.1f} µs"
        known = f"all at once {self.at_once() * 1e6:.1f} µs, the best known {self.best * 1e6:.1f} µs"
        return Finding(taken <= allowed, f"{text}; {allowed * 1e6:.1f} µs are allowed here ({known}).")

    def mlp(self, rows: int) -> float:
        """Seconds that a rank takes for so many tokens, as the simulator reckons."""
        inner, width = self.up[0].shape
        flops, memory = self.machine[2:]
        numbers = rows * width + rows * inner + width * inner
        operations = 2 * rows * width * inner / flops
        products = [max(operations, 4 * (numbers + outputs) / memory) for outputs in (inner, width)]
        return sum(products) + 8 * rows * inner / memory

    def all_reduce(self, rows: int) -> float:
        """Seconds that the sum of so many tokens takes round a ring."""
        ranks, (latency, bandwidth) = len(self.up), self.machine[:2]
        return 2 * (ranks - 1) * (latency + 4 * rows * self.x.shape[1] / ranks / bandwidth)

    def at_once(self) -> float:
        """Seconds without chunks."""
        return self.mlp(len(self.x)) + self.all_reduce(len(self.x))

    @cached_property
    def best(self) -> float:
        """The least of a search over numbers of chunks, and over how fast they grow or shrink; with the
        seconds in which they are put together.
        """
        plans = [self.chunks(count, growth) for count in range(1, 17) for growth in (0.5, 0.7, 1, 1.4, 2)]
        return min(map(self.seconds, plans)) + 8 * self.x.numel() / self.machine[3]

    def chunks(self, count: int, growth: float) -> list[int]:
        """So many, each so many times as large as the last."""
        tokens, weights = len(self.x), list(accumulate(growth**place for place in range(count)))
        ends = [0, *(round(tokens * weight / weights[-1]) for weight in weights)]
        return [end - start for start, end in pairwise(ends) if end > start]

    def seconds(self, sizes: list[int]) -> float:
        """When the sum of the last of these chunks has ended."""
        computed = summed = 0.0
        for size in sizes:
            computed += self.mlp(size)
            summed = max(summed, computed) + self.all_reduce(size)
        return summed
