"""The grader of `mesh_coordinates`."""

from dataclasses import dataclass
from math import prod

from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units import drivers
from graders.units.functions.stage import Arguments, of_function


@dataclass(frozen=True, slots=True)
class Place:
    """shape: of the mesh. part: which rank is asked for, as a part of all, in thousandths."""

    shape: tuple[int, ...] = feature((3, 5, 2), "a mesh of shape {}")
    part: int = 600


def refused(answer: Answer, rng: Rng) -> Finding:
    """Passes if ranks that are too large, or negative, raise ValueError."""
    outside = [(30, (3, 5, 2)), (-1, (3, 5, 2)), (-30, (3, 5, 2))]
    return compare.first_failure(
        raises_value_error(answer.call(drivers.outcome, *case), f"mesh_coordinates{case}") for case in outside
    )


def raises_value_error(told: dict[str, object], what: str) -> Finding:
    """Passes if that is what the driver `outcome` tells."""
    names = told.get("raised")
    raised = names if isinstance(names, list) and names else []
    did = f"raises {raised[0]}" if raised else f"returns {compare.shown(told.get('gave'))}"
    return Finding("ValueError" in raised, f"{what} {did}; expected ValueError.")


PARTS = tuple(range(0, 1001, 50))


@of_function(
    base=Place(),
    minutes=10,
    difficulty=1,
    rubric=(
        Criterion(
            "coordinates",
            2,
            "Count upwards from (0, 0, 0) as an odometer does: the last axis turns with every rank, the one "
            "before it when the last has gone round.",
            vary=vary(part=PARTS),
        ),
        Criterion(
            "any mesh",
            1,
            "Any number of axes, of any sizes, among them 1.",
            vary=vary(shape=((7,), (3, 1, 2), (2, 1, 3, 1, 2))),
        ),
        Criterion(
            "refuses",
            1,
            "ValueError for a rank that is not in the mesh: too large, or negative. "
            "(torch.unravel_index does not look.)",
            ask=refused,
        ),
    ),
    hints=(
        "How many ranks further is the next place along the last axis? Along the one before it?",
        "divmod(rank, size) gives how often the last axis went round, and where it stands now.",
    ),
    arguments=lambda rng, place: [(prod(place.shape) - 1) * place.part // 1000, place.shape],
)
def mesh_coordinates(place: Place, given: Arguments) -> Expected:
    """How often the axes behind it have gone round, for each axis."""
    rank, shape = given
    coordinates = tuple(rank // prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape))
    return Expected(coordinates, {"rank": rank, "shape": shape}, returned=None)
