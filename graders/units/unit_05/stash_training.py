"""Trainings in which several batches are under way, and what they lead to."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from graders.grading.judging import feature
from graders.grading.kit import Rng
from graders.units.optimizers import PlainSGD
from graders.units.unit_05.pieces import twice

Action = tuple[str, int, Tensor]
"""("forward", batch, x [B, I]) or ("backward", batch, gradient [B, O])."""

RATE = 0.05
WIDTH, INNER, OUT = 40, 48, 32
BYTES = 4 * (WIDTH * INNER + INNER * OUT + OUT)
"""Of the stage's parameters."""


@dataclass(frozen=True, slots=True)
class Training:
    """depth: so many batches go forward, then one comes back and one goes forward, and so on. extra: the
    optimizer's momentum and decay.
    """

    depth: int = feature(4, "{} batches under way")
    in_order: bool = feature(True, lambda in_order: "" if in_order else "batches that come back in any order")
    extra: tuple[float, float] = feature((0.0, 0.0), lambda extra: "momentum and decay" * any(extra))
    frozen: bool = feature(False, lambda frozen: "a bias that is frozen" * frozen)

    def drawn(self, rng: Rng) -> tuple[list[Tensor], list[Action]]:
        """The stage's parameters, and what it is to do."""
        values = [rng.normal(INNER, WIDTH) / 6, rng.normal(OUT, INNER) / 7, rng.normal(OUT)]
        waiting: list[int] = []
        actions: list[Action] = []
        for _ in range(self.depth + 5):
            batch = min(set(range(self.depth)) - set(waiting))
            actions.append(("forward", batch, rng.normal(1, WIDTH)))
            waiting.append(batch)
            if len(waiting) == self.depth:
                chosen = 0 if self.in_order else rng.integer(0, self.depth - 1)
                actions.append(("backward", waiting.pop(chosen), rng.normal(1, OUT)))
        return values, [*actions, *(("backward", batch, rng.normal(1, OUT)) for batch in waiting)]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a stash tells after each action, how many versions are needed then, and the last weights."""

    told: list[Tensor]
    versions: list[int]
    weights: list[Tensor]


def trained(training: Training, values: Sequence[Tensor], actions: Sequence[Action]) -> Expected:
    """The same with all weights kept for ever: a new stage for every forward."""
    stage = twice(values, training.frozen)
    asking = [parameter for parameter in stage.parameters() if parameter.requires_grad]
    optimizer = PlainSGD(asking, RATE, *training.extra)
    steps, told, versions = 0, [], []
    under_way: dict[int, tuple[nn.Sequential, Tensor, Tensor, int]] = {}
    for kind, batch, given in actions:
        if kind == "forward":
            then, x = twice(list(stage.parameters()), training.frozen), given.clone().requires_grad_()
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
