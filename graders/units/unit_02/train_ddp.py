"""The grader of `train_ddp`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.gpu import gpu
from graders.units.raised import on_a_gpu
from graders.units.unit_02.trainings import NAMES, DrawnTraining, Run


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "every sample once an epoch",
            2,
            "Deal without padding, and give the DataLoader the rank's samples, not shuffle=True. Every rank "
            "takes part in every step, also one that has no batch left: how many steps do all ranks need? "
            "Take them all, however the losses go.",
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
            3,
            "Older gradients do not count: clear them before each step. A sample counts the same, however "
            "many its rank has in the step: the mean over ranks of the gradients has to be that of the mean "
            "loss over the whole batch. Do not clip it, skip or undo a step, or repair a NaN.",
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
    """Trainings with equal batches, on one rank, with unequal batches, some of them empty; one with a NaN and
    from another seed, and one of many samples and epochs; then one in which a rank never has a sample. In
    some the loss grows.
    """
    # On one rank so many that an order which is not drawn shows.
    sizes = ((2, 2, 0, 1), (1, 3, 5, 3, 8), (3, 2, 1, 3), (2, 1, 3, 2, 3))
    cases = [DrawnTraining.draw(rng, *size) for size in sizes]
    cases[0], cases[3] = replace(cases[0], older=False), replace(cases[3], uphill=True)
    diverging = cases[2].diverging()
    runs = [case.launch(answer) for case in [*cases, diverging]]
    both = list(zip([*cases, diverging], runs, strict=True))
    drawn = DrawnTraining.draw(rng, ranks=3, full=2, rest=0, epochs=5, batch_size=8)
    # A product with a seed of 0 says nothing of the epoch.
    long = replace(drawn, uphill=True, seed=0)
    shuffled = long.launch(answer)
    dealt = (case.dealt(run) for case, run in [*both, (long, shuffled)])
    yield "every sample once an epoch", compare.first_failure(dealt)
    # With nine samples two epochs are alike too often.
    other_seed = cases[2].dealt_otherwise(runs[2], runs[-1])
    anew = [long.reshuffled(shuffled), other_seed, cases[1].reshuffled(runs[1])]
    yield "another order in each epoch", compare.first_failure(anew)
    yield "random state kept", compare.first_failure(map(_still_differ, runs))
    yield "same weights on all ranks", compare.first_failure(_same_weights(run) for run in runs)

    # Who is at a loss without samples is told so here, and not before.
    empty = DrawnTraining.draw(rng, 3, 0, 2, 1).steep()
    idle = empty.launch(answer)
    # What one process does is worked out when it is first asked for, and once.
    trained = [(case, run, cache(partial(case.alone, run))) for case, run in [*both[:-1], (empty, idle)]]
    steps = (
        case.stepped(run, alone()[1], where)
        for (case, run, alone), where in zip(trained, _situations(runs[:-1], idle), strict=True)
    )
    of_nan, of_idle = diverging.shows_nan(runs[-1]), [empty.dealt(idle), _same_weights(idle)]
    yield "the step of the whole batch", compare.first_failure(chain(steps, of_idle, [of_nan]))
    told = (case.told(run, alone()[0]) for case, run, alone in trained)
    yield "losses", compare.first_failure(chain(told, [diverging.tells_nan(runs[-1])]))
    both.append((empty, idle))
    yield "one rank prints", compare.first_failure(case.printed(run) for case, run in both)
    yield "no more communication than needed", compare.first_failure(case.sent(run) for case, run in both)
    yield "on the device", on_a_gpu(lambda: _moved(DrawnTraining.draw(rng, 2, 1, 0, 1), answer))


def _situations(runs: Sequence[Run], idle: Run) -> list[str]:
    """What is special about each training, as the beginning of a sentence on what went wrong there."""
    last = [[len(batch) for reply in run.results for batch in reply.batches[-1:]] for run in (*runs, idle)]
    right = f"With equal batches, {last[0]} samples in a step, it is right"
    return [
        f"With equal batches, {last[0]} samples in a step: ",
        f"{right}, but not on one rank, with {last[1]} samples in the last step, where .grad holds something "
        "older at the beginning: ",
        *(f"{right}, but not with {sizes} samples in the last step: " for sizes in last[2:]),
    ]


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
