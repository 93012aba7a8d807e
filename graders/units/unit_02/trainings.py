"""Trainings of one script on many ranks, as drawn for `train_ddp`, and what must come out of each."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.cluster.topology import Cluster
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.models import copies_of
from graders.units.shuffles import drawn_anew
from graders.units.unit_02.drivers import training as drivers
from graders.units.unit_02.numbered import FIRST, Numbered
from graders.units.unit_02.replies import TrainingReply

STEEP = 30
"""By this the second layer's weights are larger where gradients are to be long."""

NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")
"""Of the parameters of a `Numbered`."""

Run = Observed[TrainingReply]


def _rounding(expected: Tensor) -> float:
    """What rounding may do to a sum: numbers of its size were added up, however near to zero it ended."""
    return 1e-5 * max(1.0, float(expected.abs().max()))


@dataclass(frozen=True, slots=True)
class DrawnTraining:
    """A training that is drawn.

    values[r]: rank r's parameters before. inputs [N, 1 + F, 1]: first the sample's number. labels [N].
    uphill: whether the optimizer goes along the gradient, so that the loss grows from epoch to epoch. older:
    whether .grad holds something at the beginning.
    """

    values: list[list[Tensor]]
    inputs: Tensor
    labels: Tensor
    epochs: int
    batch_size: int
    seed: int
    uphill: bool = False
    older: bool = True
    rate = 0.5

    @classmethod
    def draw(
        cls, rng: Rng, ranks: int, full: int, rest: int, epochs: int, batch_size: int = 2
    ) -> "DrawnTraining":
        """So many full steps an epoch, and one with `rest` samples on all ranks together."""
        # From 5 on, the smallest gradient has more bytes than what may be sent for the loss.
        features, hidden, classes = rng.integer(3, 5), rng.integer(5, 7), 5
        count = ranks * batch_size * full + rest
        shapes = ((hidden, features), (hidden,), (classes, hidden), (classes,))
        numbers = torch.arange(FIRST, FIRST + count).float()
        inputs = torch.cat([numbers[:, None], rng.normal(count, features)], 1)[..., None]
        values = [[rng.normal(*shape) for shape in shapes] for _ in range(ranks)]
        return cls(
            values, inputs, rng.integers(0, classes - 1, count), epochs, batch_size, rng.integer(1, 99)
        )

    @property
    def steps(self) -> int:
        """Of an epoch: as many as the rank with the most samples needs."""
        return -(-len(self.labels) // (len(self.values) * self.batch_size))

    @property
    def _goes(self) -> str:
        """How the losses go, where that is no matter of course."""
        if self.inputs.isnan().any():
            return ", where a sample is NaN"
        return ", where the loss grows" if self.uphill else ""

    def steep(self) -> "DrawnTraining":
        """The same with gradients longer than any that one would clip to: it is sure, and wrong."""
        values = [[first, bias, STEEP * second, last] for first, bias, second, last in self.values]
        with torch.no_grad():
            taken = Numbered(values[0])(self.inputs).argmax(1)
        return replace(self, values=values, labels=(taken + 1) % len(values[0][-1]))

    def diverging(self) -> "DrawnTraining":
        """The same for two epochs, with another seed, and a NaN in the last sample."""
        inputs = self.inputs.clone()
        inputs[-1, 1:] = torch.nan
        return replace(self, inputs=inputs, epochs=2, seed=self.seed + 1)

    def launch(self, answer: Answer, on_gpu: bool = False) -> Run:
        """What every rank did, each on a node of its own: a rank's number there is 0 everywhere. on_gpu: as
        in the driver.
        """
        samples = self.inputs, self.labels
        options = self.rate, self.uphill, self.epochs, self.batch_size, self.seed, on_gpu, self.older
        given, nodes = (per_rank(self.values), samples, *options), len(self.values)
        return answer.launch(drivers.many_processes, *given, ranks=nodes, cluster=Cluster(nodes=nodes))

    def dealt(self, run: Run) -> Finding:
        """Passes if in every epoch each sample is on one rank once, in as many steps on all ranks."""
        many = f"{len(self.labels)} samples on {compare.counted(len(self.values), 'rank')}"
        where = f"{many} in batches of {self.batch_size}{self._goes}"
        for rank, reply in enumerate(run.results):
            taken, wanted = len(reply.batches), self.epochs * self.steps
            if taken != wanted:
                steps = compare.counted(taken, "step")
                in_all = f"{steps} in {compare.counted(self.epochs, 'epoch')}"
                text = f"rank {rank} takes {in_all} with the optimizer that it was given"
                return Finding(False, f"{where}: {text}; expected {wanted}.")
            largest = max(map(len, reply.batches))
            if largest > self.batch_size:
                text = f"rank {rank} goes forward with {largest} samples in a step, and with a graph"
                return Finding(False, f"{where}: {text}.")
        for epoch in range(self.epochs):
            seen = sorted(number for rank in range(len(self.values)) for number in self._of(run, rank, epoch))
            if seen != list(range(len(self.labels))):
                twice = sorted({number for number in seen if seen.count(number) > 1})
                missing = sorted(set(range(len(self.labels))) - set(seen))
                text = f"in epoch {epoch} more than once: {twice or 'none'}; never: {missing or 'none'}"
                if not seen:
                    text = f"in epoch {epoch} the models that were given had no sample; were they copied?"
                return Finding(False, f"{where}: {text}{'' if text.endswith('?') else '.'}")
        return Finding(True, f"{where}: each once an epoch, in {self.steps} steps.")

    def _of(self, run: Run, rank: int, epoch: int) -> list[int]:
        """The samples that a rank had in an epoch."""
        steps = run.results[rank].batches[epoch * self.steps : (epoch + 1) * self.steps]
        return [number for batch in steps for number in batch]

    def reshuffled(self, run: Run) -> Finding:
        """Passes if every epoch deals the samples in an order of its own, which was drawn."""
        ranks, every = compare.counted(len(self.values), "rank"), range(len(self.values))
        orders = [[self._of(run, rank, epoch) for rank in every] for epoch in range(self.epochs)]
        finding = drawn_anew(orders, len(self.labels))
        return (
            finding
            if finding.passed
            else Finding(False, f"on {ranks}, with seed {self.seed}, {finding.seen}")
        )

    def dealt_otherwise(self, run: Run, other: Run) -> Finding:
        """Passes if another seed deals the first epoch otherwise."""
        both = [
            [sorted(self._of(each, rank, 0)) for rank in range(len(self.values))] for each in (run, other)
        ]
        if both[0] != both[1]:
            return Finding(True, "Every epoch, and every seed, deals the samples in an order of its own.")
        text = f"the seeds {self.seed} and {self.seed + 1} give the ranks the same samples: {both[0]}"
        return Finding(False, f"{text}.")

    def alone(self, run: Run) -> tuple[list[float], list[Tensor]]:
        """The losses of the epochs, and the parameters, of one process that has each step's whole batch."""
        model = Numbered(self.values[0])
        parameters = list(model.parameters())
        losses = []
        for epoch in range(self.epochs):
            total = 0.0
            for step in range(epoch * self.steps, (epoch + 1) * self.steps):
                whole = [number for reply in run.results for number in reply.batches[step]]
                loss = functional.cross_entropy(model(self.inputs[whole]), self.labels[whole])
                gradients = torch.autograd.grad(loss, parameters)
                total += float(loss.detach()) * len(whole)
                with torch.no_grad():
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        parameter.add_(gradient, alpha=self.rate if self.uphill else -self.rate)
            losses.append(total / len(self.labels))
        return losses, copies_of(parameters)

    def stepped(self, run: Run, expected: list[Tensor], where: str) -> Finding:
        """Passes if the weights are those of one process that had the whole batches, see `alone`. where: in
        which situation, for a sentence.
        """
        pairs = compare.side_by_side(run.results[0].parameters, expected)
        what = f"after {compare.counted(self.epochs, 'epoch')}{self._goes}"
        finding = compare.first_failure(
            compare.close(seen, wanted, f"{name} {what}", rtol=1e-4, atol=_rounding(wanted))
            for name, (seen, wanted) in zip(NAMES, pairs, strict=True)
        )
        return finding if finding.passed else Finding(False, f"{where}{finding.seen}")

    def shows_nan(self, run: Run) -> Finding:
        """Passes if the NaN of a sample has come into all weights, as it does by the gradient."""
        pairs = compare.side_by_side(NAMES, run.results[0].parameters)
        hidden = [name for name, seen in pairs if not seen.isnan().any()]
        text = f"A sample is NaN, so the gradient is; afterwards there is no NaN in {', '.join(hidden)}"
        return Finding(not hidden, f"{text}; expected it to show." if hidden else "A NaN stays visible.")
