"""Unit 12, convolutions cut three ways."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from graders.grading.communication import in_words
from graders.grading.kit import Answer, Criterion, Finding, Findings, Kind, Rng, compare, exercise
from graders.units.passes import calls_by_pass
from graders.units.unit_12.convolution_cases import BY_CHANNELS, BY_FILTERS, PASSES, Case, Replies, Way
from graders.units.unit_12.neighbours import one_message_each
from graders.units.unit_12.several import several_calls, together
from graders.units.unit_12.space_worlds import ALONE, THREES

BOTH = ("result", "gradient of the image", "gradient of the weight")


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion("result", 3, "Above and below the padding is the neighbours'; left and right it is zeros."),
        Criterion("gradient of the image", 1, "Rows that a neighbour borrowed have a gradient there too."),
        Criterion(
            "gradient of the weight",
            3,
            "Every rank used the weight on its own pixels: the whole gradient is the sum over ranks.",
        ),
        Criterion(
            "strides and kernels",
            2,
            "How many rows the kernel needs above is weight.shape[2] // 2; how many columns, shape[3] // 2.",
            needs=BOTH,
        ),
        Criterion(
            "calls and bytes",
            1,
            "Halos in both passes; in backward one all-reduce of the weight's gradient, if there is one.",
            needs=(*BOTH, "strides and kernels"),
        ),
        Criterion("group", 1, "Both the halo and the sum are the group's.", needs=BOTH),
        several_calls((*BOTH, "strides and kernels", "group")),
    ),
    hints=(
        "Which padding does conv2d still have to add to a strip that has rows enough above and below, "
        "with its halo?",
        "Which pixels has this rank's weight seen, and which have the others' copies seen?",
        "A hook on weight.view_as(weight) gets the gradient, and what it returns takes its place.",
    ),
)
def spatial_conv2d(answer: Answer, rng: Rng) -> Findings:
    """Drawn images in strips of drawn heights."""
    plain = Case.in_space(rng, [3, 5, 4], (3, 3))
    run = plain.launch(answer)
    yield "result", plain.results(run)
    yield "gradient of the image", plain.gradient_of_x(run)
    yield "gradient of the weight", plain.gradient_of_weight(run)
    others = [
        Case.in_space(rng, [4, 2, 5], (3, 5), stride=2),
        Case.in_space(rng, [6, 3, 3, 4], (5, 1), stride=3, dtype=torch.float64),
        Case.in_space(rng, [1, 2], (1, 3)),
        Case.in_space(rng, [5], (5, 3), stride=2),
        Case.in_space(rng, [4, 1], (3, 3), stride=2, frozen=[0]),
        Case.in_space(rng, [3, 2], (3, 3), frozen=[1]),
    ]
    runs = [each.launch(answer) for each in others]
    yield "strides and kernels", compare.first_failure(map(Case.all_right, others, runs))
    looked_at = zip((plain, *others), (run, *runs), strict=True)
    yield "calls and bytes", compare.first_failure(halos_and_one_sum(each, seen) for each, seen in looked_at)
    grouped = Case.in_space(rng, [2, 3, 2], (3, 3), groups=THREES)
    yield "group", grouped.all_right(grouped.launch(answer))
    cases = [plain, replace(plain, x=[rng.normal(*plain.x[0].shape)])]
    cases += [Case.in_space(rng, [4], (3, 3), groups=ALONE), Case.in_space(rng, [2, 4, 3], (5, 1))]
    yield "several calls", together(answer, [each.call() for each in cases])


def halos_and_one_sum(case: Case, run: Replies) -> Finding:
    """Passes if there are halos, and one all-reduce in backward if the weight learns."""
    width = case.weight[0].shape[2] // 2
    halo, weight = case.x[0][:, :, :width].nbytes, case.weight[0].nbytes
    for rank in range(case.size):
        neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < case.size]
        for label, calls in zip(PASSES, calls_by_pass(run, rank, PASSES), strict=True):
            where = f"in {label} rank {rank}" + (", whose weight is frozen," if 1 in case.frozen else "")
            sums = [call for call in calls if call.op not in ("send", "recv")]
            wanted = ["all_reduce"] if label == "backward" and 1 not in case.frozen else []
            alone = case.size == 1 and not sums
            if not alone and (seen := [call.op for call in sums]) != wanted:
                said = f"{where} calls {in_words(seen)} beside its messages; expected {in_words(wanted)}."
                return Finding(False, said, Kind.TOO_MUCH if len(seen) > len(wanted) else Kind.OTHER)
            # With no rows to send, or none that learn, there may be no messages; and then as many as else.
            if sent := [call for call in calls if call.op == "send"]:
                finding = one_message_each(where, calls, neighbours, halo)
                if not finding.passed:
                    return finding
            elif neighbours and width and not (label == "backward" and 0 in case.frozen):
                return one_message_each(where, sent, neighbours, halo)
            if any(call.nbytes > weight for call in sums):
                said = f"{where} sums {sums[0].nbytes:,} bytes; the weight has {weight:,}."
                return Finding(False, said, Kind.TOO_MUCH)
    return Finding(True, "Halos in both passes, and one sum of the weight's gradient where it has one.")


def _cut_by_channels(hints: Sequence[str]) -> tuple[Criterion, ...]:
    """The criteria of both convolutions whose channels are shared out, with the hints where they differ."""
    result, image, weight, calls = hints
    return (
        Criterion("result", 3, result),
        Criterion("gradient of the image", 2, image),
        Criterion("gradient of the weight", 1, weight, needs=BOTH[:2]),
        Criterion(
            "other sizes",
            1,
            "One rank, two, four; one sample or more; any odd kernel; float64; an image without gradient.",
            needs=BOTH,
        ),
        Criterion("calls and bytes", 2, calls, needs=(*BOTH, "other sizes")),
        Criterion("group", 1, "Collectives take a group, in backward too.", needs=BOTH),
        several_calls((*BOTH, "other sizes", "group")),
    )


@exercise(
    minutes=25,
    difficulty=3,
    rubric=_cut_by_channels(
        (
            "A filter looks at all channels: first bring them together, in the order of the ranks, for each "
            "sample.",
            "Each rank's filters send a gradient to all channels: for one rank's channels that is a sum.",
            "The filters here have seen the whole image: their gradient is whole.",
            "Forward one all-gather of x_shard; backward one reduce-scatter of the gradient of the whole.",
        )
    ),
    hints=(
        "Which channels does one filter need, and who has them?",
        "An all-gather puts the ranks in front, [p, samples, ...]. Where do they belong?",
        "If forward gathers from all, what does backward do with a gradient for all channels, of which each "
        "rank has another part of the sum?",
    ),
)
def filter_parallel_conv(answer: Answer, rng: Rng) -> Findings:
    """Drawn images and filters."""
    yield from _judged(answer, rng, BY_FILTERS, ("all_gather", "reduce_scatter"))


@exercise(
    minutes=20,
    difficulty=3,
    rubric=_cut_by_channels(
        (
            "Every rank has a part of each sum over channels, for all filters: add up, keep your filters.",
            "The channels here went into all filters' results: backward needs the gradients of all of them.",
            "Each slice of the weight went into all filters' results too.",
            "Forward one reduce-scatter of the partial results; backward one all-gather of the gradient.",
        )
    ),
    hints=(
        "What does conv2d make of some channels and the weights that belong to them?",
        "Which collective adds up over ranks, and leaves each of them a part?",
        "What arrives in backward is for this rank's filters. Whose did these channels help to compute?",
    ),
)
def channel_parallel_conv(answer: Answer, rng: Rng) -> Findings:
    """Drawn images and weights."""
    yield from _judged(answer, rng, BY_CHANNELS, ("reduce_scatter", "all_gather"))


def _judged(answer: Answer, rng: Rng, way: Way, calls: tuple[str, str]) -> Findings:
    plain = Case.in_channels(rng, way, 3, (3, 3), each=2)
    run = plain.launch(answer)
    yield "result", plain.results(run)
    yield "gradient of the image", plain.gradient_of_x(run)
    yield "gradient of the weight", plain.gradient_of_weight(run)
    others = [
        Case.in_channels(rng, way, 1, (3, 1)),
        Case.in_channels(rng, way, 2, (1, 5), samples=1, dtype=torch.float64),
        Case.in_channels(rng, way, 4, (5, 3), samples=3),
        Case.in_channels(rng, way, 2, (3, 3), frozen=[0]),
        Case.in_channels(rng, way, 3, (3, 3), frozen=[1]),
    ]
    yield "other sizes", compare.first_failure(each.all_right(each.launch(answer)) for each in others)
    frozen = Case.in_channels(rng, way, 2, (3, 3), frozen=[0])
    # Where no image needs a gradient, backward of the one way has none to send.
    fewer = (calls[0], None if way is BY_FILTERS else calls[1])
    looked_at = ((plain, run, calls), (frozen, frozen.launch(answer), fewer))
    yield "calls and bytes", compare.first_failure(_two_collectives(*each) for each in looked_at)
    grouped = Case.in_channels(rng, way, 3, (3, 3), groups=THREES)
    yield "group", grouped.all_right(grouped.launch(answer))
    cases = [
        plain,
        replace(plain, x=[rng.normal(*plain.x[0].shape)]),
        Case.in_channels(rng, way, 1, (3, 3), groups=ALONE),
        Case.in_channels(rng, way, 3, (1, 5), each=1),
        Case.in_channels(rng, way, 3, (3, 1), samples=1),
    ]
    yield "several calls", together(answer, [each.call() for each in cases])


def _two_collectives(case: Case, run: Replies, calls: tuple[str, str | None]) -> Finding:
    """Passes if forward makes one call of the first kind, and backward one of the second (None: none), and no
    rank sends more than all but its own part of what moves.
    """
    tensor = case.x[0] if case.way is BY_FILTERS else case.computed(case.x[0], case.weight[0])
    allowed = tensor.nbytes * (case.size - 1) // case.size
    kinds = (*calls, calls[0])
    for rank in range(case.size):
        for label, made, kind in zip(PASSES, calls_by_pass(run, rank, PASSES), kinds, strict=True):
            seen = [call.op for call in made]
            most = 0 if kind is None else 1
            if len(seen) != most or (kind is not None and not seen[0].startswith(kind)):
                wanted = f"one {kind}" if kind else "nothing, for no image needs a gradient"
                said = f"in {label} rank {rank} calls {in_words(seen)}; expected {wanted}."
                return Finding(False, said, Kind.TOO_MUCH if len(seen) > most else Kind.OTHER)
            if made and made[0].sent > allowed:
                said = f"in {label} rank {rank} sends {made[0].sent:,} bytes; {allowed:,} are enough."
                return Finding(False, said, Kind.TOO_MUCH)
    return Finding(True, f"One {calls[0]} in forward, of {allowed:,} bytes, and no more in backward.")
