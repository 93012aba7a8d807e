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
    """Passes if each pass has its calls, and sends no more bytes than they do; what one rank calls is left
    open, since it has nobody to ask.
    """
    ranks, count = units.setting.ranks, units.setting.units
    if ranks == 1:
        return Finding(True, "One rank sends nothing.")
    begin = min(event.sequence for event in run.events if event.rank == 0 and event.op == "evaluation")
    if before := [call.op for call in run.communication(0) if call.sequence < begin]:
        return Finding(False, f"{', '.join(before)} before the first forward, where no call is needed.")
    limit = 3 * (ranks - 1) * units.of_shards
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
    for step in steps_of(run, "backward ends"):
        if (sent := sum(call.sent for call in step.calls)) > limit:
            return Finding(False, f"{step} sends {sent:,} bytes; allowed are {limit:,}.")
    return _calls_without_backward(units, run)


def _calls_without_backward(units: Units, run: Run) -> Finding:
    """Passes if a forward under no_grad gathers each unit's weights once, and calls nothing else."""
    count = units.setting.units
    for rank in range(units.setting.ranks):
        begin, end = (
            min(each.sequence for each in run.events if each.rank == rank and each.op == label)
            for label in ("evaluation", "evaluated")
        )
        own = [each.op for each in run.communication(rank) if begin <= each.sequence < end]
        if len(own) != count or _count(own, "all_gather") != count:
            said = f"rank {rank}: under no_grad {count} units call {', '.join(own) or 'nothing'}"
            return Finding(False, f"{said}; expected all_gather, once a unit.")
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


def asked(units: Units, run: Run, name: str, ahead: bool) -> Finding:
    """Passes if, when each unit computes in this pass, its neighbour's weights have been asked for.

    ahead: whether that is looked at, or that nobody else's have.
    """
    count = units.setting.units
    for half in halves_of(run):
        if half.name != name:
            continue
        gathers = [call for call in half.calls if call.op.startswith("all_gather")]
        for place, (mark, _) in enumerate(compare.side_by_side(half.computes, range(count))):
            asked = sum(call.sequence < mark.sequence for call in gathers)
            wanted = min(place + 2, count)
            if asked < wanted if ahead else asked > wanted:
                unit = place if name == "forward" else count - 1 - place
                said = f"when unit {unit} of {count} computes, {compare.counted(asked, 'unit')} in all"
                return Finding(False, f"{half}: {said} have been asked for weights; expected {wanted}.")
    which = "Its neighbour's" if ahead else "Nobody's but its neighbour's"
    return Finding(True, f"{which} weights have been asked for when a unit computes in {name}.")


def waits(run: Run) -> Finding:
    """Passes if each unit computes before its neighbour's weights have arrived."""
    for half in halves_of(run):
        gathers = [call for call in half.calls if call.op.startswith("all_gather")]
        for place, mark in enumerate(half.computes[:-1]):
            if len(gathers) < place + 2 or mark.start >= gathers[place + 1].end:
                said = f"unit {place} computes only when its neighbour's weights have arrived"
                return Finding(False, f"{half}: {said}.")
    return Finding(True, "Each unit computes while its neighbour's weights are on their way.")


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
