"""What is seen of backward passes whose gradients are sent meanwhile."""

from itertools import accumulate, pairwise

from graders.grading.communication import steps_of
from graders.grading.kit import Finding, Observed, compare
from graders.units.unit_09.gradient_settings import Setting
from graders.units.unit_09.models import reaches
from graders.units.unit_09.replies import GradientsReply

Run = Observed[GradientsReply]


def cleared(run: Run) -> Finding:
    """Passes if, whenever backward reaches a layer, what was sent has no gradients any more."""
    most = max((number for reply in run.results for number in reply.there), default=0)
    said = "Parameters whose bucket was sent, and which have a .grad when backward reaches the next layer"
    return compare.at_most(most, 0, said)


def one_under_way(run: Run) -> Finding:
    """Passes if no bucket is sent before the one before has arrived."""
    for step in steps_of(run, "finished"):
        for number, (before, call) in enumerate(pairwise(step.calls), 1):
            if call.start < before.end - 1e-9:
                said = f"bucket {number} is sent at {call.start:.2f} s, and the one before arrives"
                return Finding(False, f"{step}: {said} at {before.end:.2f} s: two are under way.")
    return Finding(True, "No two buckets are under way at once.")


def sent_in_backward(setting: Setting, run: Run) -> Finding:
    """Passes if each bucket, a layer's, is sent before backward goes on, which does not wait for it."""
    for step in steps_of(run, "finished"):
        # Bucket 0 is the last layer; then comes the one before.
        following = [step.marks.get(label) for label in _marks_after(setting, step.number)]
        for number, (call, mark) in enumerate(zip(step.calls, following, strict=True)):
            if mark is None or call.sequence > mark.sequence:
                said = f"bucket {number} was complete, and those before it, and was not sent"
                return Finding(False, f"{step}: {said} before backward went on.")
            last_one = mark not in following[number + 1 :]
            if last_one and call.end <= mark.start:
                said = f"{call.end - call.start:.1f} s for bucket {number} to arrive"
                return Finding(False, f"{step}: backward waits {said}, before it goes on.")
    return Finding(True, "Each bucket is sent as soon as it is complete, while backward goes on.")


def _marks_after(setting: Setting, number: int) -> list[str]:
    """Of each bucket the mark that backward makes next once it, and all before it, are complete."""
    backward = setting.orders(0)[number][::-1]
    marks = [*map(reaches, backward[1:]), "backward ends"]
    complete = accumulate(map(backward.index, reversed(range(setting.layers))), max)
    return [marks[place] for place in complete]
