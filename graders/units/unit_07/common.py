"""What holds for all hand-written collectives: the findings that their graders share."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from course_lib.cluster.topology import Cluster
from graders.grading.communication import only_messages
from graders.grading.kit import Answer, AnswerFailed, FailureKind, Finding, Findings, Rng, compare
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import Played, in_place, layouts, play, results
from graders.units.unit_07.dtypes import any_dtype
from graders.units.unit_07.tries import Tries
from graders.units.unit_07.worlds import World, drawn_members


def common_findings(
    answer: Answer,
    rng: Rng,
    collective: Collective,
    basic: Sequence[World],
    many: Sequence[World],
    uneven: Sequence[Sequence[World]],
    subgroups: Sequence[Sequence[World]],
    values: str,
    roots: Sequence[World] = (),
    slow: Sequence[World] = (),
    following: Sequence[World] = (),
    special: Sequence[World] = (),
) -> Findings:
    """What holds for every collective: values, ranks, lengths, dtypes, in place, layout, group, messages.
    `values` is the name of the first criterion; worlds of one inner list share a launch. roots: those with
    another root than place 0, if there are roots; where these fail, all but the group and the calls that
    overlap are tried with root 0. many: none where `roots` have all numbers of ranks. slow: those in which
    it has to be right with a slow rank, too. following: those of calls where a later one begins before
    the first is over. Of these two there is one at most. special: those of numbers of ranks, of `many` or
    `roots`, of which some ranks have a part of their own; with these, too, any dtype and layout is right,
    unless numbers of ranks or lengths are wrong, which has been told.
    """
    first = [play(answer, rng, collective, [world]) for world in basic]
    yield values, _built(first, results(*first))
    tries = Tries(answer, rng, collective)
    any_number = any_root = tries.right(roots)
    if roots:
        yield "any root", any_root
    rooted, so_far = list(tries.plays) if any_root.passed else [], len(tries.plays)

    def tried(worlds: Sequence[World]) -> list[World]:
        """What a row has found wrong the rows after it do without."""
        return [world if any_root.passed else replace(world, root=0) for world in worlds]

    in_order = in_any_order(answer, rng, collective, slow, following)

    def launches(several: Iterable[Sequence[World]]) -> list[Sequence[World]]:
        """Of worlds that share one; none does where messages of a later call may be taken for others."""
        return list(several) if in_order.passed else [[world] for worlds in several for world in worlds]

    if many:
        yield "any number of ranks", (any_number := tries.right(tried(many)))
    alone = [played for played in tries.plays[so_far:] if played.worlds[0].ranks == 1]
    several = [tried(worlds) for worlds in (uneven if any_number.passed else uneven[:1])]
    lengths = [play(answer, rng, collective, worlds) for worlds in launches(several)]
    any_length = results(*lengths)
    if any_length.passed:
        single, any_length = other_dimensions(answer, rng, collective, tried(uneven[0])[0])
        lengths += single
    yield "any length", any_length
    model = basic[-1]
    special = special if any_number.passed and any_length.passed else ()
    yield "any dtype", any_dtype(tries, model, first[-1], in_order.passed, special)
    yield "in place", in_place(*first, *rooted, *alone, *(lengths if any_length.passed else ()))
    yield "any layout", any_layout(tries, [model, *special], any_length.passed)
    in_groups = (tries.found(each, right_in_the_group) for each in launches(subgroups))
    yield "on a subgroup", compare.first_failure(in_groups)
    if following or slow:
        yield "calls that overlap" if following else "a slow rank", in_order
    yield "only send and recv", compare.first_failure(map(by_messages, (*first, *lengths, *tries.plays)))


def any_layout(tries: Tries, worlds: Sequence[World], any_length: bool) -> Finding:
    """Passes if results are right of tensors with gaps between the elements, and of a matrix that stands
    column by column: of five rows of three, which cut flat has other parts, if `any_length` is right.
    """
    each = (
        laid_out
        for world in worlds
        for laid_out in (
            replace(world, layout="strided"),
            replace(world, length=5 if any_length else 2 * world.ranks, columns=3, layout="transposed"),
        )
    )
    return compare.first_failure(tries.found([world], layouts) for world in each)


def by_messages(played: Played) -> Finding:
    """Passes if there were no calls but send and recv."""
    return played.there(only_messages([played.observed], "the answer"))


def in_any_order(
    answer: Answer, rng: Rng, collective: Collective, slow: Sequence[World], following: Sequence[World]
) -> Finding:
    """Passes if results are right where messages come in another order than they are waited for."""
    found = [Finding(True, "Nothing comes in another order.")]
    found += [before_it_is_over(answer, rng, collective, following) for _ in following[:1]]
    found += [with_a_slow_rank(answer, rng, collective, world) for world in slow]
    return compare.first_failure(found)


def in_two_groups(world: World) -> list[World]:
    """A group, and one that has its members from the second on, and another one: their places are others.

    A root, which is at the last place, stays the same rank.
    """
    members = world.places
    others = (*members[1:], members[-1] + 1)
    return [world, replace(world, members=others, root=max(world.root - 1, 0))]


def right_in_the_group(played: Played) -> Finding:
    """Passes if results are right, and `within_the_group`."""
    return compare.first_failure(check(played) for check in (results, within_the_group))


def within_the_group(played: Played) -> Finding:
    """Passes if all messages were sent in the group, or in one of some of its members."""
    groups = [set(world.places) for world in played.worlds]
    for event in played.observed.events:
        inside = any(members.issuperset(event.group) for members in groups)
        if event.op == "send" and event.group and not inside:
            text = f"with {played.worlds[0]}, rank {event.rank} sends to rank {event.peer} in a larger group"
            said = f"{text}, where others' messages may come between; expected group=group."
            return Finding(False, said)
    return Finding(True, "All messages were sent in the group.")


def other_dimensions(
    answer: Answer, rng: Rng, collective: Collective, model: World
) -> tuple[list[Played], Finding]:
    """That of a `single_number`, and the finding `of_a_matrix` behind its own."""
    plays, finding = single_number(answer, rng, collective, model)
    return plays, of_a_matrix(answer, rng, collective, model) if finding.passed else finding


def single_number(
    answer: Answer, rng: Rng, collective: Collective, model: World
) -> tuple[list[Played], Finding]:
    """`with_the_world` of tensors without a dimension, such as a loss."""
    return with_the_world(answer, rng, collective, replace(model, length=1, single=True))


def of_a_matrix(answer: Answer, rng: Rng, collective: Collective, model: World) -> Finding:
    """`results` of five rows of three: cut flat, the parts are others than if rows are cut. The same on one
    rank.
    """
    several = replace(model, length=5, columns=3)
    alone = replace(several, ranks=1, root=0, node=min(model.node, 1))
    found = (with_the_world(answer, rng, collective, world)[1] for world in (several, alone))
    return compare.first_failure(found)


def with_the_world(
    answer: Answer, rng: Rng, collective: Collective, world: World
) -> tuple[list[Played], Finding]:
    """A launch, and its `results`; no launch if it comes to no end, which is no other row's affair."""
    try:
        plays = [play(answer, rng, collective, [world])]
    except AnswerFailed as failure:
        return [], Finding(False, f"With {world}: {_in_a_line(failure)}")
    return plays, results(*plays)


def takes_a_number(answer: Answer, rng: Rng, collective: Collective, model: World) -> bool:
    """Whether the answer is right for a number without a dimension. Who cuts rows is told there of that."""
    return single_number(answer, rng, collective, model)[1].passed


def _in_a_line(failure: AnswerFailed) -> str:
    """The first line of what went wrong, in which an error has its name."""
    line = failure.report.partition("\n")[0]
    return line if failure.kind is FailureKind.RANK_FAILED else f"{failure.kind}: {line}"


def with_a_slow_rank(answer: Answer, rng: Rng, collective: Collective, world: World) -> Finding:
    """`results` where rank 0 computes slowly, and no message waits for its receiver: what comes first is not
    what was awaited first.
    """
    machine = Cluster(devices_per_node=world.ranks, memory_bandwidth=1e9, eager_limit=4096)
    try:
        finding = results(play(answer, rng, collective, [world], machine.with_straggler(0, slowdown=1000)))
    except AnswerFailed as failure:
        finding = Finding(False, f"{failure.kind}: {failure.report}")
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
    roots_alone: bool = True,
) -> Findings:
    """The findings that all collectives share. rooted: with any root. sizes: further numbers of ranks.
    roots_alone: whether numbers of ranks have a row beside that of the roots.
    """

    def root(ranks: int) -> int:
        return rng.integer(0, ranks - 1) if rooted else 0

    many = [World(1, 12), *(World(p, 16 * p, root=root(p)) for p in sizes)]
    roots = [World(2, 8, root=1), World(4, 12, root=2)] if rooted else []
    yield from common_findings(
        answer,
        rng,
        collective,
        basic=[World(2, 8), World(4, 12)],
        roots=roots if roots_alone else roots + many,
        many=many if roots_alone else [],
        uneven=[
            [World(ranks, length, root=root_of) for length in lengths]
            for ranks, lengths in ((4, (1, 3, 11, 11)), (5, (0, 2, 7, 13)))
            for root_of in [root(ranks)]
        ],
        # The root at the last place: a rank before it is no member, so that ranks do not tell places.
        subgroups=[
            in_two_groups(World(p, 4 * p, members=drawn_members(rng, p), root=rooted * (p - 1)))
            for p in (3, 4)
        ],
        values=values,
        slow=slow,
        following=following,
        # One rank, for which there is nothing to do; and five, of which one folds.
        special=[World(1, 12), World(5, 12)],
    )


def _built(plays: Sequence[Played], values: Finding) -> Finding:
    """The finding about the values; right ones that another collective has made count for nothing."""
    if not values.passed:
        return values
    calls = compare.first_failure(map(by_messages, plays))
    return values if calls.passed else Finding(False, f"the values are right, but {calls.seen}")
