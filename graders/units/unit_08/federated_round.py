"""The grader of `federated_round`."""

from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_08.round_findings import (
    at_the_same_time,
    count,
    given,
    private,
    random_sets,
    right,
    talk,
)
from graders.units.unit_08.rounds import Held, Rounds, drawn, hold

_CHOSEN = ("the mean of the chosen", "how many are chosen")


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
            vary=both(clients=1, fraction=0.3)
            + both(clients=5, fraction=0.5)
            + both(clients=4, fraction=0.7)
            + both(clients=4, fraction=0.76),
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
