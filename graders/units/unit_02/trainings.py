"""Trainings as drawn for `train_ddp`, what one process would do, and what may be sent."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from course_lib.cluster.topology import Cluster
from course_lib.runtime.communication.events import Kind
from graders.grading.kit import Answer, Finding, Observed, Rng, per_rank
from graders.units.models import copies_of
from graders.units.shuffles import Order
from graders.units.unit_02.drivers import training as drivers
from graders.units.unit_02.drivers.training import RATE, Numbered, TrainingReply

NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")
"""Of the parameters of a `Numbered`."""

Run = Observed[TrainingReply]

SMALL = 16
"""Bytes of a collective that is not about gradients: some numbers for the loss."""
SET_UP = 256
"""Bytes that may be sent beside the model at the beginning: PyTorch's DDP tells sizes and buckets."""


@dataclass(frozen=True, slots=True)
class Training:
    """values[r]: rank r's parameters before. inputs [N, 1 + F, 1]: first the sample's number. labels [N]."""

    values: list[list[Tensor]]
    inputs: Tensor
    labels: Tensor
    epochs: int
    batch_size: int
    seed: int

    @classmethod
    def draw(
        cls, rng: Rng, ranks: int, full: int, rest: int, epochs: int = 1, batch_size: int = 2
    ) -> "Training":
        """So many full steps an epoch, and one with `rest` samples on all ranks together."""
        features, hidden, classes = rng.integer(3, 5), rng.integer(5, 7), 5
        count = ranks * batch_size * full + rest
        shapes = ((hidden, features), (hidden,), (classes, hidden), (classes,))
        inputs = torch.cat([torch.arange(count)[:, None], rng.normal(count, features)], 1)[..., None]
        values = [[rng.normal(*shape) for shape in shapes] for _ in range(ranks)]
        labels = rng.integers(0, classes - 1, count)
        return cls(values, inputs, labels, epochs, batch_size, rng.integer(1, 99))

    def with_another_seed(self) -> "Training":
        """An epoch with the same samples in another order."""
        return replace(self, seed=self.seed + 1, epochs=1)

    @property
    def steps(self) -> int:
        """Of an epoch: as many as the rank with the most samples needs."""
        return -(-len(self.labels) // (len(self.values) * self.batch_size))

    def launch(self, answer: Answer, on_gpu: bool = False) -> Run:
        """What every rank did, each on a node of its own."""
        options = (self.inputs, self.labels), self.epochs, self.batch_size, self.seed, on_gpu
        ranks = len(self.values)
        cluster = Cluster(nodes=ranks)
        return answer.launch(
            drivers.many_processes, per_rank(self.values), *options, ranks=ranks, cluster=cluster
        )

    def orders(self, run: Run) -> list[Order]:
        """Of each epoch the samples of each rank."""
        epochs = [range(epoch * self.steps, (epoch + 1) * self.steps) for epoch in range(self.epochs)]
        return [
            [[number for step in steps for number in reply.batches[step]] for reply in run.results]
            for steps in epochs
        ]

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
                        parameter.sub_(gradient, alpha=RATE)
            losses.append(total / len(self.labels))
        return losses, copies_of(parameters)


def sent(case: Training, run: Run) -> Finding:
    """Passes if every rank takes part in what is needed, and in nothing else."""
    nbytes = sum(value.nbytes for value in case.values[0])
    for rank in range(len(run.results)):
        calls = run.communication(rank)
        steps = [e for e in run.events if e.rank == rank and e.kind is Kind.SPAN and e.op == "step"]
        gradients = [call for call in calls if call.op == "all_reduce" and call.nbytes > SMALL]
        others = [call for call in calls if call not in gradients]
        given = sum(call.nbytes for call in gradients)
        if given != len(steps) * nbytes and not (len(run.results) == 1 and not given):
            text = f"rank {rank} gives all_reduce {given:,} bytes in {len(steps)} steps"
            return Finding(False, f"{text}; its gradients have {nbytes:,} in each.")
        # PyTorch's DDP settles its buckets when it has seen one step.
        late = [call for call in others if call.sequence >= steps[1].sequence]
        most = nbytes + SET_UP + case.epochs * SMALL
        if len(late) > case.epochs or sum(call.nbytes for call in others) > most:
            named = ", ".join(f"{call.op} ({call.nbytes:,} bytes)" for call in others[:6])
            text = f"rank {rank} makes {len(others)} calls besides the gradients': {named}"
            return Finding(False, f"{text}; expected the model once, and one small sum an epoch.")
    return Finding(True, f"The model once, {nbytes:,} bytes of gradients a step, one sum an epoch.")
