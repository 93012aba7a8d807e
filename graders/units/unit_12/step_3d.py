"""The grader of `step_3d`."""

from dataclasses import dataclass
from math import prod

from graders.grading.cases import both
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.step_traffic import in_flight, messages, sums
from graders.units.unit_12.stepped import SIZES, Stepped

_RIGHT = ("gradients",)


@dataclass(frozen=True, slots=True)
class Step:
    """shape: of the mesh. samples: of each micro-batch in the first step, of the replicas in turn. turned:
    ranks are neighbours along the first axis of the mesh. Only the ordinary case has a second step.
    """

    shape: tuple[int, int, int] = feature((2, 2, 2), lambda shape: f"a mesh of {' x '.join(map(str, shape))}")
    samples: tuple[tuple[int, ...], ...] = feature(((2, 2),), "micro-batches of {} samples")
    tied: bool = feature(False, lambda tied: "a tied model" if tied else "")
    turned: bool = feature(False, lambda turned: "ranks in another order" if turned else "")


def on_meta(answer: Answer, rng: Rng) -> Finding:
    """Passes if a step works on tensors without data, and loss and gradients are where the model is."""
    shape, sizes = (2, 2, 1), {**SIZES, "layers": 2, "heads": 1}
    run = answer.launch(drivers.stepped_without_data, shape, sizes, [1], ranks=prod(shape), timeout=20.0)
    return compare.first_failure(
        compare.equal(seen, "meta", f"the device of {what} on rank {rank}, for a model on the device meta")
        for rank, reply in enumerate(run.results)
        for what, seen in (("the loss", reply.loss), *(("a gradient", each) for each in reply.gradients))
    )


@one_by_one(
    base=Step(),
    minutes=75,
    difficulty=4,
    rubric=(
        Criterion(
            "gradients",
            6,
            "A micro-batch counts as its part of all samples; what arrives from the stage behind is the "
            "gradient of this stage's output; and along data gradients are averaged.",
        ),
        Criterion(
            "any mesh",
            1,
            "One stage, or three; one replica, or three; a block is on one stage only.",
            needs=_RIGHT,
            vary=both(shape=(1, 1, 1), samples=((1,),))
            + both(shape=(3, 1, 1), samples=((2,),))
            + both(shape=(1, 3, 1), samples=((1, 1, 1),))
            + both(shape=(1, 1, 3), samples=((1, 1),), turned=True),
        ),
        Criterion(
            "uneven micro-batches",
            1,
            "Micro-batches differ in size: a mean of their means is not enough.",
            needs=_RIGHT,
            vary=both(shape=(2, 2, 1), samples=((3, 1, 2), (2, 4))),
        ),
        Criterion(
            "shared embedding",
            3,
            "The first and the last stage have a copy each, and each sees a part of its gradient: they need "
            "the sum. With one stage there is one copy, whose gradient is whole.",
            needs=(*_RIGHT, "any mesh", "uneven micro-batches"),
            vary=both(shape=(2, 2, 1), samples=((2, 1),), tied=True, turned=True)
            + both(shape=(1, 1, 1), samples=((2, 1),), tied=True)
            + both(shape=(1, 3, 1), samples=((2, 1),), tied=True, turned=True),
        ),
        Criterion(
            "loss",
            1,
            "The mean over all samples of all replicas, on every rank.",
            needs=(*_RIGHT, "uneven micro-batches"),
            how=look("loss"),
        ),
        Criterion(
            "all else kept",
            1,
            "Parameters and batches stay as they are.",
            needs=_RIGHT,
            how=look("all else kept"),
        ),
        Criterion(
            "each gradient once",
            2,
            "Along data, each parameter's bytes once in a step, after the last micro-batch; along tensor the "
            "model itself has done everything.",
            needs=_RIGHT,
            how=look("each gradient once"),
        ),
        Criterion(
            "activations once",
            1,
            "A cut is crossed by each micro-batch once in each direction, and between neighbours only.",
            needs=_RIGHT,
            how=look("activations once"),
        ),
        Criterion(
            "in a pipeline",
            1,
            "A stage goes on with the next micro-batch while the others work on the one before.",
            needs=_RIGHT,
            how=look("in a pipeline"),
        ),
        Criterion(
            "any device",
            1,
            "New tensors belong on the model's device, the loss too: model.empty(...), torch.empty_like, or "
            "new_zeros of a tensor that is there. No .item(): on tensors without data there are no numbers.",
            needs=_RIGHT,
            ask=on_meta,
        ),
    ),
    hints=(
        "What do the first stage and the last do differently from those between? For one rank it is "
        "forward of each micro-batch, and its share of the loss backward.",
        "A tensor that was received requires no gradient unless you say so. Where is its gradient after "
        "backward, and who needs it?",
        "Which ranks hold the same parameters, and have seen other samples? Which have seen the same "
        "samples, and another use of the embedding?",
    ),
)
def step_3d(answer: Answer, step: Step, rng: Rng) -> tuple[Finding, Looks]:
    """Steps on a mesh, beside those of one rank."""
    twice = step == Step()
    drawn = Stepped.drawn(rng, step.shape, step.samples, tied=step.tied, turned=step.turned, twice=twice)
    run = drawn.launch(answer)
    return drawn.gradients(run), {
        "loss": lambda: drawn.mean_losses(run),
        "all else kept": lambda: drawn.kept(run),
        "each gradient once": lambda: sums(drawn, run),
        "activations once": lambda: messages(drawn, run),
        "in a pipeline": lambda: in_flight(drawn, run),
    }
