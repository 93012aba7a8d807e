"""Unit 04, the same start: rank 0's model and optimizer for all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.models import state_of
from graders.units.unit_04.drivers import calls as drivers
from graders.units.unit_04.models import Normed
from graders.units.unit_04.replies import BroadcastReply


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "parameters and buffers",
            2,
            "All of rank 0's, frozen ones too, and every buffer. No step may be taken, not even one with "
            "gradients of zero.",
        ),
        Criterion(
            "options",
            1,
            "Each of param_groups has options: lr, momentum, and whatever else rank 0 has, but nothing more.",
        ),
        Criterion(
            "state",
            2,
            "Which tensors and numbers rank 0's optimizer keeps, other ranks cannot know: they have to be "
            "told, and what they had has to go.",
        ),
        Criterion(
            "a new optimizer",
            1,
            "A new optimizer has no state. Some libraries make one by a step with zero gradients: with "
            "weight decay that changes the weights.",
            needs=("state",),
        ),
        Criterion("in place", 1, "Copy into the tensors that are there: model and optimizer share them."),
    ),
    hints=(
        "What does a rank that has just been started know about the optimizer that rank 0 has loaded?",
        "Which calls of torch.distributed send something whose shape the receiver does not know?",
    ),
)
def broadcast_state(answer: Answer, rng: Rng) -> Findings:
    """A training that goes on, with ranks that have nothing or something stale; one that begins; and one in
    which some parameters have had no gradient yet.
    """
    goes_on = Case.drawn(rng, rng.integer(3, 4), [4, 0, 4, 4])
    begins = Case.drawn(rng, rng.integer(2, 3), [0, 4, 0, 0])
    partly = Case.drawn(rng, 2, [rng.integer(1, 3), 4])
    on, new = goes_on.launch(answer), begins.launch(answer)
    both = ((goes_on, on), (begins, new))
    yield "parameters and buffers", compare.first_failure(case.tensors_of(run) for case, run in both)
    yield "options", compare.first_failure(case.options_of(run) for case, run in both)
    yield "state", goes_on.state_of(on)
    part = partly.state_of(partly.launch(answer))
    yield "a new optimizer", compare.first_failure((begins.state_of(new), part))
    yield "in place", compare.first_failure(_in_place(run.results) for _, run in both)


@dataclass(frozen=True, slots=True)
class Case:
    """By rank: values of the shapes of `state_of(Normed())`, options of two groups, and states, one a trained
    parameter. Rank 0's groups have an option that others' have not, and these have another.

    A state is empty where there is none: in a new optimizer everywhere.
    """

    values: list[list[Tensor]]
    options: list[list[dict[str, float]]]
    states: list[list[dict[str, Any]]]

    @staticmethod
    def drawn(rng: Rng, ranks: int, used: Sequence[int]) -> "Case":
        """used: for each rank of how many parameters its optimizer has a state."""
        values = [[_like(rng, tensor) for tensor in state_of(Normed())] for _ in range(ranks)]
        options = [
            [_options(rng, ("lr", "momentum", "decay", "clipping" if rank else "damping")) for _ in range(2)]
            for rank in range(ranks)
        ]
        trained = [parameter for parameter in Normed().parameters() if parameter.requires_grad]
        states = [
            [
                {"momentum": _like(rng, each), "steps": rng.integer(2, 99)} if number < kept else {}
                for number, each in enumerate(trained)
            ]
            for kept in used[:ranks]
        ]
        return Case(values, options, states)

    def launch(self, answer: Answer) -> Observed[BroadcastReply]:
        given = per_rank(self.values), per_rank(self.options), per_rank(self.states)
        return answer.launch(drivers.broadcast, *given, ranks=len(self.values))

    def tensors_of(self, run: Observed[BroadcastReply]) -> Finding:
        """Passes if every rank has rank 0's parameters and buffers, bit by bit."""
        return compare.first_failure(
            (
                compare.close(seen, wanted, f"the model's {name} on rank {rank}", 0, 0)
                for rank, reply in enumerate(run.results)
                for name, (seen, wanted) in zip(
                    _names(), compare.side_by_side(reply.tensors, self.values[0]), strict=True
                )
            ),
            "All ranks have rank 0's parameters and buffers, bit by bit.",
        )

    def options_of(self, run: Observed[BroadcastReply]) -> Finding:
        """Passes if every rank's optimizer has rank 0's options."""
        return compare.first_failure(
            (
                compare.equal(seen, wanted, f"{what} on rank {rank}")
                for rank, reply in enumerate(run.results)
                for seen, wanted, what in self._options(reply.options)
            ),
            "All optimizers have rank 0's options.",
        )

    def _options(self, seen: list[dict[str, Any]]) -> Iterator[tuple[Any, Any, str]]:
        """Seen and wanted, group by group, so that the difference is not cut off."""
        yield len(seen), len(self.options[0]), "the number of groups"
        for group, pair in enumerate(zip(seen, self.options[0], strict=False)):
            yield *pair, f"the options of group {group}"

    def state_of(self, run: Observed[BroadcastReply]) -> Finding:
        """Passes if every rank's optimizer has rank 0's state, or like it none."""
        return compare.first_failure(
            self._state(rank, reply.states) for rank, reply in enumerate(run.results)
        )

    def _state(self, rank: int, seen: list[dict[str, Any]]) -> Finding:
        return compare.first_failure(
            (
                compare.equal(got, expected, f"the state of trained parameter {number} on rank {rank}")
                for number, (got, expected) in enumerate(compare.side_by_side(seen, self.states[0]))
            ),
            "All optimizers have rank 0's state." if any(self.states[0]) else "No optimizer has a state.",
        )


def _names() -> list[str]:
    """Of what `state_of` gives for a `Normed`, in that order."""
    model = Normed()
    return [
        *(f"parameter {name}" for name, _ in model.named_parameters()),
        *(f"buffer {name}" for name, _ in model.named_buffers()),
    ]


def _options(rng: Rng, names: Sequence[str]) -> dict[str, float]:
    return {name: rng.integer(1, 999) / 1000 for name in names}


def _like(rng: Rng, tensor: Tensor) -> Tensor:
    """Numbers of which a smaller dtype loses some."""
    if tensor.is_floating_point():
        return rng.normal(*tensor.shape, dtype=tensor.dtype).abs()
    return torch.as_tensor(2 * rng.integer(2**54, 2**55) + 1, dtype=tensor.dtype)


def _in_place(replies: Sequence[BroadcastReply]) -> Finding:
    """Passes if models and optimizers have the tensors that they had, as they were, and no rank took a
    step.
    """
    for rank, reply in enumerate(replies):
        if not reply.in_place:
            return Finding(False, f"On rank {rank} other tensors have taken the place of the model's own.")
        if not reply.shared:
            return Finding(False, f"On rank {rank} the optimizer no longer has the model's parameters.")
        if not reply.trainable:
            return Finding(False, f"On rank {rank} requires_grad of some parameter has changed.")
        if not reply.untouched:
            text = "gradients, the model's mode or the state of random numbers have changed"
            return Finding(False, f"On rank {rank} {text}.")
        if reply.steps:
            return Finding(False, f"Rank {rank} took {compare.counted(reply.steps, 'step')}; expected none.")
    return Finding(True, "Models and optimizers have the tensors that they had, and no step was taken.")
