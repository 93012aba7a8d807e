"""The grader of `HostOffload`."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Kind
from course_lib.runtime.communication.memory import MemoryKind
from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.drivers import offload as drivers
from graders.units.unit_09.drivers.offload import Told, forward
from graders.units.unit_09.held import most_held

DEVICE = Cluster(flops=1e9, memory_bandwidth=1e10, host=Link(0.0, 1e9))
"""Quick copies: what is on its way for long is not what is looked at."""
LAYERS, WIDTH = 9, 16
SEVERAL = (1, 0, 2)
Run = Observed[Told]


@dataclass(frozen=True, slots=True)
class Setting:
    """backwards: how many there are in each pass."""

    backwards: tuple[int, ...] = feature(
        (1,), lambda many: f"passes with {', '.join(map(str, many))} backwards" if many[1:] else ""
    )
    ahead: int = feature(1, "ahead={}")


def gradients(case: Setting, run: Run, xs: list[Tensor], weights: list[Tensor]) -> Iterator[Finding]:
    """Of the weights, after each pass; the host has something."""
    [(passes, on_host)] = run.results
    yield Finding(bool(on_host[0]), "After forward nothing lies on the host.")
    for number, (seen, times) in enumerate(compare.side_by_side(passes, case.backwards)):
        given = leaves(weights)
        expected = torch.autograd.grad(forward(xs[number], given), given) if times else ()
        for place, (got, wanted) in enumerate(compare.side_by_side(seen, expected)):
            what = f"the gradient of weight {place} in pass {number}"
            yield compare.close(got, times * wanted, what, 1e-10, 1e-12)


def leaves(weights: list[Tensor]) -> list[Tensor]:
    """Copies that need gradients."""
    return [weight.clone().requires_grad_() for weight in weights]


def saved_in(x: Tensor, weights: list[Tensor]) -> tuple[list[int], list[int]]:
    """Bytes of each tensor that a pass saves, besides the weights, and their places in the order in which
    backward asks for them; what it never asks for is not there.
    """
    given = leaves(weights)
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
        forward(x, given).backward()  # type: ignore[no-untyped-call]
    return saved, asked


def copied(run: Run, saved: list[int], asked: list[int]) -> Finding:
    """Bytes to the host: all that is saved but weights, in every pass. What has a graph lies there."""
    [(passes, on_host)] = run.results
    copies = sum(event.nbytes for event in run.events if event.kind is Kind.COPY and event.op == "to host")
    what = "Bytes of activations, and of no weights, copied to the host"
    lies, there = sum(saved[each] for each in asked), min(on_host[::2])
    said = f"After a forward {there:,} bytes lie on the host; expected {lies:,}."
    total = compare.equal(copies, len(passes) * sum(saved), what)
    return compare.first_failure((total, Finding(there >= lies, said)))


def in_time(run: Run, saved: list[int], asked: list[int], ahead: int) -> Finding:
    """Which copies to the device have begun whenever backward gets a tensor, by their bytes."""
    due: list[list[int]] = []
    order = sorted(asked)
    for each in asked:
        place = order.index(each)
        before = due[-1] if due else []
        wanted = reversed(order[max(0, place - ahead) : place + 1])
        due.append(before + [one for one in wanted if one not in before])
    begun: list[int] = []
    left = iter(due)
    for event in run.events:
        if event.kind is Kind.COPY and event.op == "to device":
            begun.append(event.nbytes)
        elif event.kind is Kind.SPAN and event.op == "backward":
            begun, left = [], iter(due)
        elif event.kind is Kind.SPAN and event.op == "given":
            expected = [saved[one] for one in next(left, due[-1])]
            if begun != expected:
                said = f"when backward has a tensor, copies to the device of {begun} bytes have begun"
                return Finding(False, f"{said}; expected {expected}.")
    return Finding(True, "Copies to the device begin when they are due.")


def on_device(run: Run, layer: int, ahead: int) -> Finding:
    """What forward leaves, and the most activations in backward, in activations of a layer."""
    what = "What the device holds, in layers,"
    left = (most_held(run, 0, "forward over") - most_held(run, 0, "begins")) / layer
    most = run.memory[0].peak_of(MemoryKind.ACTIVATIONS) / layer
    found = compare.at_most(round(left, 1), 1.5, f"{what} after forward")
    return compare.first_failure((found, compare.at_most(round(most, 1), 4.5 + ahead, f"{what} at its peak")))


@one_by_one(
    base=Setting(),
    name="HostOffload",
    minutes=45,
    difficulty=4,
    rubric=(
        Criterion("gradients", 4, "Backward has to get what forward saved."),
        Criterion(
            "every backward",
            2,
            "A graph may have no backward, or a second one.",
            vary=vary(backwards=(SEVERAL,)),
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
    possible=lambda case: case.backwards == (1,) or case.ahead == 1,
)
def host_offload(answer: Answer, case: Setting, rng: Rng) -> tuple[Finding, Looks]:
    """Passes of a model in double precision, with what it saves on the host."""
    # No two layers keep as many bytes, so that these tell whose a copy is.
    widths = [WIDTH + place for place in rng.normal(LAYERS + 1).argsort().tolist()]
    weights = [rng.normal(after, before).double() / before**0.5 for before, after in pairwise(widths)]
    samples = rng.integer(20, 40)
    xs = [rng.normal(samples, widths[0]).double() for _ in case.backwards]
    given = xs, weights, case.ahead, [*case.backwards]
    run = answer.launch(drivers.offloaded, *given, ranks=1, cluster=DEVICE, memory=True)
    saved, asked = saved_in(xs[0], weights)
    return compare.first_failure(gradients(case, run, xs, weights)), {
        "what is copied": lambda: copied(run, saved, asked),
        "the host's memory": lambda: compare.equal(
            run.results[0][1][1::2], [0] * len(xs), "Bytes left on the host after each pass"
        ),
        "on the way ahead": lambda: in_time(run, saved, asked, case.ahead),
        "the device's memory": lambda: on_device(run, max(saved), case.ahead),
    }
