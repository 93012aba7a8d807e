"""The grader of `WeightStash`."""

from collections.abc import Sequence
from dataclasses import dataclass

from graders.grading.cases import vary
from graders.grading.expected import same
from graders.grading.explanation import Tried
from graders.grading.judging import ByCases, Stage, by_cases
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.unit_05 import drivers
from graders.units.unit_05.replies import StashReply
from graders.units.unit_05.stash_training import BYTES, RATE, Action, Expected, Training, trained


@dataclass(frozen=True, slots=True)
class Seen:
    """What a stash told, and what it had to."""

    actions: list[Action]
    reply: StashReply
    expected: Expected


class OfStash(Stage[Training]):
    """Each training by itself; right is one that leads to the right weights."""

    def run(self, answer: Answer, cases: Sequence[tuple[Training, Rng]]) -> Sequence[tuple[Finding, Seen]]:
        """Of each what is found of the weights, and what was told."""
        found = []
        for training, rng in cases:
            values, actions = training.drawn(rng)
            options = [RATE, *training.extra]
            reply = answer.call(drivers.stash, values, training.frozen, options, actions)
            expected = trained(training, values, actions)
            found.append((_weights(training, reply, expected), Seen(actions, reply, expected)))
        return found


def _weights(training: Training, reply: StashReply, expected: Expected) -> Finding:
    """Passes if the stage's parameters are those that this training leads to, and frozen ones left alone."""
    found = same(reply.weights, expected.weights, "the parameters after training", 1e-4)
    if found.passed and any(reply.left):
        return Finding(False, "a frozen parameter has a gradient in .grad.")
    asking = compare.equal(
        reply.asking, [True, True, not training.frozen], "requires_grad of the parameters afterwards"
    )
    return asking if found.passed else found


def outputs_and_gradients(tried: Tried[Training]) -> Finding:
    """Passes if every output and every gradient of an x is right, without a graph, and each x as it was."""
    seen: Seen = tried.seen
    for (kind, batch, _), (told, wanted) in zip(
        seen.actions, compare.side_by_side(seen.reply.told, seen.expected.told), strict=True
    ):
        found = compare.close(told, wanted, f"what {kind}({batch}, ...) returns", rtol=1e-4)
        if not found.passed:
            return found
    if seen.reply.attached:
        return Finding(
            False, "an output still has its graph, which would keep all that it was made of: detach() it."
        )
    changed = "an x has been changed, or asks for a gradient now: work on a tensor of your own."
    return Finding(
        seen.reply.kept, "outputs and gradients are as they were in forward." if seen.reply.kept else changed
    )


def versions(tried: Tried[Training]) -> Finding:
    """Passes if the stash knows after each action how many different weights it holds."""
    seen: Seen = tried.seen
    return same(seen.reply.versions, seen.expected.versions, "versions after each action", 0.0)


def memory(tried: Tried[Training]) -> Finding | None:
    """Passes if it holds no more than the versions needed and the optimizer's parameters, and no more the
    longer it trains.
    """
    if any(tried.case.features.extra):
        return None  # The optimizer's own memory would count.
    seen: Seen = tried.seen
    held = seen.reply.held
    for number, (nbytes, needed) in enumerate(compare.side_by_side(held, seen.expected.versions)):
        # Activations are small: the rest is for them.
        if nbytes > (needed + 1.75) * BYTES:
            text = (
                f"after action {number} there are tensors of {nbytes / BYTES:.1f} times the stage's bytes, "
                f"not counting .grad; {compare.counted(needed, 'version')} and the parameters are "
                f"{needed + 1}."
            )
            return Finding(False, text)
    text = (
        f"after {len(held) // 2} batches {held[-1]} bytes are held; after the first there were {held[1]}. "
        "What a batch needed is to be forgotten when it has come back."
    )
    return Finding(tried.case.features.depth > 1 or held[-1] <= held[1], text)


def unknown_batch(answer: Answer, rng: Rng) -> Finding:
    """A batch that never went forward, one that did, and the same once more."""
    order = [1, 0, 0]
    reply = answer.call(drivers.unknown_batch, Training().drawn(rng)[0], order)
    if reply.changed:
        return Finding(False, "A backward that raised has changed the weights before.")
    expected = ["KeyError", "", "KeyError"]
    return compare.equal(reply.raised, expected, f"After one forward of batch 0, backwards of {order} raise")


RUBRIC = (
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
        1,
        "It steps from the newest weights, with its momentum and its decay. What is frozen has "
        "no gradient, and stays frozen.",
        vary=vary(extra=((0.9, 0.1),), frozen=(True,)),
    ),
    Criterion(
        "unknown batch",
        1,
        "backward of a batch that is not under way: raise a KeyError, and change nothing.",
        ask=unknown_batch,
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
)


@by_cases(
    ByCases(Training(), OfStash(), RUBRIC, lambda training: training.in_order or training.depth > 1),
    minutes=35,
    difficulty=4,
    hints=(
        "What does autograd say of a backward whose weights the optimizer has changed in place since its "
        "forward, and which tensors would it have to keep?",
        "torch.func.functional_call(stage, tensors, (x,)) computes with other tensors in place of the "
        "parameters: with copies that the optimizer does not know.",
        "torch.autograd.grad(output, [x, *copies], gradient) gives gradients as values. Where does the "
        "optimizer look for them?",
    ),
)
def WeightStash() -> None:  # noqa: N802
    """PipeDream's weight stashing: Narayanan et al. (2019), section 3.3."""
