"""Trainings of one script on many ranks, as drawn for `train_ddp`, and what must come out of each."""

from dataclasses import dataclass, replace
from math import isnan

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.events import Event, Kind
from graders.grading.kit import Answer, Finding, Observed, Rng, compare, per_rank
from graders.units.models import copies_of
from graders.units.shuffles import drawn_anew
from graders.units.unit_02.drivers import training as drivers
from graders.units.unit_02.numbered import FIRST, Numbered
from graders.units.unit_02.replies import TrainingReply

SMALL = 16
"""Bytes that a collective may have which is not about gradients: some numbers for the loss."""
STEEP = 30
"""By this the second layer's weights are larger where gradients are to be long."""
SET_UP = 256
"""Bytes that may be sent beside the model at the beginning: PyTorch's DDP tells sizes and buckets."""

NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")
"""Of the parameters of a `Numbered`."""

Run = Observed[TrainingReply]


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
        # From 5 on, the smallest gradient has more than SMALL bytes.
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
            compare.close(seen, wanted, f"{name} {what}", rtol=1e-4, atol=1e-5)
            for name, (seen, wanted) in zip(NAMES, pairs, strict=True)
        )
        return finding if finding.passed else Finding(False, f"{where}{finding.seen}")

    def shows_nan(self, run: Run) -> Finding:
        """Passes if the NaN of a sample has come into all weights, as it does by the gradient."""
        pairs = compare.side_by_side(NAMES, run.results[0].parameters)
        hidden = [name for name, seen in pairs if not seen.isnan().any()]
        text = f"A sample is NaN, so the gradient is; afterwards there is no NaN in {', '.join(hidden)}"
        return Finding(not hidden, f"{text}; expected it to show." if hidden else "A NaN stays visible.")

    def tells_nan(self, run: Run) -> Finding:
        """Passes if every rank returned NaN as the loss of each epoch."""
        for rank, reply in enumerate(run.results):
            told = reply.history if type(reply.history) is list else []
            if [type(each) is float and isnan(each) for each in told] != [True] * self.epochs:
                text = f"A sample is NaN, and rank {rank} returned {reply.history!r:.80}"
                return Finding(False, f"{text}; expected NaN, the mean over all, as each epoch's loss.")
        return Finding(True, "The mean over samples of which one is NaN is NaN.")

    def told(self, run: Run, expected: list[float]) -> Finding:
        """Passes if every rank returned each epoch's mean loss over all samples, see `alone`."""
        for rank, reply in enumerate(run.results):
            if type(reply.history) is not list or len(reply.history) != self.epochs:
                return Finding(
                    False, f"rank {rank} returned {reply.history!r:.80}; expected a float an epoch."
                )
        # Uphill, steps make the rounding of float32 grow as they do the loss.
        rtol = 1e-4 if self.uphill else 5e-6
        return compare.first_failure(
            compare.near(reply.history[epoch], wanted, f"the loss of epoch {epoch} on rank {rank}", rtol)
            for rank, reply in enumerate(run.results)
            for epoch, wanted in enumerate(expected)
        )

    def printed(self, run: Run) -> Finding:
        """Passes if rank 0 printed a line an epoch, and no other rank anything, be it an empty line."""
        first, *others = run.outputs
        lines = [len([line for line in first.splitlines() if line.strip()])]
        lines += [len(text.splitlines()) for text in others]
        expected = [self.epochs] + [0] * len(others)
        text = (
            f"in {compare.counted(self.epochs, 'epoch')} the ranks print {lines} lines; expected {expected}"
        )
        return Finding(lines == expected, f"{text}.")

    def sent(self, run: Run) -> Finding:
        """Passes if every rank takes part in what is needed, and in nothing else."""
        nbytes = sum(value.nbytes for value in self.values[0])
        for rank in range(len(self.values)):
            if not run.results[rank].in_group:
                text = f"afterwards rank {rank} has no process group, which whoever called may need"
                return Finding(False, f"{text}: `launch` ends it.")
            finding = self._sent_by(rank, run, nbytes)
            if not finding.passed:
                return finding
        return Finding(True, f"The model once, {nbytes:,} bytes of gradients a step, one sum an epoch.")

    def _sent_by(self, rank: int, run: Run, nbytes: int) -> Finding:
        """Passes if this rank sent what is needed. nbytes: of the model, and so of its gradients."""
        calls = run.communication(rank)
        steps = [e for e in run.events if e.rank == rank and e.kind is Kind.SPAN and e.op == "step"]
        # PyTorch's DDP settles its buckets when it has seen one step.
        begun = steps[1].sequence if len(steps) > 1 else float("inf")
        gradients = [call for call in calls if call.op == "all_reduce" and call.nbytes > SMALL]
        others = [call for call in calls if call not in gradients]
        set_up = [call for call in others if call.op != "all_reduce" and call.sequence < begun]
        sums = [call for call in others if call not in set_up]
        given = sum(call.nbytes for call in gradients)
        alone = len(self.values) == 1  # it may send nothing
        if given != len(steps) * nbytes and not (alone and not given):
            text = f"rank {rank} gives all_reduce {given:,} bytes in {len(steps)} steps"
            return Finding(False, f"{text}; its gradients have {nbytes:,} in each.")
        if sum(call.nbytes for call in set_up) > nbytes + SET_UP:
            return Finding(False, f"rank {rank} sends more than the model before training: {_named(set_up)}.")
        first = steps[0].sequence if steps else begun
        before = [call for call in set_up if call.sequence < first]
        told = sum(call.nbytes for call in before if call.op == "broadcast") - nbytes
        asked = [call for call in before if call.op != "broadcast"]
        # PyTorch's DDP asks for the number of parameters, and rank 0 then tells sizes: both, or neither.
        told = 0 if alone and not before else told
        if told < 0 or len(asked) != (told > 0) or any(call.nbytes > SMALL for call in asked):
            text = f"rank {rank} makes these calls before training: {_named(before)}"
            return Finding(False, f"{text}; the model is needed there, by broadcast, and nothing else.")
        if len(sums) > self.epochs or any(call.nbytes > SMALL for call in sums):
            each, left = divmod(len(sums), self.epochs)
            shown, often = (sums, f"in {self.epochs} epochs") if left else (sums[:each], "in each epoch")
            text = f"{often} rank {rank} makes {compare.counted(len(shown), 'call')} besides the gradients'"
            return Finding(
                False, f"{text}: {_named(shown)}; one an epoch is enough, of at most {SMALL} bytes."
            )
        return Finding(True, "")


def _named(calls: list[Event]) -> str:
    """The first few of them."""
    named = [f"{call.op} ({call.nbytes:,} bytes)" if call.nbytes else call.op for call in calls]
    return ", ".join([*named[:6], *(["..."] if len(named) > 6 else [])])
