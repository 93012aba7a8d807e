"""Unit 02, what `shard_indices` deals to the ranks when it is asked several times."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.communication import calls_of
from graders.grading.kit import Answer, Finding, compare
from graders.units.unit_02.drivers import data as drivers


@dataclass(frozen=True, slots=True)
class Shards:
    """What shard_indices dealt to every rank, for each (length, epoch, seed) that was asked for.

    parts[i][r]: what rank r got for the i-th; again[i][r]: what it got when it asked once more for one of the
    first. changed[r]: the libraries whose random state changed on rank r.
    """

    asked: Sequence[tuple[int, int, int]]
    parts: list[list[Any]]
    again: list[list[Any]]
    changed: list[list[str]]
    calls: list[str]

    def indices(self, number: int) -> list[Tensor]:
        """Each rank's part [n]; empty where it is no list of indices, which `partition` reports."""
        return [part if is_index_list(part) else _NOTHING for part in self.parts[number]]

    def orders(self, *numbers: int) -> list[list[list[int]]]:
        """The same as lists, for some of what was asked for."""
        return [[part.tolist() for part in self.indices(number)] for number in numbers]


_NOTHING = torch.empty(0, dtype=torch.int64)


def is_index_list(part: Any) -> bool:
    """Whether it is a 1-D int64 tensor."""
    return type(part) is Tensor and part.dtype == torch.int64 and part.dim() == 1


def shards(answer: Answer, asked: Sequence[tuple[int, int, int]], ranks: int) -> Shards:
    """Let every rank, each on a node of its own, ask for its part for each (length, epoch, seed)."""
    given, cluster = map(list, zip(*asked, strict=True)), Cluster(nodes=ranks)
    observed = answer.launch(drivers.shards, *given, ranks=ranks, cluster=cluster)
    first = [[part for _, part in compare.side_by_side(asked, rank.first)] for rank in observed.results]
    once_more = asked[: drivers.AGAIN]
    again = [[part for _, part in compare.side_by_side(once_more, rank.again)] for rank in observed.results]
    return Shards(
        asked,
        parts=[list(parts) for parts in zip(*first, strict=True)],
        again=[list(parts) for parts in zip(*again, strict=True)],
        changed=[rank.changed for rank in observed.results],
        calls=calls_of([observed]),
    )


def partition(dealt: Shards) -> Finding:
    """Passes if the ranks' indices are, together, each of 0 .. length - 1 once, whatever was asked for."""
    return compare.first_failure(_partition(dealt, number) for number in range(len(dealt.asked)))


def _partition(dealt: Shards, number: int) -> Finding:
    length, epoch, seed = dealt.asked[number]
    for rank, part in enumerate(dealt.parts[number]):
        if not is_index_list(part):
            kind = f"{part.dtype}, {part.dim()}-D" if isinstance(part, Tensor) else type(part).__name__
            what = f"{kind}: {part!r}"[:120]
            return Finding(False, f"rank {rank} returned {what}; expected a 1-D int64 tensor.")
    times = Counter(torch.cat(dealt.indices(number)).tolist())
    problems = {
        "dealt more than once": sorted(index for index, count in times.items() if count > 1),
        "missing": sorted(set(range(length)) - set(times)),
        "out of range": sorted(set(times) - set(range(length))),
    }
    text = "; ".join(f"{what}: {_some(which)}" for what, which in problems.items() if which)
    where = f"{compare.counted(length, 'sample')} on {compare.counted(len(dealt.parts[number]), 'rank')}"
    when = f" in epoch {epoch} with seed {seed}" if text else ""
    why = _why_not_a_partition(dealt.orders(number)[0], problems) if text else ""
    return Finding(not text, f"{where}{when}: {text or 'each is dealt to one rank'}.{why}")


def _why_not_a_partition(parts: list[list[int]], problems: Mapping[str, list[int]]) -> str:
    """A sentence on what has probably gone wrong, if that can be told."""
    if len(parts) > 1 and all(part == parts[0] for part in parts):
        return " All ranks get the same; a rank's part depends on dist.get_rank(), not on its local rank."
    if problems["dealt more than once"] and problems["missing"]:
        return (
            " Have all ranks drawn the same permutation? The rank and its random state must not matter, nor "
            "hash() of a text, which differs from process to process."
        )
    return ""


def balance(dealt: Shards) -> Finding:
    """Passes if the sizes of the ranks' parts differ by at most one."""
    texts = {}
    for number, (length, _, _) in enumerate(dealt.asked):
        sizes = [len(part) for part in dealt.indices(number)]
        texts[length] = f"{compare.counted(length, 'sample')} dealt as {sizes}"
        if max(sizes) - min(sizes) > 1:
            return Finding(False, f"{texts[length]}; sizes may differ by one.")
    return Finding(True, "; ".join(texts.values()) + ".")


def shuffling(parts: list[Tensor], other_seed: list[Tensor], when: Sequence[str]) -> Finding:
    """Passes if another seed deals other samples, and the samples of no rank come in ascending order, also
    not in an order that begins in the middle and goes on at the start.

    parts, other_seed: a rank's indices [n] each. when: both, for a sentence.
    """
    if not all(map(len, parts)):
        return Finding(False, "Not every rank returned a list of indices to look at.")
    in_order = [rank for rank, part in enumerate(parts) if (part.diff() < 0).sum() <= 1]
    if in_order:
        text = f"rank {in_order[0]}'s indices come in ascending order: {parts[in_order[0]].tolist()!r:.60}"
        return Finding(False, f"{text}.")
    return reshuffling(parts, other_seed, when)


PRODUCT = " A product of seed and epoch is 0 if one of them is: take another number, such as their sum."


def reshuffling(parts: list[Tensor], others: list[Tensor], when: Sequence[str], why: str = "") -> Finding:
    """Passes if another time deals other samples.

    parts, others: a rank's indices [n] each. when: both times, for a sentence. why: one more sentence.
    """
    if not all(map(len, parts)):
        return Finding(False, "Not every rank returned a list of indices to look at.")
    same = _same_samples(parts, others, when)
    if same:
        return Finding(False, f"{same}.{why}")
    return Finding(True, "Every sample goes anew to a rank.")


def repeated(dealt: Shards) -> Finding:
    """Passes if the same seed and epoch, once more, after others than before, and when what was dealt has
    been overwritten, deal the same.
    """
    for (_, epoch, seed), parts, again in zip(dealt.asked, dealt.parts, dealt.again, strict=False):
        for rank, both in enumerate(zip(again, parts, strict=True)):
            if not compare.same(*both):
                text = f"rank {rank} gets another part when it asks for epoch {epoch} with seed {seed} again"
                return Finding(False, f"{text}; nothing may depend on what was asked before, or made of it.")
    return Finding(True, "Each epoch deals anew, and the same epoch always alike.")


def random_state_kept(dealt: Shards) -> Finding:
    """Passes if no rank's own random state has changed, in whatever library."""
    for rank, libraries in enumerate(dealt.changed):
        if libraries:
            text = f"the random state of {' and '.join(libraries)} changes on rank {rank}"
            return Finding(False, f"{text}; expected it to stay as it was.")
    return Finding(True, "The rank's own random state stays as it was.")


def _same_samples(parts: list[Tensor], others: list[Tensor], when: Sequence[str]) -> str:
    """Whose samples stay together, in words; empty if all are dealt anew. when: the two times."""
    one, other = when
    owners = {frozenset(part.tolist()): rank for rank, part in enumerate(others)}
    for rank, part in enumerate(parts):
        owner = owners.get(frozenset(part.tolist()))
        if owner == rank:
            return f"rank {rank} gets the same samples {one} and {other}"
        if owner is not None:
            return f"the samples that rank {rank} gets {one} all go to rank {owner} {other}"
    return ""


def _some(indices: list[int]) -> str:
    """The first few of many, for a sentence."""
    shown = ", ".join(str(index) for index in indices[:5])
    return shown if len(indices) <= 5 else f"{shown} and {len(indices) - 5} more"
