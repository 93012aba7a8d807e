"""A unit of unit 09 whose module has what real blocks have: inputs, buffers and results of several kinds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.communication import steps_of
from graders.grading.kit import Answer, Finding, Observed, Rng, compare
from graders.units.one_by_one import Looks
from graders.units.unit_09.drivers import units as drivers
from graders.units.unit_09.models import Assorted
from graders.units.unit_09.replies import AssortedReply


@dataclass(frozen=True, slots=True)
class AssortedUnit:
    """On one rank. weight, scale: of an `Assorted`. seed: of what its dropout draws."""

    weight: Tensor
    scale: Tensor
    tokens: Tensor
    x: Tensor
    seed: int

    @classmethod
    def draw(cls, rng: Rng) -> "AssortedUnit":
        given = rng.integers(0, 4, 6), rng.normal(6, 3), rng.integer(0, 10**6)
        return cls(rng.normal(5, 3), rng.normal(3), *given)

    def launch(self, answer: Answer) -> Observed[AssortedReply]:
        return answer.launch(
            drivers.assorted_unit, self.weight, self.scale, self.tokens, self.x, self.seed, ranks=1
        )

    def _expected(self) -> tuple[list[Tensor], Tensor]:
        """Both results, and the gradient of the weight."""
        module = Assorted(self.weight, self.scale, between=lambda: None)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            results = module(self.tokens, self.x)
        total = sum(each.square().sum() for each in results)
        (gradient,) = torch.autograd.grad(total, [module.embedding.weight])
        return [each.detach() for each in results], gradient.flatten()

    def forward(self, run: Observed[AssortedReply]) -> Finding:
        """Passes if both results are the module's, and what forward counts is not the module's counter."""
        what = "a result of a block with an embedding, a buffer, dropout and two results"
        findings = [
            compare.close(seen, wanted, what, 1e-4, 1e-5)
            for seen, wanted in compare.side_by_side(run.results[0].results, self._expected()[0])
        ]
        counter = "the module's own buffer, in which each forward of the unit's code adds 1,"
        findings.append(compare.close(run.results[0].calls, torch.tensor(0), counter))
        return compare.first_failure(findings)

    def gradients(self, run: Observed[AssortedReply]) -> Finding:
        """Passes if the shard's gradient is that of what forward returned, with the same dropout."""
        (seen,), expected = run.results[0].gradients, self._expected()[1]
        return compare.close(
            seen, expected, "shard.grad of a block with an embedding and dropout", 1e-4, 1e-5
        )

    def started(self, run: Observed[AssortedReply]) -> Finding:
        """Passes if start() in the middle of forward, where the weights are there, has gathered nothing."""
        (step,) = steps_of(run, "backward ends")
        turn = step.marks["forward ends"].sequence
        gathers = sum(call.sequence < turn for call in step.calls)
        return compare.at_most(gathers, 1, "Calls in a forward in the middle of which start() is called")

    def found(self, answer: Answer) -> tuple[Finding, Looks]:
        """What is found of its results and gradients, and of what start() does in the middle of forward."""
        run = self.launch(answer)
        found = compare.first_failure((self.forward(run), self.gradients(run)))
        return found, {"start": lambda: self.started(run)}


def started_in_vain(answer: Answer, rng: Rng) -> Finding:
    """Passes if weights that a backward did not need are let go of, and the next forward gathers anew."""
    ((once, twice),) = answer.launch(drivers.started_in_vain, rng.normal(6, 3), ranks=1).results
    what = "What comes out when the shard was doubled after a backward that needed nothing"
    return compare.close(twice, 2 * once, what, 1e-4, 1e-5)
