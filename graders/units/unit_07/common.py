"""What holds for all hand-written collectives: the findings that their graders share."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch

from course_lib.cluster.topology import Cluster
from graders.grading.communication import only_messages
from graders.grading.kit import Answer, AnswerFailed, Finding, Findings, Rng, compare
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import Played, in_place, layouts, play, results
from graders.units.unit_07.worlds import World, drawn_members


def common_findings(
    answer: Answer,
    rng: Rng,
    collective: Collective,
    basic: Sequence[World],
    many: Sequence[World],
    uneven: Sequence[Sequence[World]],
    subgroups: Sequence[World],
    values: str,
    slow: Sequence[World] = (),
    following: Sequence[World] = (),
) -> Findings:
    """What holds for every collective: values, ranks, lengths, dtypes, in place, layout, group, messages.
    `values` is the name of the first criterion; worlds of one inner list share a launch. slow: those in which
    it has to be right with a slow rank, too. following: those of calls where a later one begins before
    the first is over.
    """
    first = [play(answer, rng, collective, [world]) for world in basic]
    beside = (with_a_slow_rank(answer, rng, collective, world) for world in slow)
    mixed = (before_it_is_over(answer, rng, collective, following) for _ in following[:1])
    yield values, compare.first_failure(chain([_built(first, results(*first))], beside, mixed))
    others = [play(answer, rng, collective, [world]) for world in many]
    yield "any number of ranks", (any_number := results(*others))
    # What a row has found wrong the rows after it do without.
    lengths = [
        play(answer, rng, collective, worlds) for worlds in (uneven if any_number.passed else uneven[:1])
    ]
    any_length = results(*lengths)
    if any_length.passed:
        numbers, any_length = single_number(answer, rng, collective, uneven[0][0])
        lengths += numbers
    yield "any length", any_length
    model = basic[-1]
    kinds = play(answer, rng, collective, [replace(model, dtype=dtype) for dtype in DTYPES])
    yield "any dtype", results(kinds)
    alone = (played for played in others if played.worlds[0].ranks == 1)
    yield "in place", in_place(*first, *alone, *(lengths if any_length.passed else ()))
    # Five rows of three: cut flat, the parts are others than if rows are cut.
    rows = 5 if any_length.passed else 2 * model.ranks
    models = [replace(model, layout="strided"), replace(model, length=rows, columns=3, layout="transposed")]
    laid_out = [play(answer, rng, collective, [each]) for each in models]
    yield "any layout", layouts(*laid_out)
    grouped = [play(answer, rng, collective, [world]) for world in subgroups]
    yield "on a subgroup", compare.first_failure(chain([layouts(*grouped)], map(within_the_group, grouped)))
    plays = (*first, *others, *lengths, kinds, *laid_out, *grouped)
    yield "only send and recv", compare.first_failure(map(by_messages, plays))


def by_messages(played: Played) -> Finding:
    """Passes if there were no calls but send and recv."""
    return played.there(only_messages([played.observed], "the answer"))


def within_the_group(played: Played) -> Finding:
    """Passes if all messages were sent in the group, or in one of some of its members."""
    members = set(played.worlds[0].members or ())
    for event in played.observed.events:
        if event.op == "send" and event.group and not members.issuperset(event.group):
            text = f"with {played.worlds[0]}, rank {event.rank} sends to rank {event.peer} in a larger group"
            said = f"{text}, where others' messages may come between; expected group=group."
            return Finding(False, said)
    return Finding(True, "All messages were sent in the group.")


def single_number(
    answer: Answer, rng: Rng, collective: Collective, model: World
) -> tuple[list[Played], Finding]:
    """A launch, and its `results`, with tensors without a dimension, such as a loss; none if that comes to no
    end, which is no other row's affair.
    """
    world = replace(model, length=1, single=True)
    try:
        plays = [play(answer, rng, collective, [world])]
    except AnswerFailed as failure:
        return [], Finding(False, f"With {world}: {failure.kind}: {failure.report.splitlines()[0]}")
    return plays, results(*plays)


def with_a_slow_rank(answer: Answer, rng: Rng, collective: Collective, world: World) -> Finding:
    """`results` where rank 0 computes slowly, and no message waits for its receiver: what comes first is not
    what was awaited first.
    """
    machine = Cluster(devices_per_node=world.ranks, memory_bandwidth=1e9, eager_limit=4096)
    finding = results(play(answer, rng, collective, [world], machine.with_straggler(0, slowdown=1000)))
    if finding.passed:
        return finding
    return Finding(False, f"Where rank 0 is slow, {finding.seen}", finding.kind)


def before_it_is_over(answer: Answer, rng: Rng, collective: Collective, worlds: Sequence[World]) -> Finding:
    """`results` of calls of which the later ones' short messages need not wait for their receivers, while the
    first one's long message from rank 0 to rank 2, or from rank 3 to it, takes long.
    """
    machine = Cluster(devices_per_node=worlds[0].ranks, eager_limit=SHORT_MESSAGE)
    for other in (0, 3):
        machine = machine.with_slow_link(other, 2, slowdown=1000)
    try:
        finding = results(play(answer, rng, collective, worlds, machine))
    except AnswerFailed as failure:
        finding = Finding(False, f"{failure.kind}: {failure.report}")
    if finding.passed:
        return finding
    text = f"Where some ranks begin the next call while others are not yet through, {finding.seen}"
    return Finding(False, text, finding.kind)


DTYPES = (torch.float64, torch.int64, torch.bfloat16)
"""Beside float32. NumPy does not have the last one."""

SHORT_MESSAGE = 16
"""Bytes up to which a message does not wait for its receiver, in `before_it_is_over`."""


def common(
    answer: Answer,
    rng: Rng,
    collective: Collective,
    values: str,
    rooted: bool = False,
    slow: Sequence[World] = (),
    following: Sequence[World] = (),
    sizes: Sequence[int] = (3, 5, 7, 8),
) -> Findings:
    """The findings that all collectives share. rooted: with any root. sizes: further numbers of ranks."""

    def root(ranks: int) -> int:
        return rng.integer(0, ranks - 1) if rooted else 0

    return common_findings(
        answer,
        rng,
        collective,
        basic=[World(2, 8, root=int(rooted)), World(4, 12, root=2 * int(rooted))],
        many=[World(1, 4, columns=3), *(World(p, 16 * p, root=root(p)) for p in sizes)],
        uneven=[
            [World(ranks, length, root=root_of) for length in lengths]
            for ranks, lengths in ((4, (1, 3, 11, 11)), (5, (0, 2, 7, 13)))
            for root_of in [root(ranks)]
        ],
        # The root at the last place: a rank before it is no member, so that ranks do not tell places.
        subgroups=[
            World(p, 3 * p, layout="strided", members=drawn_members(rng, p), root=rooted * (p - 1))
            for p in (3, 4)
        ],
        values=values,
        slow=slow,
        following=following,
    )


def _built(plays: Sequence[Played], values: Finding) -> Finding:
    """The finding about the values; right ones that another collective has made count for nothing."""
    if not values.passed:
        return values
    calls = compare.first_failure(map(by_messages, plays))
    return values if calls.passed else Finding(False, f"the values are right, but {calls.seen}")
