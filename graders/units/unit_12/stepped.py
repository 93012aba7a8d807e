"""Unit 12, training steps on a drawn mesh, and what the ranks should then have, beside one rank's step."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from math import prod

import torch
from torch import Tensor

from course_lib.models import next_token_loss
from course_lib.runtime.communication.events import Event
from course_lib.training.mesh_transformer import MeshTransformer
from graders.grading.kit import Answer, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.unit_12.cases import ranks_in_mesh
from graders.units.unit_12.drivers import step as drivers
from graders.units.unit_12.drivers.step import Batch, StepReply

SIZES = {"width": 6, "vocabulary": 11, "context": 5}
A_NUMBER = 8
"""Bytes: a collective of so much may be on any group, for the loss."""

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
        neighbours along the first axis of the mesh. twice: there is a second step, with one micro-batch more.
        """
        order = ranks_in_mesh(shape, turned)
        batches = []
        for replica in range(shape[0]):
            first = samples[replica % len(samples)]
            of_steps = (first, [*first[::-1], samples[0][0]]) if twice else (first,)
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

    # --- Communication

    def _collectives(self, run: Run, rank: int) -> Iterator[Event]:
        return (e for e in run.communication(rank) if e.op not in ("send", "recv") and len(e.group) > 1)

    def _line(self, rank: int, axis: int) -> tuple[int, ...]:
        """The ranks that differ from this one along an axis."""
        numbers = torch.tensor(self.order).view(self.shape)
        at: list[int | slice] = list(self.place(rank))
        at[axis] = slice(None)
        return tuple(sorted(numbers[tuple(at)].tolist()))

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
            every = (each for step in reply.gradients for each in step.values())
            own = sum(each.nbytes + A_NUMBER for each in every if each is not None)
            allowed = {
                "data": own if self.shape[0] > 1 else 0,
                "tensor": self._of_the_model(rank),
                "the two copies": self.steps * self._embedding(rank),
                "other groups": 0,
            }
            along = dict.fromkeys(allowed, 0)
            for event in self._collectives(run, rank):
                if event.nbytes > A_NUMBER:
                    along[lines.get(tuple(sorted(event.group)), "other groups")] += event.nbytes
            if any(along[name] > allowed[name] for name in along):
                said = ", ".join(f"along {name} {along[name]:,} ({allowed[name]:,})" for name in along)
                told = f"{self.where} rank {rank} gave collectives bytes {said}"
                return Finding(False, f"{told}; in parentheses what is needed.", Kind.TOO_MUCH)
        return Finding(True, "Each gradient is summed along data once.")

    def _ends(self, rank: int) -> tuple[int, ...]:
        """The ranks of this share on the ends of the pipeline, in order, if this one is on an end."""
        ends = [other for other in self._line(rank, 1) if self.place(other)[1] in (0, self.shape[1] - 1)]
        return tuple(ends) if rank in ends else ()

    def _embedding(self, rank: int) -> int:
        """Bytes of the gradient that this rank shares with one of another stage."""
        shares_it = self.tied and self.shape[1] > 1 and self._ends(rank)
        return 4 * SIZES["vocabulary"] * SIZES["width"] if shares_it else 0

    def _of_the_model(self, rank: int) -> int:
        """Bytes that the model itself sums up along tensor: two tensors x_BTD a block in each pass."""
        if self.shape[2] == 1:
            return 0
        return 4 * sum(self._crossing(tokens) for batch in self.own(rank) for tokens, _ in batch)

    def _crossing(self, tokens: Tensor) -> int:
        return 4 * tokens.numel() * SIZES["width"]

    def messages(self, run: Run) -> Finding:
        """Passes if activations and their gradients cross once, and copies' gradients to the other copy, each
        in one message.
        """
        for rank in range(self.ranks):
            _, stage, _ = self.place(rank)
            crossing = [self._crossing(tokens) for batch in self.own(rank) for tokens, _ in batch]
            line = {self.place(other)[1]: other for other in self._line(rank, 1)}
            nbytes = {line[near]: sum(crossing) for near in (stage - 1, stage + 1) if near in line}
            count = dict.fromkeys(nbytes, len(crossing))
            for end in self._ends(rank):
                nbytes[end] = nbytes.get(end, 0) + self.steps * self._embedding(rank)
                count[end] = count.get(end, 0) + self.steps
            for peer, (messages, sent) in _sent(run, rank).items():
                if sent > nbytes.get(peer, 0) or messages > count.get(peer, 0):
                    told = f"{self.where} rank {rank} sends rank {peer} {sent:,} bytes in {messages} messages"
                    counted = compare.counted(self.steps, "step")
                    needed = f"needed are {nbytes.get(peer, 0):,} in {count.get(peer, 0)}, in {counted}"
                    return Finding(False, f"{told}; {needed}.", Kind.TOO_MUCH)
        return Finding(True, "Each micro-batch crosses each cut once in each direction.")

    def in_flight(self, run: Run) -> Finding:
        """Passes if each stage sends as many micro-batches on as stages follow, it included, before the first
        of the first step is back.
        """
        for rank in range(self.ranks):
            _, stage, _ = self.place(rank)
            line = {self.place(other)[1]: other for other in self._line(rank, 1)}
            if stage + 1 not in line:
                continue
            steps = [e.sequence for e in run.events if e.rank == rank and e.op == drivers.STEP]
            second = math.inf if self.steps == 1 else steps[1]
            events = [
                event
                for event in run.communication(rank)
                if event.peer == line[stage + 1] and event.sequence < second and event.nbytes > A_NUMBER
            ]
            back = min((event.end for event in events if event.op == "recv"), default=0.0)
            early = sum(event.op == "send" and event.start < back for event in events)
            needed = min(len(self.own(rank)[0]), self.shape[1] - stage)
            if early < needed:
                told = f"{self.where} before the first micro-batch is back stage {stage} has sent on {early}"
                return Finding(False, f"{told}; expected at least {needed}.")
        return Finding(True, "All stages send micro-batches on before the first is back.")


@cache
def _whole(layers: int, heads: int, tied: bool) -> MeshTransformer:
    """The model of one rank: its numbers follow from their names, so it is always the same."""
    return MeshTransformer(drivers.config_of({**SIZES, "layers": layers, "heads": heads}, tied))


def _sent(run: Run, rank: int) -> dict[int, tuple[int, int]]:
    """Messages and bytes from a rank to each other one, those of a number left out."""
    found: dict[int, tuple[int, int]] = {}
    for event in run.communication(rank):
        if event.op == "send" and event.peer is not None and event.nbytes > A_NUMBER:
            messages, nbytes = found.get(event.peer, (0, 0))
            found[event.peer] = messages + 1, nbytes + event.sent
    return found
