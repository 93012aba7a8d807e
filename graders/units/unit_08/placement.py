"""Unit 08, several servers: which of them holds what."""

from collections import Counter
from dataclasses import dataclass

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_08 import drivers
from graders.units.unit_08.drivers import PlacementReply

EVERY, BUSIEST = "every number once", "busiest server"


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            EVERY,
            2,
            "A list for each server, of (tensor, start, end) with end not included. Each number of each "
            "tensor stands in one piece, and no piece is empty.",
        ),
        Criterion(
            BUSIEST,
            3,
            "All wait for the server that holds most: none may hold more than its share, rounded up. So "
            "large tensors are cut.",
        ),
        Criterion(
            "few pieces",
            2,
            "Each piece is a message of its own. How many cuts does it take to make S shares of one long "
            "line?",
            needs=(EVERY, BUSIEST),
        ),
        Criterion("sizes unchanged", 1, "`sizes` is the caller's list: count in a variable of your own."),
    ),
    hints=(
        "If all tensors lie end to end on one line, where does the share of server 3 begin on it?",
        "If every share is total / S rounded up, except for what remains for the last ones, how many tensors "
        "lie across the border of two shares?",
    ),
)
def place_parameters(answer: Answer, rng: Rng) -> Findings:
    """Models with a large tensor, with many small ones, with fewer numbers than servers."""
    runs = [(case, answer.call(drivers.placement, case.sizes, case.servers)) for case in _cases(rng)]
    yield EVERY, compare.first_failure(case.whole(run.result) for case, run in runs)
    yield BUSIEST, compare.first_failure(case.balanced(run) for case, run in runs)
    yield "few pieces", compare.first_failure(case.few(run) for case, run in runs)
    yield (
        "sizes unchanged",
        compare.first_failure(compare.equal(run.sizes, case.sizes, "sizes afterwards") for case, run in runs),
    )


def _cases(rng: Rng) -> "list[Case]":
    def sizes(number: int, most: int) -> list[int]:
        return [rng.integer(1, most) for _ in range(number)]

    large = [*sizes(3, 40), rng.integer(500, 900), *sizes(3, 40)]
    return [
        Case([], 2),
        Case([0, 0], 3),
        Case([3, 1, 0], 2),
        Case(sizes(rng.integer(20, 30), 9), rng.integer(4, 7)),
        Case([rng.integer(60, 99)], 7),
        Case([*sizes(2, 20), 0, *sizes(3, 20)], 1),
        Case([0, 2, 0, 1, 1], rng.integer(6, 9)),
        # A share of 3 for each of 7 servers would leave the last ones nothing: 15 numbers.
        Case([4, 4, 4, 3], 7),
        Case(large, rng.integer(3, 5)),
    ]


@dataclass(frozen=True, slots=True)
class Case:
    """Tensors of these sizes, to be placed on so many servers."""

    sizes: list[int]
    servers: int

    def whole(self, result: object) -> Finding:
        """Passes if the result has the right form, and covers every tensor exactly once."""
        if type(result) is not list or len(result) != self.servers:
            return Finding(
                False, f"{self}: {compare.shown(result)}; expected a list of {self.servers} lists."
            )
        covered: list[Counter[int]] = [Counter() for _ in self.sizes]
        for server, pieces in enumerate(result):
            if type(pieces) is not list:
                return Finding(
                    False, f"{self}: server {server} has {compare.shown(pieces)}; expected a list."
                )
            for piece in pieces:
                if wrong := self._what_is_wrong_with(piece):
                    return Finding(False, f"{self}: server {server} has {compare.shown(piece)}, {wrong}.")
                tensor, start, end = piece
                covered[tensor].update(range(start, end))
        for tensor, (size, counts) in enumerate(zip(self.sizes, covered, strict=True)):
            missing = [number for number in range(size) if counts[number] != 1]
            if missing:
                text = f"number {missing[0]} of tensor {tensor} is in {counts[missing[0]]} pieces"
                return Finding(False, f"{self}: {text}; expected one.")
        return Finding(True, f"{self}: every number has one place.")

    def _what_is_wrong_with(self, piece: object) -> str:
        """Why this is no piece of one of the tensors; empty if it is one."""
        if type(piece) is not tuple or len(piece) != 3 or any(type(each) is not int for each in piece):
            return "which is no tuple (tensor, start, end)"
        tensor, start, end = piece
        if not 0 <= tensor < len(self.sizes):
            return f"and there are the tensors 0 to {len(self.sizes) - 1}"
        if not 0 <= start <= end <= self.sizes[tensor]:
            return f"and tensor {tensor} has the numbers 0 to {self.sizes[tensor] - 1}"
        return "which is empty" if start == end else ""

    def balanced(self, run: PlacementReply) -> Finding:
        """Passes if no server holds more than its share, rounded up. The result is whole."""
        most = max(sum(end - start for _, start, end in pieces) for pieces in run.result)
        return compare.at_most(
            most, -(-sum(self.sizes) // self.servers), f"{self}: numbers of the busiest server"
        )

    def few(self, run: PlacementReply) -> Finding:
        """Passes if there is no more than one cut between two servers. The result is whole."""
        tensors = sum(size > 0 for size in self.sizes)
        allowed = tensors + self.servers - 1 if tensors else 0
        return compare.at_most(sum(map(len, run.result)), allowed, f"{self}: pieces")

    def __str__(self) -> str:
        return f"sizes {compare.shown(self.sizes, 60)} on {compare.counted(self.servers, 'server')}"
