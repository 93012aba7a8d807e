"""What is found of rounds of federated averaging."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graders.grading.communication import seconds
from graders.grading.explanation import Tried
from graders.grading.kit import Finding, Kind, compare
from graders.units.unit_08.clients import SIDE, updated
from graders.units.unit_08.rounds import AGAIN, FLOPS, MANY, Case, Held, Rounds


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
    return [calls, *given, compare.close(replies[0].returned, expected, what, 1e-12, 1e-13), *nothing]


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
