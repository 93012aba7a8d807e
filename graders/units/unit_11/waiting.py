"""Unit 11, what waits to be sent: deep gradient compression, and error feedback.

Shapes: n numbers of a gradient, k of them sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_11 import drivers
from graders.units.unit_11.compressors import Compressor, DgcReply, RememberedReply


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the first step", 2, "The k largest magnitudes of what there is to send, and their places."
        ),
        Criterion(
            "momentum at ratio 1",
            2,
            "With ratio 1, what is sent is the velocity of SGD with momentum, and nothing is left to wait.",
        ),
        Criterion(
            "what waits",
            3,
            "What has not been sent stays, and the velocity goes on as if nothing were sent.",
            needs=("the first step", "momentum at ratio 1"),
        ),
        Criterion(
            "arguments and dtypes",
            1,
            "The two states change in place, the gradient stays as it is, places are int32.",
            needs=("the first step", "what waits"),
        ),
    ),
    hints=(
        "In SGD with momentum, how much does a gradient move its weight in the steps after its own?",
        "If gradients are what waits, momentum sees them late. What would have to wait instead?",
        "topk of the magnitudes gives places, not values: the values keep their signs.",
    ),
)
def dgc_step(answer: Answer, rng: Rng) -> Findings:
    """Steps at several ratios, of tensors with any number of dimensions, beside the grader's own."""
    shapes = ((rng.choice((36, 38, 47, 49)),), (3, 5, 7), (6, 4), ())
    ratios = (0.1, 0.26, 0.01, 0.5)
    sparse = [
        Steps.draw(rng, shape, ratio, 5, strided=number == 2)
        for number, (shape, ratio) in enumerate(zip(shapes, ratios, strict=True))
    ]
    # Two numbers that are not zero, and five to send; and whole numbers in single precision.
    few = torch.zeros(24, dtype=torch.float64)
    few[[5, 17]] = rng.normal(2, dtype=torch.float64) + 3
    sparse += [Steps([few] * 3, 0.5, 0.2, strided=False)]
    sparse += [Steps([rng.normal(12).argsort().float() - 20], 0.5, 0.3, strided=False)]
    dense = [Steps.draw(rng, (9,), 1.0, 4), Steps.draw(rng, (2, 3), 1.0, 3, momentum=0.0)]
    of_sparse, of_dense = ([case.asked(answer) for case in cases] for cases in (sparse, dense))
    yield (
        "the first step",
        compare.first_failure(map(Steps.first, sparse, of_sparse), "k numbers, the largest."),
    )
    yield (
        "momentum at ratio 1",
        compare.first_failure(map(Steps.later, dense, of_dense), "It is momentum SGD."),
    )
    yield "what waits", compare.first_failure(map(Steps.later, sparse, of_sparse), "All that waits is there.")
    both = zip([*sparse, *dense], [*of_sparse, *of_dense], strict=True)
    yield (
        "arguments and dtypes",
        compare.first_failure(
            (case.arguments(reply) for case, reply in both), "Changed are velocity and kept alone."
        ),
    )


WHOLE = (torch.int16, torch.int32, torch.int64)
"""Dtypes of places; which of them is right is a question of its own."""


def pair_of(sent: PlainData) -> tuple[Tensor, Tensor] | None:
    """Values and indices, if these are two tensors."""
    if isinstance(sent, list | tuple) and len(sent) == 2 and all(isinstance(each, Tensor) for each in sent):
        return sent[0], sent[1]
    return None


@dataclass(frozen=True, slots=True)
class Steps:
    """gradients: of each step, of one shape. strided: in another order in memory."""

    gradients: list[Tensor]
    momentum: float
    ratio: float
    strided: bool

    @classmethod
    def draw(
        cls,
        rng: Rng,
        shape: Sequence[int],
        ratio: float,
        steps: int,
        momentum: float | None = None,
        strided: bool = False,
    ) -> "Steps":
        """In double precision, so that nothing is a matter of rounding; momentum from 0.5 to 0.9."""
        gradients = [rng.normal(*shape, dtype=torch.float64) * 3 for _ in range(steps)]
        drawn = rng.integer(5, 9) / 10 if momentum is None else momentum
        return cls(gradients, drawn, ratio, strided)

    def asked(self, answer: Answer) -> DgcReply:
        return answer.call(drivers.dgc_steps, self.gradients, self.momentum, self.ratio, self.strided)

    def expected(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of each step what is sent, with zeros elsewhere; then velocity and what is kept."""
        velocity, kept = torch.zeros_like(self.gradients[0]), torch.zeros_like(self.gradients[0])
        for gradient in self.gradients:
            velocity = self.momentum * velocity + gradient
            waiting = (kept + velocity).flatten()
            places = waiting.abs().argsort(descending=True)[: self.count]
            sent = torch.zeros_like(waiting)
            sent[places] = waiting[places]
            kept = (waiting - sent).view_as(gradient)
            yield sent.view_as(gradient), velocity, kept

    @property
    def count(self) -> int:
        """k."""
        return max(1, round(self.ratio * self.gradients[0].numel()))

    def first(self, reply: DgcReply) -> Finding:
        """Passes if the first step sends what it should."""
        return self._sent(0, reply.sent[0], next(self.expected())[0])

    def later(self, reply: DgcReply) -> Finding:
        """Passes if all steps do."""
        steps = zip(compare.side_by_side(reply.sent, self.gradients), self.expected(), strict=True)
        return compare.first_failure(
            self._sent(number, seen, sent) for number, ((seen, _), (sent, *_)) in enumerate(steps)
        )

    def arguments(self, reply: DgcReply) -> Finding:
        """Passes if the states are as they should be after all steps, no gradient was changed, and all dtypes
        are right.
        """
        for step, sent in enumerate(reply.sent):
            pair = pair_of(sent)
            if pair is None:
                return Finding(False, f"Step {step} returned {compare.shown(sent)}.")
            values, indices = pair
            if (values.dtype, indices.dtype) != (self.gradients[0].dtype, torch.int32):
                said = f"{values.dtype} values with {indices.dtype} indices"
                return Finding(False, f"{said}; expected {self.gradients[0].dtype} and torch.int32.")
        if not all(reply.left):
            return Finding(False, "The gradient has changed.")
        return compare.first_failure(
            compare.close(seen, wanted, f"{name} after step {number}", rtol=1e-9, atol=1e-12)
            for number, (states, (_, *expected)) in enumerate(zip(reply.states, self.expected(), strict=True))
            for name, (seen, wanted) in zip(
                ("velocity", "kept"), compare.side_by_side(states, expected), strict=True
            )
        )

    def _sent(self, step: int, seen: PlainData, expected: Tensor) -> Finding:
        """Passes if values and indices stand for what is expected."""
        pair = pair_of(seen)
        if pair is None:
            return Finding(False, f"Step {step} returned {compare.shown(seen)}; expected values and indices.")
        values, indices = pair
        numel, count = expected.numel(), self.count
        if indices.dtype not in WHOLE or indices.shape != (count,) or values.shape != (count,):
            said = f"values {list(values.shape)} and {indices.dtype} indices {list(indices.shape)}"
            return Finding(False, f"Step {step} of {numel} numbers sends {said}; expected {count} of each.")
        places = indices.tolist()
        if len(set(places)) < count or not 0 <= min(places) <= max(places) < numel:
            return Finding(False, f"Step {step}: indices {places} are not {count} places of {numel}.")
        where = (
            f"what step {step} of {numel} numbers sends, ratio {self.ratio:g}, momentum {self.momentum:g},"
        )
        dense = torch.zeros(numel, dtype=expected.dtype)
        dense = dense.index_put((torch.tensor(places),), values.to(expected.dtype)).view(expected.shape)
        return compare.close(dense, expected, where, rtol=1e-9, atol=1e-12)


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "what was lost comes again",
            3,
            "Compress x and all that is missing from the steps before: the first time, nothing is.",
        ),
        Criterion("memories of their own", 1, "Each function that you make has a memory of its own."),
        Criterion(
            "tensors of others",
            2,
            "compress may write into its argument, and your caller into what it gave and got. One call a "
            "step is enough.",
        ),
    ),
    hints=(
        "After a step, what should have arrived by now, and what has?",
        "What would you have to add to the next x, so that it is not lost for good?",
        "Who else can write into the tensor that you keep?",
    ),
)
def error_feedback(answer: Answer, rng: Rng) -> Findings:
    """Calls in turns of several functions made at once, beside the grader's own sums."""
    shape = (rng.integer(3, 6), rng.integer(2, 5))
    alone = [Turns(["sign"], [(0, rng.normal(*shape)) for _ in range(5)])]
    alone += [Turns(["largest"], [(0, rng.normal(7, dtype=torch.float64)) for _ in range(6)])]
    shapes: tuple[tuple[int, ...], ...] = ((4,), (2, 3), (4,))
    order = [0, 1, 2, 0, 0, 1, 2, 1, 2]
    together = Turns(["largest", "sign", "sign"], [(number, rng.normal(*shapes[number])) for number in order])
    others = [Turns([kind], [(0, rng.normal(5)) for _ in range(4)], True) for kind in ("in place", "itself")]
    others += [Turns(["sign"], [(0, rng.normal()) for _ in range(3)], True)]
    of_alone = [turns.asked(answer) for turns in alone]
    yield "what was lost comes again", compare.first_failure(map(Turns.right, alone, of_alone))
    yield "memories of their own", together.right(together.asked(answer))
    of_others = [turns.asked(answer) for turns in others]
    more = zip([*alone, *others], [*of_alone, *of_others], strict=True)
    yield "tensors of others", compare.first_failure(turns.kept_apart(reply) for turns, reply in more)


@dataclass(frozen=True, slots=True)
class Turns:
    """kinds: of compressors. turns: which of them is called, and its x. written_over: see the driver."""

    kinds: list[str]
    turns: list[tuple[int, Tensor]]
    written_over: bool = False

    def asked(self, answer: Answer) -> RememberedReply:
        return answer.call(drivers.remembered, self.kinds, self.turns, self.written_over)

    def right(self, reply: RememberedReply) -> Finding:
        """Passes if in every call there arrives what should."""
        missing = [torch.zeros(()) for _ in self.kinds]
        findings = []
        for place, (seen, (number, x)) in enumerate(compare.side_by_side(reply.arrived, self.turns)):
            wanted = x + missing[number].to(x.dtype)
            expected = Compressor(self.kinds[number])(wanted.clone())
            missing[number] = wanted - expected
            what = f"what arrives in call {place}, of the function made with {self.kinds[number]!r},"
            if self.written_over:
                what = f"after the caller has written into what it gave and got, {what}"
            tolerance = 1e-9 if x.dtype == torch.float64 else 1e-4
            findings.append(compare.close(seen, expected, what, rtol=tolerance, atol=tolerance))
        return compare.first_failure(findings)

    def kept_apart(self, reply: RememberedReply) -> Finding:
        """Passes if no x has changed, compress was called once in each step, and what arrives is right."""
        if not all(reply.left):
            return Finding(False, f"x has changed in call {reply.left.index(False)}.")
        if reply.calls != [len(self.turns)]:
            return Finding(False, f"{len(self.turns)} steps call compress {reply.calls} times.")
        return self.right(reply)
