"""The grader of `resume`: a training without kills, and the same training with them."""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from graders.grading.kit import Answer, Criterion, Finding, Findings, PlainData, Rng, compare, exercise
from graders.units.shuffles import drawn_anew
from graders.units.unit_03.drivers import training as drivers
from graders.units.unit_03.fault_injection import RETURNED
from graders.units.unit_03.replies import ProcessReply

FEATURES = 8


@dataclass(frozen=True)
class Course:
    """A training. samples: [N, 1 + FEATURES], first its number. values: [FEATURES], the weights at first."""

    samples: Tensor
    values: Tensor
    batch_size: int
    epochs: int
    save_every: int

    def __str__(self) -> str:
        samples = f"{len(self.samples)} samples in batches of {self.batch_size}, {self.epochs} epochs"
        return f"{samples}, saved every {self.save_every} steps"

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

    def train(self, answer: Answer, *kills: int) -> list[ProcessReply]:
        """Let the answer train: a process for each of the kills, see the driver."""
        course = self.samples, self.values, self.batch_size, self.epochs, self.save_every
        processes = answer.call(drivers.training, course, list(kills))
        return [process for process, _ in compare.side_by_side(processes, kills or [0])]


def drawn(rng: Rng, full_batches: int, left_over: int, epochs: int, save_every: int) -> Course:
    """A course with so many batches an epoch, and samples in one more."""
    batch_size = rng.choice((3, 5))
    samples = full_batches * batch_size + left_over
    numbered = torch.cat([torch.arange(samples)[:, None].float(), rng.normal(samples, FEATURES)], 1)
    return Course(numbered, rng.normal(FEATURES), batch_size, epochs, save_every)


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
            "random state",
            2,
            "Dropout draws from torch's global generator: torch.get_rng_state() belongs in the checkpoint, "
            "and torch.set_rng_state() comes after everything that draws. Do not seed it yourself: an order "
            "can have a generator of its own.",
            needs=("data position",),
        ),
        Criterion(
            "model and optimizer",
            2,
            "Momentum is as much a part of the training as the weights: save and load both state_dicts.",
            needs=("random state",),
        ),
        Criterion(
            "killed anywhere",
            2,
            "A process that has gone on saves as the first one did, and counts from the beginning of the "
            "training. A training that has ended makes no more steps.",
            needs=("model and optimizer",),
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
    """Equality with an uninterrupted training, bit by bit."""
    # The one is saved within an epoch and between two; of the other no two drawn orders are alike.
    course, long = drawn(rng, 3, 1, epochs=4, save_every=6), drawn(rng, 10, 0, epochs=6, save_every=10)
    (of_many_epochs,), (whole,) = long.train(answer), course.train(answer, 0)
    trained = (long, of_many_epochs), (course, whole)
    yield "trains", compare.first_failure(_trains(*each) for each in trained)
    orders = [[[*chain(*batches)]] for batches in long.epochs_of(of_many_epochs)]
    yield "shuffles each epoch", drawn_anew(orders, len(long.samples))
    yield "saves", compare.first_failure(_saves_regularly(*each) for each in trained)

    # In the second epoch, one or two steps after a checkpoint.
    begin = course.save_every
    kill = begin + rng.integer(1, 2)
    _, second = course.train(answer, kill, 0)
    how = f"{course}: killed after step {kill} and started again"
    yield "goes on", _goes_on(course, second, how)
    yield "data position", _as_before(f"{how}: the samples", second.batches, whole.batches[begin:])
    drawn_again = _as_before(f"{how}: the random numbers", second.draws, whole.draws[begin:])
    yield "random state", compare.first_failure([_draws_anew(whole), drawn_again])
    yield "model and optimizer", _same_weights(whole, second, how)

    # Before the first save; on the way; in a process that has gone on; and a start after the end.
    kills = rng.integer(1, begin - 1), begin + 2, begin + 1
    *_, last, again = course.train(answer, *kills, 0, 0)
    how = f"{course}: killed after {', '.join(map(str, kills))} steps of three starts, started once more"
    after_the_end = f"{course}: started again after its end"
    no_more = Finding(not again.batches, f"{after_the_end} it makes {len(again.batches)} steps; expected 0.")
    ends = _same_weights(whole, last, how), no_more, _same_weights(whole, again, after_the_end)
    yield "killed anywhere", compare.first_failure(ends)


def _trains(course: Course, process: ProcessReply) -> Finding:
    if process.ended != RETURNED or len(process.batches) != course.steps:
        made = f"{course}: it makes {len(process.batches)} steps, and ends: {process.ended}"
        return Finding(False, f"{made}; expected {course.steps} steps.")
    for epoch, batches in enumerate(course.epochs_of(process)):
        sizes = [len(batch) for batch in batches]
        if sizes[:-1] != [course.batch_size] * (course.an_epoch - 1):
            return Finding(False, f"{course}: epoch {epoch} has batches of {sizes} samples.")
        order = list(chain(*batches))
        if sorted(order) != list(range(len(course.samples))):
            return Finding(False, f"{course}: epoch {epoch} has the samples {order}; expected each once.")
    return Finding(True, f"{course.steps} steps; each of {course.epochs} epochs has every sample once.")


def _saves_regularly(course: Course, process: ProcessReply) -> Finding:
    steps = range(1, course.steps + 1)
    wanted = [f"step-{step}.pt" for step in steps if step % course.save_every == 0 or step == course.steps]
    # The last one may be saved as one of these, and then as the last.
    saved = list(dict.fromkeys(process.saved))
    return compare.equal(saved, wanted, f"{course}: checkpoints of {course.steps} steps")


def _goes_on(course: Course, second: ProcessReply, how: str) -> Finding:
    made, missing = len(second.batches), course.steps - course.save_every
    text = f"{how}, with a checkpoint of step {course.save_every}, it makes {made} steps"
    right = made == missing and second.ended == RETURNED
    return Finding(right, f"{text}, and ends: {second.ended}; expected {missing} steps.")


def _as_before(what: str, seen: list[PlainData], whole: list[PlainData]) -> Finding:
    """Passes if each step has what it has in the uninterrupted training."""
    for place, pair in enumerate(zip(seen, whole, strict=False), 1):
        if pair[0] != pair[1]:
            return compare.equal(*pair, f"{what} of step {place} after the checkpoint")
    return Finding(True, f"{what} are those of the uninterrupted training.")


def _same_weights(whole: ProcessReply, last: ProcessReply, how: str) -> Finding:
    if last.ended != RETURNED:
        return Finding(False, f"{how} it ends with {last.ended}.")
    wanted = whole.weights if type(whole.weights) is Tensor else torch.empty(0)
    return compare.close(last.weights, wanted, f"{how}: the weights at the end", rtol=0, atol=0)


def _draws_anew(process: ProcessReply) -> Finding:
    again = [step for step, drawn in enumerate(process.draws, 1) if drawn in process.draws[: step - 1]]
    text = f"Steps {again} draw the same random numbers as steps before: somebody sets torch's seed."
    return Finding(not again, text if again else "Each step draws random numbers of its own.")
