"""Unit 09, activations on the host: what is copied, when, and what it leaves where."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.communication.memory import MemoryKind
from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_09 import drivers
from graders.units.unit_09.offload_models import forward

DEVICE = Cluster(flops=1e9, memory_bandwidth=1e10, host=Link(0.0, 1e9))
"""Quick copies: what is on its way for long is not what is looked at."""

LAYERS, WIDTH = 9, 8


@exercise(
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion(
            "gradients",
            4,
            "Backward has to get what forward saved: of any dtype, also views, in every pass, also if it "
            "asks again.",
        ),
        Criterion(
            "what is copied",
            2,
            "Every activation goes to the host. The weights are on the device anyway; autograd saves them "
            "too, also as views, which share their storage.",
        ),
        Criterion(
            "the host's memory",
            2,
            "Who still refers to what lies on the host when its graph is gone?",
            needs=("gradients", "what is copied"),
        ),
        Criterion(
            "on the way ahead",
            3,
            "Backward asks in the reverse order of forward. When it asks for one, that and the `ahead` "
            "before it are to have begun, each once, and no others.",
            needs=("gradients", "what is copied", "the host's memory"),
        ),
        Criterion(
            "the device's memory",
            3,
            "Who still refers to a tensor that has gone to the host, or that backward has had?",
            needs=("gradients", "what is copied", "the host's memory"),
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
    yield "gradients", compare.first_failure(_gradients(answer, rng, kind) for kind in ("mixed", "chain"))
    chains = [_Chain(answer, rng, ahead) for ahead in (1, 0, rng.integer(2, 4))]
    yield "what is copied", compare.first_failure(chain.copied() for chain in chains)
    yield "the host's memory", compare.first_failure(chain.on_host() for chain in chains)
    yield "on the way ahead", compare.first_failure(chain.in_time() for chain in chains)
    yield "the device's memory", compare.first_failure(chain.on_device() for chain in chains)


def _gradients(answer: Answer, rng: Rng, kind: str) -> Finding:
    """Passes with one backward, two, and none; some weights are frozen, and numbers are float64."""
    passes = ["once", "never", "twice", "once", "never", "once"]
    weights = [rng.normal(WIDTH, WIDTH).double() / WIDTH for _ in range(5)]
    xs = [rng.normal(rng.integer(3, 9), WIDTH).double() for _ in passes]
    frozen = [rng.integer(2, 3)]
    run = answer.launch(
        drivers.offloaded, kind, xs, weights, frozen, rng.integer(0, 2), passes, ranks=1, cluster=DEVICE
    )
    reply = run.results[0]
    return compare.first_failure(
        compare.close(seen, expected, f"the gradient of weight {place} in pass {number}", 1e-10, 1e-12)
        for number, (x, way) in enumerate(zip(xs, passes, strict=True))
        for place, (seen, expected) in enumerate(
            compare.side_by_side(reply.gradients[number], _expected(kind, x, weights, frozen, way))
        )
    )


def _expected(kind: str, x: Tensor, weights: list[Tensor], frozen: list[int], way: str) -> list[Tensor]:
    """The gradients of the weights that are trained, of a pass."""
    if way == "never":
        return []
    given = [weight.clone().requires_grad_(place not in frozen) for place, weight in enumerate(weights)]
    trained = [weight for weight in given if weight.requires_grad]
    gradients = torch.autograd.grad(forward(kind, x, given), trained)
    return [gradient * (2 if way == "twice" else 1) for gradient in gradients]


class _Chain:
    """Three passes of a chain, the second without backward, the third with two: what was seen."""

    def __init__(self, answer: Answer, rng: Rng, ahead: int) -> None:
        samples = rng.integer(20, 40)
        # No two layers keep as many bytes, so that a copy's bytes tell whose it is.
        widths = [2 * WIDTH + place for place in rng.normal(LAYERS + 1).argsort().tolist()]
        weights = [rng.normal(after, before) for before, after in pairwise(widths)]
        xs = [rng.normal(samples, widths[0]) for _ in range(3)]
        self._ahead, self._samples = ahead, samples
        self._passes = ["once", "never", "twice"]
        self._saved = _saved(xs[0], weights)
        self._run: Observed[drivers.OffloadReply] = answer.launch(
            drivers.offloaded,
            "chain",
            xs,
            weights,
            [],
            ahead,
            self._passes,
            ranks=1,
            cluster=DEVICE,
            memory=True,
        )

    def copied(self) -> Finding:
        """Bytes to the host: all that is saved but weights, in every pass."""
        copies = [event for event in self._run.events if event.kind is Kind.COPY and event.op == "to host"]
        return compare.equal(
            sum(event.nbytes for event in copies),
            len(self._passes) * sum(self._saved),
            f"Bytes copied to the host in {len(self._passes)} passes of {LAYERS} layers, no weights",
        )

    def in_time(self) -> Finding:
        """How many copies to the device have begun whenever backward gets a tensor."""
        findings = []
        begun: list[int] = []
        asked = 0
        for event in self._run.events:
            if event.kind is Kind.COPY and event.op == "to device":
                begun.append(event.nbytes)
            elif event.kind is Kind.SPAN and event.op == "backward":
                begun, asked = [], 0
            elif event.kind is Kind.SPAN and event.op == "given":
                asked += 1
                expected = self._saved[::-1][: asked + self._ahead]
                findings.append(
                    Finding(
                        begun == expected,
                        f"ahead={self._ahead}, {LAYERS} layers: when backward has its tensor number {asked}, "
                        f"copies of {begun} bytes to the device have begun; expected {expected}.",
                    )
                )
        return compare.first_failure(findings)

    def on_device(self) -> Finding:
        """Activations after forward, and the most of them in backward, in activations of a layer."""
        layer = max(self._saved)
        return compare.first_failure(
            compare.at_most(
                held / layer,
                limit + 0.5,
                f"ahead={self._ahead}, {LAYERS} layers: {when} the device holds, in layers,",
            )
            for when, held, limit in (
                ("after forward", _held_at(self._run.events, "forward over"), 1),
                ("at most", self._run.memory[0].peak_of(MemoryKind.ACTIVATIONS), 4 + self._ahead),
            )
        )

    def on_host(self) -> Finding:
        """Bytes there after each forward and each pass."""
        left = self._run.results[0].on_host[1::2]
        return compare.equal(left, [0] * len(self._passes), "Bytes left on the host after each pass")


def _saved(x: Tensor, weights: list[Tensor]) -> list[int]:
    """Bytes of each tensor that a chain saves, besides its weights."""
    given = [weight.clone().requires_grad_() for weight in weights]
    known = {weight.untyped_storage().data_ptr() for weight in given}
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            saved.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward("chain", x, given)
    return saved


def _held_at(events: tuple[Event, ...], label: str) -> int:
    """The most bytes of activations that are held whenever the rank has marked this."""
    most = held = 0
    for event in events:
        if event.kind is Kind.MEMORY and event.op == MemoryKind.ACTIVATIONS:
            held = event.nbytes
        elif event.kind is Kind.SPAN and event.op == label:
            most = max(most, held)
    return most
