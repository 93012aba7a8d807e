"""Unit 12, a step of training along three axes at once, beside the step of one rank."""

from math import prod

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.stepped import SIZES, Stepped

_RIGHT = ("gradients",)


@exercise(
    minutes=75,
    difficulty=4,
    rubric=(
        Criterion(
            "gradients",
            5,
            "A micro-batch counts as its part of all samples; what arrives from the stage behind is the "
            "gradient of this stage's output; and along data gradients are averaged.",
        ),
        Criterion(
            "any mesh",
            2,
            "One stage, or three; one replica, or three; a block is on one stage only.",
            needs=_RIGHT,
        ),
        Criterion(
            "uneven micro-batches",
            1,
            "Micro-batches differ in size: a mean of their means is not enough.",
            needs=_RIGHT,
        ),
        Criterion(
            "shared embedding",
            3,
            "The first and the last stage have a copy each, and each sees a part of its gradient: they need "
            "the sum. With one stage there is one copy, whose gradient is whole.",
            needs=(*_RIGHT, "any mesh", "uneven micro-batches"),
        ),
        Criterion(
            "loss",
            1,
            "The mean over all samples of all replicas, on every rank.",
            needs=(*_RIGHT, "uneven micro-batches"),
        ),
        Criterion("all else kept", 1, "Parameters and batches stay as they are.", needs=_RIGHT),
        Criterion(
            "each gradient once",
            2,
            "Along data, each parameter's bytes once in a step, after the last micro-batch; along tensor the "
            "model itself has done everything.",
            needs=_RIGHT,
        ),
        Criterion(
            "activations once",
            1,
            "A cut is crossed by each micro-batch once in each direction, and between neighbours only.",
            needs=_RIGHT,
        ),
        Criterion(
            "in a pipeline",
            1,
            "A stage goes on with the next micro-batch while the others work on the one before.",
            needs=_RIGHT,
        ),
        Criterion(
            "any device",
            1,
            "New tensors belong on the model's device, the loss too: model.empty(...), torch.empty_like, or "
            "new_zeros of a tensor that is there. No .item(): on tensors without data there are no numbers.",
            needs=_RIGHT,
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
def step_3d(answer: Answer, rng: Rng) -> Findings:
    """Two by two by two, then other meshes, then a tied model; two steps on each."""
    plain = Stepped.drawn(rng, (2, 2, 2), [[2, 2]])
    run = plain.launch(answer)
    yield "gradients", plain.gradients(run)
    others = [
        Stepped.drawn(rng, (1, 1, 1), [[1]]),
        Stepped.drawn(rng, (3, 1, 2), [[2]]),
        Stepped.drawn(rng, (1, 3, 1), [[1]]),
        Stepped.drawn(rng, (1, 3, 2), [[1, 1, 1]]),
        Stepped.drawn(rng, (1, 2, 3), [[1, 1]], turned=True),
    ]
    runs = [each.launch(answer) for each in others]
    yield "any mesh", compare.first_failure(map(Stepped.gradients, others, runs))
    uneven = Stepped.drawn(rng, (2, 2, 1), [[3, 1, 2], [2, 4]])
    uneven_run = uneven.launch(answer)
    yield "uneven micro-batches", uneven.gradients(uneven_run)
    # On 1 x 3 x 2 the last stage's copy comes before gradients of the stage behind: whoever receives from
    # anybody takes the wrong one.
    shapes = ((2, 2, 1), (1, 1, 1), (1, 3, 2))
    tied = [Stepped.drawn(rng, shape, [[2, 1]], tied=True, turned=True) for shape in shapes]
    tied_runs = [each.launch(answer) for each in tied]
    yield "shared embedding", compare.first_failure(map(Stepped.gradients, tied, tied_runs))
    every = [(plain, run), *zip(others, runs, strict=True), (uneven, uneven_run)]
    every += zip(tied, tied_runs, strict=True)
    yield "loss", compare.first_failure(each.mean_losses(seen) for each, seen in every)
    yield "all else kept", compare.first_failure(each.kept(seen) for each, seen in every)
    yield "each gradient once", compare.first_failure(each.sums(seen) for each, seen in every)
    yield "activations once", compare.first_failure(each.messages(seen) for each, seen in every)
    yield "in a pipeline", compare.first_failure(each.in_flight(seen) for each, seen in every)
    yield "any device", _on_meta(answer)


def _on_meta(answer: Answer) -> Finding:
    """Passes if a step works on tensors without data, and loss and gradients are where the model is."""
    shape, sizes = (2, 2, 1), {**SIZES, "layers": 2, "heads": 1}
    run = answer.launch(drivers.stepped_without_data, shape, sizes, [1, 2], ranks=prod(shape), timeout=20.0)
    return compare.first_failure(
        compare.equal(seen, "meta", f"the device of {what} on rank {rank}, for a model on the device meta,")
        for rank, reply in enumerate(run.results)
        for what, seen in (("the loss", reply.loss), *(("a gradient", each) for each in reply.gradients))
    )
