"""Unit 09, activations on the host: what is copied, when, and what it leaves where."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import MemoryKind
from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_09.drivers import old as drivers
from graders.units.unit_09.offload_models import forward
from graders.units.unit_09.replies import OffloadReply

DEVICE = Cluster(flops=1e9, memory_bandwidth=1e10, host=Link(0.0, 1e9))
"""Quick copies: what is on its way for long is not what is looked at."""

LAYERS, WIDTH = 9, 8
BACKWARDS = "the first backward", "the backward of another graph", "a second backward of that graph"


@exercise(
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "gradients",
            3,
            "Backward has to get what forward saved: of any dtype, also views, in every pass, also if it "
            "asks again.",
        ),
        Criterion(
            "what is copied",
            3,
            "Every activation goes to the host, and lies there until backward. The weights are on the device "
            "anyway; autograd saves them too, also as views, which share their storage.",
        ),
        Criterion(
            "the host's memory",
            3,
            "Who still refers to what lies on the host when its graph is gone?",
            needs=("gradients", "what is copied"),
        ),
        Criterion(
            "on the way ahead",
            5,
            "Backward asks in the reverse order of forward, but for an operation that saved two. When it "
            "asks for one, that and the `ahead` before it are to have begun, each once, and no others.",
            needs=("gradients", "what is copied", "the host's memory"),
        ),
        Criterion(
            "the device's memory",
            4,
            "Who still refers to a tensor that has gone to the host, or that backward has had?",
            needs=("on the way ahead",),
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
)
def HostOffload(answer: Answer, rng: Rng) -> Findings:  # noqa: N802
    """A model that saves tensors of many kinds, then chains of layers for different `ahead`."""
    kinds = [_Kinds(answer, rng, kind) for kind in ("mixed", "chain")]
    yield "gradients", compare.first_failure(each.gradients() for each in kinds)
    chains = [_Chain(answer, rng, ahead) for ahead in (1, 0, rng.integer(2, 4))]
    copied = [*(each.copied() for each in chains), *(each.copied() for each in kinds)]
    yield "what is copied", compare.first_failure(copied)
    yield "the host's memory", compare.first_failure(chain.on_host() for chain in chains)
    yield "on the way ahead", compare.first_failure(chain.in_time() for chain in chains)
    yield "the device's memory", compare.first_failure(chain.on_device() for chain in chains)


class _Kinds:
    """Passes with one backward, two, one that is late, and none, of square weights in double precision.

    One weight is frozen. Another is not among those that stay, so it is copied.
    """

    def __init__(self, answer: Answer, rng: Rng, kind: str) -> None:
        self._kind, self._frozen, self._leaves = kind, [rng.integer(2, 3)], [4]
        self._passes = ["once", "never", "late", "twice", "once"]
        self._weights = [rng.normal(WIDTH, WIDTH).double() / WIDTH for _ in range(5)]
        # An activation of the last pass has a weight's shape.
        samples = [*(rng.integer(3, 7) for _ in self._passes[1:]), WIDTH]
        self._xs = [rng.normal(number, WIDTH).double() for number in samples]
        given = self._frozen, self._leaves, rng.integer(0, 2), self._passes
        self._run: Observed[OffloadReply] = answer.launch(
            drivers.offloaded, kind, self._xs, self._weights, *given, ranks=1, cluster=DEVICE
        )

    def gradients(self) -> Finding:
        """Of the weights that are trained, after each pass and the late backward; the host has something."""
        if not self._run.results[0].on_host[0]:
            return Finding(False, "After forward nothing lies on the host.")
        times = {"never": 0, "once": 1, "twice": 2, "late": 1}
        passes = [(x, times[way]) for x, way in zip(self._xs, self._passes, strict=True)]
        passes.append((self._xs[self._passes.index("late")], 1))
        seen = [got for got, _ in compare.side_by_side(self._run.results[0].gradients, passes)]
        return compare.first_failure(
            compare.close(got, wanted, f"the gradient of weight {place} in pass {number}", 1e-10, 1e-12)
            for number, (x, count) in enumerate(passes)
            for place, (got, wanted) in enumerate(
                compare.side_by_side(seen[number], self._expected(x, count))
            )
        )

    def _expected(self, x: Tensor, times: int) -> list[Tensor]:
        given = [w.clone().requires_grad_(place not in self._frozen) for place, w in enumerate(self._weights)]
        trained = [weight for weight in given if weight.requires_grad] if times else []
        gradients = torch.autograd.grad(forward(self._kind, x, given), trained) if times else ()
        return [times * gradient for gradient in gradients]

    def copied(self) -> Finding:
        """Bytes to the host: all that is saved but the weights that stay, in every pass."""
        saved = [_saved(self._kind, x, self._weights, self._frozen, self._leaves)[0] for x in self._xs]
        what = "Bytes of activations, whole numbers, truth values and a weight that does not stay, copied"
        return compare.equal(_to_host(self._run), sum(map(sum, saved)), what)


class _Chain:
    """Three passes of a chain, the second without backward, the third with two: what was seen."""

    def __init__(self, answer: Answer, rng: Rng, ahead: int) -> None:
        samples = rng.integer(20, 40)
        # No two layers keep as many bytes, so that a copy's bytes tell whose it is.
        widths = [2 * WIDTH + place for place in rng.normal(LAYERS + 1).argsort().tolist()]
        weights = [rng.normal(after, before) for before, after in pairwise(widths)]
        xs = [rng.normal(samples, widths[0]) for _ in range(3)]
        self._ahead = ahead
        self._passes = ["once", "never", "twice"]
        self._saved, self._asked = _saved("chain", xs[0], weights, [], [])
        self._run: Observed[OffloadReply] = answer.launch(
            drivers.offloaded,
            "chain",
            xs,
            weights,
            [],
            [],
            ahead,
            self._passes,
            ranks=1,
            cluster=DEVICE,
            memory=True,
        )

    def copied(self) -> Finding:
        """Bytes to the host: all that is saved but weights, in every pass. What has a graph lies there."""
        passes = len(self._passes)
        lies, there = sum(self._saved[each] for each in self._asked), self._run.results[0].on_host[::2]
        copied = f"Bytes copied to the host in {passes} passes of {LAYERS} layers, no weights"
        said = f"After a forward {min(there):,} bytes lie on the host; expected {lies:,}."
        return compare.first_failure(
            (
                compare.equal(_to_host(self._run), passes * sum(self._saved), copied),
                Finding(min(there) >= lies, said),
            )
        )

    def in_time(self) -> Finding:
        """How many copies to the device have begun whenever backward gets a tensor."""
        findings = []
        due = [[self._saved[each] for each in begun] for begun in _begun(self._asked, self._ahead)]
        begun: list[int] = []
        asked = backward = 0
        for event in self._run.events:
            if event.kind is Kind.COPY and event.op == "to device":
                begun.append(event.nbytes)
            elif event.kind is Kind.SPAN and event.op == "backward":
                begun, asked, backward = [], 0, backward + 1
            elif event.kind is Kind.SPAN and event.op == "given":
                asked += 1
                expected = due[min(asked, len(due)) - 1]
                findings.append(
                    Finding(
                        begun == expected,
                        f"ahead={self._ahead}, {LAYERS} layers: when {BACKWARDS[backward - 1]} has its "
                        f"tensor number {asked}, copies of {begun} bytes to the device have begun; expected "
                        f"{expected}.",
                    )
                )
        return compare.first_failure(findings)

    def on_device(self) -> Finding:
        """Activations after forward, and the most of them in backward, in activations of a layer."""
        layer = max(self._saved)
        return compare.first_failure(
            compare.at_most(
                round(held / layer, 1),
                limit + 0.5,
                f"ahead={self._ahead}, {LAYERS} layers: what the device holds {when}, in layers",
            )
            for when, held, limit in (
                ("after forward", _held_at(self._run.events, "forward over"), 1),
                ("at its peak", self._run.memory[0].peak_of(MemoryKind.ACTIVATIONS), 4 + self._ahead),
            )
        )

    def on_host(self) -> Finding:
        """Bytes there after each forward and each pass."""
        left = self._run.results[0].on_host[1::2]
        return compare.equal(left, [0] * len(self._passes), "Bytes left on the host after each pass")


def _to_host(run: Observed[OffloadReply]) -> int:
    """Bytes of all copies to the host."""
    return sum(event.nbytes for event in run.events if event.kind is Kind.COPY and event.op == "to host")


def _saved(
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
