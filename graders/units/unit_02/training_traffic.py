"""What `train_ddp` sends: the model once, its gradients in every step, and a sum an epoch."""

from course_lib.runtime.communication.events import Event, Kind
from graders.grading.kit import Finding, compare
from graders.units.unit_02.trainings import DrawnTraining, Run

SMALL = 16
"""Bytes that a collective may have which is not about gradients: some numbers for the loss."""
SET_UP = 256
"""Bytes that may be sent beside the model at the beginning: PyTorch's DDP tells sizes and buckets."""


def needed_traffic(training: DrawnTraining, run: Run) -> Finding:
    """Passes if every rank takes part in what is needed, and in nothing else."""
    nbytes = sum(value.nbytes for value in training.values[0])
    for rank in range(len(training.values)):
        if not run.results[rank].in_group:
            text = f"afterwards rank {rank} has no process group, which whoever called may need"
            return Finding(False, f"{text}: `launch` ends it.")
        finding = _sent_by(training, rank, run, nbytes)
        if not finding.passed:
            return finding
    return Finding(True, f"The model once, {nbytes:,} bytes of gradients a step, one sum an epoch.")


def _sent_by(training: DrawnTraining, rank: int, run: Run, nbytes: int) -> Finding:
    """Passes if this rank sent what is needed. nbytes: of the model, and so of its gradients."""
    calls = run.communication(rank)
    steps = [e for e in run.events if e.rank == rank and e.kind is Kind.SPAN and e.op == "step"]
    # PyTorch's DDP settles its buckets when it has seen one step.
    begun = steps[1].sequence if len(steps) > 1 else float("inf")
    gradients = [call for call in calls if call.op == "all_reduce" and call.nbytes > SMALL]
    others = [call for call in calls if call not in gradients]
    set_up = [call for call in others if call.op != "all_reduce" and call.sequence < begun]
    sums = [call for call in others if call not in set_up]
    given = sum(call.nbytes for call in gradients)
    alone = len(training.values) == 1  # it may send nothing
    if given != len(steps) * nbytes and not (alone and not given):
        text = f"rank {rank} gives all_reduce {given:,} bytes in {len(steps)} steps"
        return Finding(False, f"{text}; its gradients have {nbytes:,} in each.")
    if sum(call.nbytes for call in set_up) > nbytes + SET_UP:
        return Finding(False, f"rank {rank} sends more than the model before training: {_named(set_up)}.")
    first = steps[0].sequence if steps else begun
    before = [call for call in set_up if call.sequence < first]
    told = sum(call.nbytes for call in before if call.op == "broadcast") - nbytes
    asked = [call for call in before if call.op != "broadcast"]
    # PyTorch's DDP asks for the number of parameters, and rank 0 then tells sizes: both, or neither.
    told = 0 if alone and not before else told
    if told < 0 or len(asked) != (told > 0) or any(call.nbytes > SMALL for call in asked):
        text = f"rank {rank} makes these calls before training: {_named(before)}"
        return Finding(False, f"{text}; the model is needed there, by broadcast, and nothing else.")
    if len(sums) > training.epochs or any(call.nbytes > SMALL for call in sums):
        each, left = divmod(len(sums), training.epochs)
        shown, often = (sums, f"in {training.epochs} epochs") if left else (sums[:each], "in each epoch")
        text = f"{often} rank {rank} makes {compare.counted(len(shown), 'call')} besides the gradients'"
        return Finding(False, f"{text}: {_named(shown)}; one an epoch is enough, of at most {SMALL} bytes.")
    return Finding(True, "")


def _named(calls: list[Event]) -> str:
    """The first few of them."""
    named = [f"{call.op} ({call.nbytes:,} bytes)" if call.nbytes else call.op for call in calls]
    return ", ".join([*named[:6], *(["..."] if len(named) > 6 else [])])
