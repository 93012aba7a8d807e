"""The grader of `place_experts`."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_10 import drivers


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
    """Drawn loads, even and uneven, with no room to spare and with much."""
    tasks = [
        Task.drawn(rng, 16, 4, 4, 1.0),
        Task.drawn(rng, 16, 4, 5, 1.3),
        Task.drawn(rng, 24, 8, 4, 1.0),
        Task.drawn(rng, 7, 3, 3, 0.6),
        Task.drawn(rng, 12, 6, 3, 2.0),
        # To lay the largest onto the emptiest is not enough here: it comes to 787.2, where 756 is possible.
        Task([106, 85, 67, 52, 51, 1037, 295, 123, 174, 133, 74, 108, 118, 79, 56, 461], 4, 5),
        # Nor here, where nothing has a copy: 2,619, and swaps make 2,497 of it.
        Task([721, 675, 475, 493, 586, 553, 638, 1059, 521, 560, 582, 507, 470, 569, 834, 521], 4, 4),
        Task([5, 0, 0, 1], 2, 3),
        Task([9, 3], 1, 2),
        # Where a few tokens count, and where a swap has to follow another.
        Task([3, 6, 6, 7, 7, 6, 1], 2, 4),
        Task([12, 12, 885, 522, 283, 36, 9, 99, 54, 499], 4, 4),
        # Room for all experts on all ranks, and more; and a single expert.
        Task([0, 15, 0], 3, 4),
        Task([29], 2, 2),
    ]
    replies = answer.call(drivers.placed, [(task.loads, task.ranks, task.slots) for task in tasks])
    judged = [(task, *parts) for task, parts in compare.side_by_side(tasks, replies)]
    yield "valid", compare.first_failure(task.valid(plan, left) for task, plan, left in judged)
    limits = {
        "half of what can be saved": [(task.laid_out() + task.best) / 2 for task in tasks],
        "within a tenth of the best known": [1.1 * task.best for task in tasks],
        "within a fiftieth of the best known": [1.02 * task.best for task in tasks],
    }
    for name, allowed in limits.items():
        within = (task.within(plan, limit) for (task, plan, _), limit in zip(judged, allowed, strict=True))
        yield name, compare.first_failure(within)


class Placement:
    """Experts on ranks while a search goes on. held: rank -> its experts."""

    def __init__(self, loads: list[int], held: list[list[int]]) -> None:
        self.loads, self.held = loads, held

    def tokens(self) -> list[float]:
        """How many tokens each rank computes."""
        copies = [0] * len(self.loads)
        for own in self.held:
            for expert in own:
                copies[expert] += 1
        return [sum(self.loads[expert] / copies[expert] for expert in own) for own in self.held]

    def score(self) -> tuple[float, float]:
        """The fullest rank's tokens; and of those that are equal in that, what is evener is better."""
        tokens = self.tokens()
        return max(tokens), sum(each**2 for each in tokens)

    def improve(self) -> None:
        """Swap two experts of the fullest rank and another while that makes it better."""
        while self.swap():
            pass

    def swap(self) -> bool:
        tokens, before = self.tokens(), self.score()
        fullest = self.held[tokens.index(max(tokens))]
        for other in self.held:
            for i, mine in enumerate(fullest):
                for j, theirs in enumerate(other):
                    if mine in other or theirs in fullest:
                        continue
                    fullest[i], other[j] = theirs, mine
                    if self.score() < before:
                        return True
                    fullest[i], other[j] = mine, theirs
        return False


@dataclass
class Task:
    """loads: tokens of each expert. slots: of each rank."""

    loads: list[int]
    ranks: int
    slots: int

    @classmethod
    def drawn(cls, rng: Rng, experts: int, ranks: int, slots: int, skew: float) -> "Task":
        """Loads that fall like a power of an expert's place, in any order."""
        loads = [round(1000 * (place + 1) ** -skew) + rng.integer(0, 60) for place in range(experts)]
        order = rng.normal(experts).argsort().tolist()
        return cls([loads[place] for place in order], ranks, slots)

    def valid(self, plan: Any, left: Any) -> Finding:
        """Passes if it is a placement, and the loads given are as they were."""
        text = f"for {self}: {compare.shown(plan)}"
        kinds = (list, tuple)
        if type(plan) not in kinds or len(plan) != self.ranks or any(type(own) not in kinds for own in plan):
            return Finding(False, f"{text}; expected a list of {self.ranks} lists.")
        every = [expert for own in plan for expert in own]
        if any(type(expert) is not int or not 0 <= expert < len(self.loads) for expert in every):
            return Finding(False, f"{text}; experts are the numbers from 0 to {len(self.loads) - 1}.")
        missing = sorted(set(range(len(self.loads))) - set(every))
        if missing:
            return Finding(False, f"{text}; expert {missing[0]} is nowhere.")
        for rank, own in enumerate(plan):
            if len(own) > self.slots or len(set(own)) < len(own):
                said = f"rank {rank} has {len(own)} experts, {len(set(own))} of them different"
                return Finding(False, f"{text}; {said}, and {self.slots} slots.")
        if left != self.loads:
            return compare.equal(left, self.loads, "loads afterwards")
        return Finding(True, f"{text}: every expert is somewhere, and no rank has too many.")

    def within(self, plan: list[list[int]], allowed: float) -> Finding:
        """Passes if the fullest rank has at most so many tokens."""
        seen = max(Placement(self.loads, plan).tokens())
        known = f"laid out one after another {self.laid_out():,.0f}, the best known {self.best:,.1f}"
        said = (
            f"for {self}, the fullest rank has {seen:,.1f} tokens; {allowed:,.1f} are allowed here ({known})"
        )
        return Finding(seen <= allowed * (1 + 1e-9), f"{said}.")

    def laid_out(self) -> float:
        """Tokens of the fullest rank where experts are laid out one after another."""
        each = -(-len(self.loads) // self.ranks)
        return max(sum(self.loads[first : first + each]) for first in range(0, len(self.loads), each))

    @cached_property
    def best(self) -> float:
        """The fullest rank's tokens in the best placement of a search over numbers of copies."""
        found = []
        copies = [1] * len(self.loads)
        for _ in range(self.ranks * self.slots - len(self.loads) + 1):
            held = self.packed(copies)
            if held:
                placement = Placement(self.loads, held)
                placement.improve()
                found.append(placement.score()[0])
            more = [e for e in range(len(self.loads)) if copies[e] < self.ranks]
            if not more:
                break
            copies[max(more, key=lambda e: self.loads[e] / copies[e])] += 1
        return min(found)

    def packed(self, copies: list[int]) -> list[list[int]]:
        """The largest share first, each onto the emptiest rank that can take it; [] where there is none."""
        held: list[list[int]] = [[] for _ in range(self.ranks)]
        tokens = [0.0] * self.ranks
        for expert in sorted(range(len(self.loads)), key=lambda e: -self.loads[e] / copies[e]):
            for _ in range(copies[expert]):
                fits = [r for r in range(self.ranks) if len(held[r]) < self.slots and expert not in held[r]]
                if not fits:
                    return []
                rank = min(fits, key=lambda r: tokens[r])
                held[rank].append(expert)
                tokens[rank] += self.loads[expert] / copies[expert]
        return held

    def __str__(self) -> str:
        return f"loads {self.loads} on {self.ranks} ranks with {self.slots} slots each"
