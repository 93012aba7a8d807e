"""The grader of `place_parameters`."""

from dataclasses import dataclass
from itertools import chain

from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions import drivers
from graders.units.one_by_one import Looks, look, one_by_one

EVERY, BUSIEST, FEW, KEPT = "every number once", "busiest server", "few pieces", "sizes unchanged"


@dataclass(frozen=True, slots=True)
class Model:
    """sizes: of its tensors; those below 0 are drawn, up to as much. servers: that its parts go to."""

    sizes: tuple[int, ...] = (-40, -40, -900, -40, -40)
    servers: int = feature(4, lambda servers: f"{servers} server{'s' * (servers > 1)}")


def whole(placed: object, sizes: list[int], servers: int) -> Finding:
    """Passes if a list for each server covers every tensor exactly once."""
    where = f"sizes {compare.shown(sizes, 60)}: {compare.shown(placed)}"
    if type(placed) is not list or len(placed) != servers:
        return Finding(False, f"{where}; expected a list of {servers} lists.")
    covered: list[list[int]] = [[] for _ in sizes]
    try:
        for tensor, start, end in chain(*placed):
            covered[tensor] += range(start, end) if start < end else [-1]
    except (TypeError, ValueError, IndexError):
        return Finding(False, f"{where}; expected for each server a list of (tensor, start, end).")
    for tensor, (size, numbers) in enumerate(zip(sizes, covered, strict=True)):
        if sorted(numbers) != list(range(size)):
            said = f"the pieces of tensor {tensor} do not hold its {size} numbers once each, or are empty."
            return Finding(False, f"{where}: {said}")
    return Finding(True, f"{where}.")


@one_by_one(
    base=Model(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            EVERY,
            2,
            "A list for each server, of (tensor, start, end) with end not included. Each number of each "
            "tensor stands in one piece, and no piece is empty.",
            vary=vary(servers=(1, 7), sizes=((-9,) * 30,)) + both(sizes=(4, 4, 4, 3), servers=7),
        ),
        Criterion(
            BUSIEST, 3, "All wait for the server that holds most. So cut large tensors.", how=look(BUSIEST)
        ),
        Criterion(
            FEW,
            1,
            "Each piece is a message of its own. How many cuts does it take to make S shares of one long "
            "line?",
            needs=(EVERY, BUSIEST),
            how=look(FEW),
        ),
        Criterion(
            "empty tensors",
            1,
            "A tensor without numbers has no piece, and with fewer numbers than servers some have none.",
            vary=both(sizes=(0, 2, 0, 1, 1), servers=8) + both(sizes=(3, 1, 0), servers=2),
        ),
        Criterion(KEPT, 1, "`sizes` is the caller's list: count in a variable of your own.", how=look(KEPT)),
    ),
    hints=(
        "If all tensors lie end to end on one line, where does the share of server 3 begin on it?",
        "If every share is total / S rounded up, except for what remains for the last ones, how many tensors "
        "lie across the border of two shares?",
    ),
)
def place_parameters(answer: Answer, model: Model, rng: Rng) -> tuple[Finding, Looks]:
    """Every number of every tensor in one piece, wherever that is."""
    sizes = [rng.integer(1, -size) if size < 0 else size for size in model.sizes]
    told = answer.call(drivers.in_turn, [[sizes, model.servers]])
    ((called, _),) = compare.side_by_side(told, [sizes])
    placed, tensors = called.value, sum(size > 0 for size in sizes)

    def balanced() -> Finding:
        most = max(sum(end - start for _, start, end in pieces) for pieces in placed)
        return compare.at_most(most, -(-sum(sizes) // model.servers), "Numbers of the busiest server")

    def few() -> Finding:
        allowed = tensors + model.servers - 1 if tensors else 0
        return compare.at_most(sum(map(len, placed)), allowed, f"Pieces of {tensors} tensors")

    kept = compare.equal(called.arguments, [sizes, model.servers], "sizes and servers afterwards")
    return whole(placed, sizes, model.servers), {BUSIEST: balanced, FEW: few, KEPT: lambda: kept}
