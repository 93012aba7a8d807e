"""What the ranks of `train_ddp` return and print: a loss an epoch, and a line of one rank."""

from math import isnan

from graders.grading.kit import Finding, compare
from graders.units.unit_02.trainings import DrawnTraining, Run


def told(training: DrawnTraining, run: Run, expected: list[float]) -> Finding:
    """Passes if every rank returned each epoch's mean loss over all samples, see `alone`."""
    for rank, reply in enumerate(run.results):
        if type(reply.history) is not list or len(reply.history) != training.epochs:
            return Finding(False, f"rank {rank} returned {reply.history!r:.80}; expected a float an epoch.")
    # Uphill, steps make the rounding of float32 grow as they do the loss.
    rtol = 1e-4 if training.uphill else 5e-6
    return compare.first_failure(
        compare.near(reply.history[epoch], wanted, f"the loss of epoch {epoch} on rank {rank}", rtol)
        for rank, reply in enumerate(run.results)
        for epoch, wanted in enumerate(expected)
    )


def tells_nan(training: DrawnTraining, run: Run) -> Finding:
    """Passes if every rank returned NaN as the loss of each epoch."""
    for rank, reply in enumerate(run.results):
        told = reply.history if type(reply.history) is list else []
        if [type(each) is float and isnan(each) for each in told] != [True] * training.epochs:
            text = f"A sample is NaN, and rank {rank} returned {reply.history!r:.80}"
            return Finding(False, f"{text}; expected NaN, the mean over all, as each epoch's loss.")
    return Finding(True, "The mean over samples of which one is NaN is NaN.")


def printed(training: DrawnTraining, run: Run) -> Finding:
    """Passes if rank 0 printed a line an epoch, and no other rank anything, be it an empty line."""
    first, *others = run.outputs
    lines = [len([line for line in first.splitlines() if line.strip()])]
    lines += [len(text.splitlines()) for text in others]
    expected = [training.epochs] + [0] * len(others)
    text = (
        f"in {compare.counted(training.epochs, 'epoch')} the ranks print {lines} lines; expected {expected}"
    )
    return Finding(lines == expected, f"{text}.")
