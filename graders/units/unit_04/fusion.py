"""Unit 04, which tensors are sent together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_04.drivers import calls as drivers


@exercise(
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "one dtype",
            2,
            "Every position once, in order; a message is closed by the first tensor that does not fit, and "
            "that one begins the next.",
        ),
        Criterion(
            "up to the threshold", 1, "A message may hold exactly as many bytes as the threshold says."
        ),
        Criterion(
            "too large, or empty",
            1,
            "A tensor above the threshold goes alone: nothing fits beside it, not even one of 0 bytes. Else "
            "one of 0 bytes is a tensor like all others.",
            needs=("up to the threshold",),
        ),
        Criterion(
            "several dtypes",
            2,
            "A message has one dtype. A tensor of another one is passed over; those passed over come next, "
            "in their order.",
        ),
        Criterion(
            "how far it looks ahead",
            1,
            "Add up what the message holds, what was passed over, and the tensor in question.",
            needs=("up to the threshold", "several dtypes"),
        ),
    ),
    hints=(
        "Which tensors are still waiting when a message is complete, and in which order?",
        "What would the message have to remember to decide on the next tensor, if you looked at each one "
        "once?",
        "Three things can become of the next tensor. Under which condition each?",
    ),
)
def plan_fusion(answer: Answer, rng: Rng) -> Findings:
    """Drawn lists of tensors, several for each criterion."""
    plain = [_drawn(rng, rng.integer(5, 12), ["float32"]) for _ in range(6)]
    yield "one dtype", _plans(answer, [Tensors([], [], 64), *plain])

    yield "up to the threshold", _plans(answer, [_exact(rng) for _ in range(4)])
    yield "too large, or empty", _plans(answer, [case for _ in range(3) for case in _odd(rng)])

    mixed = [_drawn(rng, rng.integer(6, 10), ["float32", "float64"], large=True) for _ in range(6)]
    yield "several dtypes", _plans(answer, mixed)
    three = [_drawn(rng, rng.integer(8, 14), ["float32", "float16", "int64"]) for _ in range(12)]
    yield "how far it looks ahead", _plans(answer, [_at_the_edge(rng), _just_enough(rng), *three])


@dataclass(frozen=True, slots=True)
class Tensors:
    """What is to be sent: bytes and dtype of each tensor, and the threshold in bytes."""

    sizes: list[int]
    dtypes: list[str]
    threshold: int


def _drawn(rng: Rng, count: int, dtypes: Sequence[str], large: bool = False) -> Tensors:
    """Tensors of 4 to 40 bytes. large: the threshold holds all of them, so that nothing is ever too far."""
    sizes = [4 * rng.integer(1, 10) for _ in range(count)]
    return Tensors(sizes, [rng.choice(dtypes) for _ in sizes], sum(sizes) if large else rng.integer(44, 90))


def _exact(rng: Rng) -> Tensors:
    """Three tensors that fill the threshold to the byte, then three that take one byte more."""
    three = [rng.integer(5, 30) for _ in range(3)]
    more = [three[0], three[1], three[2] + 1]
    return Tensors([*three, *more, 3], ["float32"] * 7, sum(three))


def _odd(rng: Rng) -> list[Tensors]:
    """Tensors above the threshold, and of 0 bytes, at the beginning, in the middle and at the end."""
    threshold = rng.integer(20, 40)
    large, small = threshold + rng.integer(1, 9), rng.integer(3, 9)
    kinds = [
        [large, 0, small, 0, large, small],
        [0, small, large, small, 0, 0],
        [0, 0],
        [large, large, 0],
        [threshold, 0, small],
    ]
    return [
        *(Tensors(sizes, ["float32"] * len(sizes), threshold) for sizes in kinds),
        # Fusion is off: only what takes no room goes with what takes none.
        Tensors([small, 0, 0, small], ["float32"] * 4, 0),
    ]


def _at_the_edge(rng: Rng) -> Tensors:
    """Two that are passed over fill the threshold to the byte; a third one of their kind ends the message."""
    first, other, last = (rng.integer(4, 12) for _ in range(3))
    sizes = [first, other, other, 1, last]
    dtypes = ["float32", "float64", "float64", "float64", "float32"]
    return Tensors(sizes, dtypes, first + 2 * other)


def _just_enough(rng: Rng) -> Tensors:
    """Two that are passed over fill the threshold to the byte; the one after them fits beside the first."""
    first, other = rng.integer(4, 12), rng.integer(4, 12)
    dtypes = ["float32", "float64", "float64", "float32"]
    return Tensors([first, other, other, 2 * other], dtypes, first + 2 * other)


def _plans(answer: Answer, cases: Iterable[Tensors]) -> Finding:
    """Passes if every list of tensors is laid into the messages that Horovod would send."""
    given: list[list[Any]] = [[case.sizes, case.dtypes, case.threshold] for case in cases]
    seen = answer.call(drivers.given_and_left, given)
    findings = (
        finding
        for reply, arguments in compare.side_by_side(seen, given)
        for finding in (
            _plan(reply.returned, *arguments),
            compare.equal(reply.left, arguments, "the arguments afterwards"),
        )
    )
    return compare.first_failure(findings, f"{len(given)} lists are laid into the messages of Horovod.")


def _plan(seen: object, sizes: list[int], dtypes: list[str], threshold: int) -> Finding:
    what = f"plan_fusion({sizes}, {_in_words(dtypes)}, threshold={threshold})"
    return compare.equal(seen, expected_plan(sizes, dtypes, threshold), what)


def _in_words(dtypes: list[str]) -> str:
    return f"all {dtypes[0]}" if len(set(dtypes)) == 1 else str(dtypes)


def expected_plan(sizes: Sequence[int], dtypes: Sequence[str], threshold: int) -> list[list[int]]:
    """Controller::FuseResponses of Horovod 0.28.1, horovod/common/controller.cc: the messages' positions."""
    left = list(range(len(sizes)))
    plan = []
    while left:
        message, passed, rest = [left[0]], [], []
        held = sizes[left[0]]
        skipped = 0
        for number, position in enumerate(left[1:], start=1):
            size = sizes[position]
            if dtypes[position] == dtypes[left[0]] and held + size <= threshold:
                held += size
                message.append(position)
                continue
            skipped += size
            if held + skipped > threshold:
                rest = left[number:]
                break
            passed.append(position)
        plan.append(message)
        left = [*passed, *rest]
    return plan
