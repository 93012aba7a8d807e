"""The grader of `place_parameters`."""

from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.functions import drivers
from graders.units.one_by_one import one_by_one

EVERY, BUSIEST = "every number once", "busiest server"


@dataclass(frozen=True, slots=True)
class Model:
    """sizes: of its tensors; those below 0 are drawn, up to as much. servers: that its parts go to."""

    sizes: tuple[int, ...] = (-40, -40, -900, -40, -40)
    servers: int = feature(4, lambda servers: f"{servers} server{'s' * (servers > 1)}")


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the pieces of tensors of these sizes went. kept: about the list of sizes."""

    pieces: list[list[tuple[int, int, int]]]
    sizes: list[int]
    kept: Finding


def whole(result: object, sizes: list[int], servers: int) -> Finding:
    """Passes if the result has the right form, and covers every tensor exactly once."""
    where = f"sizes {compare.shown(sizes, 60)}"
    if type(result) is not list or len(result) != servers:
        return Finding(False, f"{where}: {compare.shown(result)}; expected a list of {servers} lists.")
    covered: list[list[int]] = [[] for _ in sizes]
    for server, pieces in enumerate(result):
        try:
            for tensor, start, end in pieces:
                covered[tensor] += range(start, end) if start < end else [-1]
        except (TypeError, ValueError, IndexError):
            text = f"{where}: server {server} has {compare.shown(pieces)}"
            return Finding(False, f"{text}; expected a list of (tensor, start, end).")
    for tensor, (size, numbers) in enumerate(zip(sizes, covered, strict=True)):
        if sorted(numbers) != list(range(size)):
            text = f"the pieces of tensor {tensor} do not hold its {size} numbers once each, or are empty"
            return Finding(False, f"{where}: {text}.")
    return Finding(True, f"{where}: every number has one place.")


def balanced(tried: Tried[Model]) -> Finding:
    """Passes if no server holds more than its share, rounded up."""
    placed: Placed = tried.seen
    most = max(sum(end - start for _, start, end in pieces) for pieces in placed.pieces)
    return compare.at_most(most, -(-sum(placed.sizes) // len(placed.pieces)), "Numbers of the busiest server")


def few(tried: Tried[Model]) -> Finding:
    """Passes if there is no more than one cut between two servers."""
    placed: Placed = tried.seen
    tensors = sum(size > 0 for size in placed.sizes)
    allowed = tensors + len(placed.pieces) - 1 if tensors else 0
    return compare.at_most(sum(map(len, placed.pieces)), allowed, f"Pieces of {tensors} tensors")


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
            BUSIEST,
            3,
            "All wait for the server that holds most: none may hold more than its share, rounded up. So "
            "large tensors are cut.",
            how=balanced,
        ),
        Criterion(
            "few pieces",
            1,
            "Each piece is a message of its own. How many cuts does it take to make S shares of one long "
            "line?",
            needs=(EVERY, BUSIEST),
            how=few,
        ),
        Criterion(
            "empty tensors",
            1,
            "A tensor without numbers has no piece, and with fewer numbers than servers some have none.",
            vary=both(sizes=(0, 2, 0, 1, 1), servers=8) + both(sizes=(3, 1, 0), servers=2),
        ),
        Criterion(
            "sizes unchanged",
            1,
            "`sizes` is the caller's list: count in a variable of your own.",
            how=lambda tried: tried.seen.kept,
        ),
    ),
    hints=(
        "If all tensors lie end to end on one line, where does the share of server 3 begin on it?",
        "If every share is total / S rounded up, except for what remains for the last ones, how many tensors "
        "lie across the border of two shares?",
    ),
)
def place_parameters(answer: Answer, model: Model, rng: Rng) -> tuple[Finding, Placed]:
    """Every number of every tensor in one piece, wherever that is."""
    sizes = [rng.integer(1, -size) if size < 0 else size for size in model.sizes]
    told = answer.call(drivers.in_turn, [[sizes, model.servers]])
    ((called, _),) = compare.side_by_side(told, [sizes])
    kept = compare.equal(called.arguments, [sizes, model.servers], "sizes and servers afterwards")
    return whole(called.value, sizes, model.servers), Placed(called.value, sizes, kept)
