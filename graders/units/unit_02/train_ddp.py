"""The grader of `train_ddp`."""

from collections.abc import Iterator
from functools import partial

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.gpu import gpu
from graders.units.raised import on_a_gpu
from graders.units.shuffles import drawn_anew
from graders.units.unit_02.trainings import NAMES, Run, Training, sent


@exercise(
    minutes=40,
    difficulty=4,
    rubric=(
        Criterion(
            "every sample once an epoch",
            2,
            "Give the DataLoader the rank's samples, not shuffle=True. All ranks take equally many steps.",
        ),
        Criterion(
            "another order in each epoch",
            2,
            "Draw a new permutation in every epoch, and from every seed: DistributedSampler needs "
            "set_epoch(epoch), shard_indices the epoch and the seed. Draw it from a torch.Generator of its "
            "own: torch.manual_seed would give all ranks the same dropout.",
        ),
        Criterion(
            "the step of the whole batch",
            3,
            "Replicas start equal, and take equal steps: broadcast, clear the gradients, average. The mean "
            "over ranks of the gradients has to be that of the mean loss over the whole batch.",
            needs=("every sample once an epoch",),
        ),
        Criterion(
            "losses",
            2,
            "An epoch's loss is the mean over all its samples, of all ranks: add up sums, and divide at the "
            "end. A float an epoch, the same on every rank. Rank 0 prints a line an epoch, and nobody else.",
            needs=("the step of the whole batch",),
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
            "that has no batch left. A sample counts the same, however many its rank has in the step.",
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
    """Trainings with equal batches, of two ranks, of one, and long ones that differ in their seeds; one on a
    GPU; and two with unequal batches.
    """
    short, one = Training.draw(rng, 2, 2, 0), Training.draw(rng, 1, 2, 0, epochs=2)
    long = Training.draw(rng, 3, 2, 0, epochs=3, batch_size=8)
    other = long.with_another_seed()
    runs = [(case, case.launch(answer)) for case in (short, one, long, other)]
    yield "every sample once an epoch", compare.first_failure(_dealt(*each) for each in runs)
    yield "another order in each epoch", compare.first_failure(_in_drawn_orders(runs))
    yield "the step of the whole batch", compare.first_failure(_stepped(*each) for each in runs)
    yield "losses", compare.first_failure(_told(*each) for each in runs)
    yield "no more communication than needed", compare.first_failure(sent(*each) for each in runs)
    yield "on the device", on_a_gpu(partial(_moved, Training.draw(rng, 2, 1, 0), answer))
    yield "any number of samples", compare.first_failure(_of_any_number(answer, rng))


def _dealt(case: Training, run: Run) -> Finding:
    """Passes if in every epoch each sample is on one rank once, in as many steps on all ranks."""
    ranks, samples = len(run.results), list(range(len(case.labels)))
    where = f"{len(samples)} samples on {compare.counted(ranks, 'rank')} in batches of {case.batch_size}"
    for rank, reply in enumerate(run.results):
        taken, wanted = len(reply.batches), case.epochs * case.steps
        if taken != wanted:
            text = f"{where}: rank {rank} takes {taken} steps in {compare.counted(case.epochs, 'epoch')}"
            return Finding(False, f"{text}; expected {wanted}.")
        largest = max(map(len, reply.batches))
        if largest > case.batch_size:
            return Finding(False, f"{where}: rank {rank} goes forward with {largest} samples in a step.")
    for epoch, order in enumerate(case.orders(run)):
        seen = sorted(number for part in order for number in part)
        if seen != samples:
            twice = sorted({number for number in seen if seen.count(number) > 1})
            missing = sorted({*samples} - {*seen})
            text = f"in epoch {epoch} more than once: {twice or 'none'}; never: {missing or 'none'}"
            return Finding(False, f"{where}: {text}.")
    return Finding(True, f"{where}: each once an epoch, in {case.steps} steps.")


def _in_drawn_orders(runs: list[tuple[Training, Run]]) -> Iterator[Finding]:
    """Of the last two, which differ in their seeds: each epoch's order is drawn, and not from a random state
    that ranks then have in common.
    """
    (long, run), (other, rerun) = runs[-2:]
    yield drawn_anew(long.orders(run), len(long.labels))
    first = [sorted(part) for part in long.orders(run)[0]]
    alike = first == [sorted(part) for part in other.orders(rerun)[0]]
    seeds = f"the seeds {long.seed} and {other.seed}"
    yield Finding(not alike, f"{seeds} give the ranks the same samples in epoch 0: {first}.")
    for library, drawn in zip(
        ("torch", "numpy"), zip(*(r.draws for r in run.results), strict=True), strict=True
    ):
        text = f"afterwards ranks draw the same random numbers from {library}"
        yield Finding(len({*drawn}) == len(drawn), f"{text}; before, each had its own random state.")


def _stepped(case: Training, run: Run) -> Finding:
    """Passes if every rank's weights are those of one process that had the whole batches."""
    last = [len(reply.batches[-1]) for reply in run.results]
    where = f"after {case.epochs * case.steps} steps, the last of {last} samples on the ranks,"
    _, expected = case.alone(run)
    # Numbers of the size of the largest were added up, however near to zero a sum ended.
    return compare.first_failure(
        compare.close(
            seen, wanted, f"{where} {name} on rank {rank}", 1e-4, 1e-5 * max(1, float(wanted.abs().max()))
        )
        for rank, reply in enumerate(run.results)
        for name, (seen, wanted) in compare.side_by_side(
            NAMES, [*compare.side_by_side(reply.parameters, expected)]
        )
    )


def _told(case: Training, run: Run) -> Finding:
    """Passes if every rank returned each epoch's mean loss over all samples, and rank 0 printed them."""
    expected, _ = case.alone(run)
    for rank, reply in enumerate(run.results):
        if type(reply.history) is not list or len(reply.history) != case.epochs:
            return Finding(False, f"rank {rank} returned {reply.history!r:.80}; expected a float an epoch.")
        for epoch, (loss, wanted) in enumerate(zip(reply.history, expected, strict=True)):
            found = compare.near(loss, wanted, f"the loss of epoch {epoch} on rank {rank}", 1e-4)
            if not found.passed:
                return found
    lines = [len(text.split("\n")) - 1 for text in run.outputs]
    wanted_lines = [case.epochs] + [0] * (len(lines) - 1)
    text = f"in {compare.counted(case.epochs, 'epoch')} the ranks print {lines} lines"
    return Finding(lines == wanted_lines, f"{text}; expected {wanted_lines}.")


def _moved(case: Training, answer: Answer) -> Finding:
    """Passes if every rank moves its model to the device that it is given, a GPU."""
    for rank, reply in enumerate(case.launch(answer, on_gpu=True).results):
        if reply.devices != [gpu().type]:
            return Finding(
                False, f"rank {rank} computes with a model that was not moved to the device, a GPU."
            )
    return Finding(True, "Every rank computes where it was told to.")


def _of_any_number(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Unequal batches, some of them empty; and a rank that never has a sample."""
    for case in (Training.draw(rng, 3, 2, 1, epochs=2), Training.draw(rng, 3, 0, 2)):
        run = case.launch(answer)
        yield from (check(case, run) for check in (_dealt, _stepped, _told))
