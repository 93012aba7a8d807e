"""Backward passes of unit 09, whose gradients are cut over ranks while they are computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster, Link
from graders.grading.communication import steps_of
from graders.grading.kit import Answer, Finding, Observed, PlainData, Rng, compare, per_rank
from graders.units.unit_09.drivers import old as drivers
from graders.units.unit_09.held import at_most_held, held_at, length_of, most_held, part_of
from graders.units.unit_09.models import Ladder, over, reaches
from graders.units.unit_09.replies import GradientsReply

SLOW = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts what a rank computes by far."""


@dataclass(frozen=True)
class Passes:
    """Backward passes of a `Ladder`. values: of its parameters. inputs[r]: rank r's, a [B, width] a pass.

    orders[r]: the layers that rank r uses in each pass.
    """

    values: list[Tensor]
    count: int
    inputs: list[list[Tensor]]
    orders: list[list[list[int]]]
    bucket_bytes: int
    tied: bool = False
    frozen: tuple[int, ...] = ()

    @classmethod
    def deep(cls, rng: Rng) -> "Passes":
        """Five layers in as many buckets on two ranks, a sample a pass: weights outweigh activations."""
        width, count = 40, 5
        inputs = [[rng.normal(1, width) for _ in range(2)] for _ in range(2)]
        orders = [[list(range(count))] * 2] * 2
        return cls(layers(rng, width, count), count, inputs, orders, 4 * (width * width + width))

    @classmethod
    def crossed(cls, rng: Rng) -> "Passes":
        """Three layers in as many buckets, of which the last is complete before the one before it."""
        inputs = [[rng.normal(1, 3)] for _ in range(2)]
        return cls(layers(rng, 3, 3), 3, inputs, [[[1, 0, 2]]] * 2, 4 * (3 * 3 + 3))

    @classmethod
    def small(cls, rng: Rng) -> "Passes":
        """Each parameter in a bucket of its own; the biases have fewer numbers than there are ranks."""
        inputs = [[rng.normal(2, 3) for _ in range(2)] for _ in range(4)]
        return cls(layers(rng, 3, 2), 2, inputs, [[[0, 1]] * 2] * 4, 1)

    @classmethod
    def alone(cls, rng: Rng) -> "Passes":
        """One rank, and one bucket."""
        return cls(layers(rng, 3, 2), 2, [[rng.normal(2, 3) for _ in range(2)]], [[[0, 1]] * 2], 10**6)

    @classmethod
    def uneven(cls, rng: Rng) -> list["Passes"]:
        """In double precision: on each rank other layers, in another order; one is tied, one frozen.

        In several buckets, and all in one.
        """
        values = layers(rng, 5, 4, torch.float64)
        del values[6]  # the last layer's weight, which is the first one's
        inputs = [[rng.normal(2, 5, dtype=torch.float64) for _ in range(3)] for _ in range(3)]
        orders = [
            [[0, 1, 2], [3, 2, 0], [1, 0]],
            [[2, 1, 0, 3], [0], [2, 1]],
            [[3], [1, 2], [3, 0]],
        ]
        limits = 8 * rng.choice([30, 36]), 10**6
        return [cls(values, 4, inputs, orders, limit, tied=True, frozen=(1,)) for limit in limits]

    def launch(self, answer: Answer, memory: bool = False) -> Observed[GradientsReply]:
        ranks = len(self.inputs)
        passes = [list(zip(*own, strict=True)) for own in zip(self.inputs, self.orders, strict=True)]
        return answer.launch(
            drivers.gradient_shards,
            self.values,
            (self.count, self.tied, list(self.frozen)),
            per_rank(passes),
            self.bucket_bytes,
            ranks=ranks,
            cluster=Cluster(devices_per_node=ranks, intra_node=SLOW),
            memory=memory,
        )

    @cached_property
    def trainable(self) -> list[int]:
        """The numbers of the trainable parameters."""
        return [number for number, each in enumerate(self._model().parameters()) if each.requires_grad]

    def _model(self) -> Ladder:
        return Ladder(self.values, self.count, self.tied, self.frozen)

    @cached_property
    def _means(self) -> list[dict[int, Tensor]]:
        """The mean of the gradients over ranks in each pass, by the parameter's number."""
        means = []
        for number in range(len(self.inputs[0])):
            of_ranks = []
            for own, orders in zip(self.inputs, self.orders, strict=True):
                model = self._model()
                model(own[number], orders[number]).square().sum().backward()
                of_ranks.append(
                    [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
                )
            stacked = [torch.stack(each).mean(0) for each in zip(*of_ranks, strict=True)]
            means.append({each: stacked[each] for each in self.trainable})
        return means

    def mean(self, run: Observed[GradientsReply], number: int) -> Finding:
        """Passes if all ranks have their parts of the mean, in the answer's own buckets, and no .grad."""
        ranks = len(self.inputs)
        for rank, reply in enumerate(run.results):
            where = f"rank {rank} of {ranks}, pass {number}"
            buckets, shards = (
                reply.buckets,
                [each for each, _ in compare.side_by_side(reply.shards, self._means)],
            )
            if not once_each(buckets, self.trainable):
                said = (
                    f"buckets are {compare.shown(buckets)}; expected lists with each of {self.trainable} once"
                )
                return Finding(False, f"{where}: {said}.")
            if type(shards[number]) not in (list, tuple) or len(shards[number]) != len(buckets):
                said = f"finish() returned {compare.shown(shards[number])}"
                return Finding(False, f"{where}: {said}; expected a list of {len(buckets)} tensors.")
            for place, (bucket, shard) in enumerate(zip(buckets, shards[number], strict=True)):
                expected = part_of([self._means[number][each] for each in bucket], ranks, rank)
                found = compare.close(shard, expected, f"{where}: the part of bucket {place}", 1e-4, 1e-5)
                if not found.passed:
                    return found
            left = [each for each, _ in compare.side_by_side(reply.left, self._means)][number]
            if left:
                return Finding(False, f"{where}: {left} parameters still have a .grad after finish().")
        return Finding(True, "Every rank has its part of the mean of each bucket, and no other gradients.")

    def calls(self, run: Observed[GradientsReply]) -> Finding:
        """Passes if each pass has one reduce-scatter a bucket, and sends no more than these."""
        ranks = len(self.inputs)
        for step in steps_of(run, "finished"):
            buckets = run.results[step.rank].buckets
            if not once_each(buckets, self.trainable):
                return Finding(False, f"{step}: its buckets are {compare.shown(buckets)}.")
            numels = [sum(self.values[each].numel() for each in bucket) for bucket in buckets]
            parts = sum(length_of(numel, ranks) for numel in numels)
            limit = (ranks - 1) * parts * self.values[0].element_size()
            sent = sum(call.sent for call in step.calls)
            names = [call.op for call in step.calls]
            right = all(name.startswith("reduce_scatter") for name in names) and len(names) == len(buckets)
            if not right or sent > limit:
                said = f"{step} of {compare.counted(ranks, 'rank')} calls {', '.join(names) or 'nothing'}"
                wanted = f"expected {compare.counted(len(buckets), 'reduce-scatter')}, {limit:,} bytes"
                return Finding(False, f"{said}, and sends {sent:,} bytes; {wanted}.")
        return Finding(True, "Every pass makes one reduce-scatter a bucket.")

    def sent_in_backward(self, run: Observed[GradientsReply]) -> Finding:
        """Passes if each bucket, a layer's, is sent before backward goes on, which does not wait for it."""
        for step in steps_of(run, "finished"):
            # Bucket 0 is the last layer; then comes the one before.
            following = [step.marks.get(label) for label in self._marks_after(step.number)]
            for number, (call, mark) in enumerate(zip(step.calls, following, strict=True)):
                if mark is None or call.sequence > mark.sequence:
                    said = f"bucket {number} was complete, and those before it, and was not sent"
                    return Finding(False, f"{step}: {said} before backward went on.")
                last_one = mark not in following[number + 1 :]
                if last_one and call.end <= mark.start:
                    said = f"{call.end - call.start:.1f} s for bucket {number} to arrive"
                    return Finding(False, f"{step}: backward waits {said}, before it goes on.")
        return Finding(True, "Each bucket is sent as soon as it is complete, while backward goes on.")

    def _marks_after(self, number: int) -> list[str]:
        """Of each bucket the mark that backward makes next once it, and all before it, are complete."""
        backward = self.orders[0][number][::-1]
        marks = [*map(reaches, backward[1:]), "backward ends"]
        complete = accumulate(map(backward.index, reversed(range(self.count))), max)
        return [marks[place] for place in complete]

    def cleared(self, run: Observed[GradientsReply]) -> Finding:
        """Passes if, whenever backward reaches a layer, what was sent has no gradients any more."""
        most = max((number for reply in run.results for number in reply.there), default=0)
        said = "Parameters whose bucket was sent, and which have a .grad when backward reaches the next layer"
        return compare.at_most(most, 0, said)

    def one_under_way(self, run: Observed[GradientsReply]) -> Finding:
        """Passes if no bucket is sent before the one before has arrived."""
        for step in steps_of(run, "finished"):
            for number, (before, call) in enumerate(pairwise(step.calls), 1):
                if call.start < before.end - 1e-9:
                    said = f"bucket {number} is sent at {call.start:.2f} s, and the one before arrives"
                    return Finding(False, f"{step}: {said} at {before.end:.2f} s: two are under way.")
        return Finding(True, "No two buckets are under way at once.")

    def held(self, run: Observed[GradientsReply]) -> Finding:
        """Passes if a rank never holds more than parts, three buckets, and what forward has left: gradients,
        what they are laid end to end in, and once more padded or divided. And after each pass only parts.
        """
        ranks = range(len(self.inputs))
        parts = self.count * length_of(self.bucket_bytes // 4, len(ranks)) * 4
        before = [held_at(run, rank, "step begins") for rank in ranks]
        seen = [most_held(run, rank, "step begins", "finished") for rank in ranks]
        findings = [
            at_most_held(seen, [own + parts + 13 * self.bucket_bytes // 4 for own in before], "In a pass")
        ]
        for number in range(len(self.inputs[0])):
            # The driver has copies of the parts of earlier passes.
            allowed = [own + (number + 1) * parts + 1024 for own in before]
            seen = [held_at(run, rank, over(number)) for rank in ranks]
            findings.append(at_most_held(seen, allowed, f"After pass {number}"))
        return compare.first_failure(findings)


def layers(rng: Rng, width: int, count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Weight and bias of each of so many layers."""
    shapes = [(width, width), (width,)] * count
    return [rng.normal(*shape, dtype=dtype) / width**0.5 for shape in shapes]


def once_each(buckets: PlainData, numbers: Sequence[int]) -> bool:
    """Whether these are lists that together have each of the numbers once."""
    if type(buckets) is not list or not all(type(bucket) is list for bucket in buckets):
        return False
    found = [number for bucket in buckets for number in bucket]
    return all(type(number) is int for number in found) and sorted(found) == sorted(numbers)
