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
from graders.units.unit_04.drivers import calls as drivers


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
            "What has been answered has to be forgotten at once: the next step brings the same names, "
            "maybe while others are held up. All that is kept is in `table`: each training has its own.",
            needs=("requested by all", "nothing held back"),
        ),
        Criterion(
            "one question, one answer",
            2,
            "Rank 0 is told once a cycle by every other rank and tells them once: not once for each name. "
            "Only rank 0 has to know what others have requested.",
        ),
        Criterion(
            "each request once",
            1,
            "What rank 0 was told it can keep in its table; the others send only what is new, and to rank 0 "
            "only.",
            needs=("one question, one answer",),
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
    again = compare.first_failure((steps.complete(run, later), steps.at_once(run, later)))
    yield "every step", again if not again.passed else draw_overlapping(rng).judged(answer)

    many, few = draw_many(rng), draw_few_at_a_time(rng)
    seen = many.launch(answer)
    told = (in_time(seen, many), told_the_answers_only(seen, many))
    yield "one question, one answer", compare.first_failure(told)
    sent = within_bytes(seen, many)
    yield "each request once", sent if not sent.passed else within_bytes(few.launch(answer), few)


FAR = Link(latency=0.1, bandwidth=1e6)
"""A link on which every round shows."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """requests[r][c]: the names that become ready on rank r before cycle c. cycles: of each step.
    trainings: how many there are, of equally many cycles, each with a table of its own.
    """

    requests: list[list[list[str]]]
    cycles: int
    trainings: int = 1

    def launch(self, answer: Answer) -> Observed[list[Any]]:
        ranks = len(self.requests)
        cluster = Cluster(devices_per_node=ranks, intra_node=FAR)
        given = per_rank(self.requests), self.trainings
        return answer.launch(drivers.cycles, *given, ranks=ranks, cluster=cluster)

    def judged(self, answer: Answer) -> Finding:
        """Passes if all that is complete is returned at once, and nothing else."""
        run, all_of_it = self.launch(answer), range(len(self.requests[0]))
        return compare.first_failure((self.complete(run, all_of_it), self.at_once(run, all_of_it)))

    def expected(self, step: range) -> list[set[str]]:
        """For each cycle of a step the names that it completes."""
        length = len(self.requests[0]) // self.trainings
        found: list[set[str]] = []
        for cycle in range(step[-1] + 1):
            if cycle % length == 0:
                counts: Counter[str] = Counter()
            counts.update(name for own in self.requests for name in own[cycle])
            found.append({name for name, count in counts.items() if count == len(self.requests)})
            for name in found[-1]:
                del counts[name]
        return found[step[0] :]

    def complete(self, run: Observed[list[Any]], step: range) -> Finding:
        """Passes if each name of the step is returned as often as it became complete, and not before."""
        expected = self.expected(step)
        for rank, answers in enumerate(_answers(run, len(self.requests[0]))):
            owed: Counter[str] = Counter()
            for cycle, names in zip(step, expected, strict=True):
                owed.update(names)
                for name in answers[cycle]:
                    if not owed[name]:
                        text = f"rank {rank} returned {name!r:.60} in cycle {cycle}, and not every rank had"
                        return Finding(False, f"{text} requested it since it was last returned.")
                    owed[name] -= 1
            if lost := sorted(name for name, count in owed.items() if count):
                text = f"rank {rank} has not returned {lost[0]!r} by cycle {step[-1]}"
                return Finding(False, f"{text}, though all ranks had requested it.")
        count = sum(map(len, expected))
        return Finding(True, f"{count} names came back once each, none before all ranks requested it.")

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
    """Two steps of six names, requested in four cycles each; then come six quiet ones.

    Whatever is drawn, the last rank has two of them before the fourth cycle, and four in it, of which the
    others had one before all else. So some become complete together, after others that were requested later.
    """
    names = [f"layer{rng.integer(0, 99)}.{number}.weight" for number in range(5)]
    names.insert(rng.integer(0, 5), f"loss, accuracy of epoch {rng.integer(0, 9)}")

    def step(rank: int) -> list[list[str]]:
        cycles: list[list[str]] = [[] for _ in range(10)]
        for place in torch.randperm(len(names), generator=rng.generator).tolist():
            late = place < 4
            number = 3 if late and rank == ranks - 1 else 0 if place == 0 else rng.integer(1, 2)
            cycles[number].append(names[place])
        return cycles

    return Cycles([[*step(rank), *step(rank)] for rank in range(ranks)], 10)


def draw_overlapping(rng: Rng) -> Cycles:
    """Two trainings. In each the first name comes again while the last rank holds up the second.
    The others request the third in the first training only, and the last one in the second only.
    """
    first, second, third = (f"layer{number}.{rng.integer(0, 99)}.bias" for number in range(3))
    early = [[first, second], [first], [third], [], [first, second], [first], [], []]
    late = [[first], [first], [second], [], [first], [first], [second], [third]]
    return Cycles([early, early, late], 4, trainings=2)


QUIET = 6
"""Cycles in which nobody requests anything."""


def draw_many(rng: Rng) -> Cycles:
    """Forty names in the first cycle, which the last rank requests only in the last one."""
    ranks = rng.integer(4, 5)
    names = [f"blocks.{number}.attention.projection.{rng.integer(100, 999)}" for number in range(40)]
    early = [names, *([[]] * QUIET), []]
    late = [[], *([[]] * QUIET), names]
    return Cycles([*([early] * (ranks - 1)), late], QUIET + 2)


def draw_few_at_a_time(rng: Rng) -> Cycles:
    """Forty names, two a cycle, which the last rank requests only in the last one."""
    names = [f"blocks.{number}.attention.projection.{rng.integer(100, 999)}" for number in range(40)]
    early = [names[first : first + 2] for first in range(0, len(names), 2)]
    return Cycles([early, early, [*([[]] * (len(early) - 1)), names]], len(early))


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


def in_time(run: Observed[list[Any]], given: Cycles) -> Finding:
    """Passes if the cycles take little more time than one gather and one broadcast of objects each."""
    ranks = len(run.results)
    most = max(event.end for event in run.events) / given.cycles
    # A gather of objects is an all-gather of their sizes and a gather; a broadcast is two of them.
    rounds = 2 * (ranks - 1) + 2 * (ranks - 1).bit_length()
    allowed = 1.25 * rounds * FAR.latency + _BYTES_OF_FORTY * ranks / FAR.bandwidth
    text = f"a cycle of {ranks} ranks on links of 100 ms takes {most * 1e3:.0f} ms on average"
    return Finding(
        most <= allowed, f"{text}; one question and one answer take at most {allowed * 1e3:.0f} ms."
    )


_BYTES_OF_FORTY = 6000
"""At the most, of forty names as an object that is sent."""


def told_the_answers_only(run: Observed[list[Any]], given: Cycles) -> Finding:
    """Passes if no rank but 0 receives more than the answers, and a few bytes a cycle."""
    allowed = _most_bytes(given)
    for rank in range(1, len(run.results)):
        received = run.traffic[rank].received
        if received > allowed:
            text = f"rank {rank} receives {received:,} bytes in {given.cycles} cycles that answer 40 names"
            return Finding(False, f"{text}; what rank 0 answers takes at most {allowed:,}.")
    return Finding(True, f"No rank but 0 receives more than {allowed:,} bytes for 40 names.")


def _most_bytes(given: Cycles) -> int:
    """Allowed for the names of rank 0, once each, and for cycles without any."""
    names = sum(len(name) + 24 for cycle in given.requests[0] for name in cycle)
    return 2 * names + 200 * given.cycles


def within_bytes(run: Observed[list[Any]], given: Cycles) -> Finding:
    """Passes if no rank but 0 sends more than its requests, once, and a few bytes a cycle."""
    allowed = _most_bytes(given)
    for rank in range(1, len(run.results)):
        sent = run.traffic[rank].sent
        if sent > allowed:
            text = f"rank {rank} sends {sent:,} bytes for 40 names in {given.cycles} cycles"
            return Finding(False, f"{text}; each name once, and to rank 0 only, takes at most {allowed:,}.")
    return Finding(True, f"No rank but 0 sends more than {allowed:,} bytes for 40 names.")
