"""The grader of `grad_norm_3d`."""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from graders.grading.cases import both, vary
from graders.grading.communication import in_words
from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding, Kind, Rng, compare
from graders.units.ranks.features import Ranks
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_12.drivers import averages

RIGHT = ("cut parameters", "copies")


@dataclass(frozen=True, slots=True)
class Held(Ranks):
    """shape: of the mesh. kinds: of the parameters of each stage. sparse: the first parameter of each stage
    has no gradient, and the last stage has no parameters.
    """

    ranks: int = 8
    shape: tuple[int, int, int] = feature((2, 2, 2), lambda shape: f"a mesh of {' x '.join(map(str, shape))}")
    kinds: tuple[str, ...] = feature(("cut", "cut"), lambda kinds: f"parameters that are {', '.join(kinds)}")
    sparse: bool = feature(False, lambda sparse: "some ranks without gradients" if sparse else "")


def drawn(rng: Rng, held: Held) -> list[Arguments]:
    """The shape, and the parameters of each rank, as the driver's `held`."""
    _, stages, shares = held.shape
    places = list(product(range(stages), range(shares)))
    own: dict[tuple[int, int], list[tuple[Tensor, bool, bool, bool]]] = {place: [] for place in places}
    for kind in held.kinds:
        cut, shared = "cut" in kind, "shared" in kind
        for stage in (0,) if shared else range(stages):
            has_one = not held.sparse or bool(own[stage, 0])
            # Each rank's are of another size, so that no mean is the sum.
            parts = [(1 + stage + share) * rng.normal(2, 5) for share in range(shares if cut else 1)]
            for place, share in product({0, stages - 1} if shared else {stage}, range(shares)):
                own[place, share].append((parts[share if cut else 0], has_one, cut, shared))
    if held.sparse:
        own.update({(stages - 1, share): [] for share in range(shares)})
    return [[held.shape, own[place]] for _ in range(held.shape[0]) for place in places]


def gradients_kept(tried: Tried[Any]) -> Finding:
    """Passes if gradients are as they were."""
    [given], [came] = tried.seen.given, tried.seen.results
    return compare.first_failure(
        compare.equal(
            seen["gradients"],
            [gradient if has_one else None for gradient, has_one, *_ in parameters],
            f"the gradients on rank {rank} afterwards",
        )
        for rank, ((_, parameters), seen) in enumerate(zip(given, came, strict=True))
    )


def two_numbers(tried: Tried[Any]) -> Finding:
    """Passes if each rank makes at most two all-reduces, of a number each, with nobody along data."""
    replica = prod(tried.case.features.shape[1:])
    for rank, events in enumerate(tried.seen.by_rank):
        told = f"rank {rank} calls {in_words([event.op for event in events])}"
        # Only float64 has eight bytes.
        small = all(event.nbytes <= (8 if event.detail.startswith("float64") else 4) for event in events)
        if len(events) > 2 or not small or {event.op for event in events} - {"all_reduce"}:
            return Finding(False, f"{told}; expected at most two all_reduce of one number.", Kind.TOO_MUCH)
        if any(len({other // replica for other in event.group}) > 1 for event in events):
            return Finding(False, f"{told}, one of them with ranks that differ along data.", Kind.TOO_MUCH)
    return Finding(True, "Each rank gives one number at most twice.")


@on_ranks(
    base=Held(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "cut parameters",
            2,
            "Parts along tensor and stages along pipeline add up, as squares; along data everybody has the "
            "same gradients.",
            vary=both(ranks=3, shape=(1, 1, 3)) + both(ranks=3, shape=(1, 3, 1)),
        ),
        Criterion("copies", 2, "Of copies along tensor, one counts.", vary=vary(kinds=(("copied", "cut"),))),
        Criterion(
            "shared parameters",
            2,
            "The first stage counts for both; with one stage, the first is the last.",
            needs=RIGHT,
            vary=vary(kinds=(("shared", "cut"), ("shared and cut",))),
        ),
        Criterion(
            "any ranks",
            1,
            "A rank may have no parameters, or none with a gradient.",
            needs=(*RIGHT, "shared parameters"),
            vary=vary(sparse=(True,)),
        ),
        Criterion("gradients kept", 1, "Nothing is scaled, nothing is replaced.", how=gradients_kept),
        Criterion("two numbers", 1, "Two all-reduces of one number each, none along data.", how=two_numbers),
    ),
    hints=(
        "Along which axes do ranks have other numbers, and along which the same?",
        "Which rank along tensor should count what all of them have? Then one sum along tensor is enough.",
        "Of two stages that hold the same, which one should count it, so that it also works with one stage?",
    ),
    arguments=drawn,
    calls=None,
    driver=averages.normed,
    what="rank {}",
)
def grad_norm_3d(held: Held, given: list[Arguments]) -> list[Expected]:
    """The norm of what all ranks of a mesh hold: of copies the first one counts."""
    _, stages, shares = held.shape
    replica = given[: stages * shares]
    squares = sum(
        gradient.double().square().sum()
        for rank, (_, parameters) in enumerate(replica)
        for gradient, has_one, cut, shared in parameters
        if has_one and (cut or rank % shares == 0) and (not shared or rank < shares)
    )
    norm = torch.as_tensor(squares).sqrt().float()
    return [
        Expected({"the norm": norm, "gradients": ANYTHING}, {"shape": ANYTHING, "parameters": ANYTHING})
        for _ in given
    ]
