"""Backward passes whose gradients are cut over ranks while they are computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from graders.grading.communication import in_words, steps_of
from graders.grading.judging import feature
from graders.grading.kit import Finding, Kind, Observed, PlainData, Rng, compare
from graders.units.in_one_launch import Trial
from graders.units.one_by_one import Looks
from graders.units.unit_09.held import at_most_held, held_at, length_of, most_held, part_of
from graders.units.unit_09.models import Ladder, over, reaches
from graders.units.unit_09.replies import GradientsReply

Run = Observed[GradientsReply]
UNUSED, CROSSED = "each rank uses other layers, in another order", "layer 1 comes before layer 0"
FROZEN, TIED, GAPS, DOUBLE = "a frozen layer", "a tied weight", "a transposed weight", "float64"
LAYER, LESS, BIASES, ALL, MORE = "a layer", "a layer less a byte", "two biases", "all", "a layer and a bias"
_ORDERS = {
    "": ((0, 1, 2),),
    CROSSED: ((1, 0, 2),),
    UNUSED: ((0, 1, 2), (2, 1), (0,), (1, 0, 2)),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """order: in which layers are used. bucket: how much it has room for. odd: what else is not ordinary.

    deep: a model whose weights outweigh its activations, of which is counted how much is held.
    """

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    passes: int = feature(1, "{} backward passes")
    bucket: str = feature(LAYER, "buckets of {}")
    order: str = feature("", "{}")
    odd: str = feature("", "{}")
    deep: bool = feature(False, lambda deep: "large layers" if deep else "")

    @property
    def alone(self) -> bool:
        """Whether it has a launch of its own, in which memory is counted."""
        return self.deep

    @property
    def layers(self) -> int:
        return 5 if self.deep else 3

    @property
    def width(self) -> int:
        return 40 if self.deep else 4

    def orders(self, rank: int) -> list[list[int]]:
        """The layers that a rank uses in each pass."""
        if self.deep:
            return [[*range(self.layers)]] * self.passes
        several = _ORDERS[self.order]
        return [[*several[(rank + number) % len(several)]] for number in range(self.passes)]


@dataclass(frozen=True)
class Passes(Trial):
    """values: of the parameters of a `Ladder`. inputs[r]: rank r's, a [B, width] a pass."""

    setting: Setting
    values: list[Tensor]
    inputs: list[list[Tensor]]

    @classmethod
    def draw(cls, rng: Rng, setting: Setting) -> "Passes":
        """Values, and inputs of each rank: of a deep model one sample, others two."""
        dtype = torch.float64 if setting.odd == DOUBLE else torch.float32
        width, samples = setting.width, 1 if setting.deep else 2
        shapes = [(width, width), (width,)] * setting.layers
        values = [rng.normal(*shape, dtype=dtype) / width**0.5 for shape in shapes]
        if setting.odd == TIED:
            del values[-2]  # It is the first layer's.
        inputs = [
            [rng.normal(samples, width, dtype=dtype) for _ in range(setting.passes)]
            for _ in range(setting.ranks)
        ]
        return cls(setting, values, inputs)

    @property
    def shape(self) -> tuple[int, bool, list[int], bool]:
        """Of the ladder."""
        odd = self.setting.odd
        return self.setting.layers, odd == TIED, [1] if odd == FROZEN else [], odd == GAPS

    @property
    def bucket_bytes(self) -> int:
        weight, bias = (value.nbytes for value in self.values[:2])
        layer = weight + bias
        room = {LAYER: layer, LESS: layer - 1, BIASES: 2 * bias, ALL: 10**6, MORE: layer + bias}
        return room[self.setting.bucket]

    def given(self, rank: int) -> list[PlainData]:
        """See the base class."""
        passes = [*zip(self.inputs[rank], self.setting.orders(rank), strict=True)]
        return [self.values, list(self.shape), passes, self.bucket_bytes]

    def found(self, run: Run) -> tuple[Finding, Looks]:
        """See the base class. In the ordinary case any buckets will do."""
        setting = self.setting
        findings = [] if setting.bucket == LAYER and not setting.odd else [self._closed(run)]
        findings += self._means_in(run)
        looks: Looks = {"calls": lambda: self._calls(run)}
        if setting.deep or setting.order == CROSSED:
            looks["sent in backward"] = lambda: self._sent_in_backward(run)
        if setting.deep:
            held = _cleared, self._held, _one_under_way
            looks["no more than a bucket beside the shards"] = lambda: compare.first_failure(
                look(run) for look in held
            )
        return compare.first_failure(findings), looks

    @cached_property
    def trainable(self) -> list[int]:
        """The numbers of the trainable parameters."""
        return [number for number, each in enumerate(self._model().parameters()) if each.requires_grad]

    def _model(self) -> Ladder:
        return Ladder(self.values, *self.shape)

    @cached_property
    def _means(self) -> list[dict[int, Tensor]]:
        """The mean of the gradients over ranks in each pass, by the parameter's number."""
        means = []
        for number in range(self.setting.passes):
            of_ranks = []
            for rank, own in enumerate(self.inputs):
                model = self._model()
                model(own[number], self.setting.orders(rank)[number]).square().sum().backward()
                of_ranks.append(
                    [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
                )
            stacked = [torch.stack(each).mean(0) for each in zip(*of_ranks, strict=True)]
            means.append({each: stacked[each] for each in self.trainable})
        return means

    def _closed(self, run: Run) -> Finding:
        """Passes if buckets begin with the last parameters, and are as full as they may be."""
        sizes = {number: self.values[number].nbytes for number in reversed(self.trainable)}
        expected: list[list[int]] = []
        for number, size in sizes.items():
            if not expected or sum(sizes[each] for each in expected[-1]) + size > self.bucket_bytes:
                expected.append([])
            expected[-1].append(number)
        said = f"the buckets of parameters of {sizes} bytes, of at most {self.bucket_bytes} bytes each,"
        return compare.first_failure(compare.equal(reply.buckets, expected, said) for reply in run.results)

    def _means_in(self, run: Run) -> Iterator[Finding]:
        """Whether all ranks have their parts of the mean, in the answer's own buckets, and no .grad."""
        for rank, reply in enumerate(run.results):
            buckets = reply.buckets
            if not once_each(buckets, self.trainable):
                expected = f"expected lists with each of {self.trainable} once"
                yield Finding(False, f"rank {rank}: buckets are {compare.shown(buckets)}; {expected}.")
                return
            for number, (shards, means) in enumerate(compare.side_by_side(reply.shards, self._means)):
                where = f"rank {rank}, pass {number}"
                if type(shards) not in (list, tuple) or len(shards) != len(buckets):
                    said = f"{where}: finish() returned {compare.shown(shards)}"
                    yield Finding(False, f"{said}; expected a list of {len(buckets)} tensors.")
                    return
                for place, (bucket, shard) in enumerate(zip(buckets, shards, strict=True)):
                    wanted = part_of([means[each] for each in bucket], self.setting.ranks, rank)
                    yield compare.close(shard, wanted, f"{where}: the part of bucket {place}", 1e-4, 1e-5)
            said = f"rank {rank}: some parameters still have a .grad after finish()."
            yield Finding(not any(reply.left), said)

    def _calls(self, run: Run) -> Finding:
        """Passes if each pass has one reduce-scatter a bucket, and sends no more than these."""
        ranks = self.setting.ranks
        for step in steps_of(run, "finished"):
            buckets = run.results[step.rank].buckets
            numels = [sum(self.values[each].numel() for each in bucket) for bucket in buckets]
            parts = sum(length_of(numel, ranks) for numel in numels)
            limit = (ranks - 1) * parts * self.values[0].element_size()
            sent, names = sum(call.sent for call in step.calls), [call.op for call in step.calls]
            right = all(name.startswith("reduce_scatter") for name in names) and len(names) == len(buckets)
            if not right or sent > limit:
                said = f"{step} calls {in_words(names)}, and sends {sent:,} bytes"
                wanted = f"expected {compare.counted(len(buckets), 'reduce-scatter')}, {limit:,} bytes"
                kind = Kind.TOO_MUCH if sent > limit else Kind.OTHER
                return Finding(False, f"{said}; {wanted}.", kind)
        return Finding(True, "Every pass makes one reduce-scatter a bucket.")

    def _sent_in_backward(self, run: Run) -> Finding:
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
        backward = self.setting.orders(0)[number][::-1]
        marks = [*map(reaches, backward[1:]), "backward ends"]
        complete = accumulate(map(backward.index, reversed(range(self.setting.layers))), max)
        return [marks[place] for place in complete]

    def _held(self, run: Run) -> Finding:
        """Passes if a rank never holds more than parts, three buckets, and what forward has left: gradients,
        what they are laid end to end in, and once more padded or divided. And after each pass only parts.
        """
        ranks = range(len(self.inputs))
        parts = self.setting.layers * length_of(self.bucket_bytes // 4, len(ranks)) * 4
        before = [held_at(run, rank, "step begins") for rank in ranks]
        seen = [most_held(run, rank, "step begins", "finished") for rank in ranks]
        findings = [
            at_most_held(seen, [own + parts + 13 * self.bucket_bytes // 4 for own in before], "In a pass")
        ]
        for number in range(self.setting.passes):
            # The driver has copies of the parts of earlier passes.
            allowed = [own + (number + 1) * parts + 1024 for own in before]
            seen = [held_at(run, rank, over(number)) for rank in ranks]
            findings.append(at_most_held(seen, allowed, f"After pass {number}"))
        return compare.first_failure(findings)


def _cleared(run: Run) -> Finding:
    """Passes if, whenever backward reaches a layer, what was sent has no gradients any more."""
    most = max((number for reply in run.results for number in reply.there), default=0)
    said = "Parameters whose bucket was sent, and which have a .grad when backward reaches the next layer"
    return compare.at_most(most, 0, said)


def _one_under_way(run: Run) -> Finding:
    """Passes if no bucket is sent before the one before has arrived."""
    for step in steps_of(run, "finished"):
        for number, (before, call) in enumerate(pairwise(step.calls), 1):
            if call.start < before.end - 1e-9:
                said = f"bucket {number} is sent at {call.start:.2f} s, and the one before arrives"
                return Finding(False, f"{step}: {said} at {before.end:.2f} s: two are under way.")
    return Finding(True, "No two buckets are under way at once.")


def once_each(buckets: PlainData, numbers: Sequence[int]) -> bool:
    """Whether these are lists that together have each of the numbers once."""
    if type(buckets) is not list or not all(type(bucket) is list for bucket in buckets):
        return False
    found = [number for bucket in buckets for number in bucket]
    return all(type(number) is int for number in found) and sorted(found) == sorted(numbers)
