"""Passes of a model with what it saves on the host: how they are drawn, and what is found of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.communication.memory import MemoryKind
from graders.grading.judging import feature
from graders.grading.kit import Answer, Finding, Observed, Rng, compare
from graders.units.unit_09.drivers import offload as drivers
from graders.units.unit_09.drivers.offload import OffloadReply, forward

DEVICE = Cluster(flops=1e9, memory_bandwidth=1e10, host=Link(0.0, 1e9))
"""Quick copies: what is on its way for long is not what is looked at."""
LAYERS, WIDTH = 9, 16
SEVERAL = (1, 0, 2)
Run = Observed[OffloadReply]


@dataclass(frozen=True, slots=True)
class Setting:
    """backwards: how many there are in each pass."""

    backwards: tuple[int, ...] = feature(
        (1,), lambda many: f"passes with {', '.join(map(str, many))} backwards" if many[1:] else ""
    )
    ahead: int = feature(1, "ahead={}")


@dataclass(frozen=True)
class Passes:
    """xs: the samples of each pass."""

    setting: Setting
    xs: list[Tensor]
    weights: list[Tensor]

    @classmethod
    def draw(cls, rng: Rng, case: Setting) -> "Passes":
        """In double precision. No two layers keep as many bytes, so that these tell whose a copy is."""
        widths = [WIDTH + place for place in rng.normal(LAYERS + 1).argsort().tolist()]
        weights = [rng.normal(after, before).double() / before**0.5 for before, after in pairwise(widths)]
        samples = rng.integer(20, 40)
        return cls(case, [rng.normal(samples, widths[0]).double() for _ in case.backwards], weights)

    def launch(self, answer: Answer) -> Run:
        case = self.setting
        given = self.xs, self.weights, case.ahead, list(case.backwards)
        return answer.launch(drivers.offloaded, *given, ranks=1, cluster=DEVICE, memory=True)

    def gradients(self, run: Run) -> Iterator[Finding]:
        """Of the weights, after each pass; the host has something."""
        reply = run.results[0]
        yield Finding(bool(reply.on_host[0]), "After forward nothing lies on the host.")
        for number, seen in enumerate(reply.gradients):
            times = self.setting.backwards[number]
            given = [weight.clone().requires_grad_() for weight in self.weights]
            expected = torch.autograd.grad(forward(self.xs[number], given), given) if times else ()
            for place, (got, wanted) in enumerate(compare.side_by_side(seen, expected)):
                what = f"the gradient of weight {place} in pass {number}"
                yield compare.close(got, times * wanted, what, 1e-10, 1e-12)

    def _saved(self) -> tuple[list[int], list[int]]:
        """Bytes of each tensor that a pass saves, besides the weights, and their places in the order in which
        backward asks for them; what it never asks for is not there.
        """
        given = [weight.clone().requires_grad_() for weight in self.weights]
        known = {weight.untyped_storage().data_ptr() for weight in given}
        saved: list[int] = []
        asked: list[int] = []

        def pack(tensor: Tensor) -> tuple[int | None, Tensor]:
            if tensor.untyped_storage().data_ptr() in known:
                return None, tensor
            saved.append(tensor.nbytes)
            return len(saved) - 1, tensor

        def unpack(packed: tuple[int | None, Tensor]) -> Tensor:
            place, tensor = packed
            asked.extend([] if place is None else [place])
            return tensor

        with saved_tensors_hooks(pack, unpack):
            forward(self.xs[0], given).backward()  # type: ignore[no-untyped-call]
        return saved, asked

    def copied(self, run: Run) -> Finding:
        """Bytes to the host: all that is saved but weights, in every pass. What has a graph lies there."""
        saved, asked = self._saved()
        copies = sum(
            event.nbytes for event in run.events if event.kind is Kind.COPY and event.op == "to host"
        )
        what = "Bytes of activations, and of no weights, copied to the host"
        lies, there = sum(saved[each] for each in asked), min(run.results[0].on_host[::2])
        said = f"After a forward {there:,} bytes lie on the host; expected {lies:,}."
        total = compare.equal(copies, len(self.xs) * sum(saved), what)
        return compare.first_failure((total, Finding(there >= lies, said)))

    def on_host(self, run: Run) -> Finding:
        """Bytes there after each pass."""
        left = run.results[0].on_host[1::2]
        return compare.equal(left, [0] * len(self.xs), "Bytes left on the host after each pass")

    def in_time(self, run: Run) -> Finding:
        """Which copies to the device have begun whenever backward gets a tensor, by their bytes."""
        saved, asked = self._saved()
        due: list[list[int]] = []
        for each in asked:
            place = sorted(asked).index(each)
            ahead = sorted(asked)[max(0, place - self.setting.ahead) : place + 1]
            before = due[-1] if due else []
            due.append(before + [one for one in reversed(ahead) if one not in before])
        begun: list[int] = []
        number = 0
        for event in run.events:
            if event.kind is Kind.COPY and event.op == "to device":
                begun.append(event.nbytes)
            elif event.kind is Kind.SPAN and event.op == "backward":
                begun, number = [], 0
            elif event.kind is Kind.SPAN and event.op == "given":
                number += 1
                expected = [saved[each] for each in due[min(number, len(due)) - 1]]
                if begun != expected:
                    said = (
                        f"when backward has its tensor number {number}, copies of {begun} bytes to the device"
                    )
                    return Finding(False, f"{said} have begun; expected {expected}.")
        return Finding(True, "Copies to the device begin when they are due.")

    def on_device(self, run: Run) -> Finding:
        """Activations after forward, and the most of them in backward, in activations of a layer."""
        layer = max(self._saved()[0])
        after = held = 0
        for event in run.events:
            if event.kind is Kind.MEMORY and event.op == MemoryKind.ACTIVATIONS:
                held = event.nbytes
            elif event.kind is Kind.SPAN and event.op == "forward over":
                after = held
        peak, limit = run.memory[0].peak_of(MemoryKind.ACTIVATIONS), 4 + self.setting.ahead
        what = "What the device holds, in layers,"
        return compare.first_failure(
            (
                compare.at_most(round(after / layer, 1), 1.5, f"{what} after forward"),
                compare.at_most(round(peak / layer, 1), limit + 0.5, f"{what} at its peak"),
            )
        )
