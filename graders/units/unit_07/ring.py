"""What the three rings of unit 07 share."""

from collections.abc import Callable

from graders.grading.explanation import Tried
from graders.grading.kit import Criterion, Finding
from graders.grading.traffic import Allowed, only_to
from graders.units.ranks.rows import frugal
from graders.units.unit_07.cases import Setting
from graders.units.unit_07.rows import any_ranks, any_tensor, bytes_and_messages

RING_RANKS = any_ranks(
    "Neighbours are (rank + 1) % p and (rank - 1) % p. All do the same, so if all send first, all wait: "
    "isend, recv, wait."
)
RING_TENSORS = any_tensor(
    "Chunks are torch.tensor_split's, of x.flatten() and not of rows: they may differ by one element, and "
    "some may be empty. Receive into a tensor of the arriving chunk's length."
)


def round_the_ring(passes: int) -> Callable[[Setting], Allowed]:
    """So often p - 1 steps, in each of which every rank passes a chunk on; in a pass it leaves one out."""

    def allowed(setting: Setting) -> Allowed:
        width, chunks, steps = setting.dtype.itemsize, setting.chunks, passes * (setting.ranks - 1)
        return Allowed(
            messages=steps,
            nbytes=passes * width * (sum(chunks) - min(chunks)),
            rounds=steps,
            nbytes_of_rounds=steps * width * max(chunks),
            all_messages=steps * setting.ranks,
            all_nbytes=steps * width * sum(chunks),
        )

    return allowed


def to_the_next(tried: Tried[Setting]) -> Finding | None:
    """Passes if each rank sends to the next one only, and no more than it must."""
    ranks = tried.case.features.ranks
    found = only_to(tried.seen.traffic, lambda place: [(place + 1) % ranks], "the next on the ring")
    return frugal(tried) if found.passed else found


def ring_traffic(hint: str) -> Criterion:
    """Messages of a chunk, to the next place."""
    neighbours = "On a ring a rank sends to the next one only, and receives from the one before."
    return bytes_and_messages(f"{neighbours} {hint}", 3, to_the_next)
