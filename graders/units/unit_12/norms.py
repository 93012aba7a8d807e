"""Unit 12, the norm of gradients that are cut along some axes of a mesh and copied along others."""

import math
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from course_lib.runtime.communication.events import Event
from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Kind,
    Observed,
    Rng,
    compare,
    exercise,
    per_rank,
)
from graders.units.unit_12.drivers import averages as drivers
from graders.units.unit_12.drivers.averages import Described, MeshNormReply

CUT, COPIED, SHARED = (True, False), (False, False), (False, True)
"""Of a parameter: tensor_model_parallel, shared."""
SHARED_AND_CUT = (True, True)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "cut parameters",
            2,
            "Parts along tensor and stages along pipeline add up, as squares; along data everybody has the "
            "same gradients.",
        ),
        Criterion(
            "copies", 2, "Of what all ranks along tensor have, one of them counts.", needs=("cut parameters",)
        ),
        Criterion(
            "shared parameters",
            2,
            "The first stage counts for both; with one stage, the first is the last.",
            needs=("cut parameters", "copies"),
        ),
        Criterion(
            "any ranks and gradients",
            1,
            "A rank may have no parameters, or none with a gradient; squares are computed and added in "
            "float32; where a rank stands, the mesh says, not its number; and what is 0 * inf?",
            needs=("cut parameters", "copies", "shared parameters"),
        ),
        Criterion("gradients kept", 1, "Nothing is scaled, nothing is replaced."),
        Criterion("two numbers", 1, "At most two all-reduces of one number each, and none along data."),
    ),
    hints=(
        "Along which axes do ranks have other numbers, and along which the same?",
        "Which rank along tensor should count what all of them have? Then one sum along tensor is enough.",
        "Of two stages that hold the same, which one should count it, so that it also works with one stage?",
    ),
)
def grad_norm_3d(answer: Answer, rng: Rng) -> Findings:
    """Meshes with parameters that are cut only, then with copies, then with shared ones."""
    cut = [Measured.drawn(rng, shape, [CUT, CUT]) for shape in ((2, 3, 2), (1, 1, 3), (3, 1, 1), (1, 2, 1))]
    runs = [each.launch(answer) for each in cut]
    yield "cut parameters", compare.first_failure(map(Measured.right, cut, runs))
    copied = [Measured.drawn(rng, shape, [COPIED, CUT]) for shape in ((2, 2, 2), (1, 1, 3), (1, 3, 1))]
    copied_runs = [each.launch(answer) for each in copied]
    yield "copies", compare.first_failure(map(Measured.right, copied, copied_runs))
    shared = [
        Measured.drawn(rng, (2, 2, 1), [SHARED, CUT]),
        Measured.drawn(rng, (1, 3, 2), [SHARED_AND_CUT, CUT]),
        Measured.drawn(rng, (1, 1, 2), [SHARED_AND_CUT, CUT]),
        Measured.drawn(rng, (1, 4, 1), [SHARED_AND_CUT]),
        Measured.drawn(rng, (1, 2, 2), [SHARED, CUT]),
        Measured.drawn(rng, (1, 1, 3), [SHARED, CUT]),
    ]
    shared_runs = [each.launch(answer) for each in shared]
    yield "shared parameters", compare.first_failure(map(Measured.right, shared, shared_runs))
    sparse = [
        Measured.drawn(rng, (1, 2, 2), [CUT, CUT], without=True),
        Measured.drawn(rng, (1, 2, 2), [], numel=3),
        Measured.drawn(rng, (2, 1, 2), [CUT] * 3, dtype=torch.bfloat16, numel=300),
        Measured.drawn(rng, (1, 1, 2), [CUT], dtype=torch.bfloat16, value=1 + 7 / 128),
        Measured.drawn(rng, (1, 2, 1), [CUT], dtype=torch.float16, value=500.0),
        Measured.drawn(rng, (1, 2, 2), [CUT, COPIED, SHARED], value=math.inf),
        Measured.drawn(rng, (2, 2, 2), [CUT, COPIED, SHARED], turned=True),
    ]
    sparse_runs = [each.launch(answer) for each in sparse]
    lost = Measured.drawn(rng, (1, 1, 2), [CUT, COPIED], value=math.nan)
    found = [*map(Measured.right, sparse, sparse_runs), lost.right(lost.launch(answer))]
    yield "any ranks and gradients", compare.first_failure(found)
    every = list(
        zip(cut + copied + shared + sparse, runs + copied_runs + shared_runs + sparse_runs, strict=True)
    )
    yield "gradients kept", compare.first_failure(each.unharmed(run) for each, run in every)
    yield "two numbers", compare.first_failure(each.communication(run) for each, run in every)


@dataclass(frozen=True, slots=True)
class Measured:
    """shape: of the mesh. order: the ranks as they stand in it. parameters: of each rank. squares: of each
    number of the model, once.
    """

    shape: tuple[int, int, int]
    order: list[int]
    parameters: list[list[Described]]
    squares: float

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        shape: tuple[int, int, int],
        kinds: list[tuple[bool, bool]],
        *,
        dtype: torch.dtype = torch.float32,
        numel: int = 5,
        without: bool = False,
        value: float | None = None,
        turned: bool = False,
    ) -> "Measured":
        """Each stage has a parameter of each kind, the stages between no shared ones. without: the first
        parameter of stage 0 has no gradient, and the last stage has no parameters. value: of all gradients.
        turned: the first axis of the mesh is the one along which ranks are neighbours.
        """
        _, stages, shares = shape
        held: dict[tuple[int, int], list[Described]] = {
            (stage, share): [] for stage in range(stages) for share in range(shares)
        }
        squares = 0.0
        for cut, shared in kinds:
            for stage in range(stages) if not shared else (0,):
                # Each rank's are of another size, so that no mean is the sum.
                parts = [
                    (
                        (1 + stage + share) * rng.normal(rng.integer(1, 3), numel)
                        if value is None
                        else torch.full((numel,), value)
                    ).to(dtype)
                    for share in range(shares if cut else 1)
                ]
                has_one = not (without and stage == 0 and not held[0, 0])
                counts = has_one and not (without and stage == stages - 1)
                squares += counts * sum(part.double().square().sum().item() for part in parts)
                for share in range(shares):
                    own = (parts[share if cut else 0], has_one, cut, shared)
                    for place in {0, stages - 1} if shared else {stage}:
                        held[place, share].append(own)
        if without:
            for share in range(shares):
                held[stages - 1, share] = []
        numbers = torch.arange(prod(shape))
        order = (numbers.view(shape[::-1]).permute(2, 1, 0).flatten() if turned else numbers).tolist()
        places = [order.index(rank) for rank in range(prod(shape))]
        ranks = [held[place // shares % stages, place % shares] for place in places]
        return cls(shape, order, ranks, squares)

    def launch(self, answer: Answer) -> Observed[MeshNormReply]:
        given = self.shape, self.order, per_rank(self.parameters)
        return answer.launch(drivers.normed, *given, ranks=prod(self.shape))

    def right(self, run: Observed[MeshNormReply]) -> Finding:
        expected = torch.tensor(math.sqrt(self.squares), dtype=torch.float32)
        seen = [reply.result for reply in run.results]
        what = f"the norm, on a mesh of {' x '.join(map(str, self.shape))},"
        if math.isnan(self.squares):  # and no tensor with NaN in it is close to any
            return compare.first_failure(
                Finding(
                    isinstance(each, Tensor) and each.shape == () and bool(each.isnan()),
                    f"{what} of gradients of NaN is {compare.shown(each)}.",
                )
                for each in seen
            )
        return compare.close_on_all_ranks(seen, [expected] * len(seen), what, rtol=1e-4)

    def unharmed(self, run: Observed[MeshNormReply]) -> Finding:
        for rank, (reply, own) in enumerate(zip(run.results, self.parameters, strict=True)):
            given: list[Tensor | None] = [gradient if has_one else None for gradient, has_one, *_ in own]
            found = compare.equal(reply.gradients, given, f"the gradients on rank {rank} afterwards")
            if not found.passed:
                return found
            if not reply.kept:
                said = (
                    f"a .grad on rank {rank} is another tensor than before, or a parameter or its attributes"
                )
                return Finding(False, f"{said} have changed.")
        return Finding(True, "All gradients are as they were.")

    def communication(self, run: Observed[MeshNormReply]) -> Finding:
        """Passes if each rank makes at most two all-reduces, of a number each, with nobody along data."""
        where = f"on a mesh of {' x '.join(map(str, self.shape))}"
        own = prod(self.shape[1:])
        for rank in range(prod(self.shape)):
            events = run.communication(rank)
            calls = ", ".join(f"{event.op} of {event.nbytes} bytes" for event in events)
            told = f"{where} rank {rank} calls {calls or 'nothing'}"
            if len(events) > 2 or any(not _one_number(event) for event in events):
                expected = "expected at most two all_reduce of one number"
                return Finding(False, f"{told}; {expected}.", Kind.TOO_MUCH)
            if any(len({self.order.index(other) // own for other in event.group}) > 1 for event in events):
                return Finding(
                    False, f"{told}, one of them with ranks that differ along data.", Kind.TOO_MUCH
                )
        return Finding(True, "Each rank gives one number at most twice.")


def _one_number(event: Event) -> bool:
    """Whether this is an all-reduce of one number; only float64 has eight bytes."""
    return event.op == "all_reduce" and event.nbytes <= (8 if event.detail.startswith("float64") else 4)
