"""Unit 02, the whole thing: a script for one process becomes one for many."""

from dataclasses import replace
from functools import cache, partial
from itertools import chain

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_02.drawn_training import DrawnTraining, Run


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "every sample once an epoch",
            2,
            "Deal without padding, and give the DataLoader the rank's samples, not shuffle=True. Every rank "
            "takes part in every step, one that has no batch left too: how many steps do all ranks need? "
            "And as in train_one none is left out, however the losses go.",
        ),
        Criterion(
            "another order in each epoch",
            1,
            "Draw a new permutation in every epoch, and from every seed: DistributedSampler needs "
            "set_epoch(epoch), shard_indices the epoch and the seed. Leave the ranks' own random numbers as "
            "they are.",
        ),
        Criterion(
            "same weights on all ranks",
            1,
            "The replicas have to start equal, and then to take equal steps: broadcast, and average.",
        ),
        Criterion(
            "the step of the whole batch",
            3,
            "A sample counts alike, however many its rank has in this step: the mean over ranks of the "
            "gradients has to be that of the mean loss over the whole batch, also where some rank has none. "
            "Nothing undoes a step: who trains has to see where it leads, NaN too.",
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
            2,
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
    """Trainings in whose last step some ranks have nothing, the batches are unequal, all are full; one where
    a rank never has a sample, one on one rank, one with a NaN and from another seed, and one of many samples
    and epochs. In some the loss grows.
    """
    sizes = ((3, 2, 1, 3), (2, 1, 3, 2, 3), (2, 2, 0, 1), (3, 0, 2, 1), (1, 1, 1, 1))
    cases = [DrawnTraining.draw(rng, *size) for size in sizes]
    cases[1], cases[3] = replace(cases[1], uphill=True), cases[3].steep()
    diverging = cases[0].diverging()
    cases.append(diverging)
    runs = [case.launch(answer) for case in cases]
    both = list(zip(cases, runs, strict=True))
    drawn = DrawnTraining.draw(rng, ranks=3, full=2, rest=0, epochs=5, batch_size=8)
    long = replace(drawn, uphill=True)
    shuffled = long.launch(answer, device=False)
    dealt = (case.dealt(run) for case, run in [*both, (long, shuffled)])
    yield "every sample once an epoch", compare.first_failure(dealt)
    # With nine samples two epochs are alike too often.
    other_seed = cases[0].dealt_otherwise(runs[0], runs[-1])
    random = compare.first_failure(map(_still_differ, runs))
    yield (
        "another order in each epoch",
        compare.first_failure([long.reshuffled(shuffled), other_seed, random]),
    )
    yield "same weights on all ranks", compare.first_failure(_same_weights(run) for run in runs)
    # What one process does is worked out when it is first asked for, and once.
    alone = [(case, run, cache(partial(case.alone, run))) for case, run in both[:-1]]
    steps = (case.stepped(run, trained()[1]) for case, run, trained in alone)
    yield "the step of the whole batch", compare.first_failure(chain(steps, [diverging.shows_nan(runs[-1])]))
    told = (case.told(run, trained()[0]) for case, run, trained in alone)
    yield "losses", compare.first_failure(chain(told, [diverging.tells_nan(runs[-1])]))
    yield "one rank prints", compare.first_failure(case.printed(run) for case, run in both)
    yield "no more communication than needed", compare.first_failure(case.sent(run) for case, run in both)
    yield "on the device", compare.first_failure(map(_moved, runs))


def _same_weights(run: Run) -> Finding:
    """Passes if every rank ends with the same bits."""
    first = run.results[0].parameters
    for rank, reply in enumerate(run.results):
        for number, (seen, wanted) in enumerate(compare.side_by_side(reply.parameters, first)):
            if not compare.same(seen.nan_to_num(), wanted.nan_to_num()):
                text = f"parameter {number} is {compare.shown(seen)} on rank {rank}"
                return Finding(False, f"{text} and {compare.shown(wanted)} on rank 0.")
    return Finding(True, f"All {len(run.results)} ranks end with the same weights, bit by bit.")


_LIBRARIES = ("torch in training", "torch afterwards", "random afterwards", "numpy.random afterwards")
"""Whose random numbers a reply's draws are, and of when, in this order."""


def _still_differ(run: Run) -> Finding:
    """Passes if the ranks draw different random numbers in training and afterwards, as they did before."""
    draws_by_library = zip(*(reply.draws for reply in run.results), strict=True)
    for library, drawn in zip(_LIBRARIES, draws_by_library, strict=True):
        if len(set(drawn)) < len(drawn):
            text = f"ranks draw the same numbers from {library}: dropout or augmentation is alike"
            return Finding(False, f"{text}; a generator of your own has its own state.")
    return Finding(True, "The ranks draw different random numbers in training and afterwards, as before.")


def _moved(run: Run) -> Finding:
    """Passes if every rank moved its model and its batches to the device that it was given."""
    for rank, reply in enumerate(run.results):
        model, batch, call = reply.left
        if model or batch:
            return Finding(False, f"rank {rank} computes with {model or batch} that was not moved.")
        if call:
            text = f"{call}() got tensors in two places on rank {rank}"
            return Finding(False, f"{text}: one was made on the host, without device=...")
    return Finding(True, "Every rank computes where it was told to.")
