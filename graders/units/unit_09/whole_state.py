"""Unit 09, a state of which all ranks have shards, in one place."""

from dataclasses import dataclass

import torch
from torch import Tensor

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
from graders.units.unit_09 import drivers
from graders.units.unit_09.held import at_most_held, held_at, length_of, most_held
from graders.units.unit_09.replies import StateReply


@exercise(
    name="gather_state",
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "whole tensors",
            4,
            "Rank 0 returns new tensors of all names, in the order of shapes, with shape and "
            "dtype; what ranks hold "
            "is in the order of the ranks, see shard_range. The others return None.",
        ),
        Criterion(
            "ranks without numbers",
            1,
            "A tensor with fewer numbers than ranks, a scalar among them, is whole too.",
        ),
        Criterion(
            "arguments unchanged",
            1,
            "shards, shapes and what is in them stay as they are, also when what was returned changes.",
        ),
        Criterion(
            "each shard once",
            2,
            "Rank 0 sends nothing. The others send each shard to rank 0 alone, and never what "
            "they had from others.",
        ),
        Criterion(
            "memory of the others",
            2,
            "Nobody but rank 0 needs a whole tensor. An all-gather gives it to all.",
            needs=("each shard once",),
        ),
        Criterion(
            "memory of rank 0",
            2,
            "One tensor after the other. Who gathers the whole state flat, and then cuts it up, "
            "holds it twice.",
        ),
    ),
    hints=(
        "Which rank has to hold a whole tensor? What is the collective, or the call, that sends "
        "to one rank only?",
        "Shards are not equally long: where does each begin? A part of a tensor, "
        "whole[begin:end], can be received into.",
    ),
)
def gather_state(answer: Answer, rng: Rng) -> Findings:
    """A state of many tensors on four ranks; scalars and short ones on three; one rank."""
    large, few, alone = State.large(rng), State.few(rng), State.alone(rng)
    runs = [(each, each.launch(answer)) for each in (large, alone)]
    yield "whole tensors", compare.first_failure(each.whole(run) for each, run in runs)
    of_few = few.launch(answer)
    runs.append((few, of_few))
    yield "ranks without numbers", few.whole(of_few)
    yield "arguments unchanged", compare.first_failure(each.unchanged(run) for each, run in runs)
    yield "each shard once", compare.first_failure(each.sent(run) for each, run in runs)
    yield "memory of the others", large.held(runs[0][1], others=True)
    yield "memory of rank 0", large.held(runs[0][1], others=False)


def _names(state: object) -> str:
    """The names of a dict, in their order; what is none as it is."""
    return f"a dict of {', '.join(map(str, state))}" if isinstance(state, dict) else compare.shown(state)


@dataclass(frozen=True, slots=True)
class State:
    """Whole tensors by name, and over how many ranks they are cut."""

    tensors: dict[str, Tensor]
    ranks: int

    @classmethod
    def large(cls, rng: Rng) -> "State":
        """Twelve tensors of like size, in two precisions; padding in most of them."""
        tensors = {}
        for number in range(6):
            shape = rng.integer(14, 17), rng.integer(14, 17)
            tensors[f"layers.{number}.weight"] = rng.normal(*shape)
            tensors[f"layers.{number}.mean"] = rng.normal(*reversed(shape), dtype=torch.float64)
        return cls(tensors, 4)

    @classmethod
    def few(cls, rng: Rng) -> "State":
        """A counter, vectors of two numbers, five and none, and a matrix, whose names are not sorted."""
        return cls(
            {
                "step": torch.tensor(rng.integer(10, 99)),
                "bias": rng.normal(2),
                "weight": rng.normal(5, 1, dtype=torch.bfloat16),
                "nothing": rng.normal(0, 3),
                "array": rng.normal(2, 5),
            },
            3,
        )

    @classmethod
    def alone(cls, rng: Rng) -> "State":
        """One rank."""
        return cls({"weight": rng.normal(3, 4), "step": torch.tensor(rng.integer(10, 99))}, 1)

    def _shard(self, tensor: Tensor, rank: int) -> Tensor:
        length = length_of(tensor.numel(), self.ranks)
        return tensor.flatten()[rank * length : (rank + 1) * length].clone()

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(tensor.shape) for name, tensor in self.tensors.items()}

    def _shards(self, rank: int) -> dict[str, Tensor]:
        return {name: self._shard(tensor, rank) for name, tensor in self.tensors.items()}

    def launch(self, answer: Answer) -> Observed[StateReply]:
        shards = per_rank([self._shards(rank) for rank in range(self.ranks)])
        return answer.launch(drivers.gathered, shards, self._shapes(), ranks=self.ranks, memory=True)

    def whole(self, run: Observed[StateReply]) -> Finding:
        """Passes if rank 0 has returned the tensors, and the others nothing."""
        for rank, reply in enumerate(run.results[1:], 1):
            if reply.state is not None:
                return Finding(False, f"rank {rank} returned {compare.shown(reply.state)}; expected None.")
        state = run.results[0].state
        if type(state) is not dict or list(state) != list(self.tensors):
            return Finding(
                False,
                f"rank 0 returned {_names(state)}; expected a dict of {', '.join(self.tensors)}, in order.",
            )
        for name, tensor in self.tensors.items():
            found = compare.close(state[name], tensor, f"{name} from {self.ranks} ranks", rtol=0, atol=0)
            if not found.passed:
                return found
        return Finding(True, f"Rank 0 has the whole state, from {compare.counted(self.ranks, 'rank')}.")

    def unchanged(self, run: Observed[StateReply]) -> Finding:
        """Passes if every rank's shards and shapes are as they were."""
        shapes = self._shapes()
        for rank, reply in enumerate(run.results):
            where = f"on rank {rank} of {self.ranks}"
            if not compare.same(reply.shards, self._shards(rank)):
                how = "or change with what was returned, which is to be new tensors"
                return Finding(False, f"{where} shards have changed, {how}.")
            if not compare.same(reply.shapes, shapes) or list(reply.shapes) != list(shapes):
                return Finding(False, f"{where} shapes have changed: {compare.shown(reply.shapes)}.")
        return Finding(True, "The shards and shapes are as they were.")

    def sent(self, run: Observed[StateReply]) -> Finding:
        """Passes if rank 0 sends nothing, and no other rank more than its shards, padded."""
        limit = sum(length_of(t.numel(), self.ranks) * t.element_size() for t in self.tensors.values())
        for rank in range(self.ranks):
            allowed, sent = limit if rank else 0, run.traffic[rank].sent
            if sent > allowed:
                said = f"rank {rank} of {self.ranks} sends {sent:,} bytes; allowed are {allowed:,}"
                return Finding(False, f"{said}.")
        return Finding(True, f"Rank 0 of {self.ranks} sends nothing, the others their shards.")

    def held(self, run: Observed[StateReply], others: bool) -> Finding:
        """Passes if a rank never holds more than it may beside what it was given."""
        sizes = [tensor.nbytes for tensor in self.tensors.values()]
        part = max(length_of(t.numel(), self.ranks) * t.element_size() for t in self.tensors.values())
        seen, allowed = [], []
        for rank in range(1, self.ranks) if others else [0]:
            before = held_at(run, rank, "begins")
            seen.append(most_held(run, rank, "begins", "done") - before)
            allowed.append((2 * part if others else sum(sizes) + 2 * max(sizes)) + 64)
        return at_most_held(seen, allowed, "Beside its shards" + (", of the others," if others else ""))
