"""The grader of `gather_state`."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.drivers import shards as drivers
from graders.units.unit_09.held import at_most_held, held_at, length_of, most_held
from graders.units.unit_09.replies import StateReply

Run = Observed[StateReply]
Of = tuple[tuple[int, ...], torch.dtype]
"""The shape and dtype of a tensor."""
EVEN: tuple[Of, ...] = (((16, 16), torch.float32),) * 6
ODD: tuple[Of, ...] = (((15, 14), torch.float32), ((14, 17), torch.float64)) * 3
FEW: tuple[Of, ...] = (
    ((), torch.float32),
    ((2,), torch.float32),
    ((5, 1), torch.bfloat16),
    ((2, 5), torch.float64),
)
_WORDS = {EVEN: "", ODD: "tensors that ranks do not divide", FEW: "tensors of hardly any numbers"}


@dataclass(frozen=True, slots=True)
class State:
    """of: the tensors."""

    ranks: int = feature(4, lambda ranks: compare.counted(ranks, "rank"))
    of: tuple[Of, ...] = feature(EVEN, _WORDS.__getitem__)

    def drawn(self, rng: Rng) -> dict[str, Tensor]:
        """Tensors by name, the last layer's first."""
        names = [f"layers.{number}.weight" for number in reversed(range(len(self.of)))]
        return {
            name: rng.normal(*shape, dtype=dtype) for name, (shape, dtype) in zip(names, self.of, strict=True)
        }

    def shards(self, state: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
        """What a rank is given."""
        lengths = {name: length_of(each.numel(), self.ranks) for name, each in state.items()}
        return {
            name: state[name].flatten()[rank * length : (rank + 1) * length].clone()
            for name, length in lengths.items()
        }


@one_by_one(
    base=State(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "whole tensors",
            3,
            "Rank 0 returns new tensors of all names, in the order of shapes, with shape and dtype; what "
            "ranks hold is in the order of the ranks. The others return None.",
        ),
        Criterion(
            "shards that are not equal",
            1,
            "The last rank's shard may be shorter, see shard_range; each tensor has its own dtype.",
            vary=vary(ranks=(1, 3), of=(ODD,)),
        ),
        Criterion(
            "ranks without numbers",
            1,
            "A tensor with fewer numbers than ranks, a scalar among them, is whole too.",
            vary=vary(of=(FEW,)) + both(of=FEW, ranks=3),
        ),
        Criterion(
            "arguments unchanged",
            1,
            "shards, shapes and what is in them stay as they are, also when what was returned changes. "
            "(DTensor's full_tensor is the shard itself where there is one rank.)",
            how=look("arguments unchanged"),
        ),
        Criterion(
            "each shard once",
            2,
            "Rank 0 sends nothing. The others send each shard to rank 0 alone, and never what they had from "
            "others. (DTensor's full_tensor is an all-gather: every rank gets the whole state, which it may "
            "have no room for.)",
            how=look("each shard once"),
        ),
        Criterion(
            "memory of the others",
            2,
            "Nobody but rank 0 needs a whole tensor. An all-gather gives it to all.",
            needs=("each shard once",),
            how=look("memory of the others"),
        ),
        Criterion(
            "memory of rank 0",
            2,
            "One tensor after the other. Who gathers the whole state flat, and then cuts it up, holds it "
            "twice.",
            how=look("memory of rank 0"),
        ),
    ),
    hints=(
        "Which rank has to hold a whole tensor? What is the collective, or the call, that sends to one rank "
        "only?",
        "Shards are not equally long: where does each begin? A part of a tensor, whole[begin:end], can be "
        "received into.",
    ),
)
def gather_state(answer: Answer, case: State, rng: Rng) -> tuple[Finding, Looks]:
    """The whole state on rank 0."""
    state = case.drawn(rng)
    shards = [case.shards(state, rank) for rank in range(case.ranks)]
    shapes = {name: list(each.shape) for name, each in state.items()}
    run = answer.launch(drivers.gathered, per_rank(shards), shapes, ranks=case.ranks, memory=case.of != FEW)
    looks: Looks = {
        "arguments unchanged": lambda: unchanged(run, shards, shapes),
        "each shard once": lambda: sent(run, state, case.ranks),
    }
    if case.of != FEW and case.ranks > 1:
        looks["memory of the others"] = lambda: held(run, state, others=True)
        looks["memory of rank 0"] = lambda: held(run, state, others=False)
    return compare.first_failure(_whole(run, state)), looks


def _whole(run: Run, state: dict[str, Tensor]) -> Iterator[Finding]:
    for rank, reply in enumerate(run.results[1:], 1):
        yield compare.equal(reply.state, None, f"what rank {rank} returned")
    seen = run.results[0].state
    if type(seen) is not dict or list(seen) != list(state):
        told = f"a dict of {', '.join(map(str, seen))}" if isinstance(seen, dict) else compare.shown(seen)
        yield Finding(False, f"rank 0 returned {told}; expected a dict of {', '.join(state)}, in this order.")
    else:
        for name, tensor in state.items():
            yield compare.close(seen[name], tensor, f"{name} of what rank 0 returned", rtol=0, atol=0)


def unchanged(run: Run, shards: list[dict[str, Tensor]], shapes: dict[str, list[int]]) -> Finding:
    """Passes if every rank's shards and shapes are as they were."""
    for rank, reply in enumerate(run.results):
        if not compare.same(reply.shards, shards[rank]):
            how = "or change with what was returned, which is to be new tensors"
            return Finding(False, f"on rank {rank} shards have changed, {how}.")
        if not compare.same(reply.shapes, shapes) or list(reply.shapes) != list(shapes):
            return Finding(False, f"on rank {rank} shapes have changed: {compare.shown(reply.shapes)}.")
    return Finding(True, "The shards and shapes are as they were.")


def sent(run: Run, state: dict[str, Tensor], ranks: int) -> Finding:
    """Passes if rank 0 sends nothing, and no other rank more than its shards, padded."""
    limit = sum(length_of(each.numel(), ranks) * each.element_size() for each in state.values())
    for rank in range(ranks):
        allowed, seen = limit if rank else 0, run.traffic[rank].sent
        if seen > allowed:
            said = f"rank {rank} of {ranks} sends {seen:,} bytes; allowed are {allowed:,}."
            return Finding(False, said, Kind.TOO_MUCH)
    return Finding(True, f"Rank 0 of {ranks} sends nothing, the others their shards.")


def held(run: Run, state: dict[str, Tensor], others: bool) -> Finding:
    """Passes if rank 0, or the others, never hold more than they may beside what they are given."""
    sizes, ranks = [each.nbytes for each in state.values()], range(len(run.results))
    part = max(length_of(each.numel(), len(ranks)) * each.element_size() for each in state.values())
    limit = (2 * part if others else sum(sizes) + 2 * max(sizes)) + 64
    seen = [most_held(run, rank, "begins", "done") - held_at(run, rank, "begins") for rank in ranks]
    allowed = [limit if (rank > 0) is others else max(seen) for rank in ranks]
    left_out = "rank 0" if others else "the others"
    return at_most_held(seen, allowed, f"Beside its shards, {left_out} left out,")
