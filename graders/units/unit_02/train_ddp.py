"""The grader of `train_ddp`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.gpu import gpu
from graders.units.raised import on_a_gpu
from graders.units.unit_02.training_told import printed, tells_nan, told
from graders.units.unit_02.training_traffic import needed_traffic
from graders.units.unit_02.trainings import NAMES, DrawnTraining, Run


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "every sample once an epoch",
            2,
            "Give the DataLoader the rank's samples, not shuffle=True. All ranks take equally many steps: "
            "take them all, however the losses go.",
        ),
        Criterion(
            "another order in each epoch",
            1,
            "Draw a new permutation in every epoch, and from every seed: DistributedSampler needs "
            "set_epoch(epoch), shard_indices the epoch and the seed.",
        ),
        Criterion(
            "random state kept",
            1,
            "torch.manual_seed gives all ranks the same random numbers from then on, so dropout is alike "
            "everywhere; random.seed and numpy.random.seed do so for augmentation. Use a torch.Generator.",
        ),
        Criterion(
            "same weights on all ranks",
            1,
            "The replicas have to start equal, and then to take equal steps: broadcast, and average.",
        ),
        Criterion(
            "the step of the whole batch",
            2,
            "Older gradients do not count: clear them before each step. The mean over ranks of the gradients "
            "has to be that of the mean loss over the whole batch.",
            needs=("every sample once an epoch", "same weights on all ranks"),
        ),
        Criterion(
            "losses",
            1,
            "An epoch's loss is the mean over all its samples, of all ranks: add up sums, and divide at the "
            "end. A float an epoch, the same on every rank.",
            needs=("the step of the whole batch",),
        ),
        Criterion(
            "one rank prints",
            1,
            "Rank 0 prints a line an epoch, and nobody else. What every rank has to call stays out of that "
            "`if`.",
        ),
        Criterion(
            "no more communication than needed",
            1,
            "The model once, at the beginning; every gradient once a step; one small sum an epoch. The sizes "
            "of the batches need not be sent: every rank can compute them.",
            needs=("the step of the whole batch",),
        ),
        Criterion(
            "on the device",
            1,
            "model.to(device), and for every batch inputs.to(device) and targets.to(device). A sum that "
            "begins as torch.zeros(1) is on the host: name the device there, too.",
        ),
        Criterion(
            "any number of samples",
            1,
            "Deal without padding (DistributedSampler pads). Every rank takes part in every step, also one "
            "that has no batch left. A sample counts the same, however many its rank has in the step. Do not "
            "clip the gradient, skip or undo a step, or repair a NaN.",
            needs=("the step of the whole batch", "losses"),
        ),
    ),
    hints=(
        "Which lines of train_one are right on every rank as they stand? Go through them one by one.",
        "Which samples are this rank's in this epoch? DataLoader(dataset, batch_size, sampler=...) takes any "
        "iterable of ints, such as shard_indices(len(dataset), epoch, seed).tolist().",
        "How many samples does the whole batch of a step have? As many as fit, or what is left: no rank has "
        "to ask.",
        "By what do you have to divide the sum of this rank's losses, so that the mean over ranks of the "
        "gradients is that of the whole batch? Section 1 has the weights, m_k / n, and a sum has m_k in it.",
        "What does a rank do in a step for which it has no batch? average_gradients counts what is missing "
        "as zero, and so does finish(). PyTorch's DDP needs a forward pass, of inputs[:0].",
    ),
)
def train_ddp(answer: Answer, rng: Rng) -> Findings:
    """Trainings with equal batches, on two ranks, on one, where .grad holds something older at the beginning,
    and of many samples and epochs, in which the loss grows; then all others.
    """
    drawn = DrawnTraining.draw
    # On one rank so many that an order which is not drawn shows; a product with a seed of 0 says nothing of
    # the epoch.
    long = replace(drawn(rng, 3, 2, 0, 5, 8), uphill=True, seed=0)
    cases = [replace(drawn(rng, 2, 2, 0, 1), older=False), drawn(rng, 1, 3, 0, 3, 8), long]
    runs = [case.launch(answer) for case in cases]
    both = list(zip(cases, runs, strict=True))
    yield "every sample once an epoch", compare.first_failure(case.dealt(run) for case, run in both)
    other_seed = replace(long, seed=1, epochs=1).launch(answer)
    anew = [long.reshuffled(runs[2]), long.dealt_otherwise(runs[2], other_seed), cases[1].reshuffled(runs[1])]
    yield "another order in each epoch", compare.first_failure(anew)
    yield "random state kept", compare.first_failure(map(_still_differ, runs))
    yield "same weights on all ranks", compare.first_failure(map(_same_weights, runs))
    # What one process does is worked out when it is first asked for, and once.
    alone = [cache(partial(case.alone, run)) for case, run in both]
    situations = ("", "On one rank, where .grad holds something older at the beginning: ", "")
    steps = (
        case.stepped(run, of()[1], where)
        for (case, run), of, where in zip(both, alone, situations, strict=True)
    )
    yield "the step of the whole batch", compare.first_failure(steps)
    losses = (told(case, run, of()[0]) for (case, run), of in zip(both, alone, strict=True))
    yield "losses", compare.first_failure(losses)
    yield "one rank prints", compare.first_failure(printed(case, run) for case, run in both)
    yield (
        "no more communication than needed",
        compare.first_failure(needed_traffic(case, run) for case, run in both),
    )
    yield "on the device", on_a_gpu(lambda: _moved(drawn(rng, 2, 1, 0, 1), answer))
    yield "any number of samples", compare.first_failure(_of_any_number(answer, rng), _ANY_NUMBER)


_ANY_NUMBER = "Unequal batches, empty ones, and a rank without samples: each sample counts the same."


def _of_any_number(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """What is found of trainings with unequal batches, some of them empty; of one with a NaN; and of one in
    which a rank never has a sample, with gradients longer than any that one would clip to.
    """
    uneven = DrawnTraining.draw(rng, 3, 2, 1, 3)
    uphill = replace(DrawnTraining.draw(rng, 2, 1, 3, 2, 3), uphill=True)
    for case in (uneven, uphill, DrawnTraining.draw(rng, 3, 0, 2, 1).steep()):
        run = case.launch(answer)
        yield case.dealt(run)
        yield _same_weights(run)
        losses, parameters = case.alone(run)
        last = [len(batch) for reply in run.results for batch in reply.batches[-1:]]
        yield case.stepped(run, parameters, f"With {last} samples in the last step: ")
        yield told(case, run, losses)
    diverging = uneven.diverging()
    run = diverging.launch(answer)
    yield from (diverging.dealt(run), diverging.shows_nan(run), tells_nan(diverging, run))


def _same_weights(run: Run) -> Finding:
    """Passes if every rank ends with the same bits, and has the same weights after each of its steps."""
    first = run.results[0].parameters
    for rank, reply in enumerate(run.results):
        pairs = compare.side_by_side(reply.parameters, first)
        for name, (seen, wanted) in compare.side_by_side(NAMES, list(pairs)):
            if not compare.same(seen.nan_to_num(), wanted.nan_to_num()):
                text = f"{name} is {compare.shown(seen)} on rank {rank}"
                return Finding(False, f"{text} and {compare.shown(wanted)} on rank 0.")
        steps = zip(reply.sums, run.results[0].sums, strict=False)
        apart = [number for number, (own, wanted) in enumerate(steps) if own != wanted]
        if apart:
            text = f"rank {rank} and rank 0 leave the optimizer's step {apart[0]} with different weights"
            return Finding(False, f"{text}; expected the same gradients there. Later they are made equal.")
    return Finding(True, f"All {len(run.results)} ranks end with the same weights, bit by bit.")


_LIBRARIES = ("torch in training", "torch afterwards", "random afterwards", "numpy.random afterwards")
"""Whose random numbers a reply's draws are, and of when, in this order."""


def _still_differ(run: Run) -> Finding:
    """Passes if the ranks draw different random numbers in training and afterwards, as they did before."""
    draws_by_library = zip(*(reply.draws for reply in run.results), strict=True)
    for library, drawn in zip(_LIBRARIES, draws_by_library, strict=True):
        if len(set(drawn)) < len(drawn):
            return Finding(False, f"Ranks draw the same random numbers from {library}.")
    return Finding(True, "The ranks draw different random numbers in training and afterwards, as before.")


def _moved(case: DrawnTraining, answer: Answer) -> Finding:
    """Passes if every rank moves its model and its batches to the device that it is given, a GPU."""
    run, there = case.launch(answer, on_gpu=True), [gpu().type]
    for rank, reply in enumerate(run.results):
        if reply.devices != there or reply.left != there:
            part = "with a batch" if reply.left == there else "with a model"
            return Finding(False, f"rank {rank} computes {part} that was not moved to the device, a GPU.")
    return Finding(True, "Every rank computes where it was told to.")
