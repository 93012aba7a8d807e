"""The grader of `BucketedDDP`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Finding
from graders.units.models import copies_of, state_of
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_02.cases import ANY_CALL, filled
from graders.units.unit_02.drivers import steps as drivers
from graders.units.unit_02.models import Layers, names_of, older_gradients
from graders.units.unit_02.step_calls import (
    called_as,
    in_order,
    never_waits,
    once_before,
    silent_but_the_last,
    starts_in_backward,
)
from graders.units.unit_02.steps import FORWARD, Steps, drawn_steps, mean_gradients, own_gradients

LAST_FIRST = ("201/210", "012")
"""The last layer runs first on all ranks, and so its bucket, the first one, is complete last."""
UNUSED = ("012", "02/1", "0/2")
"""After a step in which all layers run, two in which each rank leaves out others."""
SILENT = ("012", "012 012 012")
"""A step in which gradients are accumulated, after another one."""
PARTS = ("0/2 1/01 012", "012 1/0")
"""Each rank uses other layers in each pass."""


@dataclass(frozen=True, slots=True)
class Wrapped(Steps):
    """limit: of a bucket's bytes; by default one layer has room, and not the next bias. frozen: numbers of
    layers. tied: see `Layers`. apart: whether the ranks' models differ before. raises: whether the last block
    of no_sync ends with an error.
    """

    limit: int = feature(90, "at most {} bytes in a bucket")
    frozen: tuple[int, ...] = feature((), lambda frozen: f"layers {[*frozen]} frozen" if frozen else "")
    tied: bool = feature(False, lambda tied: "two layers with one weight" if tied else "")
    apart: bool = feature(False, lambda apart: "models that differ before" if apart else "")
    raises: bool = feature(False, lambda raises: "a block of no_sync that raises an error" if raises else "")

    @property
    def made(self) -> dict[str, Any]:
        return {"double": self.double, "tied": self.tied, "frozen": [*self.frozen]}

    @property
    def buckets(self) -> list[list[int]]:
        parameters = list(enumerate(self.model.parameters()))
        trained = [(number, each.nbytes) for number, each in parameters if each.requires_grad]
        return filled(trained[::-1], self.limit)

    @property
    def in_turn(self) -> bool:
        return True

    @property
    def silent(self) -> bool:
        """Whether there are passes within no_sync."""
        return any(" " in step for step in self.steps)


def possible_steps(case: Wrapped) -> bool:
    """Steps take long, so hardly anything meets."""
    others = case.tied, case.apart, case.older, case.layout == "transposed", case.limit == 80
    if case.plain:
        return sum((len(case.steps) > 1, *others, case.double, case.limit == 170)) <= 1
    if case.silent:
        return not any((*others, case.double)) and (case.limit == 170) is (case.steps == PARTS)
    return not any(others) and not (case.double and (case.steps != UNUSED or case.limit == 170))


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
            how=of_cases(lambda case: case.plain and not case.tied, starts_in_backward),
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
            "every step",
            1,
            "What the hooks count in one step must be back at its start for the next: reset it in finish().",
            vary=vary(steps=((FORWARD,) * 3,)),
        ),
        Criterion(
            "buckets",
            1,
            "Go through the trainable parameters in reverse, and close a bucket before the parameter that "
            "would take it above bucket_bytes. (DistributedDataParallel closes it "
            "behind that one.) A tied parameter is in one bucket, a frozen one in none. One "
            "all_reduce a bucket, of what its gradients hold: their dtype, an infinity, a NaN, the sum where "
            ".grad was not cleared. They need not be contiguous.",
            vary=vary(limit=(80, 170), tied=(True,), double=(True,), layout=("transposed",), older=(True,))
            + both(frozen=(1,), older=True),
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
            1,
            "A bucket starts when it and all before it are complete: one hook may have to start several "
            "buckets, with a loop, not an `if`. A layer that this rank did not use has no hook call: "
            "finish() starts what is left, in order and with zeros for it, before it waits for any.",
            needs=("starts in backward", "never waits in backward", "every step"),
            vary=vary(steps=(LAST_FIRST, UNUSED)) + both(steps=UNUSED, limit=170),
            how=of_cases(lambda case: not case.plain and not case.silent, in_order),
        ),
        Criterion(
            "no_sync",
            1,
            "Within no_sync() the hooks have nothing to do. (In DistributedDataParallel forward has to be "
            "there too.) The next backward outside completes gradients "
            "that hold the sums, and sends those; finish() those that it did not use. `finally` makes it end "
            "when the block raises, too.",
            needs=("every step",),
            vary=vary(steps=(SILENT,))
            + both(steps=PARTS, limit=170)
            + both(steps=SILENT, raises=True)
            + both(steps=("0 1",), ranks=1),
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
    arguments=lambda rng, case: drawn_steps(rng, case, case.limit, case.apart, case.raises),
    possible=possible_steps,
    calls=ANY_CALL,
    driver=drivers.wrapped,
    what="rank {}",
)
def bucketed_ddp(case: Wrapped, given: list[Arguments]) -> list[Expected]:
    """Rank 0's state; the means of all gradients that are trained; a frozen one's stays the rank's own."""
    (_, (seed, _), *_), *_ = given
    model = Layers(seed, **case.made)
    names, state = names_of(model), copies_of(state_of(model))
    trained = [parameter.requires_grad for parameter in model.parameters()]
    means = mean_gradients([own_gradients(model, each) for each in given])
    told = []
    for _, (_, own_seed), _, older, *_ in given:
        steps = {}
        for number, of_step in enumerate(means):
            old = older_gradients(model, own_seed) if older and number == 0 else [None] * len(names)
            held = zip(names, trained, of_step, old, strict=True)
            steps[drivers.after(number)] = {n: mean if is_in else own for n, is_in, mean, own in held}
        begun = dict(zip([*names, "shift"], state, strict=True))
        told.append(Expected({drivers.BEGINNING: begun, **steps}, {}, returned=None))
    return told
