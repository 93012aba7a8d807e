"""The grader of `overlap_fraction`."""

from functools import partial
from typing import Any

from graders.grading.cases import vary
from graders.grading.expected import Checked, Expected
from graders.grading.kit import Criterion, Finding, Rng, compare
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_04.timelines import Training, timeline


def trace(rng: Rng, case: Training) -> Arguments:
    """The only argument."""
    return [timeline(rng, case)]


@of_function(
    base=Training(),
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "one step",
            2,
            "Find the end of the last negotiation, and each tensor's time on the network; add up what lies "
            "before and what lies after. Of a span that the end cuts in two, a part is hidden.",
            vary=vary(messages=((1, 1),)),
        ),
        Criterion(
            "fused tensors",
            1,
            "The network is busy once, however many tensors or messages show it: join spans that overlap "
            "before you add up.",
            vary=vary(messages=((3, 1, 2),), overlap=(60,)),
        ),
        Criterion(
            "every step",
            1,
            "Each step has a backward pass of its own, which ends by itself.",
            vary=vary(steps=(3,)),
        ),
        Criterion(
            "what else is there",
            2,
            "Broadcasts, copies, moments, names: only all-reduces on the network count, whose name ends in "
            "_ALLREDUCE, whatever library did it. ALLREDUCE itself lies round it, with copies and waiting.",
            vary=vary(more=(True,), library=("NCCL",)),
        ),
        Criterion(
            "any order",
            1,
            'An "E" closes the last "B" of its pid in time, not in the list: sort by "ts", into a list of '
            "your own.",
            vary=vary(in_time=(False,)),
            how=kept,
        ),
    ),
    hints=(
        "What do the spans of one tensor look like, from its negotiation to the end of its ALLREDUCE?",
        "How would you compute for how long at least one of several spans is open?",
        "To which step does the third negotiation of a tensor belong?",
    ),
    arguments=trace,
    tolerance=1e-9,
    written=lambda given: "trace",
)
def overlap_fraction(case: Training, given: Arguments) -> Expected:
    """The share of the microseconds on the network that come before the end of their step's backward."""
    spans = spans_by_tensor(given[0])
    hidden = busy = 0
    for step in range(case.steps):
        negotiated, network = zip(*(own[2 * step : 2 * step + 2] for own in spans), strict=True)
        backward_end = max(end for _, end in negotiated)
        moments = {moment for span in network for moment in range(*span)}
        busy += len(moments)
        hidden += sum(moment < backward_end for moment in moments)
    return Expected(hidden / busy, {"trace": Checked(partial(unchanged, given[0]))}, returned=None)


def unchanged(given: Any, seen: Any, what: str) -> Finding:
    """Passes if the trace seen is the one given."""
    return Finding(compare.same(seen, given), f"{what} is not what it was before.")


def spans_by_tensor(events: list[dict[str, Any]]) -> list[list[tuple[int, int]]]:
    """Beginnings and ends of each tensor's negotiations, and of its times on the network, in turn."""
    opened: dict[int, list[dict[str, Any]]] = {}
    found: dict[int, list[tuple[int, int]]] = {}
    for event in sorted((event for event in events if event["ph"] in "BE"), key=lambda event: event["ts"]):
        begun = opened.setdefault(event["pid"], [])
        if event["ph"] == "B":
            begun.append(event)
        elif (last := begun.pop())["name"].endswith("_ALLREDUCE"):
            found.setdefault(event["pid"], []).append((last["ts"], event["ts"]))
    return [*found.values()]
