"""Unit 12, training steps on a drawn mesh, and what the ranks should then have, beside one rank's step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from math import prod

import torch
from torch import Tensor

from course_lib.models import next_token_loss
from course_lib.training.mesh_transformer import MeshTransformer
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.unit_12.cases import ranks_in_mesh
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.drivers.step import Batch, StepReply

SIZES = {"width": 6, "vocabulary": 11, "context": 5}

Run = Observed[StepReply]


@dataclass(frozen=True)
class Stepped:
    """shape: data x pipeline x tensor. order: the ranks as they stand there. batches: of each replica, in
    each step, its micro-batches.
    """

    shape: tuple[int, int, int]
    order: list[int]
    batches: list[list[Batch]]
    tied: bool

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        shape: tuple[int, int, int],
        samples: Sequence[Sequence[int]],
        *,
        tied: bool = False,
        turned: bool = False,
        twice: bool = False,
    ) -> "Stepped":
        """samples: of each micro-batch in the first step, of the replicas in turn. turned: ranks are
        neighbours along the first axis of the mesh. twice: there is a second step, of one micro-batch.
        """
        order = ranks_in_mesh(shape, turned)
        batches = []
        for replica in range(shape[0]):
            first = samples[replica % len(samples)]
            of_steps = (first, first[:1]) if twice else (first,)
            batches.append([cls._batch(rng, sizes) for sizes in of_steps])
        return cls(shape, order, batches, tied)

    @staticmethod
    def _batch(rng: Rng, sizes: Sequence[int]) -> Batch:
        """Micro-batches of so many samples."""
        whole = [rng.integers(0, SIZES["vocabulary"] - 1, size, SIZES["context"] + 1) for size in sizes]
        return [(each[:, :-1].clone(), each[:, 1:].clone()) for each in whole]

    @property
    def ranks(self) -> int:
        return prod(self.shape)

    @property
    def sizes(self) -> dict[str, int]:
        """Of the model: a block a stage, and a head a share."""
        return {**SIZES, "layers": self.shape[1], "heads": self.shape[2]}

    @property
    def steps(self) -> int:
        return len(self.batches[0])

    def place(self, rank: int) -> tuple[int, int, int]:
        """The coordinates of a rank."""
        _, stages, shares = self.shape
        number = self.order.index(rank)
        return number // (stages * shares), number // shares % stages, number % shares

    @property
    def where(self) -> str:
        return f"on a mesh of {' x '.join(map(str, self.shape))}, {'tied' if self.tied else 'not tied'},"

    def own(self, rank: int) -> list[Batch]:
        """The batches of this rank's replica."""
        return self.batches[self.place(rank)[0]]

    def launch(self, answer: Answer) -> Run:
        batches = per_rank(list(map(self.own, range(self.ranks))))
        given = (self.shape, self.order), self.sizes, self.tied, batches
        return answer.launch(drivers.stepped, *given, ranks=self.ranks, timeout=20.0)

    @cached_property
    def of_one_rank(self) -> list[tuple[Tensor, dict[str, Tensor]]]:
        """For each step the loss of all samples, and the gradients by name."""
        found = []
        for batches in zip(*self.batches, strict=True):
            model = _whole(self.sizes["layers"], self.sizes["heads"], self.tied)
            model.zero_grad()
            every = zip(*chain.from_iterable(batches), strict=True)
            tokens, targets = (torch.cat(parts) for parts in every)
            loss = next_token_loss(model(tokens), targets)
            torch.autograd.backward(loss)
            named = model.named_parameters(remove_duplicate=False)
            gradients = {name: each.grad for name, each in named if each.grad is not None}
            found.append((loss.detach(), gradients))
        return found

    def gradients(self, run: Run) -> Finding:
        """Passes if every rank's gradients are those of one rank, in all steps, but for what sums in another
        order come to: where the six numbers of a norm lie close together, some millionths.
        """
        seen: list[Tensor | None] = []
        right, names = list[Tensor](), list[str]()
        for step, (_, whole) in enumerate(self.of_one_rank):
            for rank, reply in enumerate(run.results):
                gradients = reply.gradients[step]
                seen += gradients.values()
                right += [whole[name] for name in gradients]
                names += [
                    f"{self.where} the gradient of {name} in step {step} on rank {rank}" for name in gradients
                ]
        return compare.all_close(seen, right, names, rtol=1e-4, atol=1e-5)

    def mean_losses(self, run: Run) -> Finding:
        """Passes if the losses are the mean of all replicas', and tensors without a graph behind them."""
        graphs = [reply.detached for reply in run.results]
        detached = compare.equal(graphs, [True] * self.ranks, "whether losses are detached, rank by rank")
        right = (
            compare.close_on_all_ranks(
                [reply.losses[step] for reply in run.results],
                [loss] * self.ranks,
                f"{self.where} the loss of step {step}",
            )
            for step, (loss, _) in enumerate(self.of_one_rank)
        )
        return compare.first_failure((*right, detached))

    def kept(self, run: Run) -> Finding:
        for rank, reply in enumerate(run.results):
            if reply.changed:
                what = f"parameters that are not as they were on rank {rank}"
                return compare.equal(reply.changed, [], what)
            if not compare.same(reply.batches, self.own(rank)):
                return Finding(False, f"the batches of rank {rank} are not what they were.")
        return Finding(True, "parameters and batches are as they were.")


@cache
def _whole(layers: int, heads: int, tied: bool) -> MeshTransformer:
    """The model of one rank: its numbers follow from their names, so it is always the same."""
    return MeshTransformer(drivers.config_of({**SIZES, "layers": layers, "heads": heads}, tied))
