"""The grader of `grad_norm_3d`."""

import math
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from graders.grading.cases import vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.drivers import averages as drivers
from graders.units.unit_12.drivers.averages import Described, GradientsReply

CUT, COPIED, SHARED, SHARED_AND_CUT = (True, False), (False, False), (False, True), (True, True)
"""Of a parameter: tensor_model_parallel, shared."""
_NAMES = {CUT: "cut", COPIED: "copied", SHARED: "shared", SHARED_AND_CUT: "shared and cut"}
RIGHT = ("cut parameters", "copies")


@dataclass(frozen=True, slots=True)
class Held:
    """shape: of the mesh. kinds: of the parameters of each stage. sparse: the first stage's first parameter
    has no gradient, and the last stage has no parameters.
    """

    shape: tuple[int, int, int] = feature((2, 2, 2), lambda shape: f"a mesh of {' x '.join(map(str, shape))}")
    kinds: tuple[tuple[bool, bool], ...] = feature(
        (CUT, CUT), lambda kinds: f"parameters that are {', '.join(map(_NAMES.__getitem__, kinds))}"
    )
    sparse: bool = feature(False, lambda sparse: "some ranks without gradients" if sparse else "")

    def drawn(self, rng: Rng) -> tuple[list[list[Described]], float]:
        """Of each rank its parameters; and the square of the norm: each number of the model once."""
        _, stages, shares = self.shape
        held: dict[tuple[int, int], list[Described]] = {
            place: [] for place in product(range(stages), range(shares))
        }
        squares = 0.0
        for cut, shared in self.kinds:
            for stage in (0,) if shared else range(stages):
                counts = not (self.sparse and (stage == stages - 1 or not held[stage, 0]))
                # Each rank's are of another size, so that no mean is the sum.
                parts = [(1 + stage + share) * rng.normal(2, 5) for share in range(shares if cut else 1)]
                squares += counts * sum(part.square().sum().item() for part in parts)
                for place, share in product({0, stages - 1} if shared else {stage}, range(shares)):
                    held[place, share].append((parts[share if cut else 0], counts, cut, shared))
        if self.sparse:
            held.update({(stages - 1, share): [] for share in range(shares)})
        return [held[rank // shares % stages, rank % shares] for rank in range(prod(self.shape))], squares


@one_by_one(
    base=Held(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "cut parameters",
            2,
            "Parts along tensor and stages along pipeline add up, as squares; along data everybody has the "
            "same gradients.",
            vary=vary(shape=((1, 1, 3), (1, 3, 1))),
        ),
        Criterion(
            "copies",
            2,
            "Of what all ranks along tensor have, one of them counts.",
            needs=("cut parameters",),
            vary=vary(kinds=((COPIED, CUT),)),
        ),
        Criterion(
            "shared parameters",
            2,
            "The first stage counts for both; with one stage, the first is the last.",
            needs=RIGHT,
            vary=vary(kinds=((SHARED, CUT), (SHARED_AND_CUT,))),
        ),
        Criterion(
            "any ranks",
            1,
            "A rank may have no parameters, or none with a gradient.",
            needs=(*RIGHT, "shared parameters"),
            vary=vary(sparse=(True,)),
        ),
        Criterion("gradients kept", 1, "Nothing is scaled, nothing is replaced.", how=look("gradients kept")),
        Criterion(
            "two numbers",
            1,
            "At most two all-reduces of one number each, and none along data.",
            how=look("two numbers"),
        ),
    ),
    hints=(
        "Along which axes do ranks have other numbers, and along which the same?",
        "Which rank along tensor should count what all of them have? Then one sum along tensor is enough.",
        "Of two stages that hold the same, which one should count it, so that it also works with one stage?",
    ),
)
def grad_norm_3d(answer: Answer, held: Held, rng: Rng) -> tuple[Finding, Looks]:
    """The norm of what all ranks of a mesh hold."""
    parameters, squares = held.drawn(rng)
    run = answer.launch(drivers.normed, held.shape, per_rank(parameters), ranks=prod(held.shape))
    norms: list[Tensor] = [torch.tensor(math.sqrt(squares))] * prod(held.shape)
    seen = [reply.result for reply in run.results]
    return compare.close_on_all_ranks(seen, norms, "the norm", rtol=1e-4), {
        "gradients kept": lambda: kept(run, parameters),
        "two numbers": lambda: two_numbers(run, held),
    }


def kept(run: Observed[GradientsReply], parameters: list[list[Described]]) -> Finding:
    """Passes if gradients are as they were."""
    return compare.first_failure(
        compare.equal(
            reply.gradients,
            [gradient if has_one else None for gradient, has_one, *_ in own],
            f"the gradients on rank {rank} afterwards",
        )
        for rank, (reply, own) in enumerate(zip(run.results, parameters, strict=True))
    )


def two_numbers(run: Observed[GradientsReply], held: Held) -> Finding:
    """Passes if each rank makes at most two all-reduces, of a number each, with nobody along data."""
    own = prod(held.shape[1:])
    for rank in range(len(run.results)):
        events = run.communication(rank)
        told = f"rank {rank} calls {', '.join(event.op for event in events) or 'nothing'}"
        # Only float64 has eight bytes.
        most = [8 if event.detail.startswith("float64") else 4 for event in events]
        small = all(
            event.op == "all_reduce" and event.nbytes <= n for event, n in zip(events, most, strict=True)
        )
        if len(events) > 2 or not small:
            return Finding(False, f"{told}; expected at most two all_reduce of one number.", Kind.TOO_MUCH)
        if any(len({other // own for other in event.group}) > 1 for event in events):
            return Finding(False, f"{told}, one of them with ranks that differ along data.", Kind.TOO_MUCH)
    return Finding(True, "Each rank gives one number at most twice.")
