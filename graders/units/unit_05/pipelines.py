"""Unit 05, pipelines for `run_stage`: drawn, driven by an answer, and in one piece."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.models import gradients_of
from graders.units.unit_05 import drivers
from graders.units.unit_05.drivers import ByHandReply
from graders.units.unit_05.pieces import Piece, lopsided_loss


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages, by rank, and what goes through them: a batch, its targets and buffers for each call.

    stages: what `Piece` takes, by rank. xs: by rank; of rank 0 a batch for each call, of the others one for
    all. targets: by rank and call. share: of a whole batch, in each call.
    """

    stages: list[tuple[list[Tensor], bool, bool, list[str]]]
    xs: list[list[Tensor]]
    targets: list[list[Tensor | None]]
    share: float = 1.0

    @property
    def ranks(self) -> int:
        return len(self.stages)

    def launched(self, answer: Answer, calls: int = 1, *, training: bool = True) -> Observed[ByHandReply]:
        """What the answer makes of the first batches, with stages in this mode."""
        return answer.launch(
            drivers.by_hand,
            per_rank(self.stages),
            per_rank([xs[:calls] for xs in self.xs]),
            per_rank([targets[:calls] for targets in self.targets]),
            training,
            self.share,
            ranks=self.ranks,
        )

    def in_one_piece(self, calls: int) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Losses by call, and gradients by rank, of the model on one rank."""
        pieces = [Piece(*stage) for stage in self.stages]
        losses = []
        for number in range(calls):
            hidden = self.xs[0][number]
            for piece in pieces:
                hidden = piece(hidden)
            target = self.targets[-1][number]
            assert target is not None
            loss = self.share * lopsided_loss(hidden, target)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses, [gradients_of(piece) for piece in pieces]

    def losses_in(self, run: Observed[ByHandReply], calls: int = 1) -> Finding:
        """Whether the last rank has the losses of the model in one piece, and the others have none."""
        expected, _ = self.in_one_piece(calls)

        def findings() -> list[Finding]:
            found = [
                compare.equal(loss, None, f"What rank {rank} of {self.ranks} returns")
                for rank, reply in enumerate(run.results[:-1])
                for loss in reply.losses
            ]
            found += [
                compare.close(seen, loss, "The loss")
                for seen, loss in compare.side_by_side(run.results[-1].losses, expected)
            ]
            attached = run.results[-1].attached
            text = "The loss has its graph still, and with it all activations: return loss.detach()."
            return [*found, Finding(not attached, text if attached else found[-1].seen)]

        return compare.first_failure(findings())

    def gradients_in(self, run: Observed[ByHandReply], calls: int = 1) -> Finding:
        """Whether every parameter has the gradient that it has in one piece."""
        _, expected = self.in_one_piece(calls)
        return compare.first_failure(
            _same_gradient(seen, gradient, rank, self.ranks)
            for rank, reply in enumerate(run.results)
            for seen, gradient in compare.side_by_side(reply.gradients, expected[rank])
        )


def _same_gradient(seen: Tensor | None, expected: Tensor | None, rank: int, ranks: int) -> Finding:
    what = f"A gradient of rank {rank} of {ranks}"
    if expected is None:
        return compare.equal(seen, None, what)
    return compare.close(seen, expected, what)


def drawn_pipeline(
    rng: Rng,
    ranks: int,
    calls: int = 1,
    *,
    turned: bool = False,
    tokens: bool = False,
    doubled: bool = False,
    frozen: Sequence[Sequence[str]] = (),
    bare: int | None = None,
) -> Pipeline:
    """Stages of different widths. tokens: the batch is of whole numbers. doubled: stage 0 makes float64 of
    it. frozen: by rank. bare: the stage that has no weights.
    """
    # Of tokens there are several a sample.
    batch = (rng.integer(2, 5), 3) if tokens else (rng.integer(2, 5),)
    widths = [rng.integer(2, 6) for _ in range(ranks + 1)]
    if bare is not None:
        widths[bare + 1] = widths[bare]
    dtypes = [torch.float32, *[torch.float64 if doubled else torch.float32] * ranks]
    values = [
        [
            rng.normal(*shape, dtype=dtypes[rank])
            for shape in (widths[rank : rank + 2], widths[rank + 1 : rank + 2])
        ]
        for rank in range(ranks)
    ]
    xs = [
        [rng.normal(*batch, widths[0]) for _ in range(calls)],
        *([torch.full((*batch, widths[rank]), -7.0, dtype=dtypes[rank])] for rank in range(1, ranks)),
    ]
    if tokens:
        values[0].append(rng.normal(9, widths[0]))
        xs[0] = [rng.integers(0, 8, *batch) for _ in range(calls)]
    targets: list[list[Tensor | None]] = [[None] * calls for _ in range(ranks)]
    targets[-1] = [rng.normal(*batch, widths[-1], dtype=dtypes[-1]) for _ in range(calls)]
    stages = [
        (
            [] if rank == bare else values[rank],
            turned,
            doubled and rank == 0,
            list(frozen[rank]) if frozen else [],
        )
        for rank in range(ranks)
    ]
    return Pipeline(stages, xs, targets)
