"""Unit 12, several calls of one answer in one graph: none may know of another."""

from dataclasses import dataclass, field

from torch import Tensor

from graders.grading.cases import vary
from graders.grading.kit import Answer, Criterion, Finding, PlainData, compare, per_rank
from graders.units.unit_12.drivers import space

ROUNDS = (
    "",
    ", when backward runs once more",
    ", in a second step",
    ", when that step's backward runs again",
)


def several_calls(needs: tuple[str, ...]) -> Criterion:
    """The criterion of all exercises that are judged so."""
    hint = (
        "What backward needs belongs to one call, its group too: keep it in ctx, and results in new tensors. "
        "A hook on a tensor that is given stays on it for ever, and sees its other uses."
    )
    return Criterion("several calls", 1, hint, needs=needs, vary=vary(several=(True,)))


@dataclass(frozen=True, slots=True)
class Call:
    """given: argument -> rank; calls that are given the same tensors share them. options: other arguments.
    groups: in which it is made; none for all ranks together.

    results: rank -> what is to come. gradients: argument -> rank.
    """

    given: list[list[Tensor]]
    options: dict[str, PlainData]
    results: list[Tensor]
    gradients: list[list[Tensor]]
    groups: list[list[int]] = field(default_factory=list)


def together(answer: Answer, calls: list[Call]) -> Finding:
    """Passes if all results are right, and all gradients, in each of the four rounds of the driver. Tensors
    have another use beside the calls, and a gradient from there.
    """
    tensors: dict[tuple[int, ...], list[Tensor]] = {}
    gradients: dict[tuple[int, ...], list[Tensor]] = {}
    for call in calls:
        for given, found in zip(call.given, call.gradients, strict=True):
            key = tuple(map(id, given))
            before = gradients.get(key, [space.arriving(each, rank) for rank, each in enumerate(given)])
            tensors[key] = given
            gradients[key] = [one + other for one, other in zip(before, found, strict=True)]
    keys = list(tensors)
    asked = [
        ([keys.index(tuple(map(id, each))) for each in call.given], call.options, call.groups)
        for call in calls
    ]
    ranks = len(calls[0].results)
    everyone = per_rank([[tensors[key][rank] for key in keys] for rank in range(ranks)])
    run = answer.launch(space.several, everyone, asked, ranks=ranks)

    def findings() -> list[Finding]:
        found = []
        for rank, reply in enumerate(run.results):
            for number, (seen, call) in enumerate(compare.side_by_side(reply.results, calls)):
                what = f"the result of call {number} on rank {rank}"
                found.append(compare.close(seen, call.results[rank], what, 1e-4, 1e-4))
            for when, seen_round in compare.side_by_side(ROUNDS, reply.rounds):
                for number, (seen, key) in enumerate(compare.side_by_side(seen_round, keys)):
                    what = f"the gradient of tensor {number}, of {len(keys)}, on rank {rank}{when}"
                    found.append(compare.close(seen, gradients[key][rank], what, 1e-3, 1e-3))
        return found

    return compare.first_failure(findings(), f"{len(calls)} calls in one graph, in two steps, are all right.")
