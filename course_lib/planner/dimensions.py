"""The dimensions of a model: which letters of which operators always belong together.

A dimension runs along the edges of the graph: the columns that a layer makes are what the next one works on.
So Mesh-TensorFlow's named dimensions can be found without asking anyone for names (N. Shazeer et al., NeurIPS
2018, arXiv:1811.02084). Pieces that are alike share theirs, so that one choice is made for all of them.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from course_lib.planner.graph import Graph, Operator

Where = tuple[str, str]
"""An operator's name and one of its letters."""


@lru_cache(maxsize=32)
def dimensions(graph: Graph) -> dict[str, list[Where]]:
    """Each dimension, by the name of its first operator and letter, with all operators and letters on it.

    Letters of length 1, which cannot be split, belong to none.
    """
    first = _first_alike(graph)
    parent: dict[Where, Where] = {}

    def root(where: Where) -> Where:
        while parent.setdefault(where, where) != where:
            where = parent[where]
        return where

    def join(one: Where, other: Where) -> None:
        earlier, later = sorted((root(one), root(other)), key=order.__getitem__)
        parent[later] = earlier

    places = [(each.name, letter) for each in graph.operators for letter in each.einsum.sizes]
    order = {where: number for number, where in enumerate(places)}
    for source, target, place in graph.edges:
        letters = zip(graph[source].einsum.result, graph[target].einsum.operands[place], strict=True)
        for made, used in letters:
            if min(graph[source].einsum.sizes[made], graph[target].einsum.sizes[used]) > 1:
                join((source, made), (target, used))
    for name, letter in places:
        join((first[name], letter), (name, letter))
    found: dict[str, list[Where]] = {}
    for name, letter in places:
        if graph[name].einsum.sizes[letter] > 1:
            found.setdefault(".".join(root((name, letter))), []).append((name, letter))
    return found


def split_along(graph: Graph, names: Iterable[str], ranks: int) -> dict[str, str]:
    """What `ParallelPlan.split` says if each operator shares the first of these dimensions that it has.

    One that so many ranks cannot share evenly is passed over.
    """
    found = dimensions(graph)
    split: dict[str, str] = {}
    for name in names:
        for operator, letter in found.get(name, []):
            if graph[operator].einsum.sizes[letter] % ranks == 0:
                split.setdefault(operator, letter)
    return split


def _first_alike(graph: Graph) -> Mapping[str, str]:
    """Each operator's name -> that of the same operator in the first piece that is alike."""
    pieces: dict[object, list[Operator]] = {}
    first = {}
    for number in range(len(graph.outputs)):
        own = [each for each in graph.operators if each.piece == number]
        alike = tuple((each.name.split(".")[1], each.einsum.spec, each.shapes) for each in own)
        for each, same in zip(own, pieces.setdefault(alike, own), strict=True):
            first[each.name] = same.name
    return first
