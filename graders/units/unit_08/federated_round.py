"""The grader of `federated_round`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading.cases import both, vary
from graders.grading.communication import MEASURED, duration_within, seconds
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_08 import drivers
from graders.units.unit_08.problems import SIDE, RoundReply, updated

NUMBERS, FLOPS, MANY = 6, 2e6, 30
"""Weights of the model; of a device; and rounds in which it shows who is chosen."""
MEAN, COUNT = "the mean of the chosen", "how many are chosen"
RANDOM, NONE = "chosen at random", "clients without samples"
GIVEN, TALK, SAME_TIME = "what was given", "only the chosen talk", "clients train at the same time"


@dataclass(frozen=True, slots=True)
class Rounds:
    """empty: so many clients have no samples. rounds: each from the same weights."""

    clients: int = feature(4, lambda clients: compare.counted(clients, "client"))
    fraction: float = feature(0.75, "fraction {}")
    rounds: int = feature(2, "{} rounds")
    empty: int = feature(0, lambda empty: f"{empty} without samples" if empty else "")


@dataclass(frozen=True, slots=True)
class Held:
    """w: [n] on rank 0. samples[r]: [m, n], rank 0 has none. rounds[i][r]: what rank r told of round i.

    chosen[i]: the clients that train in round i, and those without samples where all are chosen.
    """

    w: Tensor
    samples: list[Tensor]
    run: Observed[list[RoundReply]]
    rounds: list[list[RoundReply]]
    chosen: list[list[int]]


def right(held: Held, number: int, due: int) -> Finding:
    """Passes if so many clients are chosen, rank 0 returned their weighted mean, and all others None."""
    counts = {rank: len(held.samples[rank]) for rank in held.chosen[number]}
    if len(counts) != due:
        return Finding(False, f"{len(counts)} clients train; expected {due}.")
    replies, total = held.rounds[number], sum(counts.values())
    for rank, count in counts.items():
        if (calls := len(replies[rank].trained)) != (count > 0):
            return Finding(False, f"client {rank} with {count} samples calls client_update {calls} times.")
        if not all(compare.same(got, held.w) for got in replies[rank].trained):
            return Finding(False, f"client_update on rank {rank} gets other weights than rank 0's w.")
    if any(reply.returned is not None for reply in replies[1:]):
        return Finding(False, "a client returns something; expected None.")
    mean = torch.zeros_like(held.w) if total else held.w
    for rank, count in counts.items():
        if count:
            mean = mean + updated(held.w, held.samples[rank]) * (count / total)
    what = f"of clients with {[*counts.values()]} samples, what rank 0 returns"
    return compare.close(replies[0].returned, mean, what, 1e-12, 1e-13)


def random_sets(held: Held) -> Finding:
    """Passes if one seed always chooses the same, and of many seeds one chooses each client."""
    # The last round has the first one's seed. 30 fair draws leave a client out once in a million times.
    once, *others, again = held.chosen
    if once != again:
        return Finding(False, f"one seed chooses {once} and then {again}.")
    if never := set(range(1, len(held.samples))).difference(once, *others):
        return Finding(False, f"{MANY} seeds never choose client {min(never)}.")
    return Finding(True, "the seed says who is chosen, and everyone can be.")


def given(held: Held) -> Finding:
    """Passes if arguments and random states are what they were."""
    changed = {reply.changed for replies in held.rounds for reply in replies} - {""}
    said = f"changed are {changed}; expected nothing of w, samples and the libraries' random states."
    return Finding(not changed, said)


def talk(held: Held) -> Finding:
    """Passes if rank 0 and the chosen talk, w goes to each of these once, and comes back with little more."""
    times = [sum(rank in chosen for chosen in held.chosen) for rank in range(len(held.samples))]
    times[0] = sum(times)
    for rank, due in enumerate(times):
        if calls := sorted({*held.run.calls(rank)} - {"send", "recv"}):
            return Finding(False, f"rank {rank} calls {', '.join(calls)}: those who are not chosen must.")
        traffic = held.run.traffic[rank]
        allowed = due * (held.w.nbytes + (16 if rank else 0))
        if traffic.sent > allowed or traffic.messages > (2 if rank else 1) * due:
            said = f"rank {rank} sends {traffic.messages} messages of {traffic.sent} bytes"
            said += f" in {len(held.rounds)} rounds; expected at most {allowed} bytes, w once for each."
            return Finding(False, said, Kind.TOO_MUCH)
    return Finding(True, "w goes to each chosen client once and comes back once; nobody else talks.")


def at_the_same_time(held: Held) -> Finding:
    """Passes if a round takes little longer than one client's training and all messages."""
    rounds, messages = len(held.rounds), 3 * len(held.chosen[0])
    each = 2 * SIDE**3 / FLOPS + seconds(messages, messages * (held.w.nbytes + 16))
    return duration_within(held.run, rounds * each, f"{rounds} rounds", "training once a round and messages")


@one_by_one(
    base=Rounds(),
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            MEAN,
            5,
            "client_update gets w and the client's own samples. Each chosen client's weights count m_k / n: "
            "its samples, divided by those of all chosen together. A new tensor on rank 0, None elsewhere.",
        ),
        Criterion(
            COUNT,
            2,
            "max(1, round(fraction * clients)) of the clients; rank 0 is none.",
            vary=both(clients=1, fraction=0.3) + vary(fraction=(0.7, 0.3)),
        ),
        Criterion(
            RANDOM,
            2,
            "The seed alone says who, the same on all ranks and each time; every set of that size can be.",
            needs=(MEAN, COUNT),
            vary=both(clients=5, fraction=0.4, rounds=MANY),
            how=look(RANDOM),
        ),
        Criterion(
            NONE,
            1,
            "It counts with weight 0, and client_update is not called. If nobody has any, w stays: no 0 / 0.",
            needs=(MEAN, COUNT),
            vary=both(clients=3, fraction=1.0, empty=1) + both(clients=3, fraction=1.0, empty=3),
        ),
        Criterion(
            GIVEN,
            1,
            "w, samples and random states belong to the caller: draw from a generator of your own.",
            needs=(RANDOM,),
            how=look(GIVEN),
        ),
        Criterion(
            TALK,
            4,
            "Rank 0 sends w once to each chosen client, which sends its weights and a number back, and no "
            "sample. Who is not chosen knows that from the seed, and makes no call.",
            needs=(NONE,),
            how=look(TALK),
        ),
        Criterion(SAME_TIME, 2, "When does rank 0 wait for the first?", needs=(TALK,), how=look(SAME_TIME)),
    ),
    hints=(
        "How can all ranks know who is chosen, without a message? Each draws the same sample from the same "
        "seed: torch.randperm(clients, generator=...) with a generator made for it.",
        "What does rank 0 need from a client? Its weights, and how many samples it has. Two messages, or one "
        "that is an element longer.",
        "By which number are a client's samples divided? Those of the chosen alone: sum what has come in.",
    ),
)
def federated_round(answer: Answer, rounds: Rounds, rng: Rng) -> tuple[Finding, Looks]:
    """Rounds with few clients and many, each from the same weights."""
    ranks, due = rounds.clients + 1, max(1, round(rounds.fraction * rounds.clients))
    counts = [rng.integer(1, 4) + 3 * (client % 2) for client in range(rounds.clients)]
    counts = [0, *[0] * rounds.empty, *counts[rounds.empty :]]
    samples = [rng.normal(count, NUMBERS, dtype=torch.float64) for count in counts]
    w = rng.normal(NUMBERS, dtype=torch.float64)
    seeds = [rng.integer(0, 2**31) for _ in range(rounds.rounds)]
    if rounds.rounds == MANY:
        seeds[-1] = seeds[0]
    # Clients get other weights than the server, of no use.
    weights = [w, *(torch.full_like(w, 1e6 * rank) for rank in range(1, ranks))]
    cluster = Cluster(nodes=ranks, inter_node=MEASURED, flops=FLOPS)
    told = (per_rank(weights), per_rank(samples), rounds.fraction, seeds)
    run = answer.launch(drivers.federated_round, *told, ranks=ranks, cluster=cluster)
    by_round = [compare.column(run.results, number, len(seeds)) for number in range(len(seeds))]
    chosen = [
        [rank for rank in range(1, ranks) if rounds.fraction == 1.0 or replies[rank].trained]
        for replies in by_round
    ]
    held = Held(w, samples, run, by_round, chosen)
    looks: Looks = {GIVEN: lambda: given(held), TALK: lambda: talk(held)}
    if rounds.rounds == MANY:
        looks[RANDOM] = lambda: random_sets(held)
    if rounds == Rounds():
        looks[SAME_TIME] = lambda: at_the_same_time(held)
    return compare.first_failure(right(held, number, due) for number in range(len(seeds))), looks
