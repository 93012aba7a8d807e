"""The collectives of unit 07: what each is called with, and what every rank must have afterwards."""

from collections.abc import Sequence

import torch
from torch import Tensor

from graders.grading.kit import PlainData, Rng
from graders.units.unit_07.collective import ANYTHING, Arguments, Collective, Expected
from graders.units.unit_07.worlds import World, drawn, drawn_of


def chunks(whole: Tensor, ranks: int) -> list[Tensor]:
    """The parts of a tensor [n], or of the rows of a matrix [n, columns], one a rank."""
    return list(torch.tensor_split(whole, ranks))


def _left_over(part: Tensor) -> Tensor:
    """A tensor like this one, to be overwritten, with what happened to be in memory: NaN, if its dtype has
    that, else the same numbers the other way round.
    """
    return torch.full_like(part, torch.nan) if part.is_floating_point() else ~part


def _parts(rng: Rng, world: World, first: int) -> list[Tensor]:
    """One for each rank: chunks of a tensor in turn, from the first on, so that their lengths are those of no
    `tensor_split`; or numbers.
    """
    if world.single:
        return [drawn(rng, world) for _ in range(world.ranks)]
    parts = chunks(drawn(rng, world), world.ranks)
    first %= world.ranks
    return parts[first:] + parts[:first]


def _total(tensors: Sequence[Tensor]) -> Tensor:
    """The sum over ranks, of their dtype. Integers wrap round where they overflow, on every rank alike."""
    return torch.stack(list(tensors)).sum(0, dtype=tensors[0].dtype)


def _one_tensor_a_rank(rng: Rng, world: World) -> list[Arguments]:
    return [[drawn_of(rng, world, place)] for place in range(world.ranks)]


def _one_chunk_a_rank(rng: Rng, world: World) -> list[Arguments]:
    """Each rank's tensor, of which only its chunk counts: the others hold what happened to be in memory."""
    given = _one_tensor_a_rank(rng, world)
    for place, (tensor,) in enumerate(given if world.dtype.is_floating_point else ()):
        for other, chunk in enumerate(chunks(tensor.view(-1), world.ranks)):
            if other != place:
                chunk.fill_(torch.nan)
    return given


# ----------------------------------------------------------------------------------------- from, to a root


def _scatter_arguments(rng: Rng, world: World) -> list[Arguments]:
    """x, whose values do not matter, and on the root the parts."""
    parts = _parts(rng, world, -1)
    given: list[Arguments] = [[_left_over(part), None] for part in parts]
    given[world.root][1] = parts
    return given


def _expected_scatter(world: World, given: list[Arguments]) -> list[Expected]:
    parts = given[world.root][1]
    return [
        Expected(parts[place], [parts[place], parts if place == world.root else None])
        for place in range(world.ranks)
    ]


def _gather_arguments(rng: Rng, world: World) -> list[Arguments]:
    """x, and on the root a list of tensors to be filled."""
    parts = _parts(rng, world, -1)
    given: list[Arguments] = [[part, None] for part in parts]
    given[world.root][1] = list(map(_left_over, parts))
    return given


def _expected_gather(world: World, given: list[Arguments]) -> list[Expected]:
    parts = [arguments[0] for arguments in given]
    return [
        Expected(parts, [parts[place], parts], returned=1)
        if place == world.root
        else Expected(None, [parts[place], None], returned=None)
        for place in range(world.ranks)
    ]


def _one_tensor_at_the_root(rng: Rng, world: World) -> list[Arguments]:
    """The root's tensor, and what it is to overwrite on the others."""
    source = drawn_of(rng, world, world.root)
    return [[source if place == world.root else _left_over(source)] for place in range(world.ranks)]


def _expected_broadcast(world: World, given: list[Arguments]) -> list[Expected]:
    source = given[world.root][0]
    return [Expected(source, [source]) for _ in given]


def _expected_reduce(world: World, given: list[Arguments]) -> list[Expected]:
    """What others than the root return is their x, unchanged: that is told with what has changed in place."""
    total = _total([arguments[0] for arguments in given])
    return [
        Expected(total, [total]) if place == world.root else Expected(ANYTHING, [arguments[0]])
        for place, arguments in enumerate(given)
    ]


def _src(world: World) -> dict[str, PlainData]:
    return {"src": world.global_root}


def _dst(world: World) -> dict[str, PlainData]:
    return {"dst": world.global_root}


SCATTER = Collective(_scatter_arguments, _expected_scatter, _src)
GATHER = Collective(_gather_arguments, _expected_gather, _dst)
BROADCAST = Collective(_one_tensor_at_the_root, _expected_broadcast, _src)
REDUCE = Collective(_one_tensor_a_rank, _expected_reduce, _dst)


# ------------------------------------------------------------------------------------------ for all to all


def _expected_reduce_scatter(world: World, given: list[Arguments]) -> list[Expected]:
    parts = chunks(_total([arguments[0] for arguments in given]).flatten(), world.ranks)
    return [
        Expected(part, [arguments[0]], returned=None) for part, arguments in zip(parts, given, strict=True)
    ]


def _expected_all_gather(world: World, given: list[Arguments]) -> list[Expected]:
    own = [chunks(arguments[0].flatten(), world.ranks)[place] for place, arguments in enumerate(given)]
    whole = torch.cat(own).view_as(given[0][0])
    return [Expected(whole, [whole]) for _ in given]


def _expected_all_reduce(world: World, given: list[Arguments]) -> list[Expected]:
    total = _total([arguments[0] for arguments in given])
    return [Expected(total, [total]) for _ in given]


def _hierarchical_arguments(rng: Rng, world: World) -> list[Arguments]:
    return [[drawn_of(rng, world, place), world.node] for place in range(world.ranks)]


def _expected_hierarchical(world: World, given: list[Arguments]) -> list[Expected]:
    total = _total([arguments[0] for arguments in given])
    return [Expected(total, [total, ANYTHING]) for _ in given]


def _exchange_arguments(rng: Rng, world: World) -> list[Arguments]:
    """outputs, whose values do not matter, and inputs: rank i's part for rank j is as long as chunk 2 i + j.
    So what comes to a rank differs in length, and is not as long as what goes back.
    """
    inputs = [_parts(rng, world, 2 * place) for place in range(world.ranks)]
    return [[[_left_over(parts[place]) for parts in inputs], inputs[place]] for place in range(world.ranks)]


def _expected_exchange(world: World, given: list[Arguments]) -> list[Expected]:
    return [
        Expected(received, [received, given[place][1]])
        for place in range(world.ranks)
        for received in [[arguments[1][place] for arguments in given]]
    ]


REDUCE_SCATTER = Collective(_one_tensor_a_rank, _expected_reduce_scatter)
ALL_GATHER = Collective(_one_chunk_a_rank, _expected_all_gather)
ALL_REDUCE = Collective(_one_tensor_a_rank, _expected_all_reduce)
HIERARCHICAL = Collective(_hierarchical_arguments, _expected_hierarchical)
EXCHANGE = Collective(_exchange_arguments, _expected_exchange)
