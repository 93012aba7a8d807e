"""The grader of `make_buckets`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.unit_02.drivers import bucketed as drivers
from graders.units.unit_02.steps import greedy_buckets


@exercise(
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "each trainable parameter once",
            1,
            "model.parameters() yields a parameter that has several names once. Leave out those whose "
            "requires_grad is False.",
        ),
        Criterion(
            "in the order of backward",
            1,
            "Backward begins at the last layer. So the last parameters are in the first bucket, and within a "
            "bucket the order is reversed too.",
        ),
        Criterion(
            "as full as they may be",
            1,
            "Close a bucket before the parameter that would take it above bucket_bytes, and not before one "
            "that fills it to the byte, nor one that is empty. p.nbytes counts bytes, p.numel() numbers.",
            needs=("in the order of backward",),
        ),
    ),
    hints=(
        "Which parameter's gradient does backward complete first? reversed() takes a list.",
        "When does a parameter open a new bucket? If there is none yet, or if there is no room in the last.",
    ),
)
def make_buckets(answer: Answer, rng: Rng) -> Findings:
    """A chain whose layers differ in size, in two precisions; a model with frozen parameters, some or all."""
    widths = [rng.integer(5, 8), 9, 9, rng.integer(5, 8), rng.integer(5, 8)]
    numels = [(inputs * outputs, outputs) for inputs, outputs in pairwise(widths)]
    sizes = [4 * numel for layer in numels for numel in layer]
    # The last layer fills a bucket to the byte, and the largest weight is larger than a bucket.
    limit = sizes[-1] + sizes[-2]
    rest = [limit - 1, limit // 2, 1, sum(sizes)]
    cases = [Cut(sizes, tuple(range(len(sizes))), each) for each in (limit, *rest)]
    seen: list[PlainData] = answer.call(drivers.cut_chain, widths, [limit, *rest], False)
    doubled = Cut([2 * size for size in sizes], tuple(range(len(sizes))), 2 * limit)
    seen += answer.call(drivers.cut_chain, widths, [2 * limit], True)
    # Three layers of 1 MB each, so that a bucket of MBs shows, too.
    side = rng.integer(512, 520)
    large = Cut([4 * side * side, 4 * side] * 3, tuple(range(6)), 8 * side * side + 8 * side)
    seen += answer.call(drivers.cut_chain, [side] * 4, [large.limit], False)
    words, width = rng.integer(5, 8), rng.integer(3, 5)
    # Embedding, frozen weight and bias, weight and bias between, which are in double precision, a scalar.
    tied = [4 * words * width, 4 * width**2, 4 * width, 8 * width**2, 8 * width, 4]
    room = tied[0] + sum(tied[3:])
    limits = [8 * width, room, room - 1, room + tied[2]]
    seen += answer.call(drivers.cut_tied, words, width, limits, [1, 2])
    mixed = [Cut(tied, (0, 3, 4, 5), limit) for limit in limits]
    both = list(zip([*cases, doubled, large, *mixed], seen, strict=True))
    yield "each trainable parameter once", compare.first_failure(cut.complete(got) for cut, got in both)
    yield "in the order of backward", compare.first_failure(cut.reversed(got) for cut, got in both)
    full = compare.first_failure(cut.full(got) for cut, got in both)
    frozen = answer.call(drivers.cut_tied, words, width, [room], [0, 1, 2, 3, 4, 5])
    [(nothing, _)] = compare.side_by_side(frozen, [room])
    text = f"a model without trainable parameters: got {compare.shown(nothing)}; expected []."
    none = Finding(compare.same(nothing, []), text)
    yield "as full as they may be", compare.first_failure([full, none])


@dataclass(frozen=True, slots=True)
class Cut:
    """A model to be put into buckets. sizes: of all parameters in bytes. trainable: the numbers of some."""

    sizes: Sequence[int]
    trainable: tuple[int, ...]
    limit: int

    def complete(self, seen: PlainData) -> Finding:
        """Passes if `seen` is a list of lists with the trainable parameters once each."""
        if type(seen) is not list or not all(type(bucket) is list for bucket in seen):
            return Finding(False, f"got {seen!r:.80}; expected a list of buckets, each a list of parameters.")
        numbers = [number for bucket in seen for number in bucket]
        passed = sorted(numbers, key=str) == sorted(self.trainable, key=str)
        text = f"of {len(self.sizes)} parameters those with the numbers {list(self.trainable)} are trainable"
        return Finding(passed, f"{text}, and the buckets are {seen}.")

    def reversed(self, seen: list[list[int]]) -> Finding:
        """Passes if the parameters come from the last to the first."""
        numbers = [number for bucket in seen for number in bucket]
        passed = numbers == sorted(numbers, reverse=True)
        return Finding(passed, f"the parameters, numbered as in model.parameters(), are put into {seen}.")

    def full(self, seen: list[list[int]]) -> Finding:
        """Passes if each bucket was closed before the parameter that would take it above the limit."""
        sizes = [self.sizes[number] for number in self.trainable[::-1]]
        parameters = f"with at most {self.limit} bytes, and parameters of {', '.join(map(str, sizes))} bytes"
        empty = [place for place, bucket in enumerate(seen) if not bucket]
        if empty:
            return Finding(False, f"{parameters}, bucket {empty[0]} is empty.")
        got, expected = (
            [sum(self.sizes[number] for number in bucket) for bucket in seen],
            greedy_buckets(sizes, self.limit),
        )
        text = f"{parameters}, the buckets have {got} bytes; expected {expected}"
        return Finding(got == expected, f"{text}.")
