"""The grader of `step_3d`."""

from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from course_lib.models import TransformerConfig, next_token_loss
from course_lib.training.mesh_transformer import MeshTransformer
from graders.grading.cases import both
from graders.grading.expected import ANYTHING, Checked, Expected
from graders.grading.explanation import Tried
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.step_traffic import SIZES, Step, bytes_and_messages, in_flight

RIGHT = ("gradients", "any mesh and batch")


def drawn(rng: Rng, step: Step) -> list[Arguments]:
    """The mesh's shape, the model's sizes, which has a block a stage and a head a share, and the batch."""
    replicas, stages, shares = step.shape
    sizes = {**SIZES, "layers": stages, "heads": shares}
    given: list[Arguments] = []
    for replica in range(replicas):
        samples = step.samples[replica % len(step.samples)]
        whole = [rng.integers(0, SIZES["vocabulary"] - 1, size, SIZES["context"] + 1) for size in samples]
        batch = [(each[:, :-1].clone(), each[:, 1:].clone()) for each in whole]
        given += [[step.shape, sizes, step.tied, batch]] * (stages * shares)
    return given


@cache
def _whole(layers: int, heads: int, tied: bool) -> MeshTransformer:
    """The model of one rank: its numbers follow from their names, so it is always the same."""
    return MeshTransformer(TransformerConfig(**{**SIZES, "layers": layers, "heads": heads}, tied=tied))


def of_one_rank(step: Step, given: list[Arguments]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of all samples, and the gradients by name."""
    _, stages, shares = step.shape
    model = _whole(stages, shares, step.tied)
    model.zero_grad()
    batches = [batch for *_, batch in given[:: stages * shares]]
    tokens, targets = map(torch.cat, zip(*chain.from_iterable(batches), strict=True))
    loss = next_token_loss(model(tokens), targets)
    torch.autograd.backward(loss)
    named = model.named_parameters(remove_duplicate=False)
    return loss.detach(), {name: each.grad for name, each in named if each.grad is not None}


def loss_of_all(tried: Tried[Any]) -> Finding:
    """Passes if each loss is the mean of all samples, detached, and all else is as it was."""
    [told] = tried.seen.results
    loss, _ = of_one_rank(tried.case.features, tried.seen.given[0])
    found = [compare.close_on_all_ranks([each["loss"] for each in told], [loss] * len(told), "the loss")]
    for rank, each in enumerate(told):
        found.append(compare.equal(each["detached"], True, f"whether the loss of rank {rank} is detached"))
        found.append(compare.equal(each["changed"], [], f"what is changed on rank {rank}"))
    return compare.first_failure(found)


def on_meta(answer: Answer, rng: Rng) -> Finding:
    """Passes if a step works on tensors without data, and loss and gradients are where the model is."""
    run = answer.launch(drivers.devices, (1, 2, 1), {**SIZES, "layers": 2, "heads": 1}, [1], ranks=2)
    return compare.first_failure(
        compare.equal(seen, ["meta"] * len(seen), f"devices of loss and gradients on rank {rank}")
        for rank, seen in enumerate(run.results)
    )


@on_ranks(
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
            vary=both(ranks=3, shape=(3, 1, 1), samples=((2,),))
            + both(ranks=3, shape=(1, 3, 1), samples=((1, 1, 1),))
            + both(ranks=4, shape=(2, 2, 1), samples=((3, 1, 2), (2, 4))),
        ),
        Criterion(
            "shared embedding",
            3,
            "The first and the last stage have a copy each, and each sees a part of its gradient: they need "
            "the sum. With one stage there is one copy, whose gradient is whole.",
            needs=RIGHT,
            vary=both(ranks=1, shape=(1, 1, 1), samples=((2, 1),), tied=True)
            + both(ranks=6, shape=(2, 3, 1), samples=((2, 1),), tied=True),
        ),
        Criterion(
            "loss",
            2,
            "The mean over all samples of all replicas, on every rank. Parameters and batch stay.",
            needs=RIGHT,
            how=loss_of_all,
        ),
        Criterion(
            "bytes and messages",
            3,
            "Along data, each parameter's bytes once in a step, after the last micro-batch; along tensor the "
            "model itself has done everything. A cut is crossed by each micro-batch once in each direction.",
            how=bytes_and_messages,
        ),
        Criterion("in a pipeline", 1, "Start the next micro-batch before one is back.", how=in_flight),
        Criterion(
            "any device",
            1,
            "New tensors belong on the model's device, the loss too: model.empty(...), torch.empty_like, or "
            "new_zeros of a tensor that is there. No .item(): on tensors without data there are no numbers.",
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
    arguments=drawn,
    calls=None,
    driver=drivers.stepped,
    what="rank {}",
)
def step_3d(step: Step, given: list[Arguments]) -> list[Expected]:
    """The gradients of one rank's step for all samples: those of the parameters that a rank has."""
    _, whole = of_one_rank(step, given)
    left = dict.fromkeys(("shape", "sizes", "tied", "batch"), ANYTHING)

    def gradients(seen: Any, rank: str) -> Finding:
        """Sums in another order may differ: by some millionths, where the numbers of a norm are close."""
        if not isinstance(seen, dict) or seen.keys() - whole.keys():
            return compare.equal(seen, {}, f"the gradients of {rank}")
        names = [f"the gradient of {name} on {rank}" for name in seen]
        return compare.all_close([*seen.values()], [whole[name] for name in seen], names, 1e-4, 1e-5)

    told = {"gradients": Checked(gradients), "loss": ANYTHING, "detached": ANYTHING, "changed": ANYTHING}
    return [Expected(told, left) for _ in given]
