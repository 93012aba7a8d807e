"""A plan is carried out: each rank does its part of a training step, on any engine."""

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial

from course_lib.cluster.topology import Cluster
from course_lib.launch import launch
from course_lib.launch.run import Run
from course_lib.planner.costs import Model
from course_lib.planner.graph import Graph
from course_lib.planner.moving import GroupAxis
from course_lib.planner.plan import ParallelPlan, check
from course_lib.planner.shards import ShardedPieces
from course_lib.runtime.communication.events import Kind, span
from course_lib.training.pipeline.actions import Action
from course_lib.training.pipeline.actions import Plan as PlanOfActions
from course_lib.training.pipeline.stage import LossFunction, Stage

STEP = "step"
"""The span in which a step runs."""


def parameters_of(pieces: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The parameters of a model's pieces, by the names that their graph has for them."""
    return {
        f"{number}.{name}": parameter
        for number, piece in enumerate(pieces)
        for name, parameter in piece.named_parameters(remove_duplicate=False)
    }


class PlannedRank:
    """This rank's part of a plan. Made by all ranks of the default group, as many as the plan has."""

    def __init__(
        self, graph: Graph, plan: ParallelPlan, parameters: Mapping[str, Tensor], loss_function: LossFunction
    ) -> None:
        """parameters: of the whole model, each of this rank's is copied. loss_function: see Stage.

        Raises BadPlan.
        """
        check(plan, graph)
        self._plan = plan
        self.stage, self._data_place, _ = plan.place(dist.get_rank())
        device = next(iter(parameters.values())).device
        kind = "cpu" if device.type == "meta" else device.type
        mesh = init_device_mesh(kind, plan.shape, mesh_dim_names=("stages", "data", "tensor"))
        pipeline, self._data_group, self._tensor_group = mesh.get_all_groups()
        own = plan.pieces(self.stage, len(graph.outputs))
        operators = [each for each in graph.operators if each.piece in own]
        constants = {name: constant.to(device) for name, constant in graph.constants.items()}
        axis = GroupAxis(self._tensor_group)
        self.pieces = ShardedPieces(operators, plan.split, axis, parameters, constants)
        self._gradients, self._summed = _one_buffer(self.pieces)
        crossings = {
            cut: torch.empty(graph[graph.outputs[first - 1]].result, device="meta")
            for cut, first in enumerate(plan.cuts)
            if cut in (self.stage, self.stage + 1) and cut
        }
        self._pipeline = Stage([self.pieces], loss_function, pipeline, crossings)

    def step(
        self, actions: Iterable[Action], inputs: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> Tensor | None:
        """Forward and backward of a batch; gradients are the mean over all samples.

        actions: of this rank's stage. inputs, targets: whole micro-batches [B, ...], of which this rank takes
        its part. Returns the loss of this rank's samples on ranks of the last stage, else None.
        """
        data, place = self._plan.data, self._data_place
        inputs = [each.chunk(data)[place] for each in inputs]
        targets = [each.chunk(data)[place] for each in targets]
        dist.barrier()
        with span(STEP):
            self._gradients.zero_()
            loss = self._pipeline.step(actions, inputs, targets)
            self._add_up()
        return loss

    def _add_up(self) -> None:
        """Gradients of which each rank has a part of the sum, and those of the replicas' samples."""
        if self._plan.tensor > 1 and self._summed:
            dist.all_reduce(self._gradients[: self._summed], group=self._tensor_group)
        if self._plan.data > 1:
            dist.all_reduce(self._gradients, group=self._data_group)
            self._gradients.div_(self._plan.data)


def execute(model: Model, cluster: Cluster, plan: ParallelPlan, schedule: PlanOfActions) -> Run:
    """A step of a plan on the ranks of a simulated cluster, with shapes and no data. Raises BadPlan.

    model: on the device "meta". `seconds_of_step` says how long the step itself took.
    """
    graph = model.graph(model.part(plan.data, plan.micro_batches))
    check(plan, graph)
    arguments = graph, plan, parameters_of(model.pieces), model.loss_function, schedule
    return launch(_step, *arguments, model.inputs, model.targets, ranks=plan.ranks, cluster=cluster)


def seconds_of_step(run: Run) -> float:
    """From the begin of the first rank's step to the end of the last one's."""
    spans = [event for event in run.events if event.kind is Kind.SPAN and event.op == STEP]
    return max(event.end for event in spans) - min(event.start for event in spans)


def _step(
    graph: Graph,
    plan: ParallelPlan,
    parameters: Mapping[str, Tensor],
    loss_function: LossFunction,
    schedule: PlanOfActions,
    inputs: Tensor,
    targets: Tensor,
) -> None:
    rank = PlannedRank(graph, plan, parameters, loss_function)
    actions = schedule(rank.stage, len(plan.cuts), plan.micro_batches)
    rank.step(actions, inputs.chunk(plan.micro_batches), targets.chunk(plan.micro_batches))


def _one_buffer(pieces: ShardedPieces) -> tuple[Tensor, int]:
    """All gradients in one tensor, those first that are sums to be added up: how many numbers these are."""
    parts = dict(pieces.named_parts())
    in_order = sorted(parts, key=lambda name: pieces.layouts[name].gradient != Partial())
    some = next(iter(parts.values()), torch.empty(0))
    buffer = torch.zeros(sum(each.numel() for each in parts.values()), device=some.device)
    begin = summed = 0
    for name in in_order:
        end = begin + parts[name].numel()
        parts[name].grad = buffer[begin:end].view_as(parts[name])
        if pieces.layouts[name].gradient == Partial():
            summed = end
        begin = end
    return buffer, summed
