"""What plans of a model cost on a cluster.

Computing and collectives are counted (`course_lib.planner.counting`), and timed by the simulator's own rules,
so that what is left to err is how they meet on the ranks' clocks. The schedule comes in as an argument.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from course_lib.cluster.topology import Cluster
from course_lib.planner.counting import Counted, Work, count, move_calls, operator_seconds
from course_lib.planner.graph import Graph, Operator, trace
from course_lib.planner.moving import Layout
from course_lib.planner.network import Network
from course_lib.planner.plan import BadPlan, ParallelPlan, check
from course_lib.planner.rehearsal import Crossing, Part, Rehearsal, StageParts
from course_lib.planner.shards import Split
from course_lib.training.pipeline import costs as pipeline
from course_lib.training.pipeline.actions import Plan as PlanOfActions
from course_lib.training.pipeline.actions import schedule_of
from course_lib.training.pipeline.stage import LossFunction

STATES = 4
"""Numbers that a parameter has in memory: itself, its gradient, and two of Adam's."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model to be planned.

    pieces: applied one after another, each takes one tensor and returns one, samples first; on the device
    "meta" they have no data. inputs, targets: of a batch, [samples, ...], without data. loss_function(output,
    targets): the mean over samples.
    """

    pieces: Sequence[nn.Module]
    inputs: Tensor
    targets: Tensor
    loss_function: LossFunction
    _graphs: dict[int, Graph] = field(default_factory=dict, repr=False, compare=False)

    @property
    def samples(self) -> int:
        """Of a batch."""
        return len(self.inputs)

    def graph(self, samples: int) -> Graph:
        """The graph for so many samples at once."""
        if samples not in self._graphs:
            self._graphs[samples] = trace(self.pieces, self.inputs[:samples])
        return self._graphs[samples]

    def part(self, data: int, micro_batches: int) -> int:
        """Samples that a replica computes at once. Raises BadPlan if they cannot all have as many."""
        if min(data, micro_batches) < 1 or self.samples % (data * micro_batches):
            raise BadPlan(
                f"{self.samples} samples cannot be shared evenly by {data} replicas in {micro_batches} "
                f"micro-batches."
            )
        return self.samples // (data * micro_batches)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step of a plan takes.

    seconds: of the step. stages: of one micro-batch, forward and backward of each stage. idle: the share of
    all ranks' time until the last backward in which they wait for others. memory: bytes of a rank, of each
    stage. calls: for each stage what one rank calls in a step: (axis, operation, bytes given) -> how often,
    where the axis is "tensor" or "data". messages: bytes that one rank sends to other stages in a step.
    """

    seconds: float
    stages: tuple[tuple[float, float], ...]
    idle: float
    memory: tuple[int, ...]
    calls: tuple[Counter[tuple[str, str, int]], ...]
    messages: tuple[int, ...]


class Planner:
    """What plans of one model cost on one cluster; what has been counted once is not counted again."""

    def __init__(self, model: Model, cluster: Cluster, schedule: PlanOfActions) -> None:
        """schedule(stage, stages, micro_batches): what a stage does, in order."""
        self.model, self.cluster, self._schedule = model, cluster, schedule
        self._counted: dict[object, Counted] = {}
        self._numbered: dict[Graph, dict[str, int]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._seconds: dict[object, float] = {}
        self._networks: dict[tuple[int, int, int], Network] = {}

    def count(self, graph: Graph, pieces: range, split: Split, ranks: int) -> Counted:
        """What a rank does for a micro-batch in these pieces, if `ranks` share each operator as split says.

        The last piece of the model brings its loss along.
        """
        operators = [each for piece in pieces for each in graph.of_piece(piece)]
        last = pieces[-1] == len(graph.outputs) - 1
        kinds = self._kinds(graph)
        alike = ((each.piece - pieces[0], kinds[each.name], split.get(each.name)) for each in operators)
        key = ranks, last, *alike
        if key not in self._counted:
            targets = self.model.targets[: len(graph.example)]
            loss = (self.model.loss_function, targets) if last else ()
            self._counted[key] = count(operators, graph, split, ranks, self.cluster, *loss)
        return self._counted[key]

    def _kinds(self, graph: Graph) -> dict[str, int]:
        """Operator -> a number that it shares with all that cost the same."""
        if graph not in self._numbered:
            self._numbered[graph] = {
                each.name: self._numbers.setdefault(_signature(each), len(self._numbers))
                for each in graph.operators
            }
        return self._numbered[graph]

    def network(self, shape: tuple[int, int, int]) -> Network:
        """What is sent on a mesh (stages, data, tensor)."""
        return self._networks.setdefault(shape, Network(self.cluster, shape))

    def operator(self, graph: Graph, name: str, letter: str | None, ranks: int) -> float:
        """Seconds of an operator, forward and backward, of which `ranks` share this letter, or none."""
        operator = graph[name]
        key = ranks, letter, operator.einsum.spec, operator.shapes, operator.kind
        if key not in self._seconds:
            self._seconds[key] = operator_seconds(operator, letter, ranks, graph, self.cluster)
        return self._seconds[key]

    def move(
        self, tensor: Sequence[int], source: Layout, target: Layout, shape: tuple[int, int, int]
    ) -> float:
        """Seconds until a tensor of this whole shape has another layout along the last axis of the mesh, and
        until its gradient has come back. `made` and `wanted` tell the layouts.
        """
        key = tuple(tensor), source, target, shape
        if key not in self._seconds:
            copying, calls = move_calls(tensor, source, target, shape[2], self.cluster)
            self._seconds[key] = copying + sum(self.network(shape).call(*call, 2) for call in calls)
        return self._seconds[key]

    def predict(self, plan: ParallelPlan) -> Prediction:
        """What a step of the plan takes. Raises BadPlan."""
        graph = self.model.graph(self.model.part(plan.data, plan.micro_batches))
        check(plan, graph)
        stages, total = range(len(plan.cuts)), len(graph.outputs)
        counted = [self.count(graph, plan.pieces(stage, total), plan.split, plan.tensor) for stage in stages]
        parts = [self.parts(counted[stage], plan.shape, stage) for stage in stages]
        crossing = [graph[graph.outputs[first - 1]].nbytes for first in plan.cuts[1:]]
        schedule = schedule_of(self._schedule, len(stages), plan.micro_batches)
        ends = Rehearsal(schedule, parts, self._crossings(plan, crossing)).ends
        busy = plan.micro_batches * sum(sum(each.seconds) for each in parts)
        costs = pipeline.Costs(activations=[float(each.kept) for each in counted])
        peaks = pipeline.cost(schedule, plan.micro_batches, costs).peaks
        return Prediction(
            seconds=max(ends[stage] + self._adding(plan, stage, counted[stage]) for stage in stages),
            stages=tuple(each.seconds for each in parts),
            idle=1 - busy / (len(stages) * max(ends)) if max(ends) else 0.0,
            memory=tuple(
                STATES * each.parameters + round(peak) for each, peak in zip(counted, peaks, strict=True)
            ),
            calls=tuple(_calls(plan, each) for each in counted),
            messages=tuple(
                plan.micro_batches * (before + behind)
                for before, behind in zip([0, *crossing], [*crossing, 0], strict=True)
            ),
        )

    def parts(self, counted: Counted, shape: tuple[int, int, int], stage: int | None = None) -> StageParts:
        """What was counted, with the seconds of its collectives on this mesh, in a stage or the slowest."""
        network = self.network(shape)

        def parts_of(work: Work) -> tuple[Part, ...]:
            called = [
                Part(before, network.call(name, nbytes, 2, stage)) for name, nbytes, before in work.calls
            ]
            return (*called, Part(work.computing - sum(each.computing for each in called), 0.0))

        return StageParts(parts_of(counted.forward), parts_of(counted.backward))

    def _crossings(self, plan: ParallelPlan, crossing: Sequence[int]) -> list[Crossing]:
        """The messages of the cuts that so many bytes cross."""
        network = self.network(plan.shape)
        both = [
            (network.message(0, cut), network.message(nbytes, cut)) for cut, nbytes in enumerate(crossing, 1)
        ]
        return [Crossing(latency, whole - latency) for latency, whole in both]

    def _adding(self, plan: ParallelPlan, stage: int, counted: Counted) -> float:
        """Seconds until a stage's gradients are the mean over all samples."""
        network, seconds = self.network(plan.shape), 0.0
        if plan.tensor > 1 and counted.summed:
            seconds += network.call("all_reduce", counted.summed, 2, stage)
        if plan.data > 1 and counted.parameters:
            seconds += network.call("all_reduce", counted.parameters, 1, stage)
            seconds += 2 * counted.parameters / (self.cluster.memory_bandwidth or float("inf"))
        return seconds


def _calls(plan: ParallelPlan, counted: Counted) -> Counter[tuple[str, str, int]]:
    """What a rank calls in a step."""
    calls: Counter[tuple[str, str, int]] = Counter()
    for operation, nbytes, _ in counted.forward.calls + counted.backward.calls:
        calls["tensor", operation, nbytes] += plan.micro_batches
    if plan.tensor > 1 and counted.summed:
        calls["tensor", "all_reduce", counted.summed] += 1
    if plan.data > 1 and counted.parameters:
        calls["data", "all_reduce", counted.parameters] += 1
    return calls


def _signature(operator: Operator) -> tuple[object, ...]:
    """What tells an operator from others that cost something else."""
    names = [_relative(name, operator.piece) for name in (operator.name, *operator.operands)]
    sizes = tuple(sorted(operator.einsum.sizes.items()))
    return operator.einsum.spec, sizes, operator.shapes, *names


def _relative(name: str, piece: int) -> str:
    """The name without the piece; all that comes from the piece before is one tensor."""
    number, _, rest = name.partition(".")
    if not rest:
        return name
    return rest if int(number) == piece else "before"
