"""What holds for all hand-written collectives: the findings that their graders share."""

from collections.abc import Sequence
from dataclasses import replace

from course_lib.cluster.topology import Cluster
from graders.grading.communication import only_messages
from graders.grading.kit import Answer, AnswerFailed, Finding, Findings, Rng, compare
from graders.units.unit_07.collective import Collective
from graders.units.unit_07.collectives import Played, in_place, play, results, with_numbers
from graders.units.unit_07.dtypes import any_dtype
from graders.units.unit_07.groups import in_other_forms, in_several_groups, launches, on_a_subgroup
from graders.units.unit_07.memory import Right, any_layout
from graders.units.unit_07.shapes import other_dimensions
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
    following: Sequence[Sequence[World]] = (),
    special: Sequence[World] = (),
) -> Findings:
    """What holds for every collective: values, ranks, lengths, dtypes, in place, layout, group, messages.
    `values` is the name of the first criterion; worlds of one inner list share a launch. roots: those with
    another root than place 0, if there are roots; where these fail, all but the group and the calls that
    overlap are tried with root 0. many: none where `roots` have all numbers of ranks. slow: those in which
    it has to be right with a slow rank, too. following: in each launch those of calls where a later one
    begins before the first is over. Of these two there is one at most. special: those of numbers of ranks,
    of `many` or `roots`, of which some ranks have a part of their own; with these, too, any dtype and layout
    is right, unless numbers of ranks or lengths are wrong, which has been told. What rows have found right
    meets in the rows after them: dtypes with shapes, layouts with dtypes, groups with all of these.
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

    if many:
        yield "any number of ranks", (any_number := tries.right(tried(many)))
    alone = [played for played in tries.plays[so_far:] if played.worlds[0].ranks == 1]
    several = [tried(worlds) for worlds in (uneven if any_number.passed else uneven[:1])]
    lengths = [play(answer, rng, collective, worlds) for worlds in launches(several, in_order.passed)]
    any_length = results(*lengths)
    if any_length.passed:
        single, any_length = other_dimensions(answer, rng, collective, tried(uneven[0])[0])
        lengths += single
    yield "any length", any_length
    [model] = tried([replace(basic[-1], root=basic[-1].ranks - 1 if roots else 0)])
    special = tried(special) if any_number.passed and any_length.passed else []
    setting = tries, model, first[-1], in_order.passed
    yield "any dtype", (dtype := any_dtype(*setting, any_length.passed, special))
    # Of all numbers of ranks and dtypes where these are right.
    all_right = any_number.passed and dtype.passed and (any_root.passed or not roots)
    others = with_numbers(tries.plays) if all_right else []
    kept = in_place(*first, *rooted, *alone, *(lengths if any_length.passed else ()), *others)
    yield "in place", kept
    right = Right(any_length.passed, dtype.passed)
    yield "any layout", (layout := any_layout(*setting, right, special))
    forms = in_other_forms(subgroups[-1][0], dtype.passed, layout.passed) if any_length.passed else []
    yield "on a subgroup", on_a_subgroup(tries, subgroups, forms, kept.passed, in_order.passed)
    if following or slow:
        yield "calls that overlap" if following else "a slow rank", in_order
    yield "only send and recv", compare.first_failure(map(by_messages, (*first, *lengths, *tries.plays)))


def by_messages(played: Played) -> Finding:
    """Passes if there were no calls but send and recv."""
    return played.there(only_messages([played.observed], "the answer"))


def in_any_order(
    answer: Answer,
    rng: Rng,
    collective: Collective,
    slow: Sequence[World],
    following: Sequence[Sequence[World]],
) -> Finding:
    """Passes if results are right where messages come in another order than they are waited for."""
    found = [Finding(True, "Nothing comes in another order.")]
    found += [before_it_is_over(answer, rng, collective, worlds) for worlds in following]
    found += [with_a_slow_rank(answer, rng, collective, world) for world in slow]
    return compare.first_failure(found)


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
    following: Sequence[Sequence[World]] = (),
    sizes: Sequence[int] = (3, 5, 6, 7, 8),
    roots_alone: bool = True,
) -> Findings:
    """The findings that all collectives share. rooted: with any root. sizes: further numbers of ranks.
    roots_alone: whether numbers of ranks have a row beside that of the roots.
    """

    def root(ranks: int) -> int:
        return rng.integer(1, ranks - 1) if rooted and ranks > 1 else 0

    many = [World(1, 12), *(World(p, 64 * p, root=root(p)) for p in sizes)]
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
            for ranks, lengths in (
                (4, (1, 3, 11, 11)),
                (5, (0, 2, 7, 13)),
                (2, (0, 1, 3)),
                (3, (2, 7)),
                (8, (6, 29)),
            )
            for root_of in [root(ranks)]
        ],
        # The root at the last place: a rank before it is no member, so that ranks do not tell places.
        subgroups=[
            [World(1, 4, members=(2,))],
            *(
                in_several_groups(World(p, 4 * p, members=drawn_members(rng, p), root=rooted * (p - 1)))
                for p in (3, 4)
            ),
        ],
        values=values,
        slow=slow,
        following=following,
        # One rank, for which there is nothing to do; and five, of which one folds.
        special=[World(1, 12), World(5, 12, root=root(5))],
    )


def _built(plays: Sequence[Played], values: Finding) -> Finding:
    """The finding about the values; right ones that another collective has made count for nothing."""
    if not values.passed:
        return values
    calls = compare.first_failure(map(by_messages, plays))
    return values if calls.passed else Finding(False, f"the values are right, but {calls.seen}")
