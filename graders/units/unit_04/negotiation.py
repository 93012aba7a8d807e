"""Unit 04, the negotiation: cycles in which ranks tell what they have."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from course_lib.cluster.topology import Cluster, Link
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_04 import drivers


@exercise(
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "requested by all",
            2,
            "A name is returned once all ranks have requested it, in whichever cycles they did; once, and "
            "none is lost. Every rank returns it.",
        ),
        Criterion(
            "nothing held back",
            2,
            "All names that are complete are returned in that very cycle, however many they are, and "
            "whatever others still lack.",
        ),
        Criterion("one order", 1, "The order in which rank 0 answers is the order for all."),
        Criterion(
            "every step",
            1,
            "What has been answered has to be forgotten: the next step brings the same names.",
        ),
        Criterion(
            "one question, one answer",
            2,
            "Rank 0 is told once a cycle by every other rank and tells them once: not once for each name.",
        ),
        Criterion(
            "each request once",
            1,
            "What rank 0 was told it can keep in its table; the others send only what is new, and to rank 0 "
            "only.",
        ),
    ),
    hints=(
        "What does rank 0 have to remember from one cycle to the next?",
        "What becomes of a name for which rank 0 has counted as many requests as there are ranks?",
        "Which ranks have to decide anything at all?",
    ),
)
def ready_everywhere(answer: Answer, rng: Rng) -> Findings:
    """Two steps of a training in which ranks submit in different orders; then many names, and quiet
    cycles.
    """
    steps = draw_steps(rng, rng.integer(3, 5))
    run = steps.launch(answer)
    first, later = range(steps.cycles), range(steps.cycles, 2 * steps.cycles)
    yield "requested by all", steps.complete(run, first)
    yield "nothing held back", steps.at_once(run, first)
    yield "one order", one_order(run)
    again = steps.complete(run, later)
    yield "every step", again if not again.passed else steps.at_once(run, later)

    many = draw_many(rng)
    seen = many.launch(answer)
    yield "one question, one answer", in_time(seen, len(many.requests[0]))
    yield "each request once", within_bytes(seen, many)


FAR = Link(latency=0.1, bandwidth=1e6)
"""A link on which every round shows."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """requests[r][c]: the names that become ready on rank r before cycle c. cycles: of each step."""

    requests: list[list[list[str]]]
    cycles: int

    def launch(self, answer: Answer) -> Observed[list[Any]]:
        ranks = len(self.requests)
        cluster = Cluster(devices_per_node=ranks, intra_node=FAR)
        return answer.launch(drivers.cycles, per_rank(self.requests), ranks=ranks, cluster=cluster)

    def expected(self, step: range) -> list[set[str]]:
        """For each cycle of a step the names that it completes."""
        last: dict[str, int] = {}
        for own in self.requests:
            for cycle in step:
                for name in own[cycle]:
                    last[name] = max(cycle, last.get(name, 0))
        return [{name for name, complete in last.items() if complete == cycle} for cycle in step]

    def complete(self, run: Observed[list[Any]], step: range) -> Finding:
        """Passes if each name of the step is returned once on every rank, not before all requested it."""
        expected = self.expected(step)
        due = {name: step[number] for number, names in enumerate(expected) for name in names}
        for rank, answers in enumerate(_answers(run, len(self.requests[0]))):
            found: Counter[str] = Counter()
            for cycle in step:
                for name in answers[cycle]:
                    found[name] += 1
                    if name not in due:
                        return Finding(
                            False,
                            f"rank {rank} returned {name!r:.60} in cycle {cycle}, which nobody requested.",
                        )
                    if cycle < due[name]:
                        return Finding(False, self._early(rank, cycle, name))
            for name, complete in due.items():
                if found[name] != 1:
                    times = compare.counted(found[name], "time")
                    text = f"rank {rank} returned {name}, complete in cycle {complete}, {times}"
                    return Finding(False, f"{text} in the cycles {step[0]} to {step[-1]}; expected once.")
        return Finding(True, f"{len(due)} names came back once each, none before all ranks requested it.")

    def _early(self, rank: int, cycle: int, name: str) -> str:
        lacking = [
            other
            for other, own in enumerate(self.requests)
            if not any(name in names for names in own[cycle // self.cycles * self.cycles : cycle + 1])
        ]
        return f"rank {rank} returned {name} in cycle {cycle}, before rank {lacking[0]} had requested it."

    def at_once(self, run: Observed[list[Any]], step: range) -> Finding:
        """Passes if each cycle returns what it completes."""
        for rank, answers in enumerate(_answers(run, len(self.requests[0]))):
            for cycle, wanted in zip(step, self.expected(step), strict=True):
                late = sorted(wanted - set(answers[cycle]))
                if late:
                    text = f"{late[0]} was complete in cycle {cycle}, with {len(wanted) - 1} others"
                    return Finding(False, f"{text}; rank {rank} returned {sorted(answers[cycle])} there.")
        return Finding(True, "Every cycle returned all names that it completed.")


def draw_steps(rng: Rng, ranks: int) -> Cycles:
    """Two steps of six names, requested in four cycles each; then come six quiet ones."""
    names = [f"layer{rng.integer(0, 99)}.{number}.weight" for number in range(6)]

    def step(rank: int) -> list[list[str]]:
        order = [names[place] for place in torch.randperm(len(names), generator=rng.generator).tolist()]
        cycles: list[list[str]] = [[] for _ in range(10)]
        # The last rank has most of them in the fourth cycle, so that several are complete at once.
        for number, name in enumerate(order):
            late = rank == ranks - 1 and number >= 2
            cycles[3 if late else rng.integer(0, 3)].append(name)
        return cycles

    return Cycles([[*step(rank), *step(rank)] for rank in range(ranks)], 10)


QUIET = 6
"""Cycles in which nobody requests anything."""


def draw_many(rng: Rng) -> Cycles:
    """Forty names in the first cycle, which the last rank requests only in the last one."""
    ranks = rng.integer(4, 5)
    names = [f"blocks.{number}.attention.projection.{rng.integer(100, 999)}" for number in range(40)]
    early = [names, *([[]] * QUIET), []]
    late = [[], *([[]] * QUIET), names]
    return Cycles([*([early] * (ranks - 1)), late], QUIET + 2)


def _answers(run: Observed[list[Any]], cycles: int) -> Iterator[list[list[str]]]:
    """What each rank returned in each cycle. Raises AnswerFailed where it is no list of names."""
    for rank, answers in enumerate(run.results):
        for cycle, (names, _) in enumerate(compare.side_by_side(answers, range(cycles))):
            if type(names) is not list or not all(type(name) is str for name in names):
                text = (
                    f"rank {rank} returned {compare.shown(names)} in cycle {cycle}; expected a list of names."
                )
                raise AnswerFailed(FailureKind.NOT_PLAIN, text)
        yield answers


def one_order(run: Observed[list[Any]]) -> Finding:
    """Passes if all ranks return the same lists."""
    for rank, answers in enumerate(run.results):
        for cycle, (own, first) in enumerate(compare.side_by_side(answers, run.results[0])):
            if own != first:
                text = f"in cycle {cycle} rank 0 returned {compare.shown(first)}"
                return Finding(False, f"{text}, and rank {rank} {compare.shown(own)}.")
    return Finding(True, "All ranks return the names in one order.")


def in_time(run: Observed[list[Any]], cycles: int) -> Finding:
    """Passes if the cycles take no more time than one gather and one broadcast of objects each."""
    ranks = len(run.results)
    most = max(event.end for event in run.events) / cycles
    # A gather of objects is an all-gather of their sizes and a gather; a broadcast is two of them.
    rounds = 2 * (ranks - 1) + 2 * (ranks - 1).bit_length()
    allowed = rounds * FAR.latency + _BYTES_OF_FORTY * ranks / FAR.bandwidth
    text = f"a cycle of {ranks} ranks on links of 100 ms takes {most * 1e3:.0f} ms on average"
    return Finding(
        most <= allowed, f"{text}; one question and one answer take at most {allowed * 1e3:.0f} ms."
    )


_BYTES_OF_FORTY = 6000
"""At the most, of forty names as an object that is sent."""


def within_bytes(run: Observed[list[Any]], given: Cycles) -> Finding:
    """Passes if no rank but 0 sends more than its requests, once, and a few bytes a cycle."""
    names = sum(len(name) + 24 for cycle in given.requests[0] for name in cycle)
    allowed = 2 * names + 400 * given.cycles
    for rank in range(1, len(run.results)):
        sent = run.traffic[rank].sent
        if sent > allowed:
            text = f"rank {rank} sends {sent:,} bytes for 40 names in {given.cycles} cycles"
            return Finding(False, f"{text}; each name once, and to rank 0 only, takes at most {allowed:,}.")
    return Finding(True, f"No rank but 0 sends more than {allowed:,} bytes for 40 names.")
