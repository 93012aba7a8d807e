"""The grader of `plan_fusion`."""

from collections.abc import Sequence
from dataclasses import dataclass

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng, compare
from graders.units.functions.stage import Arguments, kept, of_function

DTYPES = ("float32", "float64", "float16")


@dataclass(frozen=True, slots=True)
class Queue:
    """Tensors that wait to be sent.

    room: "some" for a threshold that holds about three of them; "all" for one that holds all. plan: sizes
    and a threshold that tell; empty: they are drawn. order: the dtypes of these, as places in DTYPES.
    """

    tensors: int = feature(9, lambda count: compare.counted(count, "tensor"))
    dtypes: int = feature(1, lambda count: compare.counted(count, "dtype"))
    room: str = feature("some", lambda room: "all of which fit into a message" * (room == "all"))
    plan: tuple[tuple[int, ...], int] = ((), 0)
    order: tuple[int, ...] = ()


def sizes_dtypes_threshold(rng: Rng, case: Queue) -> Arguments:
    """The arguments. Sizes that tell are multiples of a drawn one."""
    sizes, threshold = case.plan
    if sizes:
        unit, order = rng.integer(1, 9), case.order or (0,) * len(sizes)
        return [[unit * size for size in sizes], [DTYPES[place] for place in order], unit * threshold]
    drawn = [4 * rng.integer(1, 10) for _ in range(case.tensors)]
    names = [rng.choice(DTYPES[: case.dtypes]) for _ in drawn]
    # Odd, and so never filled to the byte.
    return [drawn, names, 1 + (sum(drawn) if case.room == "all" else 2 * rng.integer(22, 45))]


def in_words(given: Arguments) -> str:
    """The arguments as a student types them."""
    sizes, dtypes, threshold = given
    written = f"[{dtypes[0]!r}] * {len(dtypes)}" if len({*dtypes}) == 1 else str(dtypes)
    return f"{sizes}, {written}, {threshold}"


@of_function(
    base=Queue(),
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "one dtype",
            2,
            "Every position once, in order; a message is closed by the first tensor that does not fit, and "
            "that one begins the next.",
            vary=vary(tensors=(1, 5, 12, 20)),
        ),
        Criterion(
            "several dtypes",
            2,
            "A message has one dtype. A tensor of another one is passed over; those passed over come next, "
            "in their order.",
            vary=both(dtypes=2, room="all") + both(dtypes=3, room="all", tensors=12),
        ),
        Criterion(
            "how far it looks ahead",
            1,
            "Add up what the message holds, what was passed over, and the tensor in question.",
            vary=tuple(
                {"dtypes": dtypes, "tensors": count} for dtypes in (2, 3) for count in (8, 10, 12, 14)
            ),
        ),
        Criterion(
            "full, too large, or empty",
            1,
            "A message may hold exactly as many bytes as the threshold says. A tensor above it goes alone: "
            "nothing fits beside it, not even one of 0 bytes.",
            vary=vary(tensors=(0,), plan=(((9, 12, 20, 9, 12, 21, 3), 41), ((35, 0, 5, 0, 35, 5), 30)))
            # What is passed over fills the threshold to the byte.
            + both(plan=((5, 6, 6, 12), 17), order=(0, 1, 1, 0)),
        ),
        Criterion("lists unchanged", 1, "Whoever calls still needs the sizes.", how=kept),
    ),
    hints=(
        "Which tensors are still waiting when a message is complete, and in which order?",
        "What would the message have to remember to decide on the next tensor, if you looked at each one "
        "once?",
        "Three things can become of the next tensor. Under which condition each?",
    ),
    arguments=sizes_dtypes_threshold,
    possible=lambda case: not case.plan[0] or (case.tensors, case.dtypes, case.room) == (9, 1, "some"),
    written=in_words,
)
def plan_fusion(case: Queue, given: Arguments) -> Expected:
    """The messages that Horovod would send."""
    sizes, dtypes, threshold = given
    plan = expected_plan(sizes, dtypes, threshold)
    return Expected(plan, {"sizes": sizes, "dtypes": dtypes, "threshold": threshold}, returned=None)


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
