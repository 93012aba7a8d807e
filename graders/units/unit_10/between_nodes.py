"""Unit 10, an all-to-all in few messages between nodes."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    communication,
    compare,
    exercise,
    per_rank,
)
from graders.units.groups import members_of
from graders.units.unit_10 import drivers
from graders.units.unit_10.replies import ExchangeReply

_RIGHT = ("every block", "only messages")


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion("every block", 3, "At [r] of the result stands what rank r had at [this rank]."),
        Criterion(
            "only messages",
            1,
            "Point-to-point calls from one rank to another; what a rank has for itself it can copy.",
        ),
        Criterion(
            "any nodes", 1, "One node; one GPU a node; more nodes than GPUs a node, or fewer.", needs=_RIGHT
        ),
        Criterion(
            "any blocks",
            1,
            "Blocks of any shape and dtype, in any layout in memory; x stays, and the result is new.",
            needs=_RIGHT,
        ),
        Criterion(
            "g times fewer messages",
            2,
            "What a node's ranks have for one rank of another node can travel in one message, if somebody "
            "collects it before.",
            needs=_RIGHT,
        ),
        Criterion(
            "one message from node to node",
            2,
            "Whoever collects can do so for all ranks of the other node, where somebody has to deal it out.",
            needs=(*_RIGHT, "g times fewer messages"),
        ),
        Criterion("no bytes more", 1, "Between two nodes each block crosses once.", needs=_RIGHT),
        Criterion(
            "no rank carries all",
            1,
            "Deal the nodes to the ranks of a node: to the rank at place j the nodes j, j + g, j + 2 g, ...",
            needs=(*_RIGHT, "one message from node to node", "no bytes more"),
        ),
        Criterion(
            "group", 1, "Ranks are those of the group, for node and place and for peers.", needs=_RIGHT
        ),
    ),
    hints=(
        "Who has what after each of the three stages, within the node, between nodes, within the node?",
        "If rank r of node a carries all for node b, which rank of b should it give it to, so that all ranks "
        "of b get as much to deal out?",
        "x.unflatten(0, (m, g)) is blocks by node and by place. Which dimension does each stage exchange?",
    ),
)
def hierarchical_all_to_all(answer: Answer, rng: Rng) -> Findings:
    """Drawn blocks on drawn clusters."""
    plain = [Blocks.drawn(rng, 3, 2), Blocks.drawn(rng, 2, 3)]
    runs = [each.launch(answer) for each in plain]
    yield "every block", compare.first_failure(map(Blocks.right, plain, runs))
    by_messages = communication.only_messages(runs, "The answer")
    yield "only messages", compare.first_failure((by_messages, *map(_to_others, runs)))
    shapes = [Blocks.drawn(rng, m, g) for m, g in ((1, 1), (1, 3), (4, 1), (5, 2))]
    others = [each.launch(answer) for each in shapes]
    yield "any nodes", compare.first_failure(map(Blocks.right, shapes, others))
    blocks = [
        Blocks.drawn(rng, 2, 2, (), torch.int64),
        Blocks.drawn(rng, 2, 2, (3, 2), torch.float64, gaps=True),
        Blocks.drawn(rng, 2, 2, (0, 2)),
    ]
    of_blocks = [each.launch(answer) for each in blocks]
    harmless = map(Blocks.unharmed, (*shapes, *blocks), (*others, *of_blocks))
    yield "any blocks", compare.first_failure((*map(Blocks.right, blocks, of_blocks), *harmless))
    big = Blocks.drawn(rng, 4, 3)
    run = big.launch(answer)
    yield "g times fewer messages", big.messages(run, big.g)
    several = (big, *shapes), (run, *others)
    yield (
        "one message from node to node",
        compare.first_failure(b.messages(r, 1) for b, r in zip(*several, strict=True)),
    )
    yield "no bytes more", compare.first_failure(map(Blocks.bytes_across, *several))
    yield "no rank carries all", compare.first_failure(map(Blocks.carried, *several))
    grouped = Blocks.drawn(rng, 2, 2, members=[0, 2, 3, 5])
    yield "group", grouped.right(grouped.launch(answer))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Every rank's x [p, ...], on nodes of g. groups: of the ranks that take part, and of the others."""

    x: list[Tensor]
    g: int
    gaps: bool
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        nodes: int,
        g: int,
        shape: tuple[int, ...] = (2,),
        dtype: torch.dtype = torch.float32,
        *,
        gaps: bool = False,
        members: list[int] | None = None,
    ) -> "Blocks":
        """members: the ranks of one of two groups; the other ranks are the other, of as many."""
        p = nodes * g
        others = [rank for rank in range(2 * p) if rank not in (members or [])]
        groups = [members, others] if members else []
        x = [(100 * rng.normal(p, *shape)).to(dtype) for _ in range(2 * p if members else p)]
        return cls(x, g, gaps, groups)

    def launch(self, answer: Answer) -> Observed[ExchangeReply]:
        return answer.launch(
            drivers.exchanged, per_rank(self.x), self.g, self.gaps, self.groups, ranks=len(self.x)
        )

    def right(self, run: Observed[ExchangeReply]) -> Finding:
        ranks = len(self.x)
        expected = []
        for rank in range(ranks):
            members = members_of(rank, ranks, self.groups)
            expected.append(torch.stack([self.x[other][members.index(rank)] for other in members]))
        nodes = len(self.x[0]) // self.g
        what = f"the result, with {compare.counted(nodes, 'node')} of {self.g},"
        return compare.close_on_all_ranks([reply.result for reply in run.results], expected, what, 0, 0)

    def unharmed(self, run: Observed[ExchangeReply]) -> Finding:
        """Passes if the result is a tensor of its own, and x is as it was."""
        left = [compare.equal(r.x, x, "x afterwards") for r, x in zip(run.results, self.x, strict=True)]
        shared = [reply.shared for reply in run.results]
        own = compare.equal(shared, [False] * len(shared), "the result lies in x's memory, rank by rank")
        return compare.first_failure((*left, own))

    def across(self, run: Observed[ExchangeReply]) -> list[tuple[int, int, int]]:
        """Of each message between nodes the rank that sends it, the rank that it goes to, and its bytes."""
        return [
            (event.rank, event.peer, event.sent)
            for event in run.events
            if event.op == "send" and event.peer is not None and event.rank // self.g != event.peer // self.g
        ]

    def messages(self, run: Observed[ExchangeReply], allowed: int) -> Finding:
        """Passes if no node sends another more than so many messages."""
        sent = Counter((rank // self.g, peer // self.g) for rank, peer, _ in self.across(run))
        what = f"Messages from one node to another, with {self.g} ranks a node"
        return compare.at_most(max(sent.values(), default=0), allowed, what, kind=Kind.TOO_MUCH)

    def bytes_across(self, run: Observed[ExchangeReply]) -> Finding:
        """Passes if no node sends another more than its own blocks for it."""
        sent: Counter[tuple[int, int]] = Counter()
        for rank, peer, nbytes in self.across(run):
            sent[rank // self.g, peer // self.g] += nbytes
        allowed = self.g**2 * self.x[0][0].nbytes
        what = "Bytes that one node sends another"
        return compare.at_most(max(sent.values(), default=0), allowed, what, kind=Kind.TOO_MUCH)

    def carried(self, run: Observed[ExchangeReply]) -> Finding:
        """Passes if no rank sends more than its share of the messages between nodes."""
        nodes = len(self.x[0]) // self.g
        sent = Counter(rank for rank, _, _ in self.across(run))
        allowed = -(-nodes // self.g)
        most = max(sent.values(), default=0)
        what = f"Messages to other nodes from one rank, with {nodes} nodes of {self.g}"
        return compare.at_most(most, allowed, what)


def _to_others(run: Observed[ExchangeReply]) -> Finding:
    """Passes if no rank sends itself anything."""
    own = [event.rank for event in run.events if event.op == "send" and event.peer == event.rank]
    said = (
        f"rank {own[0]} sends itself a message, which Gloo cannot carry" if own else "None goes to its sender"
    )
    return Finding(not own, f"{said}.")
