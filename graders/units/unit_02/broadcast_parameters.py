"""The grader of `broadcast_parameters`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.expected import ANYTHING, Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, per_rank
from graders.units.models import state_of
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_02.cases import ANY_CALL, sends_once
from graders.units.unit_02.drivers import replicas
from graders.units.unit_02.models import Normed


@dataclass(frozen=True, slots=True)
class Replicas(Ranks):
    """buffers: whether they are looked at."""

    ranks: int = feature(3, "{} ranks")
    root: int = feature(1, "src={}")
    buffers: bool = feature(False, lambda buffers: "buffers" if buffers else "")

    @property
    def tolerance(self) -> float:
        return 0.0


def drawn_state(rng: Rng) -> list[Tensor]:
    """Drawn values of the shapes of a model's state: variances positive, counters whole."""
    values = []
    for tensor in state_of(Normed()):
        floating, dtype = tensor.is_floating_point(), tensor.dtype
        drawn = rng.normal(*tensor.shape, dtype=dtype).abs() if floating else rng.integer(1, 99)
        values.append(torch.as_tensor(drawn, dtype=dtype))
    return values


def each_once(tried: Tried[Replicas]) -> Finding:
    """Passes if each rank broadcasts the model's bytes once."""
    return sends_once("broadcast", sum(tensor.nbytes for tensor in state_of(Normed())), tried)


def outside_of_autograd(answer: Answer, rng: Rng) -> Finding:
    """Passes if autograd saw no broadcast, and records again afterwards."""
    values = [drawn_state(rng) for _ in range(2)]
    for recorded, records in answer.launch(replicas.autograd_of, per_rank(values), ranks=2).results:
        if not records:
            return Finding(False, "Gradients are off after the call: the next step would train nothing.")
        if recorded:
            text = "A parameter was broadcast that requires a gradient, so autograd recorded the operation"
            return Finding(False, f"{text}: on processes the next backward warns of it.")
    return Finding(True, "Autograd has recorded none of the broadcasts.")


@on_ranks(
    base=Replicas(),
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "parameters",
            1,
            "Every rank must end with rank src's values, frozen parameters too; src need not be rank 0.",
            vary=vary(ranks=(2,), root=(0,)),
        ),
        Criterion(
            "buffers",
            1,
            "A batch norm's running mean is a buffer. state_dict() leaves out buffers registered with "
            "persistent=False; model.buffers() has them all.",
            vary=vary(buffers=(True,)),
        ),
        Criterion(
            "outside of autograd",
            1,
            "Broadcast tensor.detach(), which is the same memory, or broadcast under torch.no_grad(): as a "
            "`with` block or a decorator it ends by itself.",
            ask=outside_of_autograd,
        ),
        Criterion(
            "each tensor sent once",
            1,
            "dist.broadcast of each tensor is all it takes: no other collective, nothing sent twice. "
            "(torch.cat gives all tensors one dtype, and num_batches_tracked is int64.)",
            needs=("parameters", "buffers"),
            how=each_once,
        ),
        Criterion(
            "in place",
            1,
            "Write into the tensors that are there: an optimizer may hold references to them already. Of one "
            "that is not contiguous, contiguous() and flatten() make a copy.",
            vary=vary(layout=("transposed",)),
            how=kept,
        ),
    ),
    hints=(
        "Where are a model's tensors, all of them? model.parameters() and model.buffers() yield them; the "
        "state dict may lack some.",
        "What does autograd see, if you hand it a parameter? tensor.detach() is the same memory without a "
        "history.",
    ),
    arguments=lambda rng, case: [[drawn_state(rng)] for _ in range(case.ranks)],
    root="src",
    calls=ANY_CALL,
    driver=replicas.broadcast,
    what="rank {}",
)
def broadcast_parameters(case: Replicas, given: list[Arguments]) -> list[Expected]:
    """Rank src's state on every rank."""
    model = Normed()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    state = dict(zip([*parameters, *buffers], given[case.root][0], strict=True))
    if not case.buffers:
        state |= dict.fromkeys(buffers, ANYTHING)
    trainable = [parameter.requires_grad for parameter in parameters.values()]
    left = {"requires_grad": trainable, "whether each tensor is the one it was, in its memory,": True}
    return [Expected(state, left, returned=None) for _ in given]
