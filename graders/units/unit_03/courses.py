"""Unit 03: trainings that are drawn, for processes that may be killed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.kit import Answer, AnswerFailed, FailureKind, Rng, compare
from graders.units.unit_03.drivers import training as drivers
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import ProcessReply


@dataclass(frozen=True)
class Course:
    """A training that is drawn, and the processes in which it ran."""

    samples: Tensor
    values: Tensor
    batch_size: int
    epochs: int
    save_every: int

    @classmethod
    def drawn(cls, rng: Rng) -> "Course":
        """Four epochs whose last batch is one sample, saved within one, between two, and at the end."""
        batch_size = rng.choice((3, 5))  # an epoch has four steps: another number
        return cls(
            numbered(rng, 3 * batch_size + 1), rng.normal(FEATURES), batch_size, epochs=4, save_every=6
        )

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

    def uninterrupted(self, answer: Answer, *, noisy: bool = False) -> ProcessReply:
        """What a process does that nobody kills. Like those that are, it has a process to itself, in which an
        answer finds the variables of its module, such as a generator, as every start finds them.
        """
        [whole] = self._processes(answer, [("nothing", 0)], noisy)
        # An error is told with its lines where no process is forked.
        return whole if whole.ended == RETURNED else self.train(answer, noisy=noisy)[0]

    def train(self, answer: Answer, *kills: tuple[str, int], noisy: bool = False) -> list[ProcessReply]:
        """Let the answer train, in one process more than there are kills."""
        return self._processes(answer, [*kills, ("nothing", 0)] if kills else [], noisy)

    def _processes(self, answer: Answer, kills: list[tuple[str, int]], noisy: bool) -> list[ProcessReply]:
        recipe = {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "save_every": self.save_every,
            "noisy": noisy,
        }
        processes = answer.call(drivers.training, recipe, self.samples, self.values, kills)
        wanted = max(len(kills), 1)
        if len(processes) < wanted:
            said = f"What came back tells of {len(processes)} starts of the training, not of {wanted}."
            raise AnswerFailed(FailureKind.UNREADABLE, said)
        return processes[:wanted]


FEATURES = 8


def numbered(rng: Rng, samples: int) -> Tensor:
    """Samples [N, 1 + FEATURES]: first its number, then what is drawn."""
    return torch.cat([torch.arange(samples)[:, None].float(), rng.normal(samples, FEATURES)], 1)
