"""Unit 04, what an optimizer that averages leaves to the one that it wraps."""

from collections.abc import Iterator

from torch import Tensor

from graders.grading.kit import Answer, Finding, Rng, compare
from graders.units.models import copies_of, load_values
from graders.units.optimizers import PlainSGD
from graders.units.unit_04.drivers import optimizer as drivers
from graders.units.unit_04.models import Paths
from graders.units.unit_04.replies import OwnReply
from graders.units.unit_04.training import all_close

STEPS = {
    "a closure": (0.1, 1.0),
    "another rate": (0.01, 1.0),
    "gradients halved after synchronize()": (0.01, 0.5),
}
"""Of `drivers.own`: the rate of each step, and what its gradient is multiplied by."""


def the_optimizers_own(answer: Answer, rng: Rng) -> Finding:
    """Passes if steps, rates and closures are the wrapped optimizer's, and zero_grad() loses no gradient."""
    width = rng.integer(2, 4)
    shapes = [parameter.shape for parameter in Paths(width, [2], ["float32"], [], []).parameters()]
    values, inputs = [rng.normal(*shape) for shape in shapes], rng.normal(3, width)
    observed = answer.launch(drivers.own, values, inputs, ranks=2)
    expected = _after_each_step(values, inputs)
    return compare.first_failure(
        finding for reply in observed.results for finding in _of_rank(reply, expected)
    )


def _of_rank(reply: OwnReply, expected: list[list[Tensor]]) -> Iterator[Finding]:
    yield compare.equal(reply.returned, 4.5, "what step(closure) returned, with a closure that returns 4.5")
    for (seen, wanted), how in zip(compare.side_by_side(reply.parameters, expected), STEPS, strict=True):
        finding = all_close(seen, wanted, "parameter")
        yield Finding(finding.passed, f"after a step with {how}: {finding.seen}")
    yield Finding(reply.in_place, "Some .grad is another tensor after synchronize() than it was before.")
    yield compare.equal(
        reply.refused, "RuntimeError", "what zero_grad() raised between backward() and step()"
    )


def _after_each_step(values: list[Tensor], inputs: Tensor) -> list[list[Tensor]]:
    model = Paths(inputs.shape[1], [2], ["float32"], [], [])
    load_values(model.parameters(), values)
    plain = PlainSGD(model.parameters(), 0.1)
    found = []
    for rate, factor in STEPS.values():
        plain.zero_grad()
        plain.param_groups[0]["lr"] = rate
        model(inputs, [0]).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(factor)
        plain.step()
        found.append(copies_of(model.parameters()))
    return found
