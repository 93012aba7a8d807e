"""Unit 02, the same start."""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer, Observed
from graders.grading.exercise import Criterion, Finding, Findings, exercise
from graders.grading.rng import Rng
from graders.units.unit_02 import UNIT
from graders.units.unit_02 import drivers as drivers


@exercise(
    unit=UNIT,
    name="broadcast_parameters",
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "parameters",
            1,
            "Every rank must end with rank src's values, frozen parameters too; src need not be rank 0.",
        ),
        Criterion(
            "buffers",
            1,
            "A batch norm's running mean is a buffer. state_dict() leaves out buffers registered with "
            "persistent=False; model.buffers() has them all.",
        ),
        Criterion(
            "in place",
            1,
            "Write into the tensors that are there: an optimizer may hold references to them already.",
        ),
        Criterion(
            "each tensor sent once",
            1,
            "dist.broadcast of each tensor is all it takes: no other collective, nothing sent twice.",
        ),
    ),
    hints=(
        "model.parameters() and model.buffers() yield tensors, and dist.broadcast(tensor, src) fills one.",
    ),
)
def broadcast_parameters(answer: Answer, rng: Rng) -> Findings:
    """Equal replicas, from whatever rank, with one broadcast a tensor."""
    ranks = rng.integer(3, 5)
    src = rng.integer(1, ranks - 1)
    values = [draw_normed(rng) for _ in range(ranks)]
    observed = answer.launch("unit_02.broadcast", per_rank(values), src, ranks=ranks)

    model = drivers.Normed()
    drivers.load_values(drivers.state_of(model), values[src])
    parameters, buffers = list(model.parameters()), list(model.buffers())
    yield "parameters", same_tensors(observed, "parameters", parameters, f"rank {src}'s")
    yield "buffers", same_tensors(observed, "buffers", buffers, f"rank {src}'s")

    in_place = [rank["in_place"] for rank in observed.results]
    wanted = [parameter.requires_grad for parameter in parameters]
    trainable = all(rank["trainable"] == wanted for rank in observed.results)
    seen = "The model keeps its tensors, and what is trainable stays so."
    if not all(in_place):
        seen = f"On rank {in_place.index(False)} other tensors have taken the place of the model's own."
    elif not trainable:
        seen = "requires_grad of some parameter has changed."
    yield Finding(all(in_place) and trainable, seen)

    nbytes = sum(tensor.nbytes for tensor in (*parameters, *buffers))
    yield "each tensor sent once", calls_and_payload(observed, "broadcast", nbytes)


def draw_normed(rng: Rng) -> list[Tensor]:
    """Drawn values for the tensors of `Normed`: variances positive, counters whole."""
    values = []
    for tensor in drivers.state_of(drivers.Normed()):
        drawn = rng.normal(*tensor.shape).abs() if tensor.is_floating_point() else rng.integer(1, 99)
        values.append(torch.as_tensor(drawn, dtype=tensor.dtype))
    return values


def same_tensors(observed: Observed, key: str, expected: Sequence[Tensor], whose: str) -> Finding:
    """Passes if every rank's tensors equal the expected ones bit by bit."""
    for rank, result in enumerate(observed.results):
        for position, (seen, wanted) in enumerate(zip(result[key], expected, strict=True)):
            what = f"of the {key} tensor {position} on rank {rank}"
            finding = compare.close(seen, wanted.detach(), what, rtol=0, atol=0)
            if not finding.passed:
                return finding
    return Finding(True, f"{key.capitalize()} on all {len(observed.results)} ranks: {whose}, bit by bit.")


def calls_and_payload(observed: Observed, op: str, nbytes: int) -> Finding:
    """Passes if every rank made only `op` calls, whose payloads add up to `nbytes`."""
    for rank in range(len(observed.results)):
        others = sorted(set(observed.calls(rank)) - {op})
        if others:
            return Finding(False, f"rank {rank} calls {', '.join(others)}; only {op} is needed.")
        payload = sum(event.nbytes for event in observed.communication(rank))
        if payload != nbytes:
            return Finding(False, f"rank {rank} gave {op} {payload:,} bytes in all; expected {nbytes:,}.")
    return Finding(True, f"Every rank gave {op} {nbytes:,} bytes in all: each tensor once.")
