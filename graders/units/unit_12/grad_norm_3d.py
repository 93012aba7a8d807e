"""The grader of `grad_norm_3d`."""

import math
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.cases import both, vary
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Kind, Observed, Rng, compare, per_rank
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_12.cases import ranks_in_mesh
from graders.units.unit_12.drivers import averages as drivers
from graders.units.unit_12.drivers.averages import Described, MeshNormReply

CUT, COPIED, SHARED, SHARED_AND_CUT = (True, False), (False, False), (False, True), (True, True)
"""Of a parameter: tensor_model_parallel, shared."""
_NAMES = {CUT: "cut", COPIED: "copied", SHARED: "shared", SHARED_AND_CUT: "shared and cut"}


@dataclass(frozen=True, slots=True)
class Held:
    """shape: of the mesh. kinds: of the parameters of each stage. value: of all gradients; none if drawn.

    sparse: the first stage's first parameter has no gradient, and the last stage has no parameters. turned:
    ranks are neighbours along the first axis of the mesh.
    """

    shape: tuple[int, int, int] = feature((2, 2, 2), lambda shape: f"a mesh of {' x '.join(map(str, shape))}")
    kinds: tuple[tuple[bool, bool], ...] = feature(
        (CUT, CUT), lambda kinds: f"parameters that are {', '.join(map(_NAMES.__getitem__, kinds))}"
    )
    value: float | None = feature(None, lambda value: "" if value is None else f"gradients of {value}")
    numel: int = 5
    dtype: torch.dtype = feature(torch.float32, lambda dtype: str(dtype).removeprefix("torch."))
    sparse: bool = feature(False, lambda sparse: "some ranks without gradients" if sparse else "")
    turned: bool = feature(False, lambda turned: "ranks in another order" if turned else "")

    def drawn(self, rng: Rng) -> tuple[list[list[Described]], float]:
        """Of each rank its parameters; and the square of the norm: each number of the model once."""
        _, stages, shares = self.shape
        held: dict[tuple[int, int], list[Described]] = {
            place: [] for place in product(range(stages), range(shares))
        }
        squares = 0.0
        for cut, shared in self.kinds:
            for stage in (0,) if shared else range(stages):
                has_one = not (self.sparse and stage == 0 and not held[0, 0])
                parts = [self._part(rng, 1 + stage + share) for share in range(shares if cut else 1)]
                if has_one and not (self.sparse and stage == stages - 1):
                    squares += sum(part.double().square().sum().item() for part in parts)
                for place, share in product({0, stages - 1} if shared else {stage}, range(shares)):
                    held[place, share].append((parts[share if cut else 0], has_one, cut, shared))
        if self.sparse:
            held.update({(stages - 1, share): [] for share in range(shares)})
        order = ranks_in_mesh(self.shape, self.turned)
        places = [order.index(rank) for rank in range(prod(self.shape))]
        return [held[place // shares % stages, place % shares] for place in places], squares

    def _part(self, rng: Rng, factor: int) -> Tensor:
        """Each rank's are of another size, so that no mean is the sum."""
        if self.value is not None:
            return torch.full((self.numel,), self.value, dtype=self.dtype)
        return (factor * rng.normal(rng.integer(1, 3), self.numel)).to(self.dtype)


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
            needs=("cut parameters", "copies"),
            vary=vary(kinds=((SHARED, CUT), (SHARED_AND_CUT,))) + both(shape=(1, 1, 3), kinds=(SHARED, CUT)),
        ),
        Criterion(
            "any ranks and gradients",
            1,
            "A rank may have no parameters, or none with a gradient; squares are computed and added in "
            "float32; where a rank stands, the mesh says, not its number; and leave out what does not count, "
            "without multiplying by 0, since 0 * inf is NaN.",
            needs=("cut parameters", "copies", "shared parameters"),
            vary=vary(sparse=(True,))
            + both(turned=True, kinds=(CUT, COPIED, SHARED))
            # Squares of 500 do not fit into float16; many of bfloat16 lose digits when they are added, and
            # those of 1 + 7/128 when they are made.
            + both(shape=(1, 2, 1), dtype=torch.float16, value=500.0)
            + both(shape=(1, 1, 2), dtype=torch.bfloat16, numel=300, value=1 + 7 / 128)
            + both(shape=(1, 2, 2), kinds=(CUT, COPIED, SHARED), value=math.inf)
            + both(shape=(1, 1, 2), kinds=(CUT, COPIED), value=math.nan),
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
    order = ranks_in_mesh(held.shape, held.turned)
    run = answer.launch(drivers.normed, held.shape, order, per_rank(parameters), ranks=len(order))
    norm = torch.tensor(math.sqrt(squares), dtype=torch.float32)
    found = compare.first_failure(
        close_or_nan(reply.result, norm, f"the norm on rank {rank}") for rank, reply in enumerate(run.results)
    )
    return found, {
        "gradients kept": lambda: unharmed(run, parameters),
        "two numbers": lambda: two_numbers(run, held, order),
    }


def close_or_nan(seen: object, norm: Tensor, what: str) -> Finding:
    """Passes if the norm is right; no tensor with NaN in it is close to any."""
    if not norm.isnan():
        return compare.close(seen, norm, what, rtol=1e-4)
    lost = isinstance(seen, Tensor) and seen.shape == () and bool(seen.isnan())
    return Finding(lost, f"{what} is {compare.shown(seen)}; expected NaN.")


def unharmed(run: Observed[MeshNormReply], parameters: list[list[Described]]) -> Finding:
    """Passes if gradients and parameters are as they were."""
    found = []
    for rank, (reply, own) in enumerate(zip(run.results, parameters, strict=True)):
        given = [gradient if has_one else None for gradient, has_one, *_ in own]
        if not any(each is not None and each.isnan().any() for each in given):
            found.append(compare.equal(reply.gradients, given, f"the gradients on rank {rank} afterwards"))
        said = f"a .grad on rank {rank} is another tensor than before, or a parameter or its attributes"
        found.append(Finding(reply.kept, f"{said} have changed."))
    return compare.first_failure(found)


def two_numbers(run: Observed[MeshNormReply], held: Held, order: list[int]) -> Finding:
    """Passes if each rank makes at most two all-reduces, of a number each, with nobody along data."""
    own = prod(held.shape[1:])
    for rank in order:
        events = run.communication(rank)
        calls = ", ".join(f"{event.op} of {event.nbytes} bytes" for event in events)
        told = f"rank {rank} calls {calls or 'nothing'}"
        if len(events) > 2 or any(not _one_number(event) for event in events):
            return Finding(False, f"{told}; expected at most two all_reduce of one number.", Kind.TOO_MUCH)
        if any(len({order.index(other) // own for other in event.group}) > 1 for event in events):
            return Finding(False, f"{told}, one of them with ranks that differ along data.", Kind.TOO_MUCH)
    return Finding(True, "Each rank gives one number at most twice.")


def _one_number(event: Event) -> bool:
    """Whether this is an all-reduce of one number; only float64 has eight bytes."""
    return event.op == "all_reduce" and event.nbytes <= (8 if event.detail.startswith("float64") else 4)
