"""Unit 04, tuning: a threshold and a cycle time, scored by the time that a step takes."""

from dataclasses import dataclass
from itertools import accumulate

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_04.drivers import calls as drivers
from graders.units.unit_04.plan_fusion import expected_plan


@exercise(
    minutes=30,
    difficulty=3,
    rubric=(
        Criterion(
            "a third of what can be saved",
            2,
            "Horovod's defaults are 128 MiB and 1 ms. Where does the step lose time with them: in waiting "
            "for a cycle, in latencies, or in copies that nothing hides?",
        ),
        Criterion("within a tenth of the best", 2, "One of the two is right, perhaps: try them together."),
        Criterion(
            "within a twentieth of the best",
            2,
            "Which values change anything? Between those you need not search.",
        ),
    ),
    hints=(
        "What changes in the plan when the threshold grows by one byte?",
        "How long should a cycle wait if all gradients came at once, and how long if one came every 10 ms?",
    ),
)
def tune_fusion(answer: Answer, rng: Rng) -> Findings:
    """Drawn models on a network of small, of middling and of large latency."""
    cases = [_drawn(rng, latency) for latency in (2e-6, 2e-4, 1e-3)]
    chosen = [_choice(answer, case) for case in cases]
    yield (
        "a third of what can be saved",
        _all_within(cases, chosen, [(case.best() + 2 * case.defaults()) / 3 for case in cases]),
    )
    for name, allowed in (("within a tenth of the best", 1.1), ("within a twentieth of the best", 1.05)):
        yield name, _all_within(cases, chosen, [allowed * case.best() for case in cases])


DEFAULTS = (128 * 2**20, 1e-3)
"""HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME of Horovod 0.28.1."""

SHORTEST = 1e-4
COPY = 10e9
"""Bytes a second into the fusion buffer, and out of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """sizes: bytes of the gradients. ready: seconds after which each is complete. latency, bandwidth: of a
    link.
    """

    sizes: list[int]
    ready: list[float]
    ranks: int
    latency: float
    bandwidth: float

    def seconds(self, threshold: int, cycle: float) -> float:
        """What `step_seconds` in the notebook computes."""
        start = done = 0.0
        sent = 0
        while sent < len(self.sizes):
            start = max(start + cycle, done)
            complete = sum(moment <= start for moment in self.ready)
            copied = network = start + 2 * self.latency
            kinds = ["float32"] * (complete - sent)
            for message in expected_plan(self.sizes[sent:complete], kinds, threshold):
                nbytes = sum(self.sizes[sent + position] for position in message)
                copied += nbytes / COPY
                network = max(network, copied)
                network += 2 * (self.ranks - 1) * (self.latency + nbytes / self.ranks / self.bandwidth)
                done = network + nbytes / COPY
            sent = complete
        return done

    def defaults(self) -> float:
        """What `seconds` says of Horovod's own choice."""
        return self.seconds(*DEFAULTS)

    def best(self) -> float:
        """The least of a search over what makes a difference: equal parts of the bytes, and of backward.

        Coarser than the solution's search, and on its grid: a good search can only do better.
        """
        totals = {sum(self.sizes) // parts for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24)}
        # A hair above: as many cycles are never one rounding short of the end.
        parts = (self.ready[-1] * (1 + 1e-9) / count for count in (1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 40))
        cycles = {max(SHORTEST, part) for part in parts}
        return min(self.seconds(total, cycle) for total in totals for cycle in cycles)


def _drawn(rng: Rng, latency: float) -> Case:
    """A model of forty tensors on 8 to 32 ranks, for which there is something to gain."""
    while True:
        sizes = [4 * rng.integer(1, 40) ** 3 * 8 for _ in range(40)]
        pause = rng.integer(1, 3 if latency < 1e-5 else 12) * 1e-3 / len(sizes)
        ready = list(accumulate(pause * rng.integer(1, 20) / 10 for _ in sizes))
        case = Case(sizes, ready, rng.choice((8, 16, 32)), latency, rng.choice((5e9, 12.5e9, 25e9)))
        if case.best() < 0.8 * case.defaults():
            return case


def _choice(answer: Answer, case: Case) -> object:
    return answer.call(drivers.tuned, case.sizes, case.ready, case.ranks, case.latency, case.bandwidth)


def _all_within(cases: list[Case], chosen: list[object], limits: list[float]) -> Finding:
    return compare.first_failure(_within(*each) for each in zip(cases, chosen, limits, strict=True))


def _within(case: Case, chosen: object, limit: float) -> Finding:
    if type(chosen) is not tuple or [type(each) for each in chosen] != [int, float]:
        return Finding(False, f"tune_fusion returned {compare.shown(chosen)}; expected an int and a float.")
    threshold, cycle = chosen
    if threshold < 1 or not SHORTEST <= cycle < 60:
        return Finding(False, f"tune_fusion returned {chosen}; expected 1 byte and 0.1 ms at the least.")
    where = f"{case.ranks} ranks, {case.latency * 1e6:.0f} µs and {case.bandwidth / 1e9:g} GB/s"
    taken = case.seconds(threshold, cycle)
    text = f"on {where}, with {threshold:,} bytes and {cycle * 1e3:.3g} ms, a step takes {taken * 1e3:.2f} ms"
    known = (
        f"with Horovod's defaults {case.defaults() * 1e3:.2f} ms, the best known {case.best() * 1e3:.2f} ms"
    )
    return Finding(taken <= limit, f"{text}; {limit * 1e3:.2f} ms are allowed here ({known}).")
