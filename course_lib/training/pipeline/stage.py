"""One stage of a pipeline, with real modules: it does the actions that it is given, and their messages.

Every rank of the group is a stage, and has the chunks of the model that are its own. Sends run in the
background; so does a receive, while the stage computes what comes before it. Shapes: B samples of a
micro-batch; what follows is the model's own affair.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.runtime.communication.events import span
from course_lib.training.pipeline.actions import (
    COMPUTING,
    Action,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    ReceiveActivation,
    ReceiveGradient,
    Recompute,
    SendActivation,
    SendGradient,
    with_messages,
)
from course_lib.training.pipeline.crossing import empty_head, head_of, output_on_meta, tensor_of

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""loss(output, target): the mean over the samples of a micro-batch, a scalar."""

Where = tuple[int, int]
"""Micro-batch and chunk."""


@dataclass(slots=True)
class _Step:
    """What a step holds between its actions."""

    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    recomputed: set[Where]
    received: dict[Where, Tensor] = field(default_factory=dict)
    """Inputs of chunks, until their backward; those of the model's first piece are not kept here."""
    outputs: dict[Where, Tensor] = field(default_factory=dict)
    """Outputs of chunks, of the last piece losses, with all that autograd keeps for them."""
    gradients: dict[Where, Tensor] = field(default_factory=dict)
    """Of outputs, as received."""
    halves: dict[Where, Any] = field(default_factory=dict)
    """What the first half of a backward leaves to the second."""
    random: dict[Where, Tensor] = field(default_factory=dict)
    """The state of the generator before a forward that will be repeated."""
    losses: dict[int, Tensor] = field(default_factory=dict)
    arriving: dict[int, tuple[dist.Work, Tensor]] = field(default_factory=dict)
    """Tag -> a message to come, and the room for it."""
    sending: list[tuple[dist.Work, Tensor]] = field(default_factory=list)
    """Messages under way. The tensors must live until they have left."""


class Stage:
    """This rank's part of a pipeline."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        loss_function: LossFunction,
        group: dist.ProcessGroup | None = None,
        crossings: Mapping[int, Tensor] | None = None,
    ) -> None:
        """chunks: this rank's pieces of the model; chunk c of the rank at place s of p is piece c * p + s.

        A piece takes one tensor and returns one, each with the samples first. All ranks have as many.
        crossings: what crosses this stage's cuts, as tensors without data, if all ranks know it; cut k is
        before piece k. Else the stages tell each other in the first step.
        """
        self.chunks = list(chunks)
        self._loss_function = loss_function
        self._group = group
        self.stage, self.stages = dist.get_rank(group), dist.get_world_size(group)
        self._crossing: dict[int, Tensor] = dict(crossings or {})
        """What crosses each of this stage's cuts: a tensor without data, of any number of samples."""
        self._to_myself: dict[int, Tensor] = {}

    def step(
        self, actions: Iterable[Action], inputs: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> Tensor | None:
        """Do a stage's actions; gradients are added to `.grad`, as by backward() of the batch's mean loss.

        inputs, targets: the micro-batches, [B, ...] each, of any sizes, on every rank; only the model's first
        piece reads inputs and only its last reads targets, the others need their lengths. Returns the mean
        loss of the whole batch where the last piece is, else None.
        """
        actions = list(actions)
        if not self._crossing:
            self._look_at_cuts(inputs[0])
        recomputed = {_where(action) for action in actions if isinstance(action, Recompute)}
        step = _Step(inputs, targets, recomputed)
        todo = list(with_messages(actions, self.stage, self.stages, len(self.chunks)))
        for place, action in enumerate(todo):
            if isinstance(action, COMPUTING):
                self._open_next(step, todo, place)
            with span(repr(action)):
                _DO[type(action)](self, step, action)
        for work, _ in step.sending:
            work.wait()
        return sum(step.losses.values(), torch.zeros(())) if step.losses else None

    # --- Actions

    def _forward(self, step: _Step, action: Action) -> None:
        where = _where(action)
        if where in step.recomputed:
            step.random[where] = torch.get_rng_state()
        with torch.set_grad_enabled(where not in step.recomputed):
            step.outputs[where] = self._output(step, action)
        if self._piece(action.chunk) == self._pieces - 1:
            step.losses[action.micro_batch] = step.outputs[where].detach()
            if where in step.recomputed:
                del step.outputs[where]

    def _recompute(self, step: _Step, action: Action) -> None:
        with torch.random.fork_rng(devices=()):
            torch.set_rng_state(step.random.pop(_where(action)))
            step.outputs[_where(action)] = self._output(step, action)

    def _output(self, step: _Step, action: Action) -> Tensor:
        """The output of a chunk; of the last piece, the micro-batch's share in the batch's mean loss."""
        first = self._piece(action.chunk) == 0
        number = action.micro_batch
        given = step.inputs[number] if first else step.received[_where(action)]
        output: Tensor = self.chunks[action.chunk](given)
        if self._piece(action.chunk) < self._pieces - 1:
            return output
        share = len(step.inputs[number]) / sum(map(len, step.inputs))
        return self._loss_function(output, step.targets[number]) * share

    def _backward(self, step: _Step, action: Action) -> None:
        where = _where(action)
        _accumulate(step.outputs.pop(where), step.gradients.pop(where, None))

    def _backward_input(self, step: _Step, action: Action) -> None:
        # Here and below, since it takes a second to import, and only schedules with halves need it.
        from torch.distributed.pipelining._backward import stage_backward_input

        where = _where(action)
        output, gradient = step.outputs.pop(where), step.gradients.pop(where, None)
        if self._piece(action.chunk) == 0:
            # Nobody needs its input's gradient: all is left to the second half.
            step.halves[where] = (output, gradient)
            return
        weights = self.chunks[action.chunk].parameters()
        # It is detached in place there, which a view cannot be.
        output = output.clone() if output._is_view() else output
        gradients = None if gradient is None else [gradient]
        _, step.halves[where] = stage_backward_input([output], gradients, [step.received[where]], weights)

    def _backward_weight(self, step: _Step, action: Action) -> None:
        from torch.distributed.pipelining._backward import stage_backward_weight

        left = step.halves.pop(_where(action))
        if self._piece(action.chunk) == 0:
            _accumulate(*left)
        else:
            stage_backward_weight(self.chunks[action.chunk].parameters(), left)

    # --- Messages. Cut k lies before piece k.

    def _open_next(self, step: _Step, todo: Sequence[Action], place: int) -> None:
        """Have what the next computation needs received during this one: the sender finds the room ready."""
        for following in range(place + 1, len(todo)):
            action = todo[following]
            if isinstance(action, COMPUTING):
                return
            if isinstance(action, ReceiveActivation | ReceiveGradient):
                self._open(step, action)

    def _open(self, step: _Step, action: Action) -> None:
        cut, source, tag = self._way(action)
        if source != self.stage and tag not in step.arriving:
            room = self._empty(step, action.micro_batch, cut)
            work = dist.irecv(room, group_src=source, group=self._group, tag=tag)
            assert work is not None, "this rank belongs to the group"
            step.arriving[tag] = work, room

    def _receive(self, step: _Step, action: Action) -> Tensor:
        _, source, tag = self._way(action)
        if source == self.stage:
            return self._to_myself.pop(tag).clone()
        self._open(step, action)
        work, room = step.arriving.pop(tag)
        work.wait()
        return room

    def _way(self, action: Action) -> tuple[int, int, int]:
        """Of a message to this stage: the cut that it crosses, the stage that sends it, and its tag."""
        gradient = isinstance(action, ReceiveGradient)
        cut = self._piece(action.chunk) + gradient
        return cut, (cut - 1 + gradient) % self.stages, self._tag(action.micro_batch, cut) + gradient

    def _receive_activation(self, step: _Step, action: Action) -> None:
        step.received[_where(action)] = self._receive(step, action).requires_grad_()

    def _send_activation(self, step: _Step, action: Action) -> None:
        where, cut = _where(action), self._piece(action.chunk) + 1
        leaving = step.outputs[where].detach().contiguous()
        self._send(step, leaving, cut, self._tag(action.micro_batch, cut))
        if where in step.recomputed:
            del step.outputs[where]

    def _receive_gradient(self, step: _Step, action: Action) -> None:
        step.gradients[_where(action)] = self._receive(step, action)

    def _send_gradient(self, step: _Step, action: Action) -> None:
        cut = self._piece(action.chunk)
        gradient = step.received.pop(_where(action)).grad
        assert gradient is not None, "a backward has left it"
        self._send(step, gradient.contiguous(), cut - 1, self._tag(action.micro_batch, cut) + 1)

    def _tag(self, micro_batch: int, cut: int) -> int:
        """Of the activations; that of the gradients is the next number. A cut has its own, for where there
        are two stages, both neighbours of a stage are the same rank.
        """
        return 2 * (micro_batch * self._pieces + cut)

    def _send(self, step: _Step, tensor: Tensor, piece: int, tag: int) -> None:
        if piece % self.stages == self.stage:
            self._to_myself[tag] = tensor
            return
        work = dist.isend(tensor, group_dst=piece % self.stages, group=self._group, tag=tag)
        assert work is not None, "this rank belongs to the group"
        step.sending.append((work, tensor))

    # --- Pieces and cuts

    @property
    def _pieces(self) -> int:
        return self.stages * len(self.chunks)

    def _piece(self, chunk: int) -> int:
        return chunk * self.stages + self.stage

    def _empty(self, step: _Step, micro_batch: int, cut: int) -> Tensor:
        """Room for what crosses a cut."""
        given, crossing = step.inputs[micro_batch], self._crossing[cut]
        return torch.empty(len(given), *crossing.shape[1:], dtype=crossing.dtype, device=given.device)

    def _look_at_cuts(self, inputs: Tensor) -> None:
        """Find out what crosses this stage's cuts: each piece is tried on tensors without data, in order.

        A stage learns the shape before its piece from the stage that has the piece before.
        """
        step = _Step([], [], set())
        for chunk, module in enumerate(self.chunks):
            piece = self._piece(chunk)
            if piece == 0:
                given = torch.empty_like(inputs, device="meta")
            else:
                head = self._head_of(piece, inputs.device)
                given = self._crossing[piece] = tensor_of(head)
            if piece + 1 < self._pieces:
                crossing = self._crossing[piece + 1] = output_on_meta(module, given)
                self._send(step, head_of(crossing, inputs.device), piece + 1, self._tag(0, piece + 1))
        for work, _ in step.sending:
            work.wait()

    def _head_of(self, piece: int, device: torch.device) -> Tensor:
        source, tag = (piece - 1) % self.stages, self._tag(0, piece)
        if source == self.stage:
            return self._to_myself.pop(tag)
        head = empty_head(device)
        dist.recv(head, group_src=source, group=self._group, tag=tag)
        return head


def _where(action: Action) -> Where:
    return action.micro_batch, action.chunk


def _accumulate(output: Tensor, gradient: Tensor | None) -> None:
    """Backward through a chunk. Without a gradient its output is the loss, whose own gradient is 1."""
    if output.requires_grad:  # else all of it is frozen
        torch.autograd.backward(output, gradient)


_DO: dict[type[Action], Callable[[Stage, _Step, Action], None]] = {
    Forward: Stage._forward,
    Recompute: Stage._recompute,
    Backward: Stage._backward,
    BackwardInput: Stage._backward_input,
    BackwardWeight: Stage._backward_weight,
    ReceiveActivation: Stage._receive_activation,
    SendActivation: Stage._send_activation,
    ReceiveGradient: Stage._receive_gradient,
    SendGradient: Stage._send_gradient,
}
