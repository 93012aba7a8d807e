"""The grader of `WeightStash`."""

from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.expected import same
from graders.grading.explanation import Tried
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_05 import drivers
from graders.units.unit_05.drivers import StashReply
from graders.units.unit_05.stash_training import BYTES, RATE, Action, Expected, Training, trained


@dataclass(frozen=True, slots=True)
class Seen:
    """What a stash told, and what it had to."""

    actions: list[Action]
    reply: StashReply
    expected: Expected


def outputs_and_gradients(tried: Tried[Training]) -> Finding:
    """Passes if every output and every gradient of an x is right, and without a graph."""
    seen: Seen = tried.seen
    for (kind, batch, _), (told, wanted) in zip(
        seen.actions, compare.side_by_side(seen.reply.told, seen.expected.told), strict=True
    ):
        found = compare.close(told, wanted, f"what {kind}({batch}, ...) returns", rtol=1e-4)
        if not found.passed:
            return found
    if seen.reply.attached:
        return Finding(False, "an output still has its graph, and so all that it was made of: detach() it.")
    return Finding(True, "outputs and gradients are as they were in forward.")


def versions(tried: Tried[Training]) -> Finding:
    """Passes if the stash knows after each action how many different weights it holds."""
    seen: Seen = tried.seen
    return same(seen.reply.versions, seen.expected.versions, "versions after each action", 0.0)


def memory(tried: Tried[Training]) -> Finding:
    """Passes if it holds no more than the versions needed and the optimizer's parameters."""
    seen: Seen = tried.seen
    pairs = enumerate(compare.side_by_side(seen.reply.held, seen.expected.versions))
    for number, (nbytes, needed) in pairs:
        # Activations are small: the rest is for them.
        if nbytes > (needed + 1.75) * BYTES:
            text = f"after action {number} it keeps tensors of {nbytes / BYTES:.1f} times the stage's bytes"
            return Finding(False, f"{text}; expected {needed + 1}, {needed} of them copies.")
    return Finding(True, "no more weights are kept than are needed.")


@one_by_one(
    base=Training(),
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "weights after training",
            4,
            "The gradient is that of the weights with which this batch went forward; the step changes the "
            "newest weights.",
            vary=vary(depth=(1,)),
        ),
        Criterion(
            "outputs and gradients",
            3,
            "forward uses the newest weights, and returns a tensor without its graph; backward returns the "
            "gradient of this batch's x.",
            how=outputs_and_gradients,
        ),
        Criterion(
            "any order",
            1,
            "Batches may come back in another order than they went: find what belongs to a batch by its "
            "number, which may be used again later.",
            vary=vary(in_order=(False,)),
        ),
        Criterion(
            "optimizer, frozen parameters",
            2,
            "It steps from the newest weights, with its momentum and decay. What is frozen has no gradient.",
            vary=vary(extra=((0.9, 0.1),), frozen=(True,)),
        ),
        Criterion(
            "versions",
            2,
            "Count different weights: batches between which there was no step have the same ones, and the "
            "newest ones count too.",
            how=versions,
        ),
        Criterion(
            "memory",
            2,
            "Copy the weights once a step and not once a forward, and forget those that no batch needs.",
            how=memory,
        ),
    ),
    hints=(
        "What does autograd say of a backward whose weights the optimizer has changed in place since its "
        "forward, and which tensors would it have to keep?",
        "torch.func.functional_call(stage, tensors, (x,)) computes with other tensors in place of the "
        "parameters: with copies that the optimizer does not know.",
        "torch.autograd.grad(output, [x, *copies], gradient) gives gradients as values. Where does the "
        "optimizer look for them?",
    ),
    possible=lambda training: training.in_order or training.depth > 1,
)
def WeightStash(answer: Answer, training: Training, rng: Rng) -> tuple[Finding, Seen]:  # noqa: N802
    """PipeDream's weight stashing: Narayanan et al. (2019), section 3.3."""
    values, actions = training.drawn(rng)
    reply = answer.call(drivers.stash, values, training.frozen, [RATE, *training.extra], actions)
    expected = trained(training, values, actions)
    right = same(reply.weights, expected.weights, "the parameters after training", 1e-4)
    return right, Seen(actions, reply, expected)
