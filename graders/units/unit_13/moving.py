"""Unit 13, a tensor from one layout into another."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.runtime.communication.costs import traffic_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Kind, Rng, compare, exercise, per_rank
from graders.units.groups import members_of
from graders.units.unit_13.drivers import layouts as drivers

Change = tuple[str, str]
"""From one placement to another, as `spelled`."""

WHOLE: list[Change] = [("S(0)", "R"), ("S(1)", "R"), ("S(2)", "R"), ("P", "R")]
CUT: list[Change] = [
    ("P", "S(0)"), ("P", "S(2)"), ("P", "S(1)"), ("S(0)", "S(1)"), ("S(1)", "S(0)"), ("S(2)", "S(1)"),
    ("S(0)", "S(2)"), ("S(1)", "S(2)"), ("S(2)", "S(0)"),
]  # fmt: skip
ALONE: list[Change] = [
    ("R", "S(0)"), ("R", "S(1)"), ("R", "P"), ("S(0)", "P"), ("S(2)", "P"),
    ("R", "R"), ("P", "P"), ("S(1)", "S(1)"),
]  # fmt: skip
GROUPS = [[0, 3, 4], [1, 2, 5]]
DTYPES = (torch.float64, torch.float32, torch.int64)


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "whole on every rank",
            3,
            "Of parts along another dim than 0, what does dist.all_gather_into_tensor leave where? A sum has "
            "to be added up.",
        ),
        Criterion(
            "cut, from a sum or from another cut",
            3,
            "Part r goes to the rank at place r: stack the parts along a new dimension 0, which is where "
            "dist.reduce_scatter_tensor and dist.all_to_all_single cut.",
        ),
        Criterion(
            "without a word",
            2,
            "A part of what all have; or a sum in which each number stands on one rank only, with zeros on "
            "the others.",
        ),
        Criterion(
            "in a group",
            1,
            "A rank's place is dist.get_rank(group), and the group is an argument of every call.",
            needs=("whole on every rank", "cut, from a sum or from another cut"),
        ),
        Criterion(
            "what is sent",
            2,
            "One collective at most, and the one that brings each rank what it needs and no more.",
            needs=("whole on every rank", "cut, from a sum or from another cut", "without a word"),
        ),
        Criterion(
            "x is left alone",
            1,
            "It may be in use elsewhere, and in any order in memory; what is returned has memory of its own.",
        ),
    ),
    hints=(
        "Which four changes need other ranks? Which collective gives each rank what it lacks?",
        "Collectives cut and join along dimension 0. How does a part along dim get there?",
        "From S(0) to S(1) on two ranks, with a tensor of 2 x 2: which number goes where?",
    ),
)
def reshard(answer: Answer, rng: Rng) -> Findings:
    """Drawn tensors on one to four ranks, in groups, transposed; then the bytes of single changes."""
    left: list[Finding] = []
    for name, changes in (
        ("whole on every rank", WHOLE),
        ("cut, from a sum or from another cut", CUT),
        ("without a word", ALONE),
    ):
        worlds = [World.drawn(rng, changes, ranks) for ranks in (3, 1, 2, 4)]
        found = []
        for world in worlds:
            replies = world.launch(answer)
            found.append(world.right(replies))
            left.append(world.left_alone(replies))
        yield name, compare.first_failure(found)
    grouped = World.drawn(rng, [*WHOLE, *CUT, *ALONE], 6, groups=GROUPS)
    yield "in a group", grouped.right(grouped.launch(answer))
    yield "what is sent", compare.first_failure(_sent(answer, rng))
    gaps = World.drawn(rng, [*WHOLE, *CUT, *ALONE], 3, gaps=True)
    replies = gaps.launch(answer)
    yield "x is left alone", compare.first_failure((gaps.right(replies), gaps.left_alone(replies), *left))


@dataclass(frozen=True, slots=True)
class World:
    """Changes of layouts, of which each group of ranks has a tensor of its own.

    parts[rank][k]: what a rank is given for change k. after[rank][k]: what it should have then; of a sum, the
    whole of it.
    """

    changes: list[Change]
    parts: list[list[Tensor]]
    after: list[list[Tensor]]
    gaps: bool
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        changes: list[Change],
        ranks: int,
        gaps: bool = False,
        groups: list[list[int]] | None = None,
    ) -> "World":
        """Each dimension has its own multiple of the ranks as its length."""
        teams = groups or [list(range(ranks))]
        parts: list[list[Tensor]] = [[] for _ in range(ranks)]
        after: list[list[Tensor]] = [[] for _ in range(ranks)]
        for number, (source, target) in enumerate(changes):
            dtype = DTYPES[number % len(DTYPES)]
            for team in teams:
                p = len(team)
                shape = (2 * p, p * rng.integer(1, 2), 3 * p)
                summands = [rng.integers(-99, 99, *shape).to(dtype) for _ in team]
                whole = torch.stack(summands).sum(0).to(dtype)
                for place, rank in enumerate(team):
                    parts[rank].append(summands[place] if source == "P" else _part(whole, source, p, place))
                    after[rank].append(_part(whole, target, p, place))
        return cls(changes, parts, after, gaps, groups or [])

    def launch(self, answer: Answer) -> list[drivers.MovedReply]:
        """What each rank returned."""
        given = per_rank(self.parts), self.changes, self.gaps, self.groups
        replies = answer.launch(drivers.moved, *given, ranks=len(self.parts)).results
        for reply in replies:
            for part in (reply.results, reply.left, reply.shared):
                list(compare.side_by_side(part, self.changes))
        return replies

    def right(self, replies: list[drivers.MovedReply]) -> Finding:
        """Passes if every rank has what it should have."""
        return compare.first_failure(self._judged(replies))

    def _judged(self, replies: list[drivers.MovedReply]) -> Iterator[Finding]:
        ranks = len(self.parts)
        for k, (source, target) in enumerate(self.changes):
            for rank in range(ranks):
                what = f"{source} to {target}, {self._given(rank, k)}: the result on rank {rank} of {ranks}"
                seen, wanted = replies[rank].results[k], self.after[rank][k]
                if target == "P" and source != "P":
                    team = members_of(rank, ranks, self.groups)
                    every = [replies[each].results[k] for each in team]
                    for each in every:
                        if type(each) is not Tensor or (each.shape, each.dtype) != (
                            wanted.shape,
                            wanted.dtype,
                        ):
                            yield compare.close(each, wanted, what, 0, 0)
                            return
                    seen, what = (
                        torch.stack(every).sum(0).to(wanted.dtype),
                        f"{what}, added up over its group,",
                    )
                yield compare.close(seen, self.parts[rank][k] if source == target else wanted, what, 0, 0)

    def _given(self, rank: int, k: int) -> str:
        shape = list(self.parts[rank][k].shape)
        return f"a rank has {shape}" + (f", groups {self.groups}" if self.groups else "")

    def left_alone(self, replies: list[drivers.MovedReply]) -> Finding:
        """Passes if no argument has changed, and no result has memory of one."""
        for rank, reply in enumerate(replies):
            for k, (source, target) in enumerate(self.changes):
                what = f"{source} to {target}: x on rank {rank} afterwards"
                finding = compare.close(reply.left[k], self.parts[rank][k], what, 0, 0)
                if not finding.passed:
                    return finding
                if reply.shared[k]:
                    return Finding(False, f"{source} to {target}: the result has x's own memory.")
        return Finding(True, "No argument has changed, and no result has its memory.")


def _part(whole: Tensor, layout: str, p: int, place: int) -> Tensor:
    """What a rank has of it, where a sum counts as whole."""
    return whole.tensor_split(p, int(layout[2]))[place].contiguous() if layout.startswith("S") else whole


def _sent(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Calls and bytes of single changes on three ranks."""
    calls = {"SR": "all_gather", "PR": "all_reduce", "PS": "reduce_scatter", "SS": "all_to_all"}
    for source, target in [*WHOLE, *CUT, *ALONE]:
        world = World.drawn(rng, [(source, target)], 3)
        run = answer.launch(drivers.moved, per_rank(world.parts), world.changes, False, world.groups, ranks=3)
        call = None if source == target else calls.get(source[0] + target[0])
        nbytes = world.parts[0][0].nbytes
        allowed = traffic_of(call, nbytes, 3).sent if call else 0
        made, most = len(run.calls(0)), max(run.traffic[rank].sent for rank in range(3))
        setting = f"{source} to {target}, {nbytes:,} bytes a rank, 3 ranks"
        said = f"{setting}: {made} collectives, and a rank sends {most:,} bytes"
        right = made <= bool(call) and most <= allowed
        yield Finding(
            right,
            f"{said}; allowed are {int(bool(call))} and {allowed:,}.",
            Kind.OTHER if right else Kind.TOO_MUCH,
        )
