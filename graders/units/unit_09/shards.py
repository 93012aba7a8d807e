"""Unit 09, how much a rank holds, and which part."""

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion("nothing cut", 1, "2 bytes for the weight, 2 for its gradient, and the optimizer's."),
        Criterion(
            "the optimizer's numbers", 1, "In stage 1 only these are cut; weights and gradients stay whole."
        ),
        Criterion(
            "gradients too", 1, "In stage 2 the weights alone are whole.", needs=("the optimizer's numbers",)
        ),
        Criterion("weights too", 1, "In stage 3 all that a rank holds is a shard.", needs=("gradients too",)),
        Criterion(
            "shards that are not equal",
            1,
            "Ten parameters on four ranks: one rank has three of them. Round the shard up, in parameters, "
            "and only then count bytes. / makes a float, exact only up to 2**53; -(-a // b) always is.",
            needs=("the optimizer's numbers", "gradients too", "weights too"),
        ),
    ),
    hints=(
        "Of which of the three kinds does a rank hold a shard only in this stage?",
        "How many parameters has the largest shard? -(-a // b) is a / b rounded up.",
    ),
)
def zero_memory(answer: Answer, rng: Rng) -> Findings:
    """Each stage where ranks divide the parameters and on one rank, then where they do not."""
    names = ("nothing cut", "the optimizer's numbers", "gradients too", "weights too")
    for stage, name in enumerate(names):
        ranks = rng.integer(2, 100)
        cases = [(ranks * rng.integer(10**3, 10**8), ranks), (rng.integer(10**3, 10**8), 1)]
        yield name, compare.first_failure(memory_of(answer, *case, stage, rng) for case in cases)
    uneven = [(ranks * rng.integer(2, 9) + rng.integer(1, ranks // 2), ranks) for ranks in (5, 8)]
    # The last is too large for a division of floats.
    uneven += [(rng.integer(1, 6), rng.integer(7, 20)), (2**57 + 1, 2)]
    yield (
        "shards that are not equal",
        compare.first_failure(memory_of(answer, *case, stage, rng) for case in uneven for stage in range(4)),
    )


def memory_of(answer: Answer, parameters: int, ranks: int, stage: int, rng: Rng) -> Finding:
    """Passes if the answer counts these bytes, with the optimizer's default and with another number."""
    shard = -(-parameters // ranks)
    cut = [shard if stage >= begins else parameters for begins in (3, 2, 1)]
    other = rng.integer(1, 20)
    return compare.first_failure(
        compare.equal(
            answer.call(call, parameters, ranks, stage, *given),
            2 * cut[0] + 2 * cut[1] + state_bytes * cut[2],
            f"bytes of {compare.counted(parameters, 'parameter')} on {compare.counted(ranks, 'rank')}, "
            f"stage {stage}, state_bytes={state_bytes}",
        )
        for state_bytes, given in ((12, ()), (other, (other,)))
    )


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "parts of one length", 1, "Where the ranks divide the numbers, each has numel / ranks of them."
        ),
        Criterion(
            "a shorter part at the end",
            1,
            "All parts have one length with the padding, numel / ranks rounded up. Only the last numbers of "
            "the padded tensor are padding.",
        ),
        Criterion(
            "ranks without numbers",
            2,
            "More than one rank may have nothing but padding. A shard never reaches beyond numel, and never "
            "begins beyond it.",
            needs=("a shorter part at the end",),
        ),
    ),
    hints=(
        "How long is a part of the padded tensor? numel / ranks, rounded up.",
        "Where would a rank's part begin and end in the padded tensor, and how much of that is padding?",
    ),
)
def shard_range(answer: Answer, rng: Rng) -> Findings:
    """The shards of all ranks: of numbers that they divide, that leave a rest, and of hardly any numbers."""
    ranks, length = rng.integer(2, 9), rng.integer(3, 1000)
    even = [(ranks * length, ranks), (length, 1), (0, ranks)]
    yield "parts of one length", compare.first_failure(shards_as(answer, *case) for case in even)
    parts = rng.integer(4, 9)
    rest = [(parts * length + parts - 2, parts), (3 * length + 1, 3), (2 * length + 1, 2), (2**57 + 1, 2)]
    yield "a shorter part at the end", compare.first_failure(shards_as(answer, *case) for case in rest)
    few = [(rng.integer(1, 4), rng.integer(6, 12)), (10, 8), (33, 32)]
    yield "ranks without numbers", compare.first_failure(shards_as(answer, *case) for case in few)


def shards_as(answer: Answer, numel: int, ranks: int) -> Finding:
    """Passes if every rank's shard is the expected one, a tuple or a list of two ints."""
    length = -(-numel // ranks)
    for rank in range(ranks):
        begin, end = min(rank * length, numel), min((rank + 1) * length, numel)
        seen = answer.call(call, numel, ranks, rank)
        what = f"{compare.counted(numel, 'number')} on {compare.counted(ranks, 'rank')}: rank {rank} holds"
        if type(seen) not in (tuple, list) or not compare.same(list(seen), [begin, end]):
            return Finding(False, f"{what} {compare.shown(seen)}; expected ({begin}, {end}).")
    return Finding(
        True, f"{compare.counted(numel, 'number')} on {compare.counted(ranks, 'rank')} are cut as expected."
    )
