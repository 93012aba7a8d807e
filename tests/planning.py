"""Another way to the open task of unit 13, from which its mistakes differ in one thing each.

A dozen answers search for plans of the same models on the same clusters: what one has counted and predicted
of them, the others need not.
"""

import copy
import itertools
import math
from collections.abc import Iterator

from course_lib import Cluster
from course_lib.planner import (
    Graph,
    Model,
    ParallelPlan,
    Planner,
    Prediction,
    dimensions,
    split_along,
    torchs_1f1b,
)


def shapes_of(ranks: int) -> list[tuple[int, int, int]]:
    """All meshes (stages, data, tensor) of so many ranks."""
    numbers = [each for each in range(1, ranks + 1) if ranks % each == 0]
    return [shape for shape in itertools.product(numbers, repeat=3) if math.prod(shape) == ranks]


def inner_first(graph: Graph) -> list[list[str]]:
    """Nothing shared; what begins and ends within a piece; that, and then the samples."""
    inner = []
    for name, where in dimensions(graph).items():
        pieces = {}
        for operator, _ in where:
            pieces.setdefault(graph[operator].piece, []).append(operator)
        if len(where) > 1 and all(graph.outputs[piece] not in own for piece, own in pieces.items()):
            inner.append(name)
    return [[], inner, [*inner, next(iter(dimensions(graph)))]]


class Remembering(Planner):
    """A planner that predicts each plan once."""

    def __init__(self, model: Model, cluster: Cluster) -> None:
        super().__init__(model, cluster, torchs_1f1b)
        self._predictions: dict[object, Prediction] = {}

    def predict(self, plan: ParallelPlan) -> Prediction:
        key = plan.cuts, plan.shape, plan.micro_batches, *sorted(plan.split.items())
        if key not in self._predictions:
            self._predictions[key] = super().predict(plan)
        return self._predictions[key]


_planners: dict[object, Remembering] = {}


def planner_of(model: Model, cluster: Cluster) -> Remembering:
    """The planner of all models like this one, whatever has become of those before it."""
    parameters = [
        (name, each.shape, each.dtype) for piece in model.pieces for name, each in piece.named_parameters()
    ]
    given = [(each.shape, each.dtype) for each in (model.inputs, model.targets)]
    key = *map(repr, model.pieces), *parameters, *given, model.loss_function, cluster
    if key not in _planners:
        _planners[key] = Remembering(copy.deepcopy(model), cluster)
    return _planners[key]


class Search:
    """All shapes, micro-batches and cuts by an estimate, and the most likely of them by prediction.

    shapes: what there is to choose from. micro_batches: at most so many times the stages. within: whether
    the memory counts.
    """

    def __init__(self, shapes=shapes_of, micro_batches=8, within=True):
        self.shapes, self.micro_batches, self.within = shapes, micro_batches, within

    def __call__(self, model: Model, cluster: Cluster, memory: float) -> ParallelPlan:
        planner = planner_of(model, cluster)
        rated = [each for _, each in sorted(self._rated(planner), key=lambda each: each[0])]

        def seconds(plan: ParallelPlan) -> float:
            step = planner.predict(plan)
            return step.seconds if not self.within or max(step.memory) <= memory else math.inf

        fitting = (each for each in rated if self._fits(planner, each, memory))
        return min(itertools.islice(fitting, 24), key=seconds)

    def _fits(self, planner: Planner, plan: ParallelPlan, memory: float) -> bool:
        return not self.within or max(planner.predict(plan).memory) <= memory

    def _rated(self, planner: Planner) -> Iterator[tuple[float, ParallelPlan]]:
        model, pieces = planner.model, len(planner.model.pieces)
        for shape in self.shapes(planner.cluster.size):
            for count in range(1, self.micro_batches * shape[0] + 1):
                if shape[0] > pieces or model.samples % (shape[1] * count):
                    continue
                graph = model.graph(model.part(shape[1], count))
                for order in inner_first(graph) if shape[2] > 1 else [[]]:
                    split = split_along(graph, order, shape[2])
                    yield from self._cut(planner, graph, shape, count, split)

    def _cut(self, planner, graph, shape, count, split) -> Iterator[tuple[float, ParallelPlan]]:
        pieces = len(graph.outputs)
        counted = [planner.count(graph, range(each, each + 1), split, shape[2]) for each in range(pieces)]
        taken = [sum(planner.parts(each, shape).seconds) for each in counted]
        adding = planner.network(shape)
        plans = []
        for inner in itertools.combinations(range(1, pieces), shape[0] - 1):
            parts = list(itertools.pairwise((0, *inner, pieces)))
            slowest = max(sum(taken[first:end]) for first, end in parts)
            parameters = max(sum(each.parameters for each in counted[first:end]) for first, end in parts)
            summed = max(sum(each.summed for each in counted[first:end]) for first, end in parts)
            after = adding.call("all_reduce", parameters, 1) if shape[1] > 1 else 0.0
            after += adding.call("all_reduce", summed, 2) if shape[2] > 1 and summed else 0.0
            plan = ParallelPlan((0, *inner), shape[1], shape[2], count, split)
            plans.append((sum(taken) + (count - 1) * slowest + after, plan))
        yield from sorted(plans, key=lambda each: each[0])[:6]
