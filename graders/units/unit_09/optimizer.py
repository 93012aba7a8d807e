"""Unit 09, shards of the optimizer's state."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from graders.grading.communication import steps_of
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_09.drivers import old as drivers
from graders.units.unit_09.held import at_most_held, held_at, length_of
from graders.units.unit_09.models import Adaptive
from graders.units.unit_09.replies import OptimizerReply

TOLERANCES = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-9, 1e-10)}
"""rtol and atol: who goes through single precision on the way loses digits of double."""


@exercise(
    name="ShardedOptimizer",
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "the first step",
            4,
            "Every rank gives its part of the mean gradient to optimizer_class, and then asks for the other "
            "parts of the parameters, to write them there, into the memory that they have: copy_, not .data. "
            "A gradient that is None is zeros; what needs none stays as it is.",
        ),
        Criterion(
            "every step",
            2,
            "The second step goes on from the first: the optimizer is made once, and keeps its own shard. "
            "step() leaves every .grad as it is, and nobody changes the dicts.",
        ),
        Criterion(
            "options of groups",
            2,
            "param_groups are those of the optimizer that you made: who changes one there changes its steps.",
            needs=("every step",),
        ),
        Criterion("zero_grad", 1, "Set every parameter's .grad to None."),
        Criterion(
            "a part of the state",
            4,
            "Give optimizer_class one parameter a group, this rank's part of the flat tensor.",
            needs=("every step",),
        ),
        Criterion(
            "nothing else is kept",
            2,
            "Nobody refers to flat tensors of whole groups when __init__ or step() is over. A view keeps the "
            "whole tensor alive: clone it.",
            needs=("a part of the state",),
        ),
        Criterion(
            "calls",
            3,
            "For each group one reduce-scatter of the gradients and one all-gather of the parameters: "
            "together the bytes of an all-reduce.",
        ),
    ),
    hints=(
        "Which gradients must a rank have to update its part, if Adam treats each number by itself?",
        "What can optimizer_class be given in place of the parameters? One nn.Parameter a group, with this "
        "rank's part of their numbers: flat(...).view(ranks, -1)[rank].clone().",
        "In step(): flat gradients, a reduce-scatter into the shard's .grad, a step, an all-gather of the "
        "shard, and unflat(...) to copy from.",
    ),
)
def sharded_optimizer(answer: Answer, rng: Rng) -> Findings:
    """Groups of two dtypes on three ranks, others whose options change; a rank without numbers; one rank."""
    changing = Steps.changing(rng)
    runs = [(each, each.launch(answer)) for each in (Steps.grouped(rng), Steps.tiny(rng), Steps.alone(rng))]
    yield "the first step", compare.first_failure(each.stepped(run, range(1)) for each, run in runs)
    steps = [each.stepped(run, range(1, 3)) for each, run in runs]
    yield "every step", compare.first_failure([*steps, *(as_they_were(run) for _, run in runs)])
    of_changing = changing.launch(answer, memory=True)
    yield "options of groups", changing.stepped(of_changing, range(3))
    runs.append((changing, of_changing))
    cleared = [reply.cleared for _, run in runs for reply in run.results]
    yield "zero_grad", Finding(all(cleared), f"After zero_grad() all gradients are None: {all(cleared)}.")
    yield "a part of the state", compare.first_failure(each.state(run) for each, run in runs)
    yield "nothing else is kept", changing.kept(of_changing)
    yield "calls", compare.first_failure(each.calls(run) for each, run in runs)


@dataclass(frozen=True)
class Steps:
    """Steps of an optimizer. values: of the parameters. groups: the numbers and options of each, or none.

    gradients[r]: of rank r, a list a step. later: options of each group from the second step on.
    """

    values: list[Tensor]
    frozen: list[int]
    groups: list[tuple[list[int], dict[str, float]]]
    options: dict[str, float]
    gradients: list[list[list[Tensor | None]]]
    later: list[dict[str, float]]

    @classmethod
    def grouped(cls, rng: Rng) -> "Steps":
        """Two groups, the second in double, that divide by no three; one parameter frozen, one without a
        gradient on some ranks.
        """
        shapes = [(5, 4), (4,), (3, 3), (), (7,), (2, 3)]
        groups = [([5, 0, 2], {"lr": 0.3}), ([1, 3, 4], {"keep": 0.7, "decay": 0.1})]
        drawn = cls._draw(rng, shapes, torch.float32, ranks=3)
        for rank, step, number in ((0, 0, 1), (1, 0, 1), (2, 0, 1), (1, 1, 0), (2, 2, 4)):
            drawn[1][rank][step][number] = None
        for number in groups[1][0]:
            drawn[0][number] = drawn[0][number].double()
            for of_step in itertools.chain(*drawn[1]):
                given = of_step[number]
                of_step[number] = None if given is None else given.double()
        return cls(drawn[0], [2], groups, {"lr": 0.1}, drawn[1], [])

    @classmethod
    def changing(cls, rng: Rng) -> "Steps":
        """Hundreds of numbers on four ranks, in two groups of which each changes other options."""
        values, gradients = cls._draw(rng, [(20, 20), (10, 31), (7,)], torch.float32, ranks=4)
        groups = [([0], {"lr": 0.3}), ([2, 1], {"keep": 0.7})]
        later = [{"lr": rng.integer(3, 6) / 20}, {"keep": 0.2, "decay": 0.4}]
        return cls(values, [], groups, {"lr": 0.1}, gradients, later)

    @classmethod
    def tiny(cls, rng: Rng) -> "Steps":
        """Five numbers on four ranks, in double precision."""
        values, gradients = cls._draw(rng, [(2,), (1, 3)], torch.float64, ranks=4)
        return cls(values, [], [], {"lr": 0.05, "keep": 0.25}, gradients, [])

    @classmethod
    def alone(cls, rng: Rng) -> "Steps":
        """One rank, and one group."""
        values, gradients = cls._draw(rng, [(3, 2), (4,)], torch.float32, ranks=1)
        return cls(values, [1], [([0, 1], {})], {"lr": 0.2, "decay": 0.3}, gradients, [])

    @staticmethod
    def _draw(
        rng: Rng, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, ranks: int
    ) -> tuple[list[Tensor], list[list[list[Tensor | None]]]]:
        values = [rng.normal(*shape, dtype=dtype) for shape in shapes]
        gradients: list[list[list[Tensor | None]]] = [
            [[4 * rng.normal(*shape, dtype=dtype) for shape in shapes] for _ in range(3)]
            for _ in range(ranks)
        ]
        return values, gradients

    def launch(self, answer: Answer, memory: bool = False) -> Observed[OptimizerReply]:
        given = self.values, self.frozen, self.groups, self.options, per_rank(self.gradients), self.later
        return answer.launch(drivers.optimizer_steps, *given, ranks=len(self.gradients), memory=memory)

    def stepped(self, run: Observed[OptimizerReply], steps: range) -> Finding:
        """Passes if all ranks have the expected parameters after these steps."""
        expected = self._expected
        where = f"{compare.counted(len(self.gradients), 'rank')}: parameter"
        return compare.first_failure(
            compare.close(
                seen, wanted, f"{where} {number} of rank {rank} after step {step}", *TOLERANCES[wanted.dtype]
            )
            for step in steps
            for rank, reply in enumerate(run.results)
            for number, (seen, wanted) in enumerate(
                compare.side_by_side(
                    [got for got, _ in compare.side_by_side(reply.parameters, expected)][step], expected[step]
                )
            )
        )

    @cached_property
    def _expected(self) -> list[list[Tensor]]:
        """All parameters after each step, computed whole."""
        parameters = [nn.Parameter(each.clone()) for each in self.values]
        groups = self.groups or [(list(range(len(parameters))), {})]
        trained = [([number for number in own if number not in self.frozen], more) for own, more in groups]
        described = [{"params": [parameters[number] for number in own], **more} for own, more in trained]
        optimizer = Adaptive(described, **self.options)
        after = []
        for of_ranks in zip(*self.gradients, strict=True):
            for number, parameter in enumerate(parameters):
                own = [torch.zeros_like(parameter) if g[number] is None else g[number] for g in of_ranks]
                parameter.grad = torch.stack(own).mean(0)
            optimizer.step()
            after.append([parameter.detach().clone() for parameter in parameters])
            for group, options in zip(optimizer.param_groups, self.later, strict=False):
                group.update(options)
        return after

    def _lengths(self) -> list[int]:
        """Of each group the length of a part, with padding."""
        groups = self.groups or [(list(range(len(self.values))), {})]
        numels = [sum(self.values[n].numel() for n in own if n not in self.frozen) for own, _ in groups]
        return [length_of(numel, len(self.gradients)) for numel in numels]

    def _bytes(self) -> int:
        """Of a part of every group together, with padding."""
        firsts = [own[0] for own, _ in self.groups] or [0]
        sizes = [self.values[first].element_size() for first in firsts]
        return sum(length * size for length, size in zip(self._lengths(), sizes, strict=True))

    def state(self, run: Observed[OptimizerReply]) -> Finding:
        """Passes if no rank's optimizer keeps more than two numbers for each of its part."""
        most, limit = max(reply.numbers for reply in run.results), 2 * sum(self._lengths())
        what = f"Numbers that the optimizer of one of {compare.counted(len(self.gradients), 'rank')} keeps"
        return compare.at_most(most, limit, what)

    def kept(self, run: Observed[OptimizerReply]) -> Finding:
        """Passes if after the last step each rank holds what it was given, and four parts."""
        allowed = []
        for own in self.gradients:
            arguments = [each for step in own for each in step]
            # The driver has a copy of the parameters after each step but the last.
            given = [*self.values, *self.values, *arguments, *own[-1], *self.values * (len(own) - 1)]
            parts = 4 * self._bytes()
            # A few bytes for counters, of steps or of lengths.
            allowed.append(sum(each.nbytes for each in given if each is not None) + parts + 64)
        seen = [held_at(run, rank, "over") for rank in range(len(self.gradients))]
        return at_most_held(seen, allowed, "After the last step")

    def calls(self, run: Observed[OptimizerReply]) -> Finding:
        """Passes if each step has its two calls a group, and sends no more than they do."""
        ranks, lengths = len(self.gradients), self._lengths()
        expected = sorted(["all_gather", "reduce_scatter"] * len(lengths))
        limit = 2 * (ranks - 1) * self._bytes()
        for step in steps_of(run, "step done"):
            made = sorted(_family(call.op) for call in step.calls)
            sent = sum(call.sent for call in step.calls)
            if made != expected or sent > limit:
                said = f"{step} of {compare.counted(ranks, 'rank')} calls {', '.join(made) or 'nothing'} and "
                return Finding(
                    False, f"{said}sends {sent:,} bytes; expected {', '.join(expected)} and {limit:,} bytes."
                )
        if any(len(run.calls(rank)) != 3 * len(expected) for rank in range(ranks)):
            return Finding(False, "There are calls outside of step(), where none is needed.")
        return Finding(True, "Every step makes one reduce-scatter and one all-gather for each group.")


def as_they_were(run: Observed[OptimizerReply]) -> Finding:
    """Passes if gradients, what needs them, and the dicts of the groups have not changed."""
    for rank, reply in enumerate(run.results):
        if not all(reply.left):
            said = f"step {reply.left.index(False)} has changed a .grad on rank {rank}"
            return Finding(False, f"{said}; expected every one as it was, until zero_grad().")
        if reply.changed:
            said = "a dict of the groups, or what needs gradients, is not as it was"
            return Finding(False, f"Rank {rank}: {said}.")
    return Finding(True, "Every step leaves gradients as they were.")


def _family(op: str) -> str:
    """The name of a collective without what it works on: `reduce_scatter` of `reduce_scatter_tensor`."""
    return next((name for name in ("reduce_scatter", "all_gather") if op.startswith(name)), op)
