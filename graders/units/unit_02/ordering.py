"""Unit 02, in which order buckets start where gradients come in another one, or do not come at all."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from graders.grading.communication import Step, steps_of
from graders.grading.kit import Answer, Finding, Observed, Rng, compare
from graders.units.unit_02.models import ALL, REACHES_SHARED
from graders.units.unit_02.steps import Used


def starts_in_order(answer: Answer, rng: Rng, started: bool) -> Finding:
    """Passes if the averages are right, and buckets start in order, where all gradients come and the first
    bucket is complete last. started: whether it counts that complete buckets start in backward.
    """
    case, used = Used.draw(rng, 2), [[[ALL], [ALL]]] * 2
    for layers, buckets in ((1, 4), (2, 2)):
        observed = case.launch(answer, used, layers * case.branch_bytes)
        right = case.right(used, observed)
        steps = (_in_order(step, buckets if started else 0) for step in steps_of(observed, "finished"))
        finding = compare.first_failure(steps) if right.passed else right
        if not finding.passed:
            where = f"{buckets} buckets, of which the first has the layer that the model uses first"
            return Finding(False, f"{where}: {finding.seen}")
    return Finding(True, "Buckets start in order, each when it and all before it are complete.")


def unused_parameters(answer: Answer, rng: Rng, started: bool, together: bool) -> Finding:
    """Passes if the averages are right where ranks use different branches, once all have used every one, and
    one branch none uses. started, together: whether it counts that complete buckets start in backward, and
    that those which are left are under way at once.
    """
    case = Used.draw(rng, rng.integer(2, 3))
    used = [[[ALL], [1 + rank % 2], [1 + (rank + 1) % 2]] for rank in range(len(case.inputs))]
    # One branch a bucket, so that which bucket is complete first differs from rank to rank; and two, of which
    # the shared layer is complete last and stands first, where the first step does not use all.
    turned = [way[::-1] for way in used]
    first = case.launch(answer, used, case.branch_bytes)
    second = case.launch(answer, turned, 2 * case.branch_bytes)
    right = compare.first_failure([case.right(used, first), case.right(turned, second)])
    return _all_started(first, used, started, together) if right.passed else right


COMPLETE = {ALL: 4, 2: 2, 1: 1}
"""How many buckets of one layer can start in a backward that uses this branch: the first is the shared
layer's and is complete last, the second the last branch's."""


def _all_started(
    observed: Observed[Any], used: Sequence[Sequence[list[int]]], started: bool, together: bool
) -> Finding:
    """Passes if backward has started every bucket that was complete and that no earlier one kept back, and
    no other, and what is left starts at the end, before anything is waited for.

    used[r][step]: the branch that rank r used. started, together: see above.
    """
    for step in steps_of(observed, "finished"):
        [branch] = used[step.rank][step.number]
        in_order = _in_order(step, COMPLETE[branch] if started else 0)
        if not in_order.passed:
            return in_order
        ended = step.marks["backward ends"].sequence
        pairs = [each for each in combinations(step.calls, 2) if each[1].sequence > ended]
        if together and any(later.start >= earlier.end for earlier, later in pairs):
            text = "finish() waits for one all_reduce before it has started all that are left"
            return Finding(False, f"{step}: {text}; expected all to be under way at once.")
    return Finding(True, "What no hook has started, finish() does, with zeros for what is not there.")


def _in_order(step: Step, at_least: int) -> Finding:
    """Passes if backward starts so many buckets, and none before the first one is complete.

    The order is that of make_buckets in every step: as long as the shared layer has no gradient, nothing may
    start.
    """
    reached = step.marks.get(REACHES_SHARED, step.marks["finished"]).sequence
    early = sum(call.sequence < reached for call in step.calls)
    if early:
        text = f"{compare.counted(early, 'call')} before the first bucket's gradients were complete"
        return Finding(False, f"{step}: {text}; the order of the buckets is the same in every step.")
    made = sum(call.sequence < step.marks["backward ends"].sequence for call in step.calls)
    if made < at_least:
        buckets = compare.counted(at_least, "bucket")
        text = f"when the first bucket was complete, {buckets} could start, and {made} started in backward"
        return Finding(False, f"{step}: {text}.")
    return Finding(True, "Buckets start in order.")
