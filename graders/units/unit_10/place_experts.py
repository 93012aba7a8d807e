"""The grader of `place_experts`."""

from dataclasses import dataclass, replace
from typing import Any

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_10 import drivers


@dataclass(frozen=True, slots=True)
class Task:
    """loads: tokens of each expert. slots: of each rank. best: the fullest rank's tokens in the best
    placement that a search over numbers of copies and swaps has found.
    """

    loads: list[int]
    ranks: int
    slots: int
    best: float

    def drawn(self, rng: Rng) -> "Task":
        """A drawn number of times as many tokens: the best placement is the same."""
        factor = rng.integer(2, 99)
        return replace(self, loads=[factor * load for load in self.loads], best=factor * self.best)

    def tokens(self, plan: list[list[int]]) -> list[float]:
        """How many tokens each rank computes."""
        every = [expert for own in plan for expert in own]
        return [sum(self.loads[expert] / every.count(expert) for expert in own) for own in plan]

    @property
    def laid_out(self) -> float:
        """Tokens of the fullest rank where experts are laid out one after another."""
        each = -(-len(self.loads) // self.ranks)
        return max(sum(self.loads[first : first + each]) for first in range(0, len(self.loads), each))

    def valid(self, plan: Any) -> Finding:
        """Passes if it is a placement."""
        text = f"for {self}: {compare.shown(plan)}"
        kinds = (list, tuple)
        if type(plan) not in kinds or len(plan) != self.ranks or any(type(own) not in kinds for own in plan):
            return Finding(False, f"{text}; expected a list of {self.ranks} lists.")
        if {expert for own in plan for expert in own} != {*range(len(self.loads))}:
            return Finding(False, f"{text}; expected each of experts 0 to {len(self.loads) - 1} somewhere.")
        for rank, own in enumerate(plan):
            if len(own) > self.slots or len(set(own)) < len(own):
                said = f"rank {rank} has {len(own)} experts, {len(set(own))} of them different"
                return Finding(False, f"{text}; {said}, and {self.slots} slots.")
        return Finding(True, f"{text}: every expert is somewhere, and no rank has too many.")

    def within(self, plan: list[list[int]], allowed: float) -> Finding:
        """Passes if the fullest rank has at most so many tokens."""
        seen = max(self.tokens(plan))
        known = f"laid out one after another {self.laid_out:,.0f}, the best known {self.best:,.1f}"
        said = f"for {self}, the fullest rank has {seen:,.1f} tokens"
        return Finding(seen <= allowed * (1 + 1e-9), f"{said}; {allowed:,.1f} are allowed here ({known}).")

    def __str__(self) -> str:
        return f"loads {self.loads} on {self.ranks} ranks with {self.slots} slots each"


TASKS = [
    Task([84, 179, 107, 116, 296, 104, 179, 46, 122, 81, 73, 58, 447, 51, 75, 1048], 4, 5, 768),
    Task([96, 31, 75, 1060, 40, 69, 68, 133, 298, 111, 53, 37], 6, 3, 356),
    Task([1015, 373, 663, 487, 531, 393, 368], 3, 3, 1326),
    # To lay the largest onto the emptiest is not enough here.
    Task([106, 85, 67, 52, 51, 1037, 295, 123, 174, 133, 74, 108, 118, 79, 56, 461], 4, 5, 756),
    # Nor here, where nothing has a copy.
    Task([721, 675, 475, 493, 586, 553, 638, 1059, 521, 560, 582, 507, 470, 569, 834, 521], 4, 4, 2497),
    Task([5, 0, 0, 1], 2, 3, 3),
    # Where a few tokens count, and where a swap has to follow another.
    Task([3, 6, 6, 7, 7, 6, 1], 2, 4, 18),
    Task([12, 12, 885, 522, 283, 36, 9, 99, 54, 499], 4, 4, 609.5),
]


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("valid", 2, "Every expert somewhere, none twice on a rank, no rank with too many."),
        Criterion(
            "half of what can be saved",
            2,
            "Which expert would make the fullest rank less full if it, or a copy of it, stood elsewhere?",
            needs=("valid",),
        ),
        Criterion(
            "within a tenth of the best known",
            2,
            "Free slots are for copies. What is left for the last, the small shares, can even out the rest.",
            needs=("valid", "half of what can be saved"),
        ),
        Criterion(
            "within a fiftieth of the best known",
            2,
            "Start from a good placement, and see whether swapping two makes it better; and try how many "
            "copies are best.",
            needs=("valid", "within a tenth of the best known"),
        ),
    ),
    hints=(
        "Without copies, what is the least that the rank with the busiest expert can have?",
        "Sharing among copies is equal. Who should get the next copy, if the largest share is to be small?",
        "The largest first onto the emptiest rank: what is still uneven at the end, and who could swap?",
    ),
)
def place_experts(answer: Answer, rng: Rng) -> Findings:
    """Loads, even and uneven, with no room to spare and with much."""
    tasks = [task.drawn(rng) for task in TASKS]
    plans = answer.call(drivers.placed, [(task.loads, task.ranks, task.slots) for task in tasks])
    judged = list(compare.side_by_side(tasks, plans))
    yield "valid", compare.first_failure(task.valid(plan) for task, plan in judged)
    limits = {
        "half of what can be saved": [(task.laid_out + task.best) / 2 for task in tasks],
        "within a tenth of the best known": [1.1 * task.best for task in tasks],
        "within a fiftieth of the best known": [1.02 * task.best for task in tasks],
    }
    for name, allowed in limits.items():
        within = (task.within(plan, limit) for (task, plan), limit in zip(judged, allowed, strict=True))
        yield name, compare.first_failure(within)
