"""The grader of `federated_round`."""

import torch

from course_lib.cluster.topology import Cluster
from graders.grading.cases import both
from graders.grading.communication import MEASURED, seconds
from graders.grading.explanation import Tried
from graders.grading.kit import Answer, Criterion, Finding, Kind, Rng, compare, per_rank
from graders.units.one_by_one import one_by_one
from graders.units.unit_08 import drivers
from graders.units.unit_08.clients import SIDE, RoundReply, updated
from graders.units.unit_08.rounds import Held, Rounds

NUMBERS, FLOPS, MANY = 6, 2e6, 30
"""Weights of the model; of a device; and rounds in which it shows who is chosen."""


def right(held: Held, due: int) -> Finding:
    """Passes if so many clients are chosen, rank 0 returned their weighted mean, and all others None."""
    return compare.first_failure(
        round_right(held, replies, held.chosen(number), due) for number, replies in enumerate(held.by_round)
    )


def round_right(held: Held, replies: list[RoundReply], chosen: list[int], due: int) -> Finding:
    """What is found of one of the rounds."""
    if len(chosen) != due:
        return Finding(False, f"{len(chosen)} clients train; expected {due}.")
    counts = {rank: len(held.samples[rank]) for rank in chosen}
    total, mean = sum(counts.values()), torch.zeros_like(held.w)
    for rank, count in counts.items():
        if len(replies[rank].trained) != (count > 0):
            text = (
                f"client {rank} with {count} samples calls client_update {len(replies[rank].trained)} times"
            )
            return Finding(False, f"{text}.")
        if count:
            mean += updated(held.w, held.samples[rank]) * (count / total)
    for rank, reply in enumerate(replies):
        if rank and reply.returned is not None:
            return Finding(False, f"rank {rank} returns something; expected None.")
        if not all(compare.same(got, held.w) for got in reply.trained):
            return Finding(False, f"client_update on rank {rank} gets other weights than rank 0's w.")
    what = f"of clients with {[*counts.values()]} samples, what rank 0 returns"
    return compare.close(replies[0].returned, mean if total else held.w, what, 1e-12, 1e-13)


def random_sets(tried: Tried[Rounds]) -> Finding | None:
    """Passes if one seed always chooses the same, and of many seeds one chooses each client."""
    held: Held = tried.seen
    if tried.case.features.rounds < MANY:
        return None
    # The last round has the first one's seed. 30 fair draws leave a client out once in a million times.
    once, *others, again = [held.chosen(number) for number in range(MANY)]
    if once != again:
        return Finding(False, f"one seed chooses {once} and then {again}.")
    never = set(range(1, len(held.samples))).difference(once, *others)
    if never:
        return Finding(False, f"{MANY} seeds never choose client {min(never)}.")
    return Finding(True, "the seed says who is chosen, and everyone can be.")


def given(tried: Tried[Rounds]) -> Finding:
    """Passes if arguments and random states are what they were."""
    for replies in tried.seen.by_round:
        for rank, reply in enumerate(replies):
            if not reply.kept:
                return Finding(False, f"w or samples have changed on rank {rank}, or it returns w.")
            if reply.random:
                said = f"on rank {rank} the random state of {', '.join(reply.random)} has changed."
                return Finding(False, said)
    return Finding(True, "w, samples and the libraries' random states are what they were.")


def talk(tried: Tried[Rounds]) -> Finding:
    """Passes if rank 0 and the chosen talk, w goes to each of these once, and comes back with little more."""
    held: Held = tried.seen
    rounds = range(len(held.by_round))
    times = [sum(rank in held.chosen(number) for number in rounds) for rank in range(len(held.samples))]
    times[0] = sum(times)
    for rank, due in enumerate(times):
        if calls := sorted({*held.run.calls(rank)} - {"send", "recv"}):
            return Finding(False, f"rank {rank} calls {', '.join(calls)}: those who are not chosen must.")
        traffic = held.run.traffic[rank]
        allowed = due * (held.w.nbytes + (16 if rank else 0))
        if traffic.sent > allowed or traffic.messages > (2 if rank else 1) * due:
            said = f"rank {rank} sends {traffic.messages} messages of {traffic.sent} bytes"
            said += f" in {len(rounds)} rounds; expected at most {allowed} bytes, w once for each."
            return Finding(False, said, Kind.TOO_MUCH)
    return Finding(True, "w goes to each chosen client once and comes back once; nobody else talks.")


def at_the_same_time(tried: Tried[Rounds]) -> Finding | None:
    """Passes if a round of the ordinary case takes little longer than one client's training and messages."""
    if tried.case.changes:
        return None
    held: Held = tried.seen
    end = max((event.end for event in held.run.events), default=0.0)
    one, rounds, messages = 2 * SIDE**3 / FLOPS, len(held.by_round), tried.case.features.due * 3
    allowed = rounds * (one + seconds(messages, messages * (held.w.nbytes + 16)))
    text = f"{rounds} rounds take {end:.2f} s, and a client trains {one:.2f} s"
    return Finding(end <= allowed, f"{text}; allowed are {allowed:.2f} s.")


_MEAN, _COUNT = "the mean of the chosen", "how many are chosen"


@one_by_one(
    base=Rounds(),
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            _MEAN,
            5,
            "client_update gets w and the client's own samples. Each chosen client's weights count m_k / n: "
            "its samples, divided by those of all chosen together. A new tensor on rank 0, None elsewhere.",
        ),
        Criterion(
            _COUNT,
            2,
            "max(1, round(fraction * clients)) of the clients; rank 0 is none.",
            vary=both(clients=1, fraction=0.3)
            + both(clients=4, fraction=0.7)
            + both(clients=4, fraction=0.3),
        ),
        Criterion(
            "chosen at random",
            2,
            "The seed alone says who, the same on all ranks and each time; every set of that size can be.",
            needs=(_MEAN, _COUNT),
            vary=both(clients=5, fraction=0.4, rounds=MANY),
            how=random_sets,
        ),
        Criterion(
            "clients without samples",
            1,
            "It counts with weight 0, and client_update is not called. If nobody has any, w stays: no 0 / 0.",
            needs=(_MEAN, _COUNT),
            vary=both(clients=3, fraction=1.0, empty=1) + both(clients=3, fraction=1.0, empty=3),
        ),
        Criterion(
            "what was given",
            1,
            "w and samples stay as they are, client_update may spoil its w, and the libraries' random states "
            "belong to the caller: a generator of your own, torch.Generator() or random.Random(seed), leaves "
            "them alone.",
            needs=("chosen at random",),
            how=given,
        ),
        Criterion(
            "only the chosen talk",
            4,
            "Rank 0 sends w once to each chosen client, which sends its weights and a number back, and no "
            "sample. Who is not chosen knows that from the seed, and makes no call.",
            needs=("clients without samples",),
            how=talk,
        ),
        Criterion(
            "clients train at the same time",
            2,
            "Rank 0 sends to all of them before it waits for the first.",
            needs=("only the chosen talk",),
            how=at_the_same_time,
        ),
    ),
    hints=(
        "How can all ranks know who is chosen, without a message? Each draws the same sample from the same "
        "seed: torch.randperm(clients, generator=...) with a generator made for it.",
        "What does rank 0 need from a client? Its weights and m_k. Two messages, or one that is an element "
        "longer.",
        "Whose n is it? Of the chosen alone: sum their m_k after they have come in.",
        "What if n is 0? Then nobody has trained, and the weights are those of before.",
    ),
)
def federated_round(answer: Answer, rounds: Rounds, rng: Rng) -> tuple[Finding, Held]:
    """Rounds with few clients and many, each from the same weights."""
    ranks = rounds.clients + 1
    counts = [rng.integer(1, 4) + 3 * (client % 2) for client in range(rounds.clients)]
    counts = [0, *[0] * rounds.empty, *counts[rounds.empty :]]
    samples = [rng.normal(count, NUMBERS, dtype=torch.float64) for count in counts]
    w = rng.normal(NUMBERS, dtype=torch.float64)
    seeds = [int(seed) for seed in rng.integers(0, 2**31, rounds.rounds)]
    if rounds.rounds == MANY:
        seeds[-1] = seeds[0]
    # Clients get other weights than the server, of no use.
    weights = [w, *(torch.full_like(w, 1e6 * rank) for rank in range(1, ranks))]
    cluster = Cluster(nodes=ranks, inter_node=MEASURED, flops=FLOPS)
    told = (per_rank(weights), per_rank(samples), rounds.fraction, seeds)
    run = answer.launch(drivers.federated_round, *told, ranks=ranks, cluster=cluster)
    by_round = [compare.column(run.results, number, len(seeds)) for number in range(len(seeds))]
    held = Held(w, samples, run, by_round, rounds.fraction == 1.0)
    return right(held, rounds.due), held
