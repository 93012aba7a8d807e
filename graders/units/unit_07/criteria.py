"""Criteria that several collectives of unit 07 share."""

from graders.grading.kit import Criterion

RIGHT_BY_MESSAGES = ("any number of ranks", "only send and recv")
"""What has to pass before messages and bytes count."""

RIGHT_TRAFFIC = (*RIGHT_BY_MESSAGES, "bytes and messages")
"""What has to pass before rounds count: who sends more takes longer."""

ANY_DTYPE = Criterion(
    "any dtype",
    1,
    "Make every tensor of your own like x, with its dtype and on its device: torch.empty_like(x), "
    "x.new_empty(n).",
)


ANY_ROOT = Criterion(
    "any root",
    1,
    "Is the root always place 0? Count places from the root: (place - root) % p.",
)


def on_a_subgroup(hint: str, *needs: str) -> Criterion:
    """needs: beside numbers of ranks."""
    return Criterion("on a subgroup", 1, hint, needs=("any number of ranks", *needs))


ON_A_SUBGROUP = on_a_subgroup(
    "Rank and size come from dist.get_rank(group) and dist.get_world_size(group), in each call anew; peers "
    "of a message are group_dst= and group_src=, with group=group."
)


OVERLAPPING = Criterion(
    "calls that overlap",
    1,
    "Name the source of each recv: without one it takes whatever comes first, even a message of the next "
    "call. And each call looks up its own root.",
    needs=("any root",),
)


A_SLOW_RANK = Criterion(
    "a slow rank",
    1,
    "Name the source of each recv: without one it takes whatever comes first, even from another rank than "
    "the one that this round is about.",
    needs=("any number of ranks",),
)


ONLY_MESSAGES = Criterion(
    "only send and recv",
    1,
    "Use send, recv, isend and irecv and no collective. Every message needs its receive, and every isend and "
    "irecv a wait().",
)


LAYOUT_IN_PLACE = Criterion(
    "any layout",
    1,
    "Messages need contiguous tensors. Work on x.contiguous(), a copy if x is not, then x.copy_(...). "
    "clone() keeps the layout: of a transposed matrix it makes a transposed copy; x.contiguous().clone() "
    "does not.",
    needs=("in place",),
)


def _lengths(hint: str) -> Criterion:
    return Criterion("any length", 1, hint)


CHUNK_LENGTHS = _lengths(
    "Chunks are torch.tensor_split's: they may differ by one element, and with fewer elements than ranks "
    "some are empty. Receive into a tensor of the arriving chunk's length. They are cut from x.flatten(), "
    "not from rows; flatten makes a vector of a single number, too."
)


WHOLE_LENGTHS = _lengths("Nothing needs to divide here: the whole tensor travels.")
