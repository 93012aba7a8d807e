"""Backward passes whose gradients are cut over ranks while they are computed."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import torch
from torch import Tensor

from graders.grading.communication import in_words, steps_of
from graders.grading.judging import feature
from graders.grading.kit import Finding, Kind, Observed, PlainData, compare
from graders.units.in_one_launch import Trial
from graders.units.one_by_one import Looks
from graders.units.unit_09.drivers.gradients import Cut
from graders.units.unit_09.held import at_most_held, length_of, most_held, part_of
from graders.units.unit_09.models import Ladder, over, reaches

LAYER, LESS, ALL = "a layer", "a layer less a byte", "all"
UNUSED, CROSSED = "each rank uses other layers, in another order", "layer 1 comes before layer 0"
_ORDERS = {"": ((0, 1, 2),), CROSSED: ((1, 0, 2),), UNUSED: ((0, 1, 2), (2, 1), (0,), (1, 0, 2))}
Run = Observed[Cut]


@dataclass(frozen=True, slots=True)
class Setting:
    """order: in which layers are used. bucket: how much it has room for. alone: a model whose weights
    outweigh its activations, in a launch of its own, in which memory is counted.
    """

    ranks: int = feature(2, lambda ranks: compare.counted(ranks, "rank"))
    passes: int = feature(1, "{} backward passes")
    bucket: str = feature(LAYER, "buckets of {}")
    order: str = feature("", "{}")
    frozen: tuple[int, ...] = feature((), lambda layers: "a frozen layer" if layers else "")
    alone: bool = feature(False, lambda alone: "large layers" if alone else "")

    @property
    def layers(self) -> int:
        return 5 if self.alone else 3

    def orders(self, rank: int) -> list[list[int]]:
        """The layers that a rank uses in each pass."""
        if self.alone:
            return [[*range(self.layers)]] * self.passes
        several = _ORDERS[self.order]
        return [[*several[(rank + number) % len(several)]] for number in range(self.passes)]


@dataclass(frozen=True)
class Passes(Trial):
    """values: of the parameters of a `Ladder`. inputs[r]: rank r's, a [B, width] a pass."""

    setting: Setting
    values: list[Tensor]
    inputs: list[list[Tensor]]

    @property
    def bucket_bytes(self) -> int:
        layer = sum(value.nbytes for value in self.values[:2])
        return {LAYER: layer, LESS: layer - 1, ALL: 10**6}[self.setting.bucket]

    def given(self, rank: int) -> list[PlainData]:
        """See the base class."""
        passes = [*zip(self.inputs[rank], self.setting.orders(rank), strict=True)]
        return [self.values, [*self.setting.frozen], passes, self.bucket_bytes]

    def found(self, run: Run) -> tuple[Finding, Looks]:
        """See the base class. In the ordinary case any buckets will do."""
        setting = self.setting
        findings = [self._closed(run)] if setting.bucket != LAYER or setting.frozen else []
        looks: Looks = {"calls": lambda: self._calls(run)}
        if setting.alone or setting.order == CROSSED:
            looks["sent in backward"] = lambda: sent_in_backward(setting, run)
        if setting.alone:
            looks["no more than a bucket beside the shards"] = lambda: self._held(run)
        return compare.first_failure(chain(findings, self._means_in(run))), looks

    @cached_property
    def trainable(self) -> list[int]:
        """The numbers of the trainable parameters, from the last to the first."""
        return [n for n in reversed(range(len(self.values))) if n // 2 not in self.setting.frozen]

    @cached_property
    def _means(self) -> list[dict[int, Tensor]]:
        """The mean of the gradients over ranks in each pass, by the parameter's number."""
        means = []
        for number in range(self.setting.passes):
            total = [torch.zeros_like(each) for each in self.values]
            for rank, own in enumerate(self.inputs):
                model = Ladder(self.values, self.setting.frozen)
                model(own[number], self.setting.orders(rank)[number]).square().sum().backward()
                for each, parameter in zip(total, model.parameters(), strict=True):
                    each += 0 if parameter.grad is None else parameter.grad / self.setting.ranks
            means.append(dict(enumerate(total)))
        return means

    def _closed(self, run: Run) -> Finding:
        """Passes if buckets begin with the last parameters, and are as full as they may be."""
        expected: list[list[int]] = []
        filled = self.bucket_bytes
        for number in self.trainable:
            filled += self.values[number].nbytes
            if filled > self.bucket_bytes:
                expected.append([])
                filled = self.values[number].nbytes
            expected[-1].append(number)
        said = f"the numbers of the parameters in buckets of at most {self.bucket_bytes} bytes"
        return compare.first_failure(compare.equal(buckets, expected, said) for buckets, *_ in run.results)

    def _means_in(self, run: Run) -> Iterator[Finding]:
        """Whether all ranks have their parts of the mean, in the answer's own buckets, and no .grad."""
        for rank, (buckets, passes, left) in enumerate(run.results):
            numbers = sorted(number for bucket in buckets for number in bucket)
            yield compare.equal(numbers, self.trainable[::-1], f"the parameters in rank {rank}'s buckets")
            for number, (shards, means) in enumerate(compare.side_by_side(passes, self._means)):
                whole = [[means[each] for each in bucket] for bucket in buckets]
                wanted = [part_of(each, self.setting.ranks, rank) for each in whole]
                what = f"what finish() returns on rank {rank} in pass {number}"
                listed = type(shards) in (list, tuple) and len(shards) == len(wanted)
                yield Finding(listed, f"{what} is {compare.shown(shards)}; expected {len(wanted)} tensors.")
                for place, (shard, want) in enumerate(zip(shards, wanted, strict=True)):
                    yield compare.close(shard, want, f"{what} for bucket {place}", 1e-4, 1e-5)
            none = [0] * self.setting.passes
            yield compare.equal(left, none, f"how many .grad rank {rank} has after each finish()")

    def _calls(self, run: Run) -> Finding:
        """Passes if each pass has one reduce-scatter a bucket, and sends no more than these."""
        ranks = self.setting.ranks
        for step in steps_of(run, "finished"):
            buckets, *_ = run.results[step.rank]
            parts = [length_of(sum(self.values[n].numel() for n in own), ranks) for own in buckets]
            limit = 4 * (ranks - 1) * sum(parts)
            sent, names = sum(call.sent for call in step.calls), [call.op for call in step.calls]
            right = all(name.startswith("reduce_scatter") for name in names) and len(names) == len(buckets)
            if not right or sent > limit:
                said = f"{step} calls {in_words(names)}, and sends {sent:,} bytes"
                wanted = f"expected {compare.counted(len(buckets), 'reduce-scatter')}, {limit:,} bytes"
                return Finding(False, f"{said}; {wanted}.", Kind.TOO_MUCH)
        return Finding(True, "Every pass makes one reduce-scatter a bucket.")

    def _held(self, run: Run) -> Finding:
        """Passes if a rank never holds more than parts, three buckets, and what forward has left: gradients,
        what they are laid end to end in, and once more padded or divided. And after each pass only parts.
        """
        ranks = range(len(self.inputs))
        parts = self.setting.layers * length_of(self.bucket_bytes // 4, len(ranks)) * 4
        before = [most_held(run, rank, "step begins") for rank in ranks]
        seen = [most_held(run, rank, "step begins", "finished") for rank in ranks]
        findings = [
            at_most_held(seen, [own + parts + 13 * self.bucket_bytes // 4 for own in before], "In a pass")
        ]
        for number in range(self.setting.passes):
            # The driver has copies of the parts of earlier passes.
            allowed = [own + (number + 1) * parts + 1024 for own in before]
            seen = [most_held(run, rank, over(number)) for rank in ranks]
            findings.append(at_most_held(seen, allowed, f"After pass {number}"))
        return compare.first_failure(findings)


def sent_in_backward(setting: Setting, run: Run) -> Finding:
    """Passes if each bucket, a layer's, is sent before backward goes on, which does not wait for it."""
    for step in steps_of(run, "finished"):
        # Bucket 0 is the last layer; it is complete, and all before it, when backward has had this layer.
        backward = setting.orders(0)[step.number][::-1]
        marks = [*map(reaches, backward[1:]), "backward ends"]
        places = accumulate(map(backward.index, reversed(range(setting.layers))), max)
        following = [step.marks.get(marks[place]) for place in places]
        for number, (call, mark) in enumerate(zip(step.calls, following, strict=True)):
            if mark is None or call.sequence > mark.sequence:
                said = f"bucket {number} was complete, and those before it, and was not sent"
                return Finding(False, f"{step}: {said} before backward went on.")
            last_one = mark not in following[number + 1 :]
            if last_one and call.end <= mark.start:
                return Finding(False, f"{step}: backward waits for bucket {number} before it goes on.")
    return Finding(True, "Each bucket is sent as soon as it is complete, while backward goes on.")
