"""What units call in each pass whose weights are cut over ranks, and when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course_lib.runtime.communication.events import Event
from graders.grading.communication import Step, steps_of
from graders.grading.kit import AnswerFailed, FailureKind, Finding, compare
from graders.units.unit_09.models import computes, reaches
from graders.units.unit_09.sharded_units import Run, Units


@dataclass(frozen=True, slots=True)
class Half:
    """Forward or backward of a step of a rank: its calls, and the marks when each unit computes, in order."""

    step: Step
    name: str
    calls: list[Event]
    computes: list[Event]

    def __str__(self) -> str:
        return f"{self.step}, {self.name}"


def halves_of(run: Run) -> Iterator[Half]:
    """Both passes of every step of every rank. Raises AnswerFailed if a mark is not there."""
    for step in steps_of(run, "backward ends"):
        turn = step.marks.get("backward begins")
        if turn is None:
            raise AnswerFailed(FailureKind.UNREADABLE, f"{step} has no backward.")
        for name, label in (("forward", computes), ("backward", reaches)):
            calls = [call for call in step.calls if (call.sequence < turn.sequence) == (name == "forward")]
            own = [label(number) for number in range(len(step.marks))]
            marks = [step.marks[each] for each in own if each in step.marks]
            yield Half(step, name, calls, marks if name == "forward" else marks[::-1])


def calls(units: Units, run: Run) -> Finding:
    """Passes if each pass has its calls; what one rank calls is left open, since it has nobody to ask."""
    count = units.setting.units
    if units.setting.ranks == 1:
        return Finding(True, "One rank sends nothing.")
    for half in halves_of(run):
        seen = [call.op for call in half.calls]
        gathers, scatters = (_count(seen, family) for family in ("all_gather", "reduce_scatter"))
        forward = half.name == "forward"
        # Where backward does not need the weights, such as in a first layer, it need not gather them.
        right = gathers == count if forward else gathers <= count and scatters == count
        if not right or len(seen) != gathers + (0 if forward else scatters):
            wanted = "all_gather" if forward else "all_gather and reduce_scatter"
            made = ", ".join(seen) or "nothing"
            return Finding(False, f"{half} of {count} units calls {made}; expected {wanted}, once a unit.")
    return Finding(True, "Forward gathers once, backward gathers once and scatters once, for each unit.")


def started(run: Run) -> Finding:
    """Passes if start() returns before the weights are there."""
    for step in steps_of(run, "backward ends"):
        call, mark = step.calls[0], step.marks.get("started")
        begun = mark is not None and call.sequence < mark.sequence
        if mark is None or not begun or mark.start >= call.end:
            said = "it waited for the weights" if begun else "no all-gather has begun"
            return Finding(False, f"{step}: when start() returns, {said}.")
    return Finding(True, "start() begins to gather, and returns at once.")


def asked(units: Units, run: Run, name: str) -> Finding:
    """Passes if, when each unit computes in this pass, its own weights and its neighbour's have been asked
    for, and nobody else's.
    """
    count = units.setting.units
    for half in halves_of(run):
        if half.name != name:
            continue
        gathers = [call for call in half.calls if call.op.startswith("all_gather")]
        for place, (mark, _) in enumerate(compare.side_by_side(half.computes, range(count))):
            asked = sum(call.sequence < mark.sequence for call in gathers)
            wanted = min(place + 2, count)
            if asked != wanted:
                unit = place if name == "forward" else count - 1 - place
                said = f"when unit {unit} of {count} computes, {compare.counted(asked, 'unit')} in all"
                return Finding(False, f"{half}: {said} have been asked for weights; expected {wanted}.")
    return Finding(True, f"A unit's and its neighbour's weights are asked for before it computes in {name}.")


def own_first(run: Run) -> Finding:
    """Passes if backward's first gradients are sent before the weights of the unit before have arrived."""
    for half in halves_of(run):
        gathers, scatters = (
            [call for call in half.calls if call.op.startswith(family)]
            for family in ("all_gather", "reduce_scatter")
        )
        if half.name == "backward" and scatters[0].start >= gathers[1].end:
            return Finding(False, f"{half}: the last unit computes when its neighbour's weights are there.")
    return Finding(True, "In backward the last unit does not wait for its neighbour's weights.")


def _count(calls: Sequence[str], family: str) -> int:
    return sum(call.startswith(family) for call in calls)
