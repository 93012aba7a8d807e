"""The grader of `hierarchical_all_to_all`."""

from collections import Counter
from dataclasses import dataclass

import torch

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kinds import Kind
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks

Messages = list[tuple[int, int, int]]
"""Place that sends, place that it goes to, bytes."""


@dataclass(frozen=True, slots=True)
class Blocks(Ranks):
    """node: ranks a node. shape, dtype: of a block."""

    ranks: int = feature(6, "{} ranks")
    node: int = feature(2, "{} a node")
    shape: tuple[int, ...] = feature((2,), "blocks of shape {}")
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))

    @property
    def tolerance(self) -> float:
        return 0.0

    @property
    def nodes(self) -> int:
        return self.ranks // self.node


def drawn_blocks(rng: Rng, case: Blocks) -> list[Arguments]:
    """Numbers of which none is another's, and large ones that float32 has not."""
    drawn = [rng.normal(case.ranks, *case.shape, dtype=torch.float64) for _ in range(case.ranks)]
    factor = 100 if case.dtype.is_floating_point else 2**50
    return [[(factor * each).to(case.dtype), case.node] for each in drawn]


def across(tried: Tried[Blocks]) -> Messages:
    """The messages between nodes."""
    node = tried.case.features.node
    return [each for each in tried.seen.traffic.messages if each[0] // node != each[1] // node]


def between_nodes(tried: Tried[Blocks], allowed: int) -> Finding:
    """Passes if no node sends another more than so many messages, and no rank itself any."""
    node = tried.case.features.node
    own = [sender for sender, receiver, _ in tried.seen.traffic.messages if sender == receiver]
    if own:
        return Finding(False, f"place {own[0]} sends itself a message, which Gloo cannot carry.")
    sent = Counter((sender // node, receiver // node) for sender, receiver, _ in across(tried))
    what = "messages from one node to another"
    return compare.at_most(max(sent.values(), default=0), allowed, what, kind=Kind.TOO_MUCH)


def shared_out(tried: Tried[Blocks]) -> Finding:
    """Passes if no node sends another more bytes than its own blocks for it, and no rank more than its share
    of the messages between nodes.
    """
    case, nbytes = tried.case.features, Counter[tuple[int, int]]()
    for sender, receiver, size in across(tried):
        nbytes[sender // case.node, receiver // case.node] += size
    blocks = case.node**2 * torch.Size(case.shape).numel() * case.dtype.itemsize
    most = max(nbytes.values(), default=0)
    found = compare.at_most(most, blocks, "bytes that one node sends another", kind=Kind.TOO_MUCH)
    if not found.passed:
        return found
    sent = Counter(sender for sender, _, _ in across(tried))
    what = "messages to other nodes from one rank"
    return compare.at_most(max(sent.values(), default=0), -(-case.nodes // case.node), what)


@on_ranks(
    base=Blocks(),
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion("every block", 2, "At [r] of the result stands what rank r had at [this rank]."),
        Criterion(
            "any nodes and blocks",
            2,
            "One node; one GPU a node; more nodes than GPUs a node, or fewer. Blocks of any shape and dtype; "
            "x stays, and the result is new.",
            vary=both(ranks=1, node=1)
            + both(ranks=3, node=3)
            + both(ranks=4, node=1)
            + both(ranks=6, node=3)
            + both(ranks=8, node=2)
            + vary(shape=((), (3, 2)), dtype=(torch.int64,)),
            how=kept,
        ),
        Criterion(
            "g times fewer messages",
            3,
            "What a node's ranks have for one rank of another node can travel in one message, if one rank "
            "collects it before. A rank copies what it has for itself.",
            how=lambda tried: between_nodes(tried, tried.case.features.node),
        ),
        Criterion(
            "one message from node to node",
            3,
            "The rank that collects can do so for all ranks of the other node. There a rank hands out what "
            "arrives.",
            needs=("every block", "g times fewer messages"),
            how=lambda tried: between_nodes(tried, 1),
        ),
        Criterion(
            "no rank carries all",
            2,
            "Between two nodes each block crosses once. Share the other nodes among the ranks of a node: "
            "place j takes nodes j, j + g, j + 2 g, ...",
            needs=("every block", "one message from node to node"),
            how=shared_out,
        ),
        Criterion(
            "group",
            1,
            "Ranks are those of the group, for node and place and for peers.",
            vary=both(group=1, ranks=4, node=2),
        ),
    ),
    hints=(
        "Who has what after each of the three stages, within the node, between nodes, within the node?",
        "A rank of node a carries all for node b. To which rank of b should it send, so that all ranks of b "
        "have equally much to hand out?",
        "x.unflatten(0, (m, g)) is blocks by node and by place. Which dimension does each stage exchange?",
    ),
    arguments=drawn_blocks,
    written=lambda case: f"torch.arange({case.ranks}) + 100 * dist.get_rank(), {case.node}",
)
def hierarchical_all_to_all(case: Blocks, given: list[Arguments]) -> list[Expected]:
    """A table of blocks, transposed."""
    x = torch.stack([each for each, _ in given])
    return [
        Expected(x[:, place], {"x": own, "gpus_per_node": case.node}, returned=None)
        for place, (own, _) in enumerate(given)
    ]
