"""Criteria that several collectives of unit 07 share."""

from graders.grading.kit import Criterion

RIGHT_BY_MESSAGES = ("any number of ranks", "any dtype", "only send and recv")
"""What has to pass before messages and bytes count. Numbers of a wider dtype have more bytes."""

RIGHT_TRAFFIC = (*RIGHT_BY_MESSAGES, "bytes and messages")
"""What has to pass before rounds count: who sends more takes longer."""

ANY_DTYPE = Criterion(
    "any dtype",
    1,
    "Make every tensor of your own with x's dtype (torch.empty_like); 2**58 + 1 fits no floating-point type, "
    "and NumPy has no bfloat16.",
)


ON_A_SUBGROUP = Criterion(
    "on a subgroup",
    1,
    "Rank and size come from dist.get_rank(group) and dist.get_world_size(group); peers of a message are "
    "group_dst= and group_src=, with group=group.",
    needs=("any number of ranks", "any layout"),
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
    "Messages need contiguous tensors. Work on x.contiguous(), a copy if x is not, then x.copy_(...). Of a "
    "transposed matrix clone() alone makes a transposed one.",
    needs=("in place",),
)


def _lengths(hint: str) -> Criterion:
    return Criterion("any length", 1, hint)


CHUNK_LENGTHS = _lengths(
    "Chunks are torch.tensor_split's: they may differ by one element, and with fewer elements than ranks "
    "some are empty. Receive into a tensor of the arriving chunk's length."
)


WHOLE_LENGTHS = _lengths("Nothing needs to divide here: the whole tensor travels.")
