"""Unit 12, a step of training along three axes at once, beside the step of one rank."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod

import torch
from torch import Tensor

from course_lib.models import next_token_loss
from course_lib.runtime.communication.events import Event
from course_lib.training.mesh_transformer import MeshTransformer
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.drivers.step import Batch, StepReply

SIZES = {"layers": 3, "width": 8, "heads": 4, "vocabulary": 11, "context": 5}
A_NUMBER = 8
"""Bytes: a collective of so much may be on any group, for the loss."""
A_FEW_NUMBERS = 128
"""Bytes: so much may be sent to anyone, for shapes."""

_RIGHT = ("gradients",)


@exercise(
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
            needs=_RIGHT,
        ),
        Criterion("loss", 1, "The mean over all samples of all replicas, on every rank.", needs=()),
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
    ),
    hints=(
        "For one rank: forward of each micro-batch, and its share of the loss backward. What do the first "
        "stage and the last do differently from those between?",
        "A tensor that was received requires no gradient unless you say so. Where is its gradient after "
        "backward, and who needs it?",
        "Which ranks hold the same parameters, and have seen other samples? Which have seen the same "
        "samples, and another use of the embedding?",
    ),
)
def step_3d(answer: Answer, rng: Rng) -> Findings:
    """Two by two by two, then other meshes, then a tied model."""
    plain = Stepped.drawn(rng, (2, 2, 2), [2, 2])
    run = plain.launch(answer)
    yield "gradients", plain.gradients(run)
    others = [
        Stepped.drawn(rng, (1, 1, 1), [1]),
        Stepped.drawn(rng, (3, 1, 1), [1, 1]),
        Stepped.drawn(rng, (1, 3, 2), [1, 1, 1]),
        Stepped.drawn(rng, (2, 1, 3), [2]),
    ]
    runs = [each.launch(answer) for each in others]
    yield "any mesh", compare.first_failure(map(Stepped.gradients, others, runs))
    uneven = Stepped.drawn(rng, (2, 2, 1), [3, 1, 2])
    uneven_run = uneven.launch(answer)
    yield "uneven micro-batches", uneven.gradients(uneven_run)
    tied = [
        Stepped.drawn(rng, shape, [1, 2], tied=True) for shape in ((2, 2, 1), (1, 3, 1), (2, 1, 1), (1, 2, 2))
    ]
    tied_runs = [each.launch(answer) for each in tied]
    yield "shared embedding", compare.first_failure(map(Stepped.gradients, tied, tied_runs))
    every = [
        (plain, run),
        *zip(others, runs, strict=True),
        (uneven, uneven_run),
        *zip(tied, tied_runs, strict=True),
    ]
    yield "loss", compare.first_failure(each.losses(seen) for each, seen in every)
    yield "all else kept", compare.first_failure(each.kept(seen) for each, seen in every)
    yield "each gradient once", compare.first_failure(each.sums(seen) for each, seen in every)
    yield "activations once", compare.first_failure(each.messages(seen) for each, seen in every)
    yield (
        "in a pipeline",
        compare.first_failure(each.in_flight(seen) for each, seen in (every[0], every[3], every[5])),
    )


Run = Observed[StepReply]


@dataclass(frozen=True)
class Stepped:
    """shape: data x pipeline x tensor. batches: of each replica, its micro-batches."""

    shape: tuple[int, int, int]
    batches: list[Batch]
    tied: bool

    @classmethod
    def drawn(
        cls, rng: Rng, shape: tuple[int, int, int], samples: list[int], tied: bool = False
    ) -> "Stepped":
        """samples: of each micro-batch."""
        batches = []
        for _ in range(shape[0]):
            whole = [rng.integers(0, SIZES["vocabulary"] - 1, each, SIZES["context"] + 1) for each in samples]
            batches.append([(each[:, :-1].clone(), each[:, 1:].clone()) for each in whole])
        return cls(shape, batches, tied)

    @property
    def ranks(self) -> int:
        return prod(self.shape)

    def place(self, rank: int) -> tuple[int, int, int]:
        """The coordinates of a rank."""
        _, stages, shares = self.shape
        return rank // (stages * shares), rank // shares % stages, rank % shares

    @property
    def where(self) -> str:
        return f"on a mesh of {' x '.join(map(str, self.shape))}, {'tied' if self.tied else 'not tied'},"

    def launch(self, answer: Answer) -> Run:
        own = [self.batches[self.place(rank)[0]] for rank in range(self.ranks)]
        return answer.launch(
            drivers.stepped, self.shape, SIZES, self.tied, per_rank(own), ranks=self.ranks, timeout=20.0
        )

    @cached_property
    def of_one_rank(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of all samples, and the gradients by name."""
        model = MeshTransformer(drivers.config_of(SIZES, self.tied))
        every = zip(*chain.from_iterable(self.batches), strict=True)
        tokens, targets = (torch.cat(parts) for parts in every)
        loss = next_token_loss(model(tokens), targets)
        torch.autograd.backward(loss)
        named = model.named_parameters(remove_duplicate=False)
        return loss.detach(), {name: each.grad for name, each in named if each.grad is not None}

    def gradients(self, run: Run) -> Finding:
        """Passes if every rank's gradients are those of one rank."""
        whole = self.of_one_rank[1]
        return compare.first_failure(
            compare.close(
                seen, whole[name], f"{self.where} the gradient of {name} on rank {rank}", 1e-4, 1e-6
            )
            for rank, reply in enumerate(run.results)
            for name, seen in reply.gradients.items()
        )

    def losses(self, run: Run) -> Finding:
        seen = [reply.loss for reply in run.results]
        expected = [self.of_one_rank[0]] * self.ranks
        return compare.close_on_all_ranks(seen, expected, f"{self.where} the loss", 1e-5, 1e-6)

    def kept(self, run: Run) -> Finding:
        findings = (
            found
            for rank, reply in enumerate(run.results)
            for found in (
                compare.equal(
                    reply.changed, [], f"parameters that are no longer as they were on rank {rank}"
                ),
                compare.equal(
                    reply.batch, self.batches[self.place(rank)[0]], f"the batch of rank {rank} afterwards"
                ),
            )
        )
        return compare.first_failure(findings)

    # --- Communication

    def _collectives(self, run: Run, rank: int) -> Iterator[Event]:
        return (e for e in run.communication(rank) if e.op not in ("send", "recv") and len(e.group) > 1)

    def _line(self, rank: int, axis: int) -> tuple[int, ...]:
        """The ranks that differ from this one along an axis."""
        numbers = torch.arange(self.ranks).view(self.shape)
        at: list[int | slice] = list(self.place(rank))
        at[axis] = slice(None)
        return tuple(numbers[tuple(at)].tolist())

    def sums(self, run: Run) -> Finding:
        """Passes if along data each gradient was summed once, along tensor what the model itself sums,
        between the first stage and the last what they share, and nothing else.
        """
        for rank, reply in enumerate(run.results):
            lines = {
                self._line(rank, 0): "data",
                self._line(rank, 2): "tensor",
                self._ends(rank): "the two copies",
            }
            own = sum(each.nbytes for each in reply.gradients.values() if each is not None)
            allowed = {
                "data": own if self.shape[0] > 1 else 0,
                "tensor": self._of_the_model(rank),
                "the two copies": self._embedding(rank),
                "other groups": 0,
            }
            along = dict.fromkeys(allowed, 0)
            for event in self._collectives(run, rank):
                if event.nbytes > A_NUMBER:
                    along[lines.get(event.group, "other groups")] += event.nbytes
            if any(along[name] > allowed[name] for name in along):
                said = ", ".join(f"along {name} {along[name]:,} ({allowed[name]:,})" for name in along)
                told = f"{self.where} rank {rank} gave collectives bytes {said}"
                return Finding(False, f"{told}; in parentheses what is needed.", Kind.TOO_MUCH)
        return Finding(True, "Each gradient is summed along data once.")

    def _ends(self, rank: int) -> tuple[int, ...]:
        """This rank and the one of the same share on the other end of the pipeline, if it is on an end."""
        line = self._line(rank, 1)
        return (line[0], line[-1]) if rank in (line[0], line[-1]) else ()

    def _embedding(self, rank: int) -> int:
        """Bytes of the gradient that this rank shares with one of another stage."""
        shares_it = self.tied and self.shape[1] > 1 and self._ends(rank)
        return 4 * SIZES["vocabulary"] * SIZES["width"] if shares_it else 0

    def _of_the_model(self, rank: int) -> int:
        """Bytes that the model itself sums up along tensor: two tensors x_BTD a block in each pass."""
        data, stage, _ = self.place(rank)
        if self.shape[2] == 1:
            return 0
        blocks = len(torch.arange(SIZES["layers"]).tensor_split(self.shape[1])[stage])
        return 4 * blocks * sum(self._crossing(tokens) for tokens, _ in self.batches[data])

    def _crossing(self, tokens: Tensor) -> int:
        return 4 * tokens.numel() * SIZES["width"]

    def messages(self, run: Run) -> Finding:
        """Passes if activations and their gradients cross once, and copies' gradients to the other copy."""
        _, stages, shares = self.shape
        for rank in range(self.ranks):
            data, stage, _ = self.place(rank)
            activations = sum(self._crossing(tokens) for tokens, _ in self.batches[data])
            allowed = {rank + step * shares: activations for step in (-1, 1) if 0 <= stage + step < stages}
            for end in self._ends(rank):
                allowed[end] = allowed.get(end, 0) + self._embedding(rank)
            sent: dict[int, int] = {}
            for event in run.communication(rank):
                if event.op == "send" and event.peer is not None and event.nbytes > A_FEW_NUMBERS:
                    sent[event.peer] = sent.get(event.peer, 0) + event.sent
            for peer, nbytes in sent.items():
                if nbytes > allowed.get(peer, 0):
                    told = f"{self.where} rank {rank} sends rank {peer} {nbytes:,} bytes"
                    return Finding(False, f"{told}; needed are {allowed.get(peer, 0):,}.", Kind.TOO_MUCH)
        return Finding(True, "Each micro-batch crosses each cut once in each direction.")

    def in_flight(self, run: Run) -> Finding:
        """Passes if stage 0 sends two micro-batches before the first gradient comes back."""
        if self.shape[1] == 1:
            return Finding(True, "With one stage there is nothing to wait for.")
        events = [event for event in run.communication(0) if event.nbytes > A_FEW_NUMBERS]
        back = min((event.end for event in events if event.op == "recv"), default=0.0)
        early = sum(event.op == "send" and event.start < back for event in events)
        told = f"{self.where} the first stage sends {compare.counted(early, 'tensor')} on"
        return Finding(early > 1, f"{told} before a gradient is back; expected at least 2.")
