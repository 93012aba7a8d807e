"""Backward passes whose gradients are cut over ranks while they are computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from graders.grading.communication import in_words, steps_of
from graders.grading.kit import Finding, Kind, PlainData, Rng, compare
from graders.units.in_one_launch import Trial
from graders.units.one_by_one import Looks
from graders.units.unit_09.gradient_settings import (
    ALL,
    BIASES,
    CROSSED,
    DOUBLE,
    FROZEN,
    GAPS,
    LAYER,
    LESS,
    MORE,
    TIED,
    Setting,
)
from graders.units.unit_09.held import at_most_held, held_at, length_of, most_held, part_of
from graders.units.unit_09.models import Ladder, over
from graders.units.unit_09.passes_seen import Run, cleared, one_under_way, sent_in_backward


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
            looks["sent in backward"] = lambda: sent_in_backward(self.setting, run)
        if setting.deep:
            held = cleared, self._held, one_under_way
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


def once_each(buckets: PlainData, numbers: Sequence[int]) -> bool:
    """Whether these are lists that together have each of the numbers once."""
    if type(buckets) is not list or not all(type(bucket) is list for bucket in buckets):
        return False
    found = [number for bucket in buckets for number in bucket]
    return all(type(number) is int for number in found) and sorted(found) == sorted(numbers)
