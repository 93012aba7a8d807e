"""The grader of `federated_round`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graders.grading.cases import both
from graders.grading.communication import seconds
from graders.grading.explanation import Tried
from graders.grading.kit import Answer, Criterion, Finding, Kind, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_08.clients import SIDE, updated
from graders.units.unit_08.rounds import AGAIN, FLOPS, MANY, Case, Held, Rounds, drawn, hold

_CHOSEN = ("the mean of the chosen", "how many are chosen")


def right(held: Held) -> Finding:
    """Passes if rank 0 returned the weighted mean of those that talked, and all others None."""
    return compare.first_failure(
        finding for number in range(len(held.by_round)) for finding in round_right(held, number)
    )


def round_right(held: Held, number: int) -> Sequence[Finding]:
    """What is found of one of the rounds."""
    case, replies, chosen = held.case, held.by_round[number], held.talked(number)
    if not chosen and any(len(each) for each in case.samples):
        return [Finding(False, "no client sends anything to rank 0.")]
    counts = {rank: len(case.samples[rank]) for rank in chosen}
    expected = torch.zeros_like(case.w) if sum(counts.values()) else case.w
    for rank, count in counts.items():
        if count:
            expected = expected + updated(case.w, case.samples[rank]) * (count / sum(counts.values()))
    words = ", ".join(f"{rank} with {count}" for rank, count in counts.items())
    what = f"of whom {words} samples sent something, what rank 0 returns"
    nothing = (
        compare.equal(reply.returned, None, f"what rank {rank} returns")
        for rank, reply in enumerate(replies)
        if rank
    )
    trained = [len(reply.trained) for reply in replies]
    due = [int(rank in chosen and counts[rank] > 0) for rank in range(len(replies))]
    calls = compare.equal(trained, due, "calls of client_update by rank")
    given = (
        compare.close(got, case.w, f"the w of client_update on rank {rank}", 0, 0)
        for rank, reply in enumerate(replies)
        for got in reply.trained
    )
    within = (1e-5, 1e-6) if case.w.dtype is torch.float32 else (1e-12, 1e-13)
    return [calls, *given, compare.close(replies[0].returned, expected, what, *within), *nothing]


def count(held: Held) -> Finding:
    """Passes if in each round as many clients as asked for sent something."""
    return compare.first_failure(
        compare.equal(len(held.talked(number)), held.case.chosen, "clients that are chosen")
        for number in range(len(held.by_round))
    )


def random_sets(tried: Tried[Rounds]) -> Finding | None:
    """Passes if a seed that comes again chooses the same, and many seeds choose many sets."""
    held: Held = tried.seen
    if tried.case.features.rounds < MANY:
        return None
    sets = [tuple(held.talked(number)) for number in range(len(held.by_round))]
    for once, again in zip(sets[:AGAIN], sets[-AGAIN:], strict=True):
        if once != again:
            return Finding(False, f"one seed chooses {once} and then {again}.")
    # Two of five clients: 30 fair draws leave out one of them once in a million times, five of ten sets less.
    never = set(range(1, held.case.clients + 1)).difference(*sets)
    if never:
        return Finding(False, f"{MANY} seeds never choose client {min(never)}.")
    distinct = sorted(set(sets))
    text = f"{MANY} seeds choose {len(distinct)} of the 10 possible pairs"
    return Finding(len(distinct) >= 6, f"{text}: {', '.join(map(str, distinct))}.")


def given(held: Held) -> Finding:
    """Passes if arguments and random states are what they were."""
    for replies in held.by_round:
        for rank, reply in enumerate(replies):
            if not reply.kept:
                return Finding(False, f"w or samples have changed on rank {rank}, or it returns w.")
            if reply.random:
                said = f"on rank {rank} the random state of {', '.join(reply.random)} has changed."
                return Finding(False, said)
    return Finding(True, "w, samples and the libraries' random states are what they were.")


def talk(held: Held) -> Finding:
    """Passes if rank 0 and the chosen talk, w goes to each of these once, and comes back with little more."""
    nbytes, rounds = held.case.w.nbytes, range(len(held.by_round))
    times = [sum(rank in held.talked(number) for number in rounds) for rank in range(len(held.case.samples))]
    times[0] = sum(times)
    for rank, due in enumerate(times):
        calls = sorted({*held.run.calls(rank)} - {"send", "recv"})
        if calls:
            return Finding(False, f"rank {rank} calls {', '.join(calls)}: those who are not chosen must.")
        sent = held.run.traffic[rank].sent
        messages = held.run.traffic[rank].messages
        allowed = due * nbytes + (16 * due if rank else 0)
        if sent > allowed or messages > (2 if rank else 1) * due:
            said = f"rank {rank} sends {messages} messages of {sent} bytes in {len(rounds)} rounds"
            return Finding(
                False, f"{said}; expected at most {allowed} bytes, w once for each.", Kind.TOO_MUCH
            )
        peers = {event.peer for event in held.run.communication(rank) if event.op == "send"}
        if rank and peers - {0}:
            return Finding(False, f"rank {rank} sends to rank {max(peers - {0}, key=str)}.")
    return Finding(True, "w goes to each chosen client once and comes back once; nobody else talks.")


def private(tried: Tried[Rounds]) -> Finding | None:
    """Passes if all that clients send are their weights, times m_k or not, and whole numbers.

    So a sample is seen in whatever form it goes out: as another dtype, doubled, or taken from something.
    """
    held: Held = tried.seen
    if tried.case.features.rounds == MANY:
        return None
    for replies in held.by_round:
        for rank, reply in enumerate(replies[1:], start=1):
            said = (
                torch.cat([each.double().flatten() for each in reply.sent]) if reply.sent else torch.empty(0)
            )
            others = said[(said - said.round()).abs() > _EXACT]
            own = weights_of(held.case, held.case.samples[rank])
            strange = others[((others[:, None] - own).abs() > _EXACT * (1 + own.abs())).all(1)]
            if len(strange):
                text = f"a message of rank {rank} has the number {strange[0].item():.6g} in it"
                return Finding(False, f"{text}, which is none of its weights and no count.")
    return Finding(True, "Clients send their weights and counts, and nothing else.")


_EXACT = 1e-4


def weights_of(case: Case, samples: Tensor) -> Tensor:
    """The numbers [any] that a client may send: its weights, what they have moved, and m_k times these."""
    weights = updated(case.w, samples).double() if len(samples) else case.w.double()
    moved = weights - case.w.double()
    return torch.cat([weights, moved, len(samples) * weights, len(samples) * moved])


def at_the_same_time(tried: Tried[Rounds]) -> Finding | None:
    """Passes if a round of the ordinary case takes little longer than one client's training and messages."""
    if tried.case.changes:
        return None
    held: Held = tried.seen
    end = max((event.end for event in held.run.events), default=0.0)
    one, rounds = 2 * SIDE**3 / FLOPS, len(held.by_round)
    messages = held.case.chosen * 3
    allowed = rounds * (one + seconds(messages, messages * (held.case.w.nbytes + 16)))
    text = f"{rounds} rounds take {end:.2f} s, and a client trains {one:.2f} s"
    return Finding(end <= allowed, f"{text}; allowed are {allowed:.2f} s.")


@one_by_one(
    base=Rounds(),
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "the mean of the chosen",
            5,
            "client_update gets w and the client's own samples. Each chosen client's weights count m_k / n: "
            "its samples, divided by those of all chosen together. A new tensor on rank 0, None elsewhere.",
        ),
        Criterion(
            "how many are chosen",
            2,
            "max(1, round(fraction * clients)) of the clients; rank 0 is none.",
            # Rounded down, or up, or halves up, some give other numbers of clients.
            vary=both(clients=3, fraction=1.0, dtype=torch.float64)
            + both(clients=1, fraction=0.3)
            + both(clients=5, fraction=0.5, dtype=torch.float64)
            + both(clients=4, fraction=0.7)
            + both(clients=4, fraction=0.76)
            + both(clients=4, fraction=0.1),
        ),
        Criterion(
            "chosen at random",
            2,
            "The seed alone says who, the same on all ranks and each time; every set of that size can be.",
            needs=_CHOSEN,
            vary=both(clients=5, fraction=0.4, rounds=30),
            how=random_sets,
        ),
        Criterion(
            "clients without samples",
            1,
            "It counts with weight 0, and client_update is not called. If nobody has any, w stays: no 0 / 0.",
            needs=_CHOSEN,
            vary=both(clients=3, fraction=1.0, empty=1) + both(clients=3, fraction=1.0, empty=3),
        ),
        Criterion(
            "what was given",
            1,
            "w and samples stay as they are, client_update may spoil its w, and the libraries' random states "
            "belong to the caller: a generator of your own, torch.Generator() or random.Random(seed), leaves "
            "them alone.",
            needs=("chosen at random",),
            how=lambda tried: given(tried.seen),
        ),
        Criterion(
            "samples stay where they are",
            2,
            "Of what a client has, its weights and the number of its samples go out, and no sample.",
            needs=("the mean of the chosen",),
            how=private,
        ),
        Criterion(
            "only the chosen talk",
            2,
            "Rank 0 sends w once to each chosen client, which sends its weights and a number back. Who is "
            "not chosen knows that from the seed, and makes no call.",
            needs=("clients without samples", "samples stay where they are"),
            how=lambda tried: talk(tried.seen),
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
    """Rounds with few clients and many, then who said what, and when."""
    held = hold(answer, drawn(rng, rounds))
    # Who sends nothing may still be chosen, if it has no samples to train on.
    found = right(held) if rounds.empty else compare.first_failure((count(held), right(held)))
    return found, held
