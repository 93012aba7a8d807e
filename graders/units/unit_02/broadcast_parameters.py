"""The grader of `broadcast_parameters`."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, per_rank
from graders.units.models import state_of
from graders.units.ranks.features import Ranks
from graders.units.ranks.rows import kept
from graders.units.ranks.stage import Arguments, on_ranks
from graders.units.unit_02.cases import ANY_CALL, sends_once
from graders.units.unit_02.drivers import replicas

WIDTHS = (3, 4, 2)


@dataclass(frozen=True, slots=True)
class Replicas(Ranks):
    """buffers: whether the model has some, as a `Normed`; else a chain of linear layers."""

    ranks: int = feature(3, "{} ranks")
    root: int = feature(1, "src={}")
    buffers: bool = feature(False, lambda buffers: "a model with buffers" if buffers else "")

    @property
    def tolerance(self) -> float:
        return 0.0

    @property
    def widths(self) -> list[int]:
        return [] if self.buffers else [*WIDTHS]


@cache
def model_like(buffers: bool) -> nn.Module:
    """A model of the case, without values."""
    return replicas.model_of(Replicas(buffers=buffers).widths, [], "contiguous")


def drawn_state(rng: Rng, case: Replicas) -> list[Tensor]:
    """Drawn values of the shapes of a model's state: variances positive, counters whole."""
    values = []
    for tensor in state_of(model_like(case.buffers)):
        floating, dtype = tensor.is_floating_point(), tensor.dtype
        drawn = rng.normal(*tensor.shape, dtype=dtype).abs() if floating else rng.integer(1, 99)
        values.append(torch.as_tensor(drawn, dtype=dtype))
    return values


def other_models(rng: Rng, case: Replicas) -> list[Arguments]:
    """Each rank's own values of one model."""
    return [[case.widths, drawn_state(rng, case)] for _ in range(case.ranks)]


def each_once(tried: Tried[Replicas]) -> Finding:
    """Passes if each rank broadcasts the model's bytes once."""
    state = state_of(model_like(tried.case.features.buffers))
    return sends_once("broadcast", sum(tensor.nbytes for tensor in state), tried)


def outside_of_autograd(answer: Answer, rng: Rng) -> Finding:
    """Passes if autograd saw no broadcast, and records again afterwards."""
    values = [drawn_state(rng, Replicas(buffers=True)) for _ in range(2)]
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
            "Every rank must end with rank src's values, frozen parameters too; src need not be rank 0. A "
            "model may have no buffers.",
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
    arguments=other_models,
    root="src",
    calls=ANY_CALL,
    driver=replicas.broadcast,
    what="rank {}",
)
def broadcast_parameters(case: Replicas, given: list[Arguments]) -> list[Expected]:
    """Rank src's state on every rank."""
    model = model_like(case.buffers)
    names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    state = dict(zip(names, given[case.root][1], strict=True))
    trainable = [parameter.requires_grad for parameter in model.parameters()]
    left = {"requires_grad": trainable, "whether each tensor is the one it was, in its memory,": True}
    return [Expected(state, left, returned=None) for _ in given]
