"""Metrics that are averaged over ranks."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from graders.grading.answer import AnswerFunction, PlainData
from graders.grading.called import Called
from graders.units.ranks import drivers


def metrics(
    answer: AnswerFunction,
    cases: list[list[PlainData]],
    options: list[dict[str, PlainData]],
    layouts: list[str],
    members: list[list[int] | None],
    meet: list[bool],
) -> list[Called]:
    """What the answer makes of the metrics of each case, and leaves of them; see `drivers.calls`.

    In each case it sees other names, each known one with a number.
    """
    numbers = count()
    names = [_unordered(list(own), numbers) for own, *_ in cases]
    given = [[_renamed(own, new), *others] for (own, *others), new in zip(cases, names, strict=True)]
    told = drivers.calls(answer, given, options, layouts, members, meet)
    return [
        replace(
            each,
            result=_renamed(each.result, back),
            arguments=[_renamed(argument, back) for argument in each.arguments],
        )
        for each, new in zip(told, names, strict=True)
        for back in [{name: known for known, name in new.items()}]
    ]


def _unordered(known: list[str], numbers: Iterator[int]) -> dict[str, str]:
    """For each name one with a number, so that a set of these has another order if it is made in another one.

    Ranks are threads of one process here, in which most sets have one order on all ranks. In processes of
    their own they have not.
    """
    for number in numbers:
        names = [f"{name} {number}" for name in sorted(known)]
        if list({*names}) != list({*names[::-1]}):
            return dict(zip(sorted(known), names, strict=True))
    raise AssertionError


def _renamed(metrics: PlainData, names: dict[str, str]) -> PlainData:
    """The same under other names, as far as they are known."""
    if not isinstance(metrics, dict):
        return metrics
    return {names.get(name, name): value for name, value in metrics.items()}
