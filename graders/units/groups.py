"""Groups of ranks that drivers make, and who is in them."""

import torch.distributed as dist


def own_group(groups: list[list[int]]) -> dist.ProcessGroup | None:
    """The group of these lists of ranks that this rank is in; every rank makes all of them."""
    made = [(ranks, dist.new_group(ranks)) for ranks in groups]
    return next((group for ranks, group in made if dist.get_rank() in ranks), None)


def group_option(groups: list[list[int]]) -> dict[str, dist.ProcessGroup | None]:
    """What the answer is called with, beside the rest: no group where there are no lists."""
    return {"group": own_group(groups)} if groups else {}


def members_of(rank: int, ranks: int, groups: list[list[int]]) -> list[int]:
    """The ranks of this rank's group; all, where there are no groups."""
    return next((group for group in groups if rank in group), list(range(ranks)))
