"""Unit 05, weight stashing: each backward with the weights of its forward, each step from the newest ones."""

from dataclasses import dataclass

from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_05 import drivers
from graders.units.unit_05.drivers import StashReply
from graders.units.unit_05.pieces import Descent, Twice

Action = tuple[str, int, Tensor]
"""("forward", batch, x [B, I]) or ("backward", batch, gradient [B, O])."""

RATE = 0.05


@exercise(
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "weights after training",
            4,
            "The gradient is that of the weights with which this batch went forward; the step changes the "
            "newest weights.",
        ),
        Criterion(
            "outputs and gradients",
            3,
            "forward uses the newest weights, and returns a tensor without its graph; backward returns the "
            "gradient of this batch's x.",
        ),
        Criterion(
            "any order",
            1,
            "Batches may come back in another order than they went: find what belongs to a batch by its "
            "number, which may be used again later.",
            needs=("outputs and gradients",),
        ),
        Criterion(
            "optimizer, frozen parameters",
            1,
            "It steps from the newest weights, with its momentum and its decay. What is frozen has "
            "no gradient, and stays frozen.",
            needs=("outputs and gradients",),
        ),
        Criterion(
            "unknown batch",
            1,
            "backward of a batch that is not under way: raise a KeyError, and change nothing.",
        ),
        Criterion(
            "versions",
            2,
            "Count different weights: batches between which there was no step have the same ones, and the "
            "newest ones count too.",
        ),
        Criterion(
            "memory",
            2,
            "Copy the weights once a step and not once a forward, and forget those that no batch needs.",
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
)
def WeightStash(answer: Answer, rng: Rng) -> Findings:  # noqa: N802
    """Batches under way as in a pipeline, first in first out; then in any order."""
    piped = [_drawn(rng, depth=depth) for depth in (1, 3, 4)]
    told = [case.stashed(answer) for case in piped]
    pairs = list(zip(piped, told, strict=True))
    yield "weights after training", compare.first_failure(case.weights(reply) for case, reply in pairs)
    yield "outputs and gradients", compare.first_failure(case.told(reply) for case, reply in pairs)
    mixed = _drawn(rng, depth=4, in_order=False)
    yield "any order", mixed.all_right(mixed.stashed(answer))
    special = [_drawn(rng, depth=3, options=(RATE, 0.9, 0.1)), _drawn(rng, depth=3, frozen=True)]
    yield (
        "optimizer, frozen parameters",
        compare.first_failure(
            finding
            for case, reply in ((case, case.stashed(answer)) for case in special)
            for finding in (case.all_right(reply), case.left_alone(reply))
        ),
    )
    yield "unknown batch", _unknown(answer, mixed.values)
    yield "versions", compare.first_failure(case.versions(reply) for case, reply in pairs)
    yield (
        "memory",
        compare.first_failure(
            [piped[0].nothing_kept(told[0]), *(case.memory(reply) for case, reply in pairs)]
        ),
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """What a stash tells after each action, how many versions are needed then, and the last weights."""

    told: list[Tensor]
    versions: list[int]
    weights: list[Tensor]


@dataclass(frozen=True, slots=True)
class Training:
    """A stage's actions, and how it is trained. values: of a `Twice`. options: of `Descent`."""

    values: list[Tensor]
    actions: list[Action]
    depth: int
    options: tuple[float, ...]
    frozen: bool

    def stashed(self, answer: Answer) -> StashReply:
        """What the answer makes of it."""
        return answer.call(drivers.stash, self.values, self.frozen, list(self.options), self.actions)

    def expected(self) -> Expected:
        """The same with all weights kept for ever: a new stage for every forward."""
        stage = Twice(self.values, self.frozen)
        trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
        optimizer = Descent(trained, *self.options)
        steps, told, versions = 0, [], []
        under_way: dict[int, tuple[Twice, Tensor, Tensor, int]] = {}
        for kind, batch, given in self.actions:
            if kind == "forward":
                then, x = Twice(list(stage.parameters()), self.frozen), given.clone().requires_grad_()
                output = then(x)
                under_way[batch] = (then, x, output, steps)
                told.append(output.detach())
            else:
                then, x, output, _ = under_way.pop(batch)
                output.backward(given)  # type: ignore[no-untyped-call]
                assert x.grad is not None
                told.append(x.grad)
                for parameter, old in zip(stage.parameters(), then.parameters(), strict=True):
                    parameter.grad = old.grad
                optimizer.step()
                steps += 1
            versions.append(len({steps, *(version for *_, version in under_way.values())}))
        return Expected(told, versions, [parameter.detach() for parameter in stage.parameters()])

    def weights(self, reply: StashReply) -> Finding:
        """Whether the stage's parameters are those that this training leads to."""
        return compare.first_failure(
            compare.close(seen, wanted, f"A parameter after training with {self.under_way}", rtol=1e-4)
            for seen, wanted in compare.side_by_side(reply.weights, self.expected().weights)
        )

    def told(self, reply: StashReply) -> Finding:
        """Whether every output and every gradient of an x is right."""
        findings = [
            compare.close(seen, wanted, f"What {kind}({batch}, ...) returns", rtol=1e-4)
            for (kind, batch, _), (seen, wanted) in zip(
                self.actions, compare.side_by_side(reply.told, self.expected().told), strict=True
            )
        ]
        attached = "An output still has its graph, which would keep all that it was made of: detach() it."
        changed = "An x has been changed, or asks for a gradient now: work on a tensor of your own."
        last = findings[-1].seen
        findings.append(Finding(not reply.attached, attached if reply.attached else last))
        return compare.first_failure([*findings, Finding(reply.kept, last if reply.kept else changed)])

    def all_right(self, reply: StashReply) -> Finding:
        """All of it."""
        return compare.first_failure([self.weights(reply), self.told(reply)])

    def left_alone(self, reply: StashReply) -> Finding:
        """Whether what was frozen still is, and has no gradient."""
        asking = [True, True, not self.frozen]
        if any(reply.left):
            return Finding(False, "A frozen parameter has a gradient in .grad.")
        return compare.equal(reply.asking, asking, "requires_grad of the stage's parameters afterwards")

    def versions(self, reply: StashReply) -> Finding:
        """Whether the stash knows after each action how many different weights it holds."""
        return compare.first_failure(
            compare.equal(seen, wanted, f"versions after action {number} with {self.under_way}")
            for number, (seen, wanted) in enumerate(
                compare.side_by_side(reply.versions, self.expected().versions)
            )
        )

    def memory(self, reply: StashReply) -> Finding:
        """Whether it holds no more than the versions needed and the optimizer's parameters."""
        size = sum(4 * value.numel() for value in self.values)

        def findings() -> list[Finding]:
            found = []
            for number, (held, needed) in enumerate(
                compare.side_by_side(reply.held, self.expected().versions)
            ):
                # Activations are small: the rest is for them.
                allowed = needed + 1.75
                text = (
                    f"After action {number}, {self.under_way}, there are tensors of {held / size:.1f} "
                    f"times the stage's bytes, not counting .grad; {compare.counted(needed, 'version')} and "
                    f"the parameters are {needed + 1}."
                )
                found.append(Finding(held <= allowed * size, text))
            return found

        return compare.first_failure(findings())

    def nothing_kept(self, reply: StashReply) -> Finding:
        """Whether batches, one at a time, leave no more behind the more of them there were."""
        first, last = reply.held[1], reply.held[-1]
        text = (
            f"After {len(reply.held) // 2} batches, one at a time, {last} bytes are held; after the first "
            f"there were {first}. What a batch needed is to be forgotten when it has come back."
        )
        return Finding(last <= first, text)

    @property
    def under_way(self) -> str:
        return f"{self.depth} under way"


def _drawn(
    rng: Rng,
    depth: int,
    *,
    in_order: bool = True,
    options: tuple[float, ...] = (RATE,),
    frozen: bool = False,
) -> Training:
    """`depth` batches go forward, then one comes back and one goes forward, and so on."""
    width, inner, out = 40, 48, 32
    values = [rng.normal(width, inner) / 6, rng.normal(inner, out) / 7, rng.normal(out)]
    waiting: list[int] = []
    actions: list[Action] = []
    for _ in range(depth + 5):
        batch = min(set(range(depth)) - set(waiting))
        actions.append(("forward", batch, rng.normal(1, width)))
        waiting.append(batch)
        if len(waiting) == depth:
            chosen = 0 if in_order else rng.integer(0, depth - 1)
            actions.append(("backward", waiting.pop(chosen), rng.normal(1, out)))
    actions += [("backward", batch, rng.normal(1, out)) for batch in waiting]
    return Training(values, actions, depth, options, frozen)


def _unknown(answer: Answer, values: list[Tensor]) -> Finding:
    """A batch that never went forward, one that did, and the same once more."""
    order = [1, 0, 0]
    reply = answer.call(drivers.unknown_batch, values, order)
    if reply.changed:
        return Finding(False, "A backward that raised has changed the weights before.")
    expected = ["KeyError", "", "KeyError"]
    return compare.equal(reply.raised, expected, f"After one forward of batch 0, backwards of {order} raise")
