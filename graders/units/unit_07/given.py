"""What unit 07's collectives are called with, drawn for a grading and as a student types it."""

import torch

from graders.grading.kit import Rng
from graders.units.ranks.stage import Arguments
from graders.units.unit_07.cases import Setting, left_over, numbers, parts


def one_tensor_a_rank(rng: Rng, setting: Setting) -> list[Arguments]:
    """Each rank has x."""
    return [[x] for x in numbers(rng, setting)]


def x_written(setting: Setting) -> str:
    """A tensor as a student types it: each rank's number is a digit."""
    device = ", device='meta'" if setting.layout == "meta" else ""
    shape, laid = setting.whole, ""
    if setting.layout == "strided":
        shape, laid = (*shape, 2), "[..., 0]"
    value = "10 ** dist.get_rank()" if setting.has_digits else "dist.get_rank() + 1"
    return f"torch.full({shape}, {value}, dtype={setting.dtype}{device}){laid}"


def one_chunk_a_rank(rng: Rng, setting: Setting) -> list[Arguments]:
    """Each rank has x, of which only its chunk counts: the others hold what happened to be in memory."""
    given = one_tensor_a_rank(rng, setting)
    for place, (x,) in enumerate(given if setting.dtype.is_floating_point else ()):
        for other, chunk in enumerate(x.view(-1).tensor_split(setting.ranks)):
            if other != place:
                chunk.fill_(torch.nan)
    return given


def one_tensor_at_the_root(rng: Rng, setting: Setting) -> list[Arguments]:
    """The root's x, and what it is to overwrite on the others."""
    source = numbers(rng, setting)[setting.root]
    return [
        [source.clone() if place == setting.root else left_over(source)] for place in range(setting.ranks)
    ]


def parts_at_the_root(rng: Rng, setting: Setting) -> list[Arguments]:
    """x, whose values do not matter, and on the root the parts."""
    of_root = parts(rng, setting, -1)
    return [
        [left_over(part), of_root if place == setting.root else None] for place, part in enumerate(of_root)
    ]


def room_at_the_root(rng: Rng, setting: Setting) -> list[Arguments]:
    """x, a part, and on the root a list of tensors to be filled."""
    of_all = parts(rng, setting, -1)
    return [
        [part, list(map(left_over, of_all)) if place == setting.root else None]
        for place, part in enumerate(of_all)
    ]


def a_part_for_each(rng: Rng, setting: Setting) -> list[Arguments]:
    """outputs, whose values do not matter, and inputs: rank i's part for rank j is as long as chunk 2 i + j.
    So what comes to a rank differs in length, and is not as long as what goes back.
    """
    inputs = [parts(rng, setting, 2 * place) for place in range(setting.ranks)]
    return [[[left_over(of[place]) for of in inputs], inputs[place]] for place in range(setting.ranks)]


def x_and_nodes(rng: Rng, setting: Setting) -> list[Arguments]:
    """x, and how many ranks a node has."""
    return [[x, setting.node] for x in numbers(rng, setting)]


def x_and_nodes_written(setting: Setting) -> str:
    """As a student types it."""
    return f"{x_written(setting)}, {setting.node}"


def parts_written(setting: Setting) -> str:
    """x and parts as a student types them; parts of a scatter or room of a gather."""
    if setting.shape is not None:
        return ""
    sizes = [*setting.chunks[-1:], *setting.chunks[:-1]]
    kind = "" if setting.dtype is torch.float32 else f", dtype={setting.dtype}"
    many = f"[torch.full((n,), float(n){kind}) for n in {sizes}]"
    root = setting.places[setting.root]
    place = "dist.get_rank(group)" if setting.group else "dist.get_rank()"
    return f"{many}[{place}], {many} if dist.get_rank() == {root} else None"
