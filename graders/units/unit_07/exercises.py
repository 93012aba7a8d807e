"""Graders of unit 07, collectives: the rubrics, and in which order what is judged."""

from collections.abc import Iterator

from graders.grading.answer import Answer
from graders.grading.exercise import Criterion, Finding, exercise
from graders.grading.rng import Rng
from graders.units.unit_07 import collective_kinds as kinds
from graders.units.unit_07 import hangs
from graders.units.unit_07.collectives import (
    Allowance,
    Collective,
    World,
    bytes_between_nodes,
    bytes_within_nodes,
    common_findings,
    drawn_members,
    duration,
    measured,
    neighbours_only,
    seconds,
    traffic,
)
from graders.units.unit_07.cost_models import (
    exact_fit,
    folded_ranks,
    formula,
    noisy_fit,
    reduction_terms,
    samples_kept,
    single_rank,
)
from graders.units.unit_07.mpi_program import changed_in_place, messages_and_bytes, mpi_run, sums

UNIT = "07_collectives"

BYTES = 4
"""Bytes of an element where messages are measured: float32."""

ANY_DTYPE = Criterion(
    "any dtype",
    1,
    "Make every tensor of your own with x's dtype (torch.empty_like); 2**58 + 1 fits no floating-point type.",
)
ON_A_SUBGROUP = Criterion(
    "on a subgroup",
    1,
    "Rank and size come from dist.get_rank(group) and dist.get_world_size(group); peers of a message are "
    "group_dst= and group_src=, with group=group.",
)
ONLY_MESSAGES = Criterion(
    "only send and recv",
    1,
    "Use send, recv, isend and irecv and no collective. Every message needs its receive, and every isend and "
    "irecv a wait().",
)
LAYOUT_IN_PLACE = Criterion(
    "any layout",
    1,
    "Messages need contiguous tensors. Work on x.contiguous(), a copy if x is not, then x.copy_(...). Of a "
    "transposed matrix clone() alone makes a transposed one.",
)


def _lengths(hint: str) -> Criterion:
    return Criterion("any length", 1, hint)


CHUNK_LENGTHS = _lengths(
    "Chunks are torch.tensor_split's: they may differ by one element, and with fewer elements than ranks "
    "some are empty. Receive into a tensor of the arriving chunk's length."
)
WHOLE_LENGTHS = _lengths("Nothing needs to divide here: the whole tensor travels.")


# ---------------------------------------------------------------------------------- scatter_from, gather_to


@exercise(
    unit=UNIT,
    name="scatter_from",
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion("its part on every rank", 2, "Rank j gets parts[j]; the root copies its own part."),
        Criterion("any number of ranks", 1, "src need not be rank 0, and a root alone sends nothing."),
        _lengths("Parts may differ in length; x has the right one already."),
        ANY_DTYPE,
        Criterion("in place", 1, "Write into x and return x itself; the parts stay as they are."),
        LAYOUT_IN_PLACE,
        Criterion(
            "on a subgroup",
            1,
            "src is a global rank, as in dist.scatter; dist.get_group_rank(group, src) is its place.",
        ),
        ONLY_MESSAGES,
        Criterion("bytes and messages", 1, "The root sends each other rank its part, and nothing else."),
    ),
    hints=(
        "Two cases: this rank is the root, or it is not.",
        "The root loops over the places of the group, sends parts[place] to each, and copies its own.",
        "dist.send(part.contiguous(), group_dst=place, group=group) sends to a place of the group.",
    ),
)
def scatter_from(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A part for everyone, from any root."""
    yield from _common(answer, rng, kinds.SCATTER, "its part on every rank", rooted=True)
    played = measured(answer, rng, kinds.SCATTER, World(5, 20, root=3))
    root, other = Allowance(4, 16 * BYTES), Allowance(0, 0)
    yield traffic("bytes and messages", played, [other, other, other, root, other])


@exercise(
    unit=UNIT,
    name="gather_to",
    minutes=8,
    difficulty=1,
    rubric=(
        Criterion("every part on the root", 2, "parts[j] on the root is what rank j has in x; others: None."),
        Criterion("any number of ranks", 1, "dst need not be rank 0, and a root alone receives nothing."),
        _lengths("Parts may differ in length; parts[j] has the right one already."),
        ANY_DTYPE,
        Criterion("in place", 1, "Fill the tensors in parts and return parts itself; x stays as it is."),
        LAYOUT_IN_PLACE,
        Criterion(
            "on a subgroup",
            1,
            "dst is a global rank, as in dist.gather; dist.get_group_rank(group, dst) is its place.",
        ),
        ONLY_MESSAGES,
        Criterion("bytes and messages", 1, "Each rank but the root sends its part once, to the root."),
    ),
    hints=("It is scatter_from backwards: sends become receives.",),
)
def gather_to(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Everyone's part, at any root."""
    yield from _common(answer, rng, kinds.GATHER, "every part on the root", rooted=True)
    played = measured(answer, rng, kinds.GATHER, World(5, 20, root=3))
    root, other = Allowance(0, 0), Allowance(1, 4 * BYTES)
    yield traffic("bytes and messages", played, [other, other, other, root, other])


# ----------------------------------------------------------------------------------------------------- trees


@exercise(
    unit=UNIT,
    name="broadcast_tree",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("the root's values on every rank", 2, "Whoever has the tensor can pass it on."),
        Criterion(
            "any number of ranks",
            1,
            "Count places from the root: (rank - root) % p. A place that does not exist is not sent to.",
        ),
        WHOLE_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "Write into x and return x itself."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages", 1, "No rank sends more than ceil(log2 p) messages, p - 1 in all suffice."
        ),
        Criterion("rounds", 2, "In round k, every place below 2**k sends: ceil(log2 p) rounds for p ranks."),
    ),
    hints=(
        "Rng 8 ranks. Round 0: place 0 sends to 1. Round 1: 0 to 2, 1 to 3. Round 2: four messages.",
        "In the round with distance d = 1, 2, 4 ..., places below d send to place + d, if there is such a "
        "place; places from d to 2d - 1 receive.",
        "Place and rank: place = (rank - root) % p, and rank = (place + root) % p.",
    ),
)
def broadcast_tree(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A binomial tree from any root."""
    yield from _common(answer, rng, kinds.BROADCAST, "the root's values on every rank", rooted=True)
    length = 250
    for ranks in (7, 8):
        played = measured(answer, rng, kinds.BROADCAST, World(ranks, length, root=2))
        finding = traffic("bytes and messages", played, [Allowance(3, 3 * length * BYTES)] * ranks)
        if finding.passed and played.observed.traffic.messages > ranks - 1:
            text = f"{played.observed.traffic.messages} messages for {ranks} ranks; {ranks - 1} suffice."
            finding = Finding("bytes and messages", False, text)
        if not finding.passed:
            break
    yield finding
    yield duration("rounds", played, seconds(3, 3 * length * BYTES), "3 rounds of the whole tensor")


@exercise(
    unit=UNIT,
    name="reduce_tree",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on the root", 2, "Each place adds what arrives to what it has, then passes it on."
        ),
        Criterion(
            "any number of ranks",
            1,
            "Count places from the root, (rank - root) % p, and receive only from places that exist.",
        ),
        WHOLE_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "On the root x becomes the sum; on other ranks it stays: add into a copy."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion("bytes and messages", 1, "Each rank but the root sends once: what it has added up."),
        Criterion("rounds", 2, "The broadcast's tree, run backwards, has ceil(log2 p) rounds too."),
    ),
    hints=(
        "Play the broadcast's rounds backwards, and turn each message round.",
        "With distance d = 1, 2, 4 ...: a place that is an odd multiple of d sends to place - d and is done; "
        "an even multiple receives from place + d, if there is such a place, and adds.",
        "total = x.clone() keeps x; torch.empty_like(total) holds what arrives.",
    ),
)
def reduce_tree(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A binomial tree to any root; nobody else's tensor changes."""
    yield from _common(answer, rng, kinds.REDUCE, "the sum on the root", rooted=True)
    length = 250
    for ranks in (7, 8):
        played = measured(answer, rng, kinds.REDUCE, World(ranks, length, root=2))
        once = [Allowance(0 if rank == 2 else 1, length * BYTES) for rank in range(ranks)]
        finding = traffic("bytes and messages", played, once)
        if not finding.passed:
            break
    yield finding
    yield duration("rounds", played, seconds(3, 3 * length * BYTES), "3 rounds of the whole tensor")


# ----------------------------------------------------------------------------------------------------- rings

RING_RANKS = Criterion(
    "any number of ranks",
    1,
    "Neighbours are (rank + 1) % p and (rank - 1) % p. All do the same, so if all send first, all wait: "
    "isend, recv, wait.",
)
ROUND_THE_RING = Criterion(
    "neighbours only", 1, "On a ring a rank sends to the next one only, and receives from the one before."
)


@exercise(
    unit=UNIT,
    name="ring_reduce_scatter",
    minutes=25,
    difficulty=4,
    rubric=(
        Criterion(
            "its chunk of the sum",
            2,
            "Rank r returns chunk r of the sum. Add the chunk that arrives to your own, and pass "
            "on what you have just added up.",
        ),
        RING_RANKS,
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x must stay as it was: add into a copy of it, and return a new tensor."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        ROUND_THE_RING,
        Criterion("bytes and messages", 2, "p - 1 steps, and in each one chunk and not the whole tensor."),
        Criterion("rounds", 1, "All ranks send at the same time: isend, then recv, then wait."),
    ),
    hints=(
        "Follow chunk 0 of 4 ranks: it starts at rank 1, is added up at 2, then 3, and ends at rank 0.",
        "So in step s = 0, 1 ... p - 2 rank r sends chunk (r - 1 - s) % p to r + 1, and adds what arrives "
        "from r - 1 to chunk (r - 2 - s) % p.",
        "torch.tensor_split gives views: adding into a view of your copy changes the copy.",
    ),
)
def ring_reduce_scatter(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """p - 1 steps round the ring, after which each rank has its chunk of the sum."""
    yield from _common(answer, rng, kinds.REDUCE_SCATTER, "its chunk of the sum")
    yield from _ring_costs(answer, rng, kinds.REDUCE_SCATTER, passes=1)


@exercise(
    unit=UNIT,
    name="ring_all_gather",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "every chunk on every rank",
            2,
            "Rank r begins with chunk r. In each step pass on the chunk that arrived in the step before.",
        ),
        RING_RANKS,
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "Write into x and return x itself; chunk r of rank r stays."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        ROUND_THE_RING,
        Criterion("bytes and messages", 2, "p - 1 steps, and in each one chunk."),
        Criterion("rounds", 1, "All ranks send at the same time: isend, then recv, then wait."),
    ),
    hints=(
        "In step s rank r sends chunk (r - s) % p and receives chunk (r - s - 1) % p.",
        "A chunk of a contiguous tensor is contiguous, so recv can write into it.",
    ),
)
def ring_all_gather(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """p - 1 steps round the ring, after which each rank has every chunk."""
    yield from _common(answer, rng, kinds.ALL_GATHER, "every chunk on every rank")
    yield from _ring_costs(answer, rng, kinds.ALL_GATHER, passes=1)


@exercise(
    unit=UNIT,
    name="ring_all_reduce",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion("the sum on every rank", 2, "A reduce-scatter, then an all-gather of the summed chunks."),
        RING_RANKS,
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        ROUND_THE_RING,
        Criterion(
            "bytes and messages",
            2,
            "2 (p - 1) messages of one chunk each: 2 (p - 1) / p of the tensor. Whole tensors round the ring "
            "give the right sum too, and p times the bytes.",
        ),
        Criterion("rounds", 1, "2 (p - 1) steps in which all ranks send at the same time."),
    ),
    hints=(
        "You have both halves. What does rank r hold after the first one, and where in x does it belong?",
        "torch.tensor_split(flat, p)[rank].copy_(chunk) puts it there; flat has to be contiguous.",
    ),
)
def ring_all_reduce(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Twice round the ring."""
    yield from _common(answer, rng, kinds.ALL_REDUCE, "the sum on every rank")
    yield from _ring_costs(answer, rng, kinds.ALL_REDUCE, passes=2)


# ------------------------------------------------------------------------------------ hypercubes, hierarchies


@exercise(
    unit=UNIT,
    name="halving_doubling_all_reduce",
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "the sum on every rank",
            2,
            "Halve: swap halves with the partner and add. Double: swap back what has been added up, in the "
            "reverse order.",
        ),
        Criterion(
            "any number of ranks",
            2,
            "Let c be the largest power of two in p. Ranks from c on give their tensor to rank - c, and "
            "get the result.",
        ),
        _lengths("Both partners must cut in the same place; halves may differ by one and may be empty."),
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion(
            "bytes and messages",
            2,
            "Each round halves what is sent: n/2, n/4, ... Whole tensors in every round are recursive "
            "doubling, which sends log2 p times the tensor.",
        ),
        Criterion("rounds", 2, "2 log2 p rounds, with partners at distance p/2, p/4, ... 1 and back."),
    ),
    hints=(
        "First for p a power of two. rank ^ distance is the partner: with distance 4, rank 1's is 5.",
        "Keep the bounds low and high of what this rank is still in charge of. Who of the two has "
        "rank & distance == 0 keeps the lower half.",
        "Write each round down in a list (partner, kept, given), and go through it backwards to double.",
        "Then the ranks beyond the power of two: one message before, one after.",
    ),
)
def halving_doubling_all_reduce(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Rabenseifner's algorithm."""
    collective = kinds.ALL_REDUCE
    yield from _common(answer, rng, collective, "the sum on every rank")
    length = 240
    played = measured(answer, rng, collective, World(8, length))
    finding = traffic("bytes and messages", played, [Allowance(6, 2 * 7 * length // 8 * BYTES)] * 8)
    if finding.passed:
        folded = measured(answer, rng, collective, World(6, length))
        core = Allowance(5, (2 * 3 * length // 4 + length) * BYTES)
        finding = traffic("bytes and messages", folded, [core] * 6)
    yield finding
    yield duration("rounds", played, seconds(6, 2 * 7 * length / 8 * BYTES), "2 log2 p = 6 rounds")


@exercise(
    unit=UNIT,
    name="hierarchical_all_reduce",
    minutes=35,
    difficulty=5,
    rubric=(
        Criterion(
            "the sum on every rank",
            2,
            "Reduce-scatter within the node, all-reduce of each chunk between nodes, all-gather within.",
        ),
        Criterion("any number of ranks", 1, "One node, or one rank a node, leaves one of the stages empty."),
        CHUNK_LENGTHS,
        ANY_DTYPE,
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion(
            "bytes between nodes",
            2,
            "All ranks of a node together send at most 2 (m - 1) / m of the tensor to other nodes (m nodes): "
            "each rank carries one chunk across.",
        ),
        Criterion(
            "bytes within a node", 1, "At most 2 (g - 1) / g of the tensor a rank, with g ranks a node."
        ),
        Criterion(
            "rounds", 1, "2 (g - 1) steps within the node and 2 (m - 1) between nodes, all ranks at work."
        ),
    ),
    hints=(
        "Rank r sits on node r // g at place r % g. Who has the same chunk as r after the first stage?",
        "Write the ring steps once for a list of ranks, and call them with the node's ranks and with the "
        "ranks that have the same place on each node.",
        "Between nodes it is a ring all-reduce on one chunk, so that chunk is cut once more, in m parts.",
    ),
)
def hierarchical_all_reduce(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Three stages, so that little crosses between nodes."""
    collective = kinds.HIERARCHICAL
    members = drawn_members(rng, 4)
    yield from common_findings(
        answer,
        rng,
        collective,
        basic=[World(4, 16, node=2), World(6, 18, node=3)],
        many=[World(p, 24, node=g) for p, g in ((1, 1), (2, 2), (3, 1), (5, 5), (7, 1), (8, 2), (8, 4))],
        uneven=[[World(6, length, node=2) for length in (1, 2, 5, 13)]],
        subgroups=[World(4, 8, members=members, node=2)],
        values="the sum on every rank",
    )
    nodes, node, length = 4, 2, 240
    played = measured(answer, rng, collective, World(nodes * node, 2, columns=length // 2, node=node))
    across, inside = 2 * (nodes - 1) * length // nodes * BYTES, 2 * (node - 1) * length // node * BYTES
    yield bytes_between_nodes("bytes between nodes", played, across)
    yield bytes_within_nodes("bytes within a node", played, inside)
    within = seconds(2 * (node - 1), 2 * (node - 1) / node * length * BYTES)
    between = seconds(2 * (nodes - 1), 2 * (nodes - 1) / nodes * length / node * BYTES)
    yield duration("rounds", played, within + between, "2 rounds within and 6 between nodes")


# ------------------------------------------------------------------------------------------------ all to all


@exercise(
    unit=UNIT,
    name="all_to_all_pairwise",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion("every part at its place", 2, "outputs[i] is what rank i has for this rank in inputs."),
        Criterion(
            "any number of ranks",
            1,
            "In step s send to (rank + s) % p, receive from (rank - s) % p; rank ^ s needs a power of two.",
        ),
        _lengths("Parts may differ in length; outputs[i] has the right one already."),
        ANY_DTYPE,
        Criterion("in place", 1, "Fill outputs and return it; inputs stay as they are."),
        LAYOUT_IN_PLACE,
        ON_A_SUBGROUP,
        ONLY_MESSAGES,
        Criterion("bytes and messages", 1, "p - 1 messages: to each other rank its part, none to yourself."),
        Criterion(
            "rounds",
            2,
            "In each of p - 1 rounds every rank sends to one and receives from one. If all begin with "
            "rank 0, they queue up before it.",
        ),
    ),
    hints=(
        "Step 0 is a copy: outputs[rank] from inputs[rank].",
        "In step s = 1 ... p - 1, isend to (rank + s) % p, recv from (rank - s) % p, wait.",
    ),
)
def all_to_all_pairwise(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A part from everyone to everyone, in p - 1 rounds."""
    collective = kinds.EXCHANGE
    yield from _common(answer, rng, collective, "every part at its place")
    ranks, part = 6, 250
    played = measured(answer, rng, collective, World(ranks, ranks * part))
    allowed = Allowance(ranks - 1, (ranks - 1) * part * BYTES)
    yield traffic("bytes and messages", played, [allowed] * ranks)
    yield duration("rounds", played, seconds(ranks - 1, (ranks - 1) * part * BYTES), "p - 1 = 5 rounds")


# ---------------------------------------------------------------------------------------------- cost models


@exercise(
    unit=UNIT,
    name="predict_time",
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion("master", 1, "p - 1 messages to the master, then p - 1 from it, all through its one link."),
        Criterion("exchange", 1, "Each rank sends the whole tensor to p - 1 others, one after another."),
        Criterion("tree", 1, "ceil(log2 p) rounds of the whole tensor up, and as many down."),
        Criterion("ring", 1, "2 (p - 1) steps, in each a p-th of the tensor."),
        Criterion("halving_doubling", 1, "2 log2 p rounds for p a power of two: n/2 + n/4 + ... is not n."),
        Criterion(
            "ranks beyond a power of two",
            1,
            "halving_doubling works on the largest power of two in p, with two more messages of the whole "
            "tensor; a tree rounds log2 p up.",
        ),
        Criterion("reduction", 1, "gamma is paid for each byte that arrives and is added, not for copies."),
        Criterion("one rank", 1, "Alone there is nothing to send: 0 seconds."),
    ),
    hints=(
        "Count messages one after another, and bytes one after another, on the busiest rank.",
        "ceil(log2 p) is (p - 1).bit_length(), without rounding errors.",
    ),
)
def predict_time(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Each algorithm's formula."""
    for algorithm in ("master", "exchange", "tree", "ring", "halving_doubling"):
        yield formula(answer, rng, algorithm)
    yield folded_ranks(answer, rng)
    yield reduction_terms(answer, rng)
    yield single_rank(answer, rng)


@exercise(
    unit=UNIT,
    name="fit_alpha_beta",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("exact samples", 2, "seconds = alpha + nbytes * beta is linear in alpha and beta."),
        Criterion(
            "noisy samples",
            3,
            "An error of 10 % weighs as much for a short message as for a long one: divide each equation by "
            "its seconds before you solve.",
        ),
        Criterion("samples unchanged", 1, "Return two floats, and leave the list as it is."),
    ),
    hints=(
        "Relative errors: minimise the sum of ((alpha + n beta) / t - 1)**2, which is linear least squares "
        "with the columns 1/t and n/t and the right-hand side 1.",
        "torch.linalg.lstsq or numpy.linalg.lstsq solves it; divide a column by its largest entry, and its "
        "coefficient too.",
    ),
)
def fit_alpha_beta(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A line through measurements that span many orders of magnitude."""
    yield exact_fit(answer, rng)
    yield noisy_fit(answer, rng)
    yield samples_kept(answer, rng)


# --------------------------------------------------------------------------------------------------- shared


def _common(
    answer: Answer, rng: Rng, collective: Collective, values: str, rooted: bool = False
) -> Iterator[Finding]:
    """The findings that all collectives share; `rooted`: with roots other than 0."""

    def root(ranks: int) -> int:
        return rng.integer(0, ranks - 1) if rooted else 0

    return common_findings(
        answer,
        rng,
        collective,
        basic=[World(2, 8, root=int(rooted)), World(4, 12, root=2 * int(rooted))],
        many=[World(ranks, 4 * ranks, root=root(ranks)) for ranks in (1, 3, 5, 7, 8)],
        uneven=[
            [World(ranks, length, root=root_of) for length in lengths]
            for ranks, lengths in ((4, (1, 3, 6, 11)), (5, (2, 7, 13)))
            for root_of in [root(ranks)]
        ],
        subgroups=[
            World(size, 3 * size, layout="strided", members=drawn_members(rng, size), root=int(rooted))
            for size in (3, 4)
        ],
        values=values,
    )


def _ring_costs(answer: Answer, rng: Rng, collective: Collective, passes: int) -> Iterator[Finding]:
    """Neighbours, bytes and rounds of `passes` times p - 1 steps with a chunk each.

    With a matrix of two rows, so that who cuts rows and not elements sends too much.
    """
    ranks, length = 6, 240
    played = measured(answer, rng, collective, World(ranks, 2, columns=length // 2))
    steps = passes * (ranks - 1)
    yield neighbours_only("neighbours only", played)
    allowed = Allowance(steps, steps * length // ranks * BYTES)
    yield traffic("bytes and messages", played, [allowed] * ranks)
    yield duration("rounds", played, seconds(steps, steps * length / ranks * BYTES), f"{steps} rounds")


# ------------------------------------------------------------------------------------------- the deadlock lab


@exercise(
    unit=UNIT,
    name="causes_of_hangs",
    minutes=15,
    difficulty=2,
    rubric=tuple(
        Criterion(program, 1, f"Read in the report of {program} who waits in which call, and for whom.")
        for program in hangs.CAUSES
    ),
    hints=(
        'Begin with the first sentence of each report: who waits for whom, and whether to "send", to '
        '"receive", or to "call" something.',
        "A circle in which everyone waits for a send and one in which everyone waits for a receive are two "
        "different mistakes.",
        "Where ranks wait in collectives of different groups, look at the order in which groups were made.",
    ),
)
def causes_of_hangs(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Six reports, six causes."""
    named = answer.call("call")
    for program in hangs.CAUSES:
        yield hangs.cause(program, named)


@exercise(
    unit=UNIT,
    name="mend_swap",
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(hangs.ENDS, 1, "One of two partners has to send while the other receives."),
        Criterion(
            "the partner's tensor", 1, "Partners are 2k and 2k + 1: rank ^ 1, or rank + 1 and rank - 1."
        ),
        Criterion("x unchanged", 1, "Receive into a tensor of its own: x still has to be sent."),
        Criterion("one message each", 1, "Each rank sends once and receives once; no collective."),
    ),
    hints=("Let even ranks send first and odd ranks receive first; or use isend.",),
)
def mend_swap(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Pairs that swap tensors."""
    given = [hangs.tensors(rng, ranks) for ranks in (2, 6)]
    runs = [hangs.launched(answer, tensors) for tensors in given]
    yield hangs.ends(runs)
    swapped = [given[1][rank ^ 1] for rank in range(6)]
    yield hangs.returned("the partner's tensor", runs[1], swapped, "what was returned")
    yield hangs.inputs_kept("x unchanged", runs[1], given[1])
    yield hangs.one_message_each("one message each", runs)


@exercise(
    unit=UNIT,
    name="mend_shift",
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            hangs.ENDS, 1, "A send may return only when its receiver is there: someone has to receive."
        ),
        Criterion("the left neighbour's tensor", 1, "Rank 0's left neighbour is the last rank."),
        Criterion("x unchanged", 1, "Receive into a tensor of its own: x still has to be sent."),
        Criterion("one message each", 1, "Each rank sends once and receives once; no collective."),
        Criterion(
            "all at the same time",
            1,
            "If only rank 0 receives first, the others go one after another, p messages long. isend starts "
            "all sends at once.",
        ),
    ),
    hints=("Start the send with isend, receive, then wait for the send.",),
)
def mend_shift(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A ring in which everyone sends to the right."""
    given = [hangs.tensors(rng, ranks) for ranks in (2, 3, 4, 7)]
    runs = [hangs.launched(answer, tensors) for tensors in given]
    yield hangs.ends(runs)
    shifted = [given[3][rank - 1] for rank in range(7)]
    yield hangs.returned("the left neighbour's tensor", runs[3], shifted, "what was returned")
    yield hangs.inputs_kept("x unchanged", runs[3], given[3])
    yield hangs.one_message_each("one message each", runs)
    yield hangs.all_at_once("all at the same time", answer, rng)


@exercise(
    unit=UNIT,
    name="mend_report",
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion(hangs.ENDS, 1, "A collective is called by every rank of its group, or by none."),
        Criterion("the mean on rank 0", 1, "The sum of all ranks' losses divided by their number."),
        Criterion("None elsewhere", 1, "What to do with the result may well depend on the rank."),
        Criterion("one collective", 1, "One all_reduce on every rank; nothing else is needed."),
    ),
    hints=("What belongs behind `if rank == 0`, and what does not?",),
)
def mend_report(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """The mean loss, reported by rank 0."""
    given = [[rng.integer(1, 999) / 100 for _ in range(ranks)] for ranks in (1, 3, 4)]
    runs = [hangs.launched(answer, losses) for losses in given]
    yield hangs.ends(runs)
    means = [sum(losses) / len(losses) for losses in given]
    found = [
        hangs.numbers("the mean on rank 0", run, [mean], "what was returned")
        for run, mean in zip(runs, means, strict=True)
    ]
    yield next((finding for finding in found if not finding.passed), found[-1])
    yield hangs.numbers("None elsewhere", runs[2], [means[2], None, None, None], "what was returned")
    yield hangs.calls_once("one collective", runs, "all_reduce")


@exercise(
    unit=UNIT,
    name="mend_grid_sums",
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(
            hangs.ENDS,
            2,
            "dist.new_group is called by every rank of the world, for every group, in the same order, also "
            "for groups that the rank is not in.",
        ),
        Criterion("row sums", 1, "The row of rank r is r // columns."),
        Criterion("column sums", 1, "The column of rank r is r % columns."),
        Criterion("x unchanged", 1, "all_reduce works in place: give it a copy."),
        Criterion("within groups", 1, "One all_reduce in the row's group and one in the column's."),
    ),
    hints=(
        "Two loops over all rows and over all columns, which make all groups; each rank keeps two of them.",
    ),
)
def mend_grid_sums(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Ranks in a grid: sums along rows and along columns."""
    shapes = ((2, 2), (3, 1), (1, 2), (2, 3))
    given = [hangs.tensors(rng, rows * columns) for rows, columns in shapes]
    runs = [
        hangs.launched(answer, tensors, columns) for tensors, (_, columns) in zip(given, shapes, strict=True)
    ]
    yield hangs.ends(runs)
    columns, last = shapes[-1][1], given[-1]
    yield hangs.grid_sums("row sums", runs[-1], last, 0, lambda rank: rank // columns)
    yield hangs.grid_sums("column sums", runs[-1], last, 1, lambda rank: rank % columns)
    yield hangs.inputs_kept("x unchanged", runs[-1], last)
    yield hangs.grid_groups("within groups", runs[-1], columns)


@exercise(
    unit=UNIT,
    name="mend_collect",
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(hangs.ENDS, 2, "Rank 0 cannot know how many rows another rank has, unless it is told."),
        Criterion(
            "all rows on rank 0",
            1,
            "In the order of ranks, in a list of its own; None on the other ranks. recv without a source "
            "takes whatever comes first.",
        ),
        Criterion("ranks without rows", 1, "A rank may have no row at all: its count is 0."),
        Criterion("each row sent once", 1, "Send a count, then the rows; padding to the longest sends more."),
    ),
    hints=("A count is a tensor too: torch.tensor([len(rows)]). Send it before the rows.",),
)
def mend_collect(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Rows of all ranks, collected by rank 0."""
    counts = [rng.integer(1, 2), rng.integer(3, 4), rng.integer(5, 6), 1]
    given = [[rng.normal(40) for _ in range(count)] for count in counts]
    observed = hangs.launched(answer, given)
    yield hangs.ends([observed])
    collected = hangs.rows_collected("all rows on rank 0", observed, given)
    yield hangs.rows_in_order(answer, given) if collected.passed else collected
    sparse = [[], given[1], [], given[2]]
    yield hangs.rows_collected("ranks without rows", hangs.launched(answer, sparse), sparse)
    yield hangs.rows_sent_once("each row sent once", observed, given)


@exercise(
    unit=UNIT,
    name="mend_chain",
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(hangs.ENDS, 1, "With good values there was no hang; there must be none now."),
        Criterion(
            "the sums",
            1,
            "Rank r returns the square roots of the values of ranks 0 to r, added up in double precision.",
        ),
        Criterion(
            "the error comes out",
            2,
            "A rank that raises goes into the barrier before anyone hears of it, and the others never come.",
        ),
        Criterion("one barrier", 1, "Without errors all ranks still meet in one barrier at the end."),
    ),
    hints=("finally runs after an error too. What should a rank do then: wait, or say what happened?",),
)
def mend_chain(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A chain of ranks, one of which may raise."""
    values = [rng.integer(1, 900) / 10 for _ in range(4)]
    runs = [hangs.launched(answer, values), hangs.launched(answer, values[:1])]
    yield hangs.ends(runs)
    sums_in_double = hangs.roots_added(values)
    yield hangs.numbers("the sums", runs[0], sums_in_double, "what was returned", rtol=1e-12)
    raising = rng.integer(0, 2)
    bad = [-value if rank == raising else value for rank, value in enumerate(values)]
    yield hangs.error_comes_out("the error comes out", answer, bad)
    yield hangs.barriers("one barrier", runs[0])


# ------------------------------------------------------------------------------------------------------- MPI


@exercise(
    unit=UNIT,
    name="mpi_ring_all_reduce",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the sum on every rank", 2, "The same two passes round the ring as with torch.distributed."
        ),
        Criterion(
            "any length", 1, "Chunks are numpy.array_split's; receive into an array of the right size."
        ),
        Criterion("any dtype", 1, "Arrays of your own have x's dtype: numpy.empty_like."),
        Criterion("in place", 1, "x becomes the sum, and x itself is returned."),
        Criterion("only messages", 1, "Send, Recv, Isend, Irecv, Sendrecv; no collective of MPI's."),
        Criterion("bytes and messages", 2, "2 (p - 1) messages of one chunk each."),
    ),
    hints=(
        "comm.Sendrecv(outgoing, dest=right, recvbuf=arriving, source=left) sends and receives at once.",
        "Capital letters (Send, Recv) move the bytes of arrays; send and recv pickle objects.",
    ),
)
def mpi_ring_all_reduce(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """On four ranks of a real mpirun, and on three of them."""
    run = mpi_run(answer, rng)
    yield sums("the sum on every rank", run, [0, 4])
    yield sums("any length", run, [1, 2])
    yield sums("any dtype", run, [3])
    yield changed_in_place("in place", run)
    yield from messages_and_bytes(run)
