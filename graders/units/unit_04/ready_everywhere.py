"""The grader of `ready_everywhere`."""

from functools import partial
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_04.cycles import FAR, Cycles, Training, completed
from graders.units.unit_04.drivers import negotiation as drivers


def requests(rng: Rng, case: Training) -> list[Arguments]:
    """Of each rank the names that it requests: in each training, before each cycle."""
    return [[own] for own in case.requests(rng)]


def each_once(given: list[Cycles], seen: Any, what: str) -> Finding:
    """Passes if each name is returned as often as it became complete, and not before."""
    expected = completed(given)
    if type(seen) is not list or len(seen) != len(expected):
        return Finding(False, f"{what} is {compare.shown(seen)}; expected a list for each cycle.")
    owed: list[str] = []
    for cycle, (names, complete) in enumerate(zip(seen, expected, strict=True)):
        if type(names) is not list or not all(type(name) is str for name in names):
            return Finding(
                False, f"{what} in cycle {cycle} is {compare.shown(names)}; expected a list of names."
            )
        owed += complete
        for name in names:
            if name not in owed:
                text = f"{what} in cycle {cycle} has {name!r:.60}, and not every rank had requested it"
                return Finding(False, f"{text} since it was last returned.")
            owed.remove(name)
    if owed:
        return Finding(False, f"{what} never has {owed[0]!r:.60}, though all ranks had requested it.")
    return Finding(True, f"{what} has each name once, and none before all ranks had requested it.")


def at_once(tried: Tried[Training]) -> Finding:
    """Passes if each cycle returned what it completed."""
    [of_ranks], [given] = tried.seen.results, tried.seen.given
    for cycle, wanted in enumerate(completed([own for (own,) in given])):
        for rank, returned in enumerate(of_ranks):
            if late := sorted(wanted - {*returned[cycle]}):
                text = f"{late[0]} was complete in cycle {cycle}, with {len(wanted) - 1} others"
                return Finding(False, f"{text}; rank {rank} returned {sorted(returned[cycle])} there.")
    return Finding(True, "Every cycle returned all names that it completed.")


def one_order(tried: Tried[Training]) -> Finding:
    """Passes if all ranks returned the same lists."""
    [of_ranks] = tried.seen.results
    for rank, returned in enumerate(of_ranks):
        for cycle, (own, first) in enumerate(zip(returned, of_ranks[0], strict=True)):
            if own != first:
                text = f"in cycle {cycle} rank 0 returned {compare.shown(first)}"
                return Finding(False, f"{text}, and rank {rank} {compare.shown(own)}.")
    return Finding(True, "All ranks return the names in one order.")


def one_question(tried: Tried[Training]) -> Finding:
    """Passes if the cycles took little more time than one gather and one broadcast of objects each, and no
    rank but 0 received more than the answers.
    """
    ranks, cycles = tried.case.features.ranks, len(tried.seen.results[0][0])
    events = [event for own in tried.seen.by_rank for event in own]
    seconds = max(event.end for event in events) - min(event.start for event in events) if events else 0.0
    # A gather of objects is an all-gather of their sizes and a gather; a broadcast is two of them.
    rounds = 2 * (ranks - 1) + 2 * (ranks - 1).bit_length()
    most = cycles * 1.25 * rounds * FAR.latency + ranks * bytes_of_names(tried) / FAR.bandwidth
    if seconds > most:
        text = f"{cycles} cycles of {ranks} ranks on links of 100 ms take {seconds:.1f} s"
        return Finding(False, f"{text}; one question and one answer in each take at most {most:.1f} s.")
    received = max(sum(event.received for event in own) for own in tried.seen.by_rank[1:])
    return compare.at_most(received, bytes_of_names(tried), "Bytes that a rank but 0 receives")


def sent_once(tried: Tried[Training]) -> Finding:
    """Passes if no rank but 0 sent more than its requests, once, and a few bytes a cycle."""
    sent = max(sum(event.sent for event in own) for own in tried.seen.by_rank[1:])
    return compare.at_most(sent, bytes_of_names(tried), "Bytes that a rank but 0 sends")


def bytes_of_names(tried: Tried[Training]) -> int:
    """At the most, of the names of rank 0, once each, and of cycles without any."""
    [[(own,), *_]] = tried.seen.given
    cycles = [names for training in own for names in training]
    return 2 * sum(len(name) + 8 for names in cycles for name in names) + 200 * len(cycles)


@on_ranks(
    base=Training(),
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "requested by all",
            2,
            "A name is returned once all ranks have requested it, in whichever cycles they did; once, and "
            "none is lost. Every rank returns it.",
            vary=vary(ranks=(2,)),
        ),
        Criterion(
            "nothing held back",
            2,
            "All names that are complete are returned in that very cycle, however many they are, and "
            "whatever others still lack.",
            how=at_once,
        ),
        Criterion("one order", 1, "The order in which rank 0 answers is the order for all.", how=one_order),
        Criterion(
            "every step",
            1,
            "What has been answered has to be forgotten at once: the next step brings the same names, "
            "maybe while others are held up.",
            vary=vary(course=("two steps",)),
        ),
        Criterion(
            "one question, one answer",
            3,
            "Rank 0 is told once a cycle by every other rank and tells them once: not once for each name. "
            "Only rank 0 has to know what others have requested, and it can keep that in its table; the "
            "others send only what is new.",
            vary=vary(course=("quiet cycles", "some in each cycle")),
            how=lambda tried: compare.first_failure([one_question(tried), sent_once(tried)]),
        ),
    ),
    hints=(
        "What does rank 0 have to remember from one cycle to the next?",
        "What becomes of a name for which rank 0 has counted as many requests as there are ranks?",
        "Which ranks have to decide anything at all?",
    ),
    arguments=requests,
    calls=None,
    possible=lambda case: case.ranks == Training().ranks or not case.course,
    driver=drivers.cycles,
    what="what rank {} returned",
)
def ready_everywhere(case: Training, given: list[Arguments]) -> list[Expected]:
    """The names that have been requested as often as there are ranks."""
    check = Checked(partial(each_once, [own for (own,) in given]))
    return [Expected(check, {}, returned=None) for _ in given]
