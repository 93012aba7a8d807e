"""Unit 02, the same gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster
from graders.grading import compare
from graders.grading.communication import payload_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Kind, Observed, Rng, exercise, per_rank
from graders.units.models import Gradients
from graders.units.unit_02.drivers import replicas as drivers
from graders.units.unit_02.models import chain_of, names_of
from graders.units.unit_02.replies import AverageReply


@exercise(
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "averages over ranks",
            1,
            "After the call every p.grad must be the sum over ranks divided, once, by the number of ranks.",
        ),
        Criterion(
            "in place",
            1,
            "Write the average into the gradient that is there, p.grad.copy_(...), and into nothing else.",
        ),
        Criterion(
            "missing gradients",
            1,
            "Where p.grad is None on this rank, it counts as zero; still all ranks must make the same calls, "
            "so nothing may be skipped.",
        ),
        Criterion(
            "each gradient sent once",
            1,
            "Leave out frozen parameters, those whose requires_grad is False. all_reduce is enough: no "
            "gathering, no second round.",
        ),
        Criterion(
            "one call",
            1,
            "Lay all gradients end to end in one flat tensor, and call all_reduce once.",
            needs=("each gradient sent once",),
        ),
        Criterion(
            "infinities and layouts",
            1,
            "An infinity or NaN of one rank must stay visible in the mean. And not every gradient is "
            "contiguous: view(-1) then raises an error, and flatten() and contiguous() make a copy. The mean "
            "belongs into the gradient that is there, with copy_(), for a scalar takes no index.",
        ),
    ),
    hints=(
        "How would you do it with one all_reduce a parameter? Make that right first.",
        "How do many tensors become one? torch.cat([g.flatten() for g in gradients]) lays them end to end; "
        "flat.split(sizes) cuts them.",
        "What does a rank send for a gradient that it lacks? Zeros, in a tensor that it makes before "
        "anything else.",
    ),
)
def average_gradients(answer: Answer, rng: Rng) -> Findings:
    """The mean over ranks, in place, in one call, whatever some rank lacks."""
    yield "averages over ranks", averages(answer, rng)

    ranks = rng.integer(2, 4)
    case = draw_chain(rng, ranks)
    in_place = gradients_in_place(averaged(answer, case).results, case.values)
    yield "in place", in_place

    # In double precision the dtype of zeros shows where a rank has nothing else.
    with_others, alone = (draw_chain(rng, some, torch.float64) for some in (ranks, 1))
    yield (
        "missing gradients",
        compare.first_failure(
            missing_gradients(answer, with_gaps(each), in_place.passed) for each in (with_others, alone)
        ),
    )

    frozen = draw_chain(rng, ranks, frozen=True)
    observed = averaged(answer, frozen)
    left_out = gradients_in(observed, frozen)
    sent = payload_of(observed, "all_reduce", frozen.nbytes)
    yield "each gradient sent once", compare.first_failure([left_out, sent])
    what = f"Calls of all_reduce for {len(frozen.values) - len(FROZEN)} gradients"
    yield "one call", compare.at_most(len(observed.calls(0)), 1, what, kind=Kind.TOO_MUCH)

    yield "infinities and layouts", infinities_and_layouts(answer, rng)


FROZEN = 2, 3
"""Which parameters are frozen, if some are: the weight and the bias of a layer between others."""


@dataclass(frozen=True, slots=True)
class ChainCase:
    """A chain of linear layers, the last one frozen or not, and gradients.

    values: weights [out, in] and biases [out] in turn, and perhaps a scalar, the same on every rank.
    gradients[r]: rank r's, of the same shapes, None where it has none. frozen: whether `FROZEN` are. Their
    weight has a gradient, from a time when it was trainable.
    """

    values: list[Tensor]
    gradients: list[Gradients]
    frozen: bool

    def means(self) -> list[Gradients]:
        """What each rank must end with: a missing gradient is zero, the frozen layer's stay its own."""
        means = [[*gradients] for gradients in self.gradients]
        for position in self._trainable:
            total = torch.zeros_like(self.values[position])
            for gradients in self.gradients:
                gradient = gradients[position]
                total += 0 if gradient is None else gradient
            for rank in means:
                rank[position] = total / len(self.gradients)
        return means

    @property
    def _trainable(self) -> list[int]:
        return [place for place in range(len(self.values)) if not (self.frozen and place in FROZEN)]

    @property
    def names(self) -> list[str]:
        """Of the parameters, in the model that the driver makes; of frozen ones with that word."""
        names = names_of(chain_of(self.values))
        return [
            f"{name}{'' if place in self._trainable else ', which is frozen,'}"
            for place, name in enumerate(names)
        ]

    @property
    def nbytes(self) -> int:
        """Of the trainable parameters' gradients."""
        return sum(self.values[place].nbytes for place in self._trainable)


def draw_chain(
    rng: Rng, ranks: int, dtype: torch.dtype = torch.float32, frozen: bool = False, scalar: bool = False
) -> ChainCase:
    """Four layers of drawn widths. scalar: whether there is one more parameter, of no dimension."""
    widths = [rng.integer(2, 6) for _ in range(5)]
    shapes: list[tuple[int, ...]]
    shapes = [shape for wide, narrow in pairwise(widths) for shape in ((narrow, wide), (narrow,))]
    shapes += [()] if scalar else []
    values = [rng.normal(*shape, dtype=dtype) for shape in shapes]
    gradients: list[Gradients] = [[rng.normal(*shape, dtype=dtype) for shape in shapes] for _ in range(ranks)]
    for rank in gradients if frozen else []:
        rank[FROZEN[-1]] = None
    return ChainCase(values, gradients, frozen)


def with_gaps(case: ChainCase) -> ChainCase:
    """The case without parameter 0's gradient on any rank, 1's on the first, and all on the last."""
    gradients = [[None, *rank[1:]] for rank in case.gradients]
    gradients[0][1] = None
    gradients[-1] = [None] * len(case.values)
    return ChainCase(case.values, gradients, case.frozen)


def averaged(
    answer: Answer, case: ChainCase, by_columns: bool = False, again: bool = False, one_node: bool = False
) -> Observed[AverageReply]:
    """Let the answer average the case's gradients, each rank on a node of its own, or all on one; by_columns,
    again: see `drivers.average`.
    """
    frozen = [*FROZEN] if case.frozen else []
    given = case.values, per_rank(case.gradients), frozen, by_columns, again
    ranks = len(case.gradients)
    cluster = Cluster(devices_per_node=ranks) if one_node else Cluster(nodes=ranks)
    return answer.launch(drivers.average, *given, ranks=ranks, cluster=cluster)


def gradients_in(
    observed: Observed[AverageReply], case: ChainCase, rtol: float = 1e-5, atol: float = 1e-6
) -> Finding:
    """Passes if each rank has the gradients that it must have."""
    seen = [rank.gradients for rank in observed.results]
    return gradients_as(seen, case.means(), case.names, rtol, atol)


def averages(answer: Answer, rng: Rng) -> Finding:
    """Right on one rank, on an even and on an odd number of ranks, in single and double precision, on one
    node and on several.
    """
    sizes = (1, rng.choice((2, 4)), 5)
    for ranks, dtype in zip(sizes, (torch.float32, torch.float64, torch.float32), strict=True):
        case = draw_chain(rng, ranks, dtype)
        # In double precision a detour through single precision shows.
        rtol, atol = (1e-12, 1e-13) if dtype is torch.float64 else (1e-5, 1e-6)
        finding = gradients_in(averaged(answer, case, one_node=ranks < 5), case, rtol, atol)
        if not finding.passed:
            nodes = "one node" if ranks < 5 else "a node each"
            where = "on one rank" if ranks == 1 else f"on {ranks} ranks on {nodes}"
            return Finding(False, f"{where}, in {str(dtype).removeprefix('torch.')}: {finding.seen}")
    return Finding(True, f"On {sizes[0]}, {sizes[1]} and {sizes[2]} ranks each gradient is the mean.")


def missing_gradients(answer: Answer, case: ChainCase, in_place: bool) -> Finding:
    """Passes if a gradient that a rank lacks counts as zero there, also where it had one in the step before,
    and no parameter changes. in_place: whether it counts that those which it has stay what they are.
    """
    observed = averaged(answer, case, again=True)
    if in_place:
        kept = [gradients_in_place(observed.results, case.values)]
    else:
        kept = [parameters_kept(rank, reply, case.values) for rank, reply in enumerate(observed.results)]
    seen = compare.first_failure([gradients_in(observed, case), *kept])
    return seen if seen.passed else Finding(False, f"in step 1, and none was missing in step 0: {seen.seen}")


def infinities_and_layouts(answer: Answer, rng: Rng) -> Finding:
    """Passes if an overflow on one rank is seen on all, and if gradients may stand in memory column by
    column, or have no dimension.
    """
    overflow, by_columns = draw_chain(rng, 2), draw_chain(rng, 2, scalar=True)
    first = overflow.gradients[-1][0]
    assert first is not None
    first[0, 0], first[-1, -1] = torch.inf, torch.nan
    seen = gradients_in(averaged(answer, overflow), overflow)
    if not seen.passed:
        return Finding(False, f"Of rank 1's gradients one number is infinite, and one NaN: {seen.seen}")
    observed = averaged(answer, by_columns, by_columns=True)
    same = gradients_in_place(observed.results, by_columns.values)
    seen = compare.first_failure([gradients_in(observed, by_columns), same])
    return (
        seen
        if seen.passed
        else Finding(False, f"One gradient is a scalar, and the others not contiguous: {seen.seen}")
    )


def gradients_as(
    seen: Sequence[Gradients],
    expected: Sequence[Gradients],
    names: Sequence[str],
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Finding:
    """Passes if each rank has the gradients expected of it, be it NaN, and none where None is expected.

    seen[r][i], expected[r][i]: rank r's of parameter i, in the order of model.parameters(), of its shape.
    names: of the parameters.
    """

    def one(gradient: Tensor | None, mean: Tensor | None, what: str) -> Finding:
        if mean is None:
            return compare.equal(gradient, None, what)
        if gradient is not None and gradient.shape == mean.shape:
            # NaN equals nothing: where it is in both, it is as it has to be.
            both = gradient.isnan() & mean.isnan()
            gradient, mean = gradient.masked_fill(both, 0), mean.masked_fill(both, 0)
        return compare.close(gradient, mean, what, rtol, atol)

    return compare.first_failure(
        (
            one(gradient, mean, f"the gradient of {name} on rank {rank}")
            for rank, (own, means) in enumerate(zip(seen, expected, strict=True))
            for name, (gradient, mean) in zip(names, compare.side_by_side(own, means), strict=True)
        ),
        f"All gradients are as expected on {compare.counted(len(seen), 'rank')}.",
    )


def gradients_in_place(replies: Sequence[AverageReply], values: list[Tensor]) -> Finding:
    """Passes if no gradient tensor was exchanged and no parameter changed. values: of a parameter's shape."""
    for rank, reply in enumerate(replies):
        if not reply.in_place:
            text = f"on rank {rank} some p.grad is another tensor than before, or has other memory"
            return Finding(False, f"{text}.")
        kept = parameters_kept(rank, reply, values)
        if not kept.passed:
            return kept
    return Finding(True, "Each p.grad is the tensor that it was; the parameters are unchanged.")


def parameters_kept(rank: int, reply: AverageReply, values: list[Tensor]) -> Finding:
    """Passes if the rank's parameters are what they were."""
    passed = compare.same(reply.parameters, values)
    return Finding(passed, f"on rank {rank} {'no' if passed else 'a'} parameter has changed.")
