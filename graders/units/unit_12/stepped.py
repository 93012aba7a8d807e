"""A training step on a drawn mesh, and what the ranks should then have, beside one rank's step."""

from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from math import prod

import torch
from torch import Tensor

from course_lib.models import TransformerConfig, next_token_loss
from course_lib.training.mesh_transformer import MeshTransformer
from graders.grading.judging import feature
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.drivers.step import Batch, StepReply

SIZES = {"width": 6, "vocabulary": 11, "context": 5}

Run = Observed[StepReply]


@dataclass(frozen=True, slots=True)
class Step:
    """shape: of the mesh. samples: of each micro-batch, of the replicas in turn."""

    shape: tuple[int, int, int] = feature((2, 2, 2), lambda shape: f"a mesh of {' x '.join(map(str, shape))}")
    samples: tuple[tuple[int, ...], ...] = feature(((2, 2),), "micro-batches of {} samples")
    tied: bool = feature(False, lambda tied: "a tied model" if tied else "")


@dataclass(frozen=True)
class Stepped:
    """batches: of each replica."""

    step: Step
    batches: list[Batch]

    @classmethod
    def drawn(cls, rng: Rng, step: Step) -> "Stepped":
        batches = []
        for replica in range(step.shape[0]):
            sizes = step.samples[replica % len(step.samples)]
            whole = [rng.integers(0, SIZES["vocabulary"] - 1, size, SIZES["context"] + 1) for size in sizes]
            batches.append([(each[:, :-1].clone(), each[:, 1:].clone()) for each in whole])
        return cls(step, batches)

    @property
    def sizes(self) -> dict[str, int]:
        """Of the model: a block a stage, and a head a share."""
        _, stages, shares = self.step.shape
        return {**SIZES, "layers": stages, "heads": shares}

    def place(self, rank: int) -> tuple[int, int, int]:
        """The coordinates of a rank."""
        _, stages, shares = self.step.shape
        return rank // (stages * shares), rank // shares % stages, rank % shares

    def line(self, rank: int, axis: int) -> list[int]:
        """The ranks that differ from this one along an axis at most."""
        at: list[int | slice] = list(self.place(rank))
        at[axis] = slice(None)
        found: list[int] = torch.arange(prod(self.step.shape)).view(self.step.shape)[tuple(at)].tolist()
        return found

    def own(self, rank: int) -> Batch:
        """The batch of this rank's replica."""
        return self.batches[self.place(rank)[0]]

    def launch(self, answer: Answer) -> Run:
        ranks = prod(self.step.shape)
        batches = per_rank(list(map(self.own, range(ranks))))
        given = self.step.shape, self.sizes, self.step.tied, batches
        return answer.launch(drivers.stepped, *given, ranks=ranks, timeout=20.0)

    @cached_property
    def of_one_rank(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of all samples, and the gradients by name."""
        model = _whole(self.sizes["layers"], self.sizes["heads"], self.step.tied)
        model.zero_grad()
        tokens, targets = map(torch.cat, zip(*chain.from_iterable(self.batches), strict=True))
        loss = next_token_loss(model(tokens), targets)
        torch.autograd.backward(loss)
        named = model.named_parameters(remove_duplicate=False)
        return loss.detach(), {name: each.grad for name, each in named if each.grad is not None}

    def gradients(self, run: Run) -> Finding:
        """Passes if every rank's gradients are those of one rank, but for what sums in another order come to:
        where the six numbers of a norm lie close together, some millionths.
        """
        _, whole = self.of_one_rank
        told = [(rank, *each) for rank, reply in enumerate(run.results) for each in reply.gradients.items()]
        names = [f"the gradient of {name} on rank {rank}" for rank, name, _ in told]
        right = [whole[name] for _, name, _ in told]
        return compare.all_close([seen for *_, seen in told], right, names, rtol=1e-4, atol=1e-5)

    def loss(self, run: Run) -> Finding:
        """Passes if each loss is the mean of all samples, detached, and all else is as it was."""
        seen, expected = [reply.loss for reply in run.results], [self.of_one_rank[0]] * len(run.results)
        found = [compare.close_on_all_ranks(seen, expected, "the loss")]
        for rank, reply in enumerate(run.results):
            found.append(compare.equal(reply.detached, True, f"whether the loss of rank {rank} is detached"))
            found.append(compare.equal(reply.changed, [], f"what is changed on rank {rank}"))
        return compare.first_failure(found)


@cache
def _whole(layers: int, heads: int, tied: bool) -> MeshTransformer:
    """The model of one rank: its numbers follow from their names, so it is always the same."""
    return MeshTransformer(TransformerConfig(**{**SIZES, "layers": layers, "heads": heads}, tied=tied))
