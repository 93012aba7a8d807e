"""The grader of `step_3d`."""

from math import prod

from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.step_traffic import bytes_and_messages, in_flight
from graders.units.unit_12.stepped import SIZES, Step, Stepped

_RIGHT = ("gradients",)


def on_meta(answer: Answer, rng: Rng) -> Finding:
    """Passes if a step works on tensors without data, and loss and gradients are where the model is."""
    shape, sizes = (1, 2, 1), {**SIZES, "layers": 2, "heads": 1}
    run = answer.launch(drivers.devices, shape, sizes, [1], ranks=prod(shape), timeout=20.0)
    return compare.first_failure(
        compare.equal(seen, ["meta"] * len(seen), f"devices of loss and gradients on rank {rank}")
        for rank, seen in enumerate(run.results)
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
            "any mesh and batch",
            2,
            "One stage, or three; one replica, or three. Micro-batches differ in size: a mean of their means "
            "is not enough.",
            needs=_RIGHT,
            vary=both(shape=(3, 1, 1), samples=((2,),))
            + both(shape=(1, 3, 1), samples=((1, 1, 1),))
            + both(shape=(2, 2, 1), samples=((3, 1, 2), (2, 4))),
        ),
        Criterion(
            "shared embedding",
            3,
            "The first and the last stage have a copy each, and each sees a part of its gradient: they need "
            "the sum. With one stage there is one copy, whose gradient is whole.",
            needs=(*_RIGHT, "any mesh and batch"),
            vary=both(shape=(1, 1, 1), samples=((2, 1),), tied=True)
            + both(shape=(1, 3, 1), samples=((2, 1),), tied=True),
        ),
        Criterion(
            "loss",
            2,
            "The mean over all samples of all replicas, on every rank. Parameters and batch stay.",
            needs=(*_RIGHT, "any mesh and batch"),
            how=look("loss"),
        ),
        Criterion(
            "bytes and messages",
            3,
            "Along data, each parameter's bytes once in a step, after the last micro-batch; along tensor the "
            "model itself has done everything. A cut is crossed by each micro-batch once in each direction.",
            needs=_RIGHT,
            how=look("bytes and messages"),
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
    """A step on a mesh, beside that of one rank."""
    drawn = Stepped.drawn(rng, step)
    run = drawn.launch(answer)
    return drawn.gradients(run), {
        "loss": lambda: drawn.loss(run),
        "bytes and messages": lambda: bytes_and_messages(drawn, run),
        "in a pipeline": lambda: in_flight(drawn, run),
    }
