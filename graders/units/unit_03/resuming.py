"""Unit 03, going on as if nothing had happened."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from graders.grading.answer import AnswerFailed, FailureKind
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.shuffles import drawn_anew
from graders.units.unit_03.drivers import training as drivers
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import ProcessReply


@exercise(
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "trains",
            1,
            "An epoch has ceil(N / batch_size) steps, and each sample once; the last batch may be short.",
        ),
        Criterion(
            "shuffles each epoch", 1, "Draw another permutation for each epoch, from the epoch's own number."
        ),
        Criterion(
            "saves",
            1,
            "Count the steps that are done, through all epochs; save when save_every divides that number, "
            "and after the last, as step-N.pt with N steps done.",
        ),
        Criterion(
            "goes on",
            1,
            "Begin with load_latest. The number of steps done belongs in the checkpoint: go on from there, "
            "not from the beginning of the training or of the epoch.",
            needs=("saves",),
        ),
        Criterion(
            "data position",
            2,
            "The order of an epoch has to be the same after a restart in its middle: draw it from a "
            "generator seeded with the epoch, or save it. And skip what was seen already.",
            needs=("goes on",),
        ),
        Criterion(
            "model and optimizer",
            2,
            "Momentum is as much a part of the training as the weights: save and load both state_dicts.",
            needs=("data position",),
        ),
        Criterion(
            "random state",
            2,
            "Dropout draws from torch's global generator: torch.get_rng_state() belongs in the checkpoint, "
            "and torch.set_rng_state() comes after everything that draws. Do not seed it yourself: an order "
            "can have a generator of its own.",
            needs=("model and optimizer",),
        ),
        Criterion(
            "killed anywhere",
            2,
            "The newest file may be damaged: take the number of steps from what load_latest returned. A "
            "process that has gone on saves as the first one did, and counts from the beginning of the "
            "training, and of the epoch. A training that has ended makes no more steps.",
            needs=("random state",),
        ),
    ),
    hints=(
        "On what does the next step depend, and which of it would a new process not know?",
        "One number says where you are: step. epoch, position = divmod(step, steps_an_epoch).",
        "torch.randperm(N, generator=torch.Generator().manual_seed(epoch)) is the same after every restart.",
        "Save the state as it is after the step, with the number of steps done.",
    ),
)
def resume(answer: Answer, rng: Rng) -> Findings:
    """A training without kills, and the same training with them."""
    course, long = Course.drawn(rng), Course.long(rng)
    (of_many_epochs,), whole = long.train(answer), course.uninterrupted(answer)
    yield "trains", compare.first_failure([trains(course, whole), trains(long, of_many_epochs)])
    yield "shuffles each epoch", shuffles(long, of_many_epochs)
    yield "saves", saves_regularly(course, whole)

    # In the second epoch, two steps after a checkpoint.
    step = course.an_epoch // course.save_every * course.save_every + course.save_every
    kill = ("step", step + rng.integer(1, 2))
    first, second = course.train(answer, kill)
    yield "goes on", goes_on(course, first, second)
    yield "data position", data_position(course, whole, first, second)
    yield "model and optimizer", same_weights(whole, second, f"{course}, killed after step {kill[1]}")

    noisy = course.uninterrupted(answer, noisy=True)
    first, second = course.train(answer, kill, noisy=True)
    equal = same_weights(noisy, second, f"{course}, with dropout, killed after step {kill[1]}")
    yield "random state", compare.first_failure([draws_anew(noisy), equal])
    found = killed_anywhere(course, answer, noisy, rng)
    yield "killed anywhere", compare.first_failure(chain([found], killed_twice(course, answer)))


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
        whole, _ = self.train(answer, ("nothing", 0), noisy=noisy)
        # An error is told with its lines where no process is forked.
        return whole if whole.ended == RETURNED else self.train(answer, noisy=noisy)[0]

    def train(self, answer: Answer, *kills: tuple[str, int], noisy: bool = False) -> list[ProcessReply]:
        """Let the answer train, in one process more than there are kills."""
        recipe = {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "save_every": self.save_every,
            "noisy": noisy,
        }
        processes = answer.call(drivers.training, recipe, self.samples, self.values, list(kills))
        if len(processes) <= len(kills):
            said = (
                f"What came back tells of {len(processes)} starts of the training, not of {len(kills) + 1}."
            )
            raise AnswerFailed(FailureKind.UNREADABLE, said)
        return processes[: len(kills) + 1]


FEATURES = 8


def numbered(rng: Rng, samples: int) -> Tensor:
    """Samples [N, 1 + FEATURES]: first its number, then what is drawn."""
    return torch.cat([torch.arange(samples)[:, None].float(), rng.normal(samples, FEATURES)], 1)


def trains(course: Course, process: ProcessReply) -> Finding:
    """Passes if every epoch has every sample once, in batches of the right size."""
    if len(process.batches) != course.steps:
        return Finding(False, f"{course}: {len(process.batches)} steps; expected {course.steps}.")
    for epoch, batches in enumerate(_epochs(course, process)):
        if [len(batch) for batch in batches[:-1]] != [course.batch_size] * (course.an_epoch - 1):
            return Finding(
                False, f"{course}: epoch {epoch} has batches of {[len(b) for b in batches]} samples."
            )
        order = list(chain(*batches))
        if sorted(order) != list(range(len(course.samples))):
            return Finding(False, f"{course}: epoch {epoch} has the samples {order}; expected each once.")
    return Finding(True, f"{course.steps} steps; each of {course.epochs} epochs has every sample once.")


def shuffles(course: Course, process: ProcessReply) -> Finding:
    """Passes if every epoch has the samples in an order of its own, which was drawn."""
    return drawn_anew([[[*chain(*batches)]] for batches in _epochs(course, process)], len(course.samples))


def _epochs(course: Course, process: ProcessReply) -> list[list[list[int]]]:
    return [
        process.batches[begin : begin + course.an_epoch] for begin in range(0, course.steps, course.an_epoch)
    ]


def saves_regularly(course: Course, process: ProcessReply) -> Finding:
    """Passes if the checkpoints are those of every save_every-th step and of the last."""
    steps = [
        step for step in range(1, course.steps + 1) if step % course.save_every == 0 or step == course.steps
    ]
    wanted = [f"step-{step}.pt" for step in steps]
    return compare.equal(process.saved, wanted, f"{course}: checkpoints of {course.steps} steps")


def goes_on(course: Course, first: ProcessReply, second: ProcessReply) -> Finding:
    """Passes if the second process begins where the last checkpoint of the first ends."""
    if second.ended != RETURNED:
        return Finding(False, f"{course}: started again after a kill it ends with {second.ended}.")
    newest = _newest(course, first)
    text = (
        f"{course}: killed after step {len(first.batches)} with a checkpoint of step {newest}, it then makes "
    )
    text += f"{len(second.batches)} steps"
    wanted = course.steps - newest
    return Finding(len(second.batches) == wanted, f"{text}; {wanted} are missing.")


def _newest(course: Course, process: ProcessReply) -> int:
    return len(process.batches) // course.save_every * course.save_every


def data_position(course: Course, whole: ProcessReply, first: ProcessReply, second: ProcessReply) -> Finding:
    """Passes if the second process takes the batches that the uninterrupted training takes from there on."""
    newest = _newest(course, first)
    for step, (seen, wanted) in enumerate(
        zip(second.batches, whole.batches[newest:], strict=False), newest + 1
    ):
        if seen != wanted:
            text = f"{course}, killed after step {len(first.batches)}: after the restart"
            return Finding(False, f"{text} step {step} has the samples {seen}; uninterrupted {wanted}.")
    return Finding(True, f"From step {newest + 1} on the batches are those of the uninterrupted training.")


def same_weights(whole: ProcessReply, last: ProcessReply, how: str) -> Finding:
    """Passes if two processes end with weights that are equal in every bit."""
    if last.ended != RETURNED:
        return Finding(False, f"{how}, it ends with {last.ended}.")
    if compare.same(last.weights, whole.weights):
        return Finding(True, f"{how}, it ends with the weights of an uninterrupted training.")
    wanted = whole.weights if type(whole.weights) is Tensor else torch.empty(0)
    differ = compare.close(last.weights, wanted, "what it ends with", rtol=0, atol=0)
    return Finding(False, f"{how}: {differ.seen}")


def draws_anew(process: ProcessReply) -> Finding:
    """Passes if no step draws the random numbers of an earlier one."""
    for step, drawn in enumerate(process.draws):
        if drawn in process.draws[:step]:
            before = process.draws.index(drawn) + 1
            text = f"Step {step + 1} draws the same random numbers as step {before}"
            return Finding(False, f"{text}: somebody sets torch's seed, and their dropouts are alike.")
    return Finding(True, "Each step draws random numbers of its own.")


def killed_anywhere(course: Course, answer: Answer, whole: ProcessReply, rng: Rng) -> Finding:
    """Passes if a kill before the first save, a last checkpoint that is damaged, and a start after the end
    change nothing.

    The save before the damaged one is that of a whole number of epochs.
    """
    early, late = rng.integer(1, course.save_every - 1), 3
    kills = [("step", early), ("save", late), ("nothing", 0)]
    *_, last, again = course.train(answer, *kills, noisy=True)
    how = f"{course}, killed after step {early}, and then to its end, of which save {late} is damaged"
    finding = same_weights(whole, last, f"{how}: started again from the one before")
    if not finding.passed:
        return finding
    if again.batches:
        made = compare.counted(len(again.batches), "step")
        return Finding(False, f"{course}: started again after its end it makes {made} more.")
    return same_weights(whole, again, f"{course}, started again after its end")


def killed_twice(course: Course, answer: Answer) -> Iterator[Finding]:
    """Whether a process goes on from what another one has saved that had gone on itself, in that epoch."""
    often = replace(course, save_every=1)
    whole = often.uninterrupted(answer, noisy=True)
    *_, last = often.train(answer, ("step", 3), ("step", 2), noisy=True)
    how = f"{often}, killed in step 3, and again in step 4"
    yield Finding(last.ended == RETURNED, f"{how}, it ends with {last.ended}.")
    made, wanted = last.batches, whole.batches[3:]
    text = f"{how}, it then makes the steps {made}; expected the {len(wanted)} that are missing, {wanted}"
    yield Finding(made == wanted, f"{text:.400}.")
    names = [f"step-{step}.pt" for step in range(4, course.steps + 1)]
    # The last one may be saved as one of these, and then as the last.
    saved = list(dict.fromkeys(last.saved))
    yield compare.equal(saved, names, f"{how}: the checkpoints of the third process")
    yield same_weights(whole, last, how)
