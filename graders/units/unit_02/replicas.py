"""Unit 02, the same start."""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from graders.grading.communication import payload_of
from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise, per_rank
from graders.units.models import load_values, state_of
from graders.units.unit_02.drivers import replicas as drivers
from graders.units.unit_02.models import Chain, Normed, names_of, shapes_of
from graders.units.unit_02.replies import BroadcastReply


@exercise(
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
            "outside of autograd",
            1,
            "Broadcast tensor.detach(), which is the same memory, or broadcast under torch.no_grad(): as a "
            "`with` block or a decorator it ends by itself.",
        ),
        Criterion(
            "each tensor sent once",
            1,
            "dist.broadcast of each tensor is all it takes: no other collective, nothing sent twice. "
            "(torch.cat gives all tensors one dtype, and num_batches_tracked is int64.)",
            needs=("parameters", "buffers"),
        ),
        Criterion(
            "in place",
            1,
            "Write into the tensors that are there: an optimizer may hold references to them already. Of one "
            "that is not contiguous, contiguous() and flatten() make a copy. A model may have no buffers.",
        ),
    ),
    hints=(
        "Where are a model's tensors, all of them? model.parameters() and model.buffers() yield them; the "
        "state dict may lack some.",
        "What does autograd see, if you hand it a parameter? tensor.detach() is the same memory without a "
        "history.",
    ),
)
def broadcast_parameters(answer: Answer, rng: Rng) -> Findings:
    """Equal replicas, from whatever rank, with one broadcast a tensor."""
    ranks = rng.integer(3, 5)
    src = rng.integer(1, ranks - 1)
    values = [draw_normed(rng) for _ in range(ranks)]
    observed = answer.launch(drivers.broadcast, per_rank(values), src, False, ranks=ranks)

    model = Normed()
    load_values(state_of(model), values[src])
    parameters, buffers = list(model.parameters()), list(model.buffers())
    seen = [rank.parameters for rank in observed.results]
    named = dict(model.named_parameters())
    yield "parameters", same_tensors("parameter", seen, named, f"rank {src}'s")
    seen = [rank.buffers for rank in observed.results]
    same_buffers = same_tensors("buffer", seen, dict(model.named_buffers()), f"rank {src}'s")
    yield "buffers", same_buffers
    recorded = any(rank.recorded for rank in observed.results)
    silent = any(not rank.records_again for rank in observed.results)
    off = Finding(not silent, "Gradients are off after the call: the next step would train nothing.")
    yield "outside of autograd", off if silent else outside_of_autograd(recorded)
    nbytes = sum(tensor.nbytes for tensor in (*parameters, *buffers))
    yield "each tensor sent once", payload_of(observed, "broadcast", nbytes)
    trainable = [parameter.requires_grad for parameter in parameters]
    by_columns = answer.launch(drivers.broadcast, per_rank(values), src, True, ranks=ranks)
    # Who forgets buffers is told so once.
    both = same_buffers.passed
    names = named | dict(model.named_buffers()) if both else named
    seen = [[*rank.parameters, *(rank.buffers if both else [])] for rank in by_columns.results]
    right = same_tensors("tensor", seen, names, f"rank {src}'s")
    text = f"first.weight and the buffer positions are not contiguous: {right.seen}"
    strided = right if right.passed else Finding(False, text)
    replies = chain(observed.results, by_columns.results)
    in_place = compare.first_failure([kept([*replies], trainable), strided])
    yield "in place", without_buffers(answer, rng) if in_place.passed else in_place


def without_buffers(answer: Answer, rng: Rng) -> Finding:
    """Passes if two ranks get rank 0's parameters in a model that has no buffers."""
    widths = [rng.integer(2, 4) for _ in range(3)]
    values = [[rng.normal(*shape) for shape in shapes_of(widths)] for _ in range(2)]
    observed = answer.launch(drivers.broadcast_chain, widths, per_rank(values), 0, ranks=2)
    named = dict(zip(names_of(Chain(widths)), values[0], strict=True))
    finding = same_tensors("parameter", observed.results, named, "rank 0's")
    return finding if finding.passed else Finding(False, f"a model without buffers: {finding.seen}")


def draw_normed(rng: Rng) -> list[Tensor]:
    """Drawn values of the shapes of `Normed`'s tensors: variances positive, counters whole."""
    values = []
    for tensor in state_of(Normed()):
        floating, dtype = tensor.is_floating_point(), tensor.dtype
        drawn = rng.normal(*tensor.shape, dtype=dtype).abs() if floating else rng.integer(1, 99)
        values.append(torch.as_tensor(drawn, dtype=dtype))
    return values


def same_tensors(
    what: str, seen: Sequence[Sequence[Tensor]], expected: Mapping[str, Tensor], whose: str
) -> Finding:
    """Passes if every rank's tensors, seen[r], equal the expected ones bit by bit. what: each of them is.
    expected: by their names in the model.
    """
    return compare.first_failure(
        (
            compare.close(got, wanted.detach(), f"{what} {name} on rank {rank}", 0, 0)
            for rank, own in enumerate(seen)
            for got, (name, wanted) in compare.side_by_side(own, list(expected.items()))
        ),
        f"Each {what} is {whose} on all {len(seen)} ranks, bit by bit.",
    )


def kept(replies: Sequence[BroadcastReply], trainable: list[bool]) -> Finding:
    """Passes if every rank's model has the tensors that it had, trainable as they were."""
    for reply in replies:
        if not reply.in_place:
            return Finding(False, "Other tensors have taken the place of the model's own.")
    if any(reply.trainable != trainable for reply in replies):
        return Finding(False, "requires_grad of some parameter has changed.")
    return Finding(True, "The model keeps its tensors, and what is trainable stays so.")


def outside_of_autograd(recorded: bool) -> Finding:
    """Passes unless a tensor was broadcast while autograd was recording what is done to it."""
    if recorded:
        text = "A parameter was broadcast that requires a gradient, so autograd recorded the operation"
        return Finding(False, f"{text}: on processes the next backward warns that it cannot go through it.")
    return Finding(True, "Autograd has recorded none of the broadcasts.")
