"""What the graders of unit 03 draw and judge about going on: when to save, resuming, changing worlds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from graders.grading import compare
from graders.grading.answer import Answer
from graders.grading.exercise import Finding
from graders.grading.rng import Rng
from graders.units.unit_03.lives import RETURNED

# --- checkpoint_interval


def intervals(criterion: str, answer: Answer, cases: Sequence[tuple[float, ...]]) -> Finding:
    """Passes if every interval is Young's, for (seconds of a checkpoint, a node's mean time[, nodes])."""
    finding = Finding(criterion, False, "")
    for seconds, mean_time, *nodes in cases:
        expected = math.sqrt(2 * seconds * mean_time / (nodes[0] if nodes else 1))
        seen = answer.call("call", seconds, mean_time, *nodes)
        machine = f" on each of {nodes[0]} nodes" if nodes else ""
        what = f"the interval for checkpoints of {seconds:g} s and a failure every {mean_time:g} s{machine}"
        finding = compare.near(criterion, seen, expected, what, unit=" s")
        if not finding.passed:
            return finding
    return finding


# --- resume


@dataclass(frozen=True)
class Life:
    """What one process of a training did. See `drivers.unit_03.training`."""

    ended: str
    weights: Any
    batches: list[list[int]]
    saved: list[str]


@dataclass(frozen=True)
class Course:
    """A training that is drawn, and the lives that it had."""

    samples: Tensor
    values: Tensor
    batch_size: int
    epochs: int
    save_every: int

    @classmethod
    def drawn(cls, rng: Rng) -> "Course":
        """Three epochs of which the last batch is short, saved at steps that end no epoch, and at the end."""
        batch_size = rng.choice((3, 5))  # an epoch has four steps: another number
        samples = 3 * batch_size + rng.integer(1, batch_size - 1)
        features = 8
        numbered = torch.cat([torch.arange(samples)[:, None].float(), rng.normal(samples, features)], 1)
        return cls(numbered, rng.normal(features), batch_size, epochs=3, save_every=5)

    @property
    def an_epoch(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    @property
    def steps(self) -> int:
        return self.epochs * self.an_epoch

    def live(self, answer: Answer, *deaths: tuple[str, int], noisy: bool = False) -> list[Life]:
        """Let the answer train, in one life more than there are deaths."""
        recipe = {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "save_every": self.save_every,
            "noisy": noisy,
        }
        lives = answer.call("unit_03.training", recipe, self.samples, self.values, list(deaths))
        return [Life(**life) for life in lives]


def trains(course: Course, life: Life) -> Finding:
    """Passes if every epoch has every sample once, in batches of the right size."""
    name = "trains"
    if len(life.batches) != course.steps:
        text = f"{len(course.samples)} samples in batches of {course.batch_size}, {course.epochs} epochs"
        return Finding(name, False, f"{text}: {len(life.batches)} steps; expected {course.steps}.")
    for epoch, batches in enumerate(_epochs(course, life)):
        if [len(batch) for batch in batches[:-1]] != [course.batch_size] * (course.an_epoch - 1):
            return Finding(name, False, f"Epoch {epoch} has batches of {[len(b) for b in batches]} samples.")
        order = list(chain(*batches))
        if sorted(order) != list(range(len(course.samples))):
            return Finding(name, False, f"Epoch {epoch} has the samples {order}; expected each once.")
    return Finding(name, True, f"{course.steps} steps; each of {course.epochs} epochs has every sample once.")


def shuffles(course: Course, life: Life) -> Finding:
    """Passes if no two epochs have the same order, and none the order of the samples."""
    orders = [list(chain(*batches)) for batches in _epochs(course, life)]
    orders.append(list(range(len(course.samples))))
    same = [(a, b) for a in range(len(orders)) for b in range(a) if orders[a] == orders[b]]
    if not same:
        return Finding("shuffles each epoch", True, f"{course.epochs} epochs, {course.epochs} orders.")
    later, earlier = same[0]
    which = "is not shuffled" if later == course.epochs else f"has the order of epoch {later}"
    return Finding("shuffles each epoch", False, f"Epoch {earlier} {which}: {orders[earlier]}.")


def _epochs(course: Course, life: Life) -> list[list[list[int]]]:
    return [
        life.batches[begin : begin + course.an_epoch] for begin in range(0, course.steps, course.an_epoch)
    ]


def saves_regularly(course: Course, life: Life) -> Finding:
    """Passes if the checkpoints are those of every save_every-th step and of the last."""
    steps = [
        step for step in range(1, course.steps + 1) if step % course.save_every == 0 or step == course.steps
    ]
    wanted = [f"step-{step}.pt" for step in steps]
    return compare.equal("saves", life.saved, wanted, f"checkpoints of {course.steps} steps")


def goes_on(course: Course, first: Life, second: Life) -> Finding:
    """Passes if the second life begins where the last checkpoint of the first ends."""
    name = "goes on"
    if second.ended != RETURNED:
        return Finding(name, False, f"Started again after a kill it ends with {second.ended}.")
    newest = _newest(course, first)
    text = f"Killed after step {len(first.batches)} with a checkpoint of step {newest}, it then makes "
    text += f"{len(second.batches)} steps"
    wanted = course.steps - newest
    return Finding(name, len(second.batches) == wanted, f"{text}; {wanted} are missing.")


def not_tried(criteria: Sequence[str], *needed: str) -> Iterator[Finding]:
    """Failed, without another kill: what these criteria need is not there yet."""
    names = " and ".join(f'"{each}"' for each in needed)
    for criterion in criteria:
        yield Finding(criterion, False, f"Not tried: {names} must pass first.")


def _newest(course: Course, life: Life) -> int:
    return len(life.batches) // course.save_every * course.save_every


def data_position(course: Course, whole: Life, first: Life, second: Life) -> Finding:
    """Passes if the second life takes the batches that the uninterrupted training takes from there on."""
    name = "data position"
    newest = _newest(course, first)
    for step, (seen, wanted) in enumerate(
        zip(second.batches, whole.batches[newest:], strict=False), newest + 1
    ):
        if seen != wanted:
            return Finding(
                name, False, f"Step {step} after the restart has the samples {seen}; uninterrupted {wanted}."
            )
    return Finding(
        name, True, f"From step {newest + 1} on the batches are those of the uninterrupted training."
    )


def same_weights(criterion: str, whole: Life, last: Life, how: str) -> Finding:
    """Passes if two lives end with weights that are equal in every bit."""
    if last.ended != RETURNED:
        return Finding(criterion, False, f"{how}, it ends with {last.ended}.")
    if torch.equal(last.weights, whole.weights):
        return Finding(criterion, True, f"{how}, it ends with the weights of an uninterrupted training.")
    different = int((last.weights != whole.weights).sum())
    largest = float((last.weights - whole.weights).abs().max())
    text = f"{different} of {len(whole.weights)} weights differ from the uninterrupted training's"
    text = f"{text}, by up to {largest:.2g}"
    return Finding(criterion, False, f"{how}, {text}.")


def killed_anywhere(course: Course, answer: Answer, whole: Life, rng: Rng) -> Finding:
    """Passes if kills before the first save and in a later one, and a start after the end, change nothing."""
    name = "killed anywhere"
    early, late = rng.integer(1, course.save_every - 1), rng.integer(2, 3)
    deaths = [("step", early), ("save", late), ("nothing", 0)]
    *_, last, again = course.live(answer, *deaths, noisy=True)
    finding = same_weights(name, whole, last, f"Killed after step {early}, and then in its save {late}")
    if not finding.passed:
        return finding
    if again.batches:
        return Finding(name, False, f"Started again after its end it makes {len(again.batches)} steps more.")
    return same_weights(name, whole, again, "Started again after its end")


# --- elastic_batch


Worlds = Mapping[tuple[int, int], Sequence[Mapping[str, Any]]]
"""(global batch, ranks) -> the positions and the weight of every rank."""


def worlds(answer: Answer, cases: Sequence[tuple[int, int]]) -> Worlds:
    """What the answer gives in each case."""
    return {case: answer.call("unit_03.world", *case) for case in cases}


def complete(criterion: str, given: Worlds) -> Finding:
    """Passes if in every world each position is given out once."""
    for (batch, ranks), parts in given.items():
        positions = list(chain(*(part["positions"] for part in parts)))
        if sorted(positions) != list(range(batch)):
            missing = sorted(set(range(batch)) - set(positions))
            twice = sorted({position for position in positions if positions.count(position) > 1})
            beyond = sorted(set(positions) - set(range(batch)))
            text = f"A batch of {batch} on {ranks} ranks: missing {missing}, given out twice {twice}"
            return Finding(criterion, False, f"{text}, not in the batch {beyond}.")
    return Finding(criterion, True, f"In {len(given)} worlds every sample is given to one rank.")


def even(given: Worlds) -> Finding:
    """Passes if no rank has more than one sample more than another."""
    for (batch, ranks), parts in given.items():
        sizes = [len(part["positions"]) for part in parts]
        if max(sizes) - min(sizes) > 1:
            text = f"A batch of {batch} on {ranks} ranks is dealt out as {sizes}"
            return Finding("balanced", False, f"{text}; the step takes as long as the largest part.")
    return Finding("balanced", True, "Parts differ by one sample at most.")


def weights_right(criterion: str, given: Worlds, losses: Tensor) -> Finding:
    """Passes if all is dealt out and the mean over ranks of weighted mean losses is that of the global batch.

    losses: of the samples, float64, as many as the largest batch.
    """
    finding = complete(criterion, given)
    if not finding.passed:
        return finding
    for (batch, ranks), parts in given.items():
        means = [
            part["weight"] * float(losses[part["positions"]].mean()) if part["positions"] else 0.0
            for part in parts
        ]
        shown = [round(part["weight"], 4) for part in parts]
        what = f"With weights {shown} for a batch of {batch} on {ranks} ranks the mean over ranks"
        finding = compare.near(criterion, math.fsum(means) / ranks, float(losses[:batch].mean()), what)
        empty = [part["weight"] for part in parts if not part["positions"]]
        if finding.passed and any(weight != 0 for weight in empty):
            return Finding(
                criterion, False, f"A rank without samples has weight {max(empty, key=abs)}; expected 0."
            )
        if not finding.passed:
            return finding
    return finding
