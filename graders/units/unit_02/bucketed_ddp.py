"""The grader of `BucketedDDP`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_02.cases import ANY_CALL, filled
from graders.units.unit_02.drivers import steps as drivers
from graders.units.unit_02.models import Layers, names_of
from graders.units.unit_02.step_calls import (
    called_as,
    never_waits,
    once_before,
    silent_but_the_last,
    starts_in_backward,
)
from graders.units.unit_02.steps import (
    FORWARD,
    SIZES,
    Steps,
    drawn_steps,
    mean_gradients,
    own_gradients,
)

LAST_FIRST = ("201/210", "012")
"""The last layer runs first on all ranks, and so its bucket, the first one, is complete last."""
UNUSED = ("012", "02/1", "0/2")
"""After a step in which all layers run, two in which each rank leaves out others."""
SILENT = ("012 012 012",)
"""A step in which gradients are accumulated."""


@dataclass(frozen=True, slots=True)
class Wrapped(Steps):
    """limit: of a bucket's bytes; by default one layer has room, and not the next bias. frozen: numbers of
    layers. apart: whether the ranks' models differ before.
    """

    limit: int = feature(90, "at most {} bytes in a bucket")
    frozen: tuple[int, ...] = feature((), lambda frozen: f"layers {[*frozen]} frozen" if frozen else "")
    apart: bool = feature(False, lambda apart: "models that differ before" if apart else "")

    @property
    def buckets(self) -> list[list[int]]:
        trained = [each for each in enumerate(SIZES) if each[0] // 2 not in self.frozen]
        return filled(trained[::-1], self.limit)

    @property
    def silent(self) -> bool:
        """Whether there are passes within no_sync."""
        return any(" " in step for step in self.steps)


def of_cases(
    about: Callable[[Wrapped], bool], how: Callable[[Tried[Any]], Finding]
) -> Callable[[Tried[Any]], Finding | None]:
    """The same for these cases only."""
    return lambda tried: how(tried) if about(tried.case.features) else None


@on_ranks(
    name="BucketedDDP",
    base=Wrapped(),
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "averages",
            1,
            "After finish() every p.grad is the mean over ranks, as with average_gradients. Wait for each "
            "all_reduce before you read its bucket, and write the result back.",
        ),
        Criterion(
            "starts in backward",
            3,
            "The hook of a bucket's last gradient starts its all_reduce, for every bucket; do not leave it "
            "to a later hook, or to finish().",
            how=of_cases(lambda case: case.plain, starts_in_backward),
        ),
        Criterion(
            "never waits in backward",
            1,
            "all_reduce(..., async_op=True) returns a handle at once; only finish() calls its wait(). "
            "(DistributedDataParallel, which has no finish(), waits when backward ends.)",
            needs=("starts in backward",),
            how=of_cases(lambda case: case.plain, never_waits),
        ),
        Criterion(
            "buckets",
            1,
            "Go through the trainable parameters in reverse, and close a bucket before the parameter that "
            "would take it above bucket_bytes. (DistributedDataParallel closes it "
            "behind that one.) A frozen parameter is in none. One all_reduce a bucket.",
            vary=vary(limit=(170,), frozen=((1,),)),
            how=of_cases(lambda case: not case.silent, called_as),
        ),
        Criterion(
            "starts equal",
            1,
            "The constructor broadcasts rank 0's parameters and buffers, once; forward only calls the model. "
            "(DistributedDataParallel broadcasts buffers in every forward.)",
            vary=vary(apart=(True,)),
            how=once_before,
        ),
        Criterion(
            "in order",
            2,
            "A bucket starts when it and all before it are complete: one hook may have to start several "
            "buckets, with a loop, not an `if`. A layer that this rank did not use has no hook call: "
            "finish() starts what is left, in order and with zeros for it, before it waits for any. What "
            "the hooks count in one step must be back at its start for the next.",
            needs=("starts in backward", "never waits in backward"),
            vary=vary(steps=((FORWARD,) * 3, LAST_FIRST, UNUSED)) + both(steps=UNUSED, limit=170),
            how=of_cases(lambda case: not case.plain and not case.silent, starts_in_backward),
        ),
        Criterion(
            "no_sync",
            1,
            "Within no_sync() the hooks have nothing to do. (In DistributedDataParallel forward has to be "
            "there too.) The next backward outside completes gradients that hold the sums, and sends those.",
            vary=vary(steps=(SILENT,)),
            how=of_cases(lambda case: case.silent, silent_but_the_last),
        ),
    ),
    hints=(
        "Which of the rank's buckets is complete first? It need not be the first bucket: keep for each how "
        "many gradients are missing.",
        "What may a hook start, if the order has to be the same on all ranks? Only the first bucket that has "
        "not started; and then perhaps the one after it.",
        "What is left for finish()? Start the buckets that no hook has started, with zeros for gradients "
        "that are not there; wait for all; divide; write back; count anew.",
        "What do hooks do within no_sync()? Nothing. contextlib.contextmanager makes such a method of a "
        "generator.",
    ),
    arguments=lambda rng, case: drawn_steps(rng, case, case.limit, case.frozen, case.apart),
    # Steps take long, so hardly anything meets.
    possible=lambda case: (case.steps == (FORWARD,)) + (not case.frozen) + (not case.apart) >= 2,
    calls=ANY_CALL,
    driver=drivers.wrapped,
    what="rank {}",
)
def bucketed_ddp(case: Wrapped, given: list[Arguments]) -> list[Expected]:
    """The means of all gradients that are trained, as rank 0's model has them."""
    names = names_of(Layers(0))
    steps = {
        drivers.after(number): dict(zip(names, means, strict=True))
        for number, means in enumerate(mean_gradients(own_gradients(given)))
    }
    return [Expected(steps, {}, returned=None) for _ in given]
