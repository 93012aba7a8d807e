"""Unit 04, what an optimizer that averages leaves to the one that it wraps, and what it refuses."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Kind
from graders.grading.kit import Answer, Finding, Observed, Rng, compare
from graders.units.models import copies_of, load_values
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.drivers import optimizer as drivers
from graders.units.unit_04.models import Paths
from graders.units.unit_04.replies import OwnReply
from graders.units.unit_04.training import all_close


def the_optimizers_own(answer: Answer, rng: Rng) -> Finding:
    """Passes if attributes, state and step's result are the wrapped optimizer's; and if each phase of the
    driver takes one step, with one averaging.
    """
    width = rng.integer(2, 4)
    shapes = [parameter.shape for parameter in Paths(width, [2], ["float32"], [], []).parameters()]
    values = [rng.normal(*shape) for shape in shapes]
    inputs = rng.normal(3, width, dtype=torch.float64)
    observed = answer.launch(drivers.own, values, inputs, ranks=2)
    expected = _phases(values, inputs)
    return compare.first_failure(
        finding
        for rank, reply in enumerate(observed.results)
        for finding in _own_of_rank(observed, rank, reply, expected)
    )


def _own_of_rank(
    observed: Observed[OwnReply], rank: int, reply: OwnReply, expected: list[list[Tensor]]
) -> Iterator[Finding]:
    missing = sorted(set(drivers.OWN) - set(reply.shared))
    yield Finding(not missing, f"Of the optimizer's own attributes {missing or 'none'} are missing.")
    yield compare.equal(reply.returned, 4.5, "what step(closure) returned, with a closure that returns 4.5")
    yield compare.equal(reply.closures, 1, "the calls of that closure")
    yield compare.equal(reply.taken, [1, 2, 3, 4, 5, 6], "the optimizer's own steps after each step()")
    for phase, (seen, wanted) in enumerate(compare.side_by_side(reply.parameters, expected)):
        finding = all_close(seen, wanted, "parameter")
        yield Finding(finding.passed, f"after step {phase}, on rank {rank}: {finding.seen}")
    what = (
        "all_reduces of a step: at first, plain, at another rate, synchronized, and again with a backward, "
    )
    yield compare.equal(_calls_a_phase(observed, rank), [1, 1, 1, 1, 2, 1], f"{what}without backward,")
    what = "of 3 gradients the 0 after zero_grad(set_to_none=False), and the None after zero_grad(),"
    yield compare.equal(reply.cleared, [3, 3], what)
    yield compare.equal(reply.lost, 0, "of 3 gradients that are NaN on every rank, those with other means,")
    yield Finding(reply.in_place, "Some .grad is another tensor after synchronize() than it was before.")
    yield Finding(reply.state, "state_dict() and load_state_dict() are the optimizer's own.")


PHASES = ((0.1, 0.0), (0.1, 1.0), (0.01, 1.0), (0.01, 0.5), (0.01, 1.0), (0.01, 0.0))
"""Of `drivers.own`: the rate of each step, and what its gradient is multiplied by."""


def _phases(values: list[Tensor], inputs: Tensor) -> list[list[Tensor]]:
    """The parameters after each phase of `drivers.own`."""
    model = Paths(inputs.shape[1], [2], ["float32"], [], [])
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), 0.1)
    found = []
    for rate, factor in PHASES:
        plain.zero_grad()
        plain.param_groups[0]["lr"] = rate
        model(inputs, [0]).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(factor)
        plain.step()
        found.append(copies_of(model.parameters()))
    return found


def _calls_a_phase(observed: Observed[Any], rank: int) -> list[int]:
    """How many calls the rank made in each phase of `drivers.own`."""
    spans = [event for event in observed.events if event.rank == rank and event.kind is Kind.SPAN]
    bounds = [0, *(span.sequence for span in spans if span.op.startswith("phase"))]
    calls = [call.sequence for call in observed.communication(rank)]
    return [sum(first <= call < last for call in calls) for first, last in pairwise(bounds)]


def refuses(answer: Answer, rng: Rng) -> Finding:
    """Passes if RuntimeError comes where gradients would be lost, and nowhere else."""
    width = 2
    shapes = [parameter.shape for parameter in Paths(width, [2, 2], ["float64"] * 2, [], []).parameters()]
    values = [rng.normal(*shape, dtype=torch.float64) for shape in shapes]
    observed = answer.launch(drivers.refusals, values, rng.normal(3, width, dtype=torch.float64), ranks=2)
    expected = ["RuntimeError", "", "", "RuntimeError", "", "RuntimeError"]
    when = (
        "zero_grad() between backward() and step()",
        "zero_grad() after step()",
        "zero_grad() after synchronize()",
        "zero_grad() after the first of two passes",
        "the second of two passes",
        "a third pass of two",
    )
    return compare.first_failure(
        Finding(got == wanted, f"{what} raised {got or 'nothing'}; expected {wanted or 'nothing'}.")
        for found in observed.results
        for (got, wanted), what in zip(compare.side_by_side(found, expected), when, strict=True)
    )
