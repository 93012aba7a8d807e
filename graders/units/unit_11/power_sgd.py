"""The grader of `PowerSGD`."""

from graders.grading.kit import Answer, Criterion, Findings, Rng, compare, exercise
from graders.units.unit_11.low_rank import World

NEXT = "the steps that follow"


@exercise(
    minutes=40,
    difficulty=5,
    rubric=(
        Criterion(
            "the first step",
            6,
            "P = M Q with the Q that was drawn; orthonormal columns; Q; P transpose(Q).",
        ),
        Criterion(
            "other gradients",
            1,
            "Which are compressed? What is not becomes its mean over ranks.",
        ),
        Criterion(NEXT, 5, "Begin with the Q of the step before, and add what was lost."),
        Criterion(
            "buckets that change",
            2,
            "What is kept belongs to a parameter, not to a place in a bucket. (powerSGD_hook keeps it by the "
            "bucket's place, and so begins only after DDP has laid out its buckets anew.)",
            needs=("the first step", NEXT),
        ),
        Criterion(
            "two all-reduces",
            1,
            "All P and all whole gradients of a bucket together, then all Q. (powerSGD_hook has a third for "
            "whole gradients: one latency more.)",
            needs=("the first step", "other gradients"),
        ),
        Criterion(
            "numbers sent",
            1,
            "r (n + m) for each matrix, and nothing but the numbers of the others.",
            needs=("the first step", "other gradients"),
        ),
    ),
    hints=(
        "Which of a step's three products with Q and P need something from the other ranks?",
        "Two tensors can go in one all-reduce if they lie end to end. Which of a bucket's can go first?",
        "What is compressed in a step: the gradient, or the gradient and what is missing?",
        "A dictionary's key may be a parameter.",
    ),
)
def PowerSGD(answer: Answer, rng: Rng) -> Findings:  # noqa: N802, the exercise is a class
    """Steps of several networks beside the grader's own."""
    one_bucket, two_buckets = [[4, 3, 2, 1, 0]], [[3, 2], [1, 0]]
    shapes = ((4, 4), (7,), (4, 3, 2, 2), (6, 5), (6, 5))
    worlds = [
        World.drawn(rng, 2, 2, shapes, [one_bucket]),
        World.drawn(rng, 3, 1, ((5, 4), (9,), (3, 6), (1, 5)), [two_buckets]),
    ]
    runs = [world.launch(answer) for world in worlds]
    both = list(zip(worlds, runs, strict=True))
    yield "the first step", compare.first_failure(world.right(run, compressed=True) for world, run in both)
    yield "other gradients", compare.first_failure(world.right(run, compressed=False) for world, run in both)
    longer = World.drawn(rng, 2, 2, shapes, [one_bucket] * 3)
    yield NEXT, longer.right(longer.launch(answer), compressed=True)
    changing = [two_buckets, *[[[0], [2, 1], [3]]] * 2]
    moved = World.drawn(rng, 2, 1, ((5, 4), (3,), (5, 4), (4, 6)), changing)
    yield "buckets that change", moved.right(moved.launch(answer), compressed=True)
    yield "two all-reduces", compare.first_failure(world.calls(run) for world, run in both)
    yield "numbers sent", compare.first_failure(world.numbers(run) for world, run in both)
