"""The grader of `HostOffload`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import MemoryKind
from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.drivers import offload as drivers
from graders.units.unit_09.offload_models import forward
from graders.units.unit_09.replies import OffloadReply

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
        due = [[saved[each] for each in begun] for begun in _begun(order, self.setting.ahead)]
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


@one_by_one(
    base=Setting(),
    name="HostOffload",
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion("gradients", 4, "Backward has to get what forward saved."),
        Criterion(
            "every backward",
            1,
            "A graph may have no backward, a second one, or one when another has been between.",
            vary=vary(passes=(SEVERAL, LATE)),
        ),
        Criterion(
            "tensors of all kinds",
            1,
            "Of any dtype, also views, scalars and what is saved twice.",
            vary=both(kind="mixed", passes=LATE),
        ),
        Criterion(
            "what is copied",
            3,
            "Every activation goes to the host, and lies there until backward. The weights are on the device "
            "anyway; autograd saves them too, also as views, which share their storage.",
            how=look("what is copied"),
        ),
        Criterion(
            "the host's memory",
            2,
            "Who still refers to what lies on the host when its graph is gone?",
            needs=("gradients", "what is copied"),
            how=look("the host's memory"),
        ),
        Criterion(
            "on the way ahead",
            4,
            "Backward asks in the reverse order of forward, but for an operation that saved two. When it "
            "asks for one, that and the `ahead` before it are to have begun, each once, and no others.",
            needs=("gradients", "what is copied", "the host's memory"),
            vary=vary(ahead=(0, 3)),
            how=look("on the way ahead"),
        ),
        Criterion(
            "the device's memory",
            3,
            "Who still refers to a tensor that has gone to the host, or that backward has had?",
            needs=("on the way ahead",),
            vary=vary(deep=(True,)),
            how=look("the device's memory"),
        ),
    ),
    hints=(
        "What does autograd do with what pack returns, and for how long does it hold it?",
        "pack can return the object that to_host gives. How do you know in unpack which ones were packed "
        "before it, without keeping them alive? Look at the module weakref.",
        "Two tensors that share memory have one storage: compare untyped_storage().data_ptr().",
        "A weakref.WeakKeyDictionary remembers the order in which keys came; its values may be copies that "
        "are under way.",
    ),
    possible=lambda case: (case.passes != ("once",)) + (case.ahead != 1) + case.deep <= 1,
)
def host_offload(answer: Answer, case: Setting, rng: Rng) -> tuple[Finding, Looks]:
    """Passes of a model with what it saves on the host."""
    passes = Passes.draw(rng, case)
    run = passes.launch(answer)
    looks: Looks = {"what is copied": lambda: passes.copied(run)}
    if case.kind == "chain" and "late" not in case.passes:
        looks["the host's memory"] = lambda: passes.on_host(run)
        looks["on the way ahead"] = lambda: passes.in_time(run)
    if case.deep:
        looks["the device's memory"] = lambda: passes.on_device(run)
    return compare.first_failure(passes.gradients(run)), looks


def _to_host(run: Run) -> int:
    """Bytes of all copies to the host."""
    return sum(event.nbytes for event in run.events if event.kind is Kind.COPY and event.op == "to host")


def saved_by(
    kind: str, x: Tensor, weights: list[Tensor], frozen: list[int], leaves: list[int]
) -> tuple[list[int], list[int]]:
    """Bytes of each tensor that a model saves, besides the weights that stay, and their places in the order
    in which backward asks for them; what it never asks for is not there.
    """
    given = [weight.clone().requires_grad_(place not in frozen) for place, weight in enumerate(weights)]
    known = {own.untyped_storage().data_ptr() for place, own in enumerate(given) if place not in leaves}
    saved: list[int] = []
    asked: list[int] = []

    def pack(tensor: Tensor) -> tuple[int | None, Tensor]:
        if tensor.untyped_storage().data_ptr() in known:
            return None, tensor
        saved.append(tensor.numel() * tensor.element_size())
        return len(saved) - 1, tensor

    def unpack(packed: tuple[int | None, Tensor]) -> Tensor:
        place, tensor = packed
        if place is not None:
            asked.append(place)
        return tensor

    with saved_tensors_hooks(pack, unpack):
        forward(kind, x, given).backward()  # type: ignore[no-untyped-call]
    return saved, asked


def _begun(asked: list[int], ahead: int) -> list[list[int]]:
    """Of tensors in the order in which backward asks for them: what has begun to come whenever it has one."""
    order, begun, found = sorted(asked), list[int](), []
    for each in asked:
        place = order.index(each)
        due = reversed(order[max(0, place - ahead) : place + 1])
        begun += [one for one in due if one not in begun]
        found.append([*begun])
    return found


def _held_at(events: tuple[Event, ...], label: str) -> int:
    """The most bytes of activations that are held whenever the rank has marked this."""
    most = held = 0
    for event in events:
        if event.kind is Kind.MEMORY and event.op == MemoryKind.ACTIVATIONS:
            held = event.nbytes
        elif event.kind is Kind.SPAN and event.op == label:
            most = max(most, held)
    return most
