"""Unit 03: trainings that are drawn, for processes that may be killed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, AnswerFailed, FailureKind, Rng, compare
from graders.units.unit_03.drivers import training as drivers
from graders.units.unit_03.replies import ProcessReply

FEATURES = 8


@dataclass(frozen=True)
class Course:
    """A training that is drawn, and the processes in which it ran."""

    samples: Tensor
    values: Tensor
    batch_size: int
    epochs: int
    save_every: int

    @classmethod
    def short(cls, rng: Rng) -> "Course":
        """Four epochs of four steps, the last of one sample; saved within an epoch and between two."""
        batch_size = rng.choice((3, 5))  # an epoch has four steps: another number
        samples = numbered(rng, 3 * batch_size + 1)
        return cls(samples, rng.normal(FEATURES), batch_size, epochs=4, save_every=6)

    @classmethod
    def long(cls, rng: Rng) -> "Course":
        """Six epochs of full batches, of so many samples that no two drawn orders are alike."""
        batch_size = rng.choice((3, 5))
        samples = numbered(rng, 10 * batch_size)
        return cls(samples, rng.normal(FEATURES), batch_size, epochs=6, save_every=10)

    def __str__(self) -> str:
        samples = f"{len(self.samples)} samples in batches of {self.batch_size}, {self.epochs} epochs"
        return f"{samples}, saved every {compare.counted(self.save_every, 'step')}"

    @property
    def an_epoch(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.an_epoch

    def epochs_of(self, process: ProcessReply) -> list[list[list[int]]]:
        """The process's batches, epoch by epoch."""
        starts = range(0, self.steps, self.an_epoch)
        return [process.batches[begin : begin + self.an_epoch] for begin in starts]

    def train(self, answer: Answer, *kills: int, noisy: bool = False) -> list[ProcessReply]:
        """Let the answer train, in a process for each of the kills: after so many steps; 0: not killed.
        Without any, in one that is not forked, so that an error is told with its lines.
        """
        recipe = {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "save_every": self.save_every,
            "noisy": noisy,
        }
        processes = answer.call(drivers.training, recipe, self.samples, self.values, list(kills))
        if len(processes) != max(len(kills), 1):
            said = f"What came back tells of {len(processes)} starts of the training."
            raise AnswerFailed(FailureKind.UNREADABLE, said)
        return processes


def numbered(rng: Rng, samples: int) -> Tensor:
    """Samples [N, 1 + FEATURES]: first its number, then what is drawn."""
    return torch.cat([torch.arange(samples)[:, None].float(), rng.normal(samples, FEATURES)], 1)
