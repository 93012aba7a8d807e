"""Passes of a model with what it saves on the host: how they are drawn, and what is found of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import MemoryKind
from graders.grading.judging import feature
from graders.grading.kit import Answer, Finding, Observed, Rng, compare
from graders.units.unit_09.drivers import offload as drivers
from graders.units.unit_09.offload_models import forward
from graders.units.unit_09.replies import OffloadReply
from graders.units.unit_09.saved_tensors import begun_of, saved_by

DEVICE = Cluster(flops=1e9, memory_bandwidth=1e10, host=Link(0.0, 1e9))
"""Quick copies: what is on its way for long is not what is looked at."""
LAYERS, WIDTH = 9, 8
BACKWARDS = "the first backward", "the backward of another graph", "a second backward of that graph"
SEVERAL, LATE = ("once", "never", "twice"), ("late", "never", "twice")
"""Passes: with one backward, with none, with two, and with one when all others are over."""
_WORDS = {("once",): "", SEVERAL: "passes with one backward, none and two", LATE: "passes in any order"}
Run = Observed[OffloadReply]


@dataclass(frozen=True, slots=True)
class Setting:
    """kind: of model: "chain" or "mixed", which saves tensors of many kinds, has a frozen weight and one that
    does not stay. deep: memory of the device is counted.
    """

    passes: tuple[str, ...] = feature(("once",), _WORDS.__getitem__)
    ahead: int = feature(1, "ahead={}")
    kind: str = feature("chain", {"chain": "", "mixed": "tensors of many kinds"}.__getitem__)
    deep: bool = False


@dataclass(frozen=True)
class Passes:
    """xs: the samples of each pass. frozen, leaves: which weights are not trained, and do not stay."""

    setting: Setting
    xs: list[Tensor]
    weights: list[Tensor]
    frozen: list[int]
    leaves: list[int]

    @classmethod
    def draw(cls, rng: Rng, case: Setting) -> "Passes":
        """Weights in double precision."""
        if case.kind == "mixed":
            weights = [rng.normal(WIDTH, WIDTH).double() / WIDTH for _ in range(5)]
            # An activation of the last pass has a weight's shape.
            samples = [*(rng.integer(3, 7) for _ in case.passes[1:]), WIDTH]
            xs = [rng.normal(number, WIDTH).double() for number in samples]
            return cls(case, xs, weights, [rng.integer(2, 3)], [4])
        # No two layers keep as many bytes, so that a copy's bytes tell whose it is.
        widths = [2 * WIDTH + place for place in rng.normal(LAYERS + 1).argsort().tolist()]
        weights = [rng.normal(after, before).double() / before**0.5 for before, after in pairwise(widths)]
        samples = [rng.integer(20, 40)] * len(case.passes)
        return cls(case, [rng.normal(number, widths[0]).double() for number in samples], weights, [], [])

    def launch(self, answer: Answer) -> Run:
        return answer.launch(
            drivers.offloaded,
            self.setting.kind,
            self.xs,
            self.weights,
            self.frozen,
            self.leaves,
            self.setting.ahead,
            list(self.setting.passes),
            ranks=1,
            cluster=DEVICE,
            memory=self.setting.deep,
        )

    def gradients(self, run: Run) -> Iterator[Finding]:
        """Of the weights that are trained, after each pass and the late backward; the host has something."""
        reply = run.results[0]
        yield Finding(bool(reply.on_host[0]), "After forward nothing lies on the host.")
        times = {"never": 0, "once": 1, "twice": 2, "late": 1}
        passes = [(x, times[way]) for x, way in zip(self.xs, self.setting.passes, strict=True)]
        passes += [(x, 1) for x, way in zip(self.xs, self.setting.passes, strict=True) if way == "late"]
        for number, (seen, (x, count)) in enumerate(compare.side_by_side(reply.gradients, passes)):
            for place, (got, wanted) in enumerate(compare.side_by_side(seen, self._expected(x, count))):
                what = f"the gradient of weight {place} in pass {number}"
                yield compare.close(got, wanted, what, 1e-10, 1e-12)

    def _expected(self, x: Tensor, times: int) -> list[Tensor]:
        given = [w.clone().requires_grad_(place not in self.frozen) for place, w in enumerate(self.weights)]
        trained = [weight for weight in given if weight.requires_grad] if times else []
        gradients = torch.autograd.grad(forward(self.setting.kind, x, given), trained) if times else ()
        return [times * gradient for gradient in gradients]

    def _saved(self, x: Tensor) -> tuple[list[int], list[int]]:
        return saved_by(self.setting.kind, x, self.weights, self.frozen, self.leaves)

    def copied(self, run: Run) -> Finding:
        """Bytes to the host: all that is saved but weights, in every pass. What has a graph lies there."""
        of_passes = [self._saved(x) for x in self.xs]
        total = sum(sum(saved) for saved, _ in of_passes)
        what = "Bytes of activations, and of no weights that stay, copied to the host"
        lies = min(sum(saved[each] for each in asked) for saved, asked in of_passes)
        there = min(run.results[0].on_host[::2])
        said = f"After a forward {there:,} bytes lie on the host; expected {lies:,}."
        return compare.first_failure(
            (compare.equal(_to_host(run), total, what), Finding(there >= lies, said))
        )

    def on_host(self, run: Run) -> Finding:
        """Bytes there after each pass."""
        left = run.results[0].on_host[1::2]
        return compare.equal(left, [0] * len(self.xs), "Bytes left on the host after each pass")

    def in_time(self, run: Run) -> Finding:
        """How many copies to the device have begun whenever backward gets a tensor."""
        saved, order = self._saved(self.xs[0])
        due = [[saved[each] for each in those] for those in begun_of(order, self.setting.ahead)]
        begun: list[int] = []
        asked = backward = 0
        for event in run.events:
            if event.kind is Kind.COPY and event.op == "to device":
                begun.append(event.nbytes)
            elif event.kind is Kind.SPAN and event.op == "backward":
                begun, asked, backward = [], 0, backward + 1
            elif event.kind is Kind.SPAN and event.op == "given":
                asked += 1
                expected = due[min(asked, len(due)) - 1]
                if begun != expected:
                    when = f"when {BACKWARDS[backward - 1]} has its tensor number {asked}"
                    said = f"{when}, copies of {begun} bytes to the device have begun; expected {expected}."
                    return Finding(False, said)
        return Finding(True, "Copies to the device begin when they are due.")

    def on_device(self, run: Run) -> Finding:
        """Activations after forward, and the most of them in backward, in activations of a layer."""
        layer = max(self._saved(self.xs[0])[0])
        peak = run.memory[0].peak_of(MemoryKind.ACTIVATIONS)
        after = _held_at(run.events, "forward over")
        return compare.first_failure(
            compare.at_most(round(held / layer, 1), limit + 0.5, f"What the device holds {when}, in layers")
            for when, held, limit in (
                ("after forward", after, 1),
                ("at its peak", peak, 4 + self.setting.ahead),
            )
        )


def _to_host(run: Run) -> int:
    """Bytes of all copies to the host."""
    return sum(event.nbytes for event in run.events if event.kind is Kind.COPY and event.op == "to host")


def _held_at(events: tuple[Event, ...], label: str) -> int:
    """The most bytes of activations that are held whenever the rank has marked this."""
    most = held = 0
    for event in events:
        if event.kind is Kind.MEMORY and event.op == MemoryKind.ACTIVATIONS:
            held = event.nbytes
        elif event.kind is Kind.SPAN and event.op == label:
            most = max(most, held)
    return most
