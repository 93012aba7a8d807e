"""Unit 06, f and g: two functions, each of which communicates in one pass and not in the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graders.grading.answer import PlainData
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.passes import calls_in_passes
from graders.units.unit_06 import drivers
from graders.units.unit_06.passes import PASSES, WITHOUT_GRADIENT
from graders.units.unit_06.replies import ConjugateReply, HalfReply, LayerReply, LossReply

MARKED = (*PASSES, *WITHOUT_GRADIENT)
OTHER_WAYS = "other ways keep their gradient"

Replies = Observed[ConjugateReply]


@exercise(
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion("gradient", 3, "Every rank's branch adds to the gradient of x, and no rank has it alone."),
        Criterion("value", 1, "Forward, f changes nothing."),
        Criterion(
            OTHER_WAYS,
            1,
            "x may be used elsewhere too, as by a residual connection. Sum up what comes through f alone.",
        ),
        Criterion(
            "arguments unchanged",
            1,
            "The gradient that arrives may be another function's too, or one number shown many times: "
            "work on a copy.",
        ),
        Criterion("calls", 1, "Forward needs nobody; backward needs one sum.", needs=("gradient", "value")),
        Criterion("group", 1, "dist.all_reduce takes a group as well.", needs=("gradient", OTHER_WAYS)),
    ),
    hints=(
        "In which pass does a rank lack something that only the others have?",
        "What does backward get, and for whom is what it returns?",
        "backward gets only ctx: how do you hand it the group?",
    ),
)
def f(answer: Answer, rng: Rng) -> Findings:
    """Drawn tensors: x the same on every rank, the gradients that arrive not; one number in bfloat16."""
    alone, both = (Case.drawn(rng, beside=beside) for beside in (False, True))
    scalar = Case.drawn(rng, beside=False, dtype=torch.bfloat16, shape=[])
    cases = (alone, both, scalar)
    runs = [case.launch(answer) for case in cases]
    yield "gradient", compare.first_failure(map(Case.gradient_summed, (alone, scalar), runs[::2]))
    yield "value", compare.first_failure(map(values, runs, (case.x for case in cases)))
    yield OTHER_WAYS, both.gradient_summed(runs[1])
    yield "arguments unchanged", unchanged(answer, rng, both, runs[1])
    yield "calls", calls_in_passes(runs[1], MARKED, ([], ["all_reduce"], [], []))
    two = Case.drawn(rng, groups=drawn_groups(rng))
    yield "group", two.gradient_summed(two.launch(answer))


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "value", 2, "Every rank has a part of a sum; all of them want the whole sum, to the last bit."
        ),
        Criterion("gradient", 1, "Every rank has the whole gradient already: d(a + b)/da is 1."),
        Criterion(
            OTHER_WAYS,
            1,
            "What comes through g passes as it is; so does all else.",
            needs=("value", "gradient"),
        ),
        Criterion("arguments unchanged", 1, "x may be needed in somebody's backward: sum up a copy of it."),
        Criterion("calls", 1, "Forward needs one sum; backward needs nobody.", needs=("value", "gradient")),
        Criterion("group", 1, "dist.all_reduce takes a group as well."),
    ),
    hints=(
        "If y is the sum of all ranks' x, what is the derivative of y by this rank's x?",
        "Whose tensor does dist.all_reduce write to?",
    ),
)
def g(answer: Answer, rng: Rng) -> Findings:
    """Drawn tensors, other ones on every rank; one number in bfloat16; parts far larger than their sum."""
    alone, both = (Case.drawn(rng, beside=beside) for beside in (False, True))
    scalar = Case.drawn(rng, dtype=torch.bfloat16, shape=[])
    cases = (alone, both, scalar)
    runs = [case.launch(answer) for case in cases]
    sums = [values(run, case.summed(case.x)) for run, case in zip(runs, cases, strict=True)]
    cancelling = Case.cancelling(rng).launch(answer)
    yield "value", compare.first_failure((*sums, alike([reply.result for reply in cancelling.results])))
    yield "gradient", gradients(alone, runs[0], alone.arriving)
    yield OTHER_WAYS, gradients(both, runs[1], both.arriving)
    yield "arguments unchanged", unchanged(answer, rng, both, runs[1])
    yield "calls", calls_in_passes(runs[1], MARKED, (["all_reduce"], [], *[["all_reduce"]] * 2))
    two = Case.drawn(rng, groups=drawn_groups(rng))
    yield "group", values(two.launch(answer), two.summed(two.x))


@dataclass(frozen=True, slots=True)
class Case:
    """What every rank has: x, the gradient that arrives and the one that x gets by another way.

    groups: in which the ranks work; none for all of them.
    """

    x: list[Tensor]
    arriving: list[Tensor]
    beside: list[Tensor]
    groups: list[list[int]]

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        *,
        beside: bool = True,
        one_number: bool = False,
        groups: Sequence[list[int]] = (),
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
    ) -> "Case":
        """beside: whether x has another way. one_number: the gradient that arrives is one, for all of x.
        dtype, shape: drawn if None; in bfloat16 they are whole numbers, whose sums are exact.
        """
        ranks = sum(map(len, groups)) or rng.integer(2, 4)
        dtype = rng.choice((torch.float32, torch.float64)) if dtype is None else dtype
        if shape is None:
            shape = [rng.integer(2, 4) for _ in range(rng.integer(1, 3))]

        def of_each(*dimensions: int) -> list[Tensor]:
            if dtype is torch.bfloat16:
                return [rng.integers(-9, 9, *dimensions).to(dtype) for _ in range(ranks)]
            return [rng.normal(*dimensions, dtype=dtype) for _ in range(ranks)]

        others = of_each(*shape) if beside else [torch.zeros(tuple(shape), dtype=dtype)] * ranks
        return cls(of_each(*shape), of_each(*([] if one_number else shape)), others, list(groups))

    @classmethod
    def cancelling(cls, rng: Rng) -> "Case":
        """Three ranks, the x of two of which are thousands of times as large as the sum."""
        case = cls.drawn(rng, groups=[[0, 1, 2]], shape=[8])
        far, near, other = case.x
        return replace(case, x=[10_000 * far, near - 10_000 * far, other], groups=[])

    def launch(self, answer: Answer) -> Replies:
        given = [per_rank(each) for each in (self.x, self.arriving, self.beside)]
        return answer.launch(drivers.conjugate, *given, self.groups, ranks=len(self.x))

    def summed(self, tensors: list[Tensor]) -> list[Tensor]:
        """For each rank the sum over its group."""
        groups = self.groups or [list(range(len(tensors)))]
        own = {rank: group for group in groups for rank in group}
        return [torch.stack([tensors[r] for r in own[rank]]).sum(0) for rank in range(len(tensors))]

    def gradient_summed(self, run: Replies) -> Finding:
        """`gradients`, where what comes through the answer is the sum of what arrives in the group."""
        return gradients(self, run, self.summed(self.arriving))


def drawn_groups(rng: Rng) -> list[list[int]]:
    """Two pairs of four ranks, neighbours in neither."""
    return rng.choice(([[0, 2], [1, 3]], [[1, 2], [0, 3]]))


def values(run: Replies, expected: list[Tensor]) -> Finding:
    """Passes if every rank has this result, with a gradient and without."""
    return compare.first_failure(
        compare.close_on_all_ranks(seen, expected, what) for what, seen in results_of(run.results).items()
    )


def results_of(
    replies: Sequence[ConjugateReply | LayerReply | HalfReply | LossReply],
) -> dict[str, list[PlainData]]:
    """The ranks' results, with a gradient and without, each with its name."""
    return {
        "the result": [reply.result for reply in replies],
        "the result under torch.no_grad()": [reply.without_gradient[0] for reply in replies],
        "the result for an x without gradient": [reply.without_gradient[1] for reply in replies],
    }


def alike(results: Sequence[PlainData], what: str = "the result") -> Finding:
    """Passes if all ranks have the same, to the last bit."""
    what = f"{what}, which all ranks have to have to the last bit,"
    return compare.close_on_all_ranks(results, [results[0]] * len(results), what, rtol=0, atol=0)


def gradients(case: Case, run: Replies, through: list[Tensor]) -> Finding:
    """Passes if every rank's x has the gradient that came through the answer and that of its other way."""
    expected = [one + other for one, other in zip(through, case.beside, strict=True)]
    return compare.close_on_all_ranks(
        [reply.gradient for reply in run.results], expected, "the gradient of x"
    )


def unchanged(answer: Answer, rng: Rng, case: Case, run: Replies) -> Finding:
    """Passes if x and the gradient that arrives are what they were; also where that is one number for all."""
    one = Case.drawn(rng, one_number=True)
    return compare.first_failure(
        finding
        for given, seen in ((case, run), (one, one.launch(answer)))
        for finding in (
            compare.close_on_all_ranks(
                [reply.x for reply in seen.results], given.x, "x afterwards", rtol=0, atol=0
            ),
            compare.close_on_all_ranks(
                [reply.arriving for reply in seen.results],
                [arriving.expand_as(x) for arriving, x in zip(given.arriving, given.x, strict=True)],
                "the gradient that arrived, afterwards",
                rtol=0,
                atol=0,
            ),
        )
    )
