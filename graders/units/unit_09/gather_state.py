"""The grader of `gather_state`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.drivers import shards as drivers
from graders.units.unit_09.held import at_most_held, length_of, most_held

Of = tuple[tuple[int, ...], torch.dtype]
"""The shape and dtype of a tensor."""
EVEN: tuple[Of, ...] = (((16, 16), torch.float32),) * 6
ODD: tuple[Of, ...] = (((15, 14), torch.float32), ((14, 17), torch.float64)) * 3
FEW: tuple[Of, ...] = (((), torch.float32), ((2,), torch.float32), ((2, 5), torch.float64))
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
            2,
            "The last rank's shard may be shorter, see shard_range, and some may have no numbers; each "
            "tensor has its own dtype. A scalar is whole too.",
            vary=vary(ranks=(1, 3), of=(ODD, FEW)),
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
            "memory",
            4,
            "Nobody but rank 0 needs a whole tensor. And there one tensor comes after the other: who gathers "
            "the whole state flat, and then cuts it up, holds it twice.",
            needs=("each shard once",),
            how=look("memory"),
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
    returned = [told for told, *_ in run.results]
    arguments = [[*left] for _, *left in run.results]
    looks: Looks = {
        "arguments unchanged": lambda: compare.first_failure(
            compare.equal(left, [own, shapes], f"shards and shapes on rank {rank} afterwards")
            for rank, (left, own) in enumerate(zip(arguments, shards, strict=True))
        ),
        "each shard once": lambda: sent(run, state),
    }
    if case.of != FEW and case.ranks > 1:
        looks["memory"] = lambda: held(run, state)
    return compare.first_failure(_whole(returned, state)), looks


def _whole(returned: list[Any], state: dict[str, Tensor]) -> Iterator[Finding]:
    first, *others = returned
    for rank, told in enumerate(others, 1):
        yield compare.equal(told, None, f"what rank {rank} returned")
    names = list(first) if type(first) is dict else first
    yield compare.equal(names, list(state), "the names in what rank 0 returned")
    for name, tensor in state.items():
        yield compare.close(first[name], tensor, f"{name} of what rank 0 returned", rtol=0, atol=0)


def sent(run: Observed[Any], state: dict[str, Tensor]) -> Finding:
    """Passes if rank 0 sends nothing, and no other rank more than its shards, padded."""
    ranks = len(run.results)
    limit = sum(length_of(each.numel(), ranks) * each.element_size() for each in state.values())
    return compare.first_failure(
        compare.at_most(
            run.traffic[rank].sent, limit if rank else 0, f"Bytes that rank {rank} sends", kind=Kind.TOO_MUCH
        )
        for rank in range(ranks)
    )


def held(run: Observed[Any], state: dict[str, Tensor]) -> Finding:
    """Passes if no rank ever holds more than it may beside what it is given."""
    sizes, ranks = [each.nbytes for each in state.values()], range(len(run.results))
    part = max(length_of(each.numel(), len(ranks)) * each.element_size() for each in state.values())
    seen = [most_held(run, rank, "begins", "done") - most_held(run, rank, "begins") for rank in ranks]
    allowed = [64 + (2 * part if rank else sum(sizes) + 2 * max(sizes)) for rank in ranks]
    return at_most_held(seen, allowed, "Beside its shards,")
