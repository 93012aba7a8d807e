"""Unit 03, the names of the nodes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, zip_longest

from graders.grading.kit import Answer, AnswerFailed, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call_alone
from graders.units.raised import raised_in


@exercise(
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "plain names",
            1,
            "Without brackets the list is what stands between the commas, in order, twice where a name "
            "stands twice; an empty text gives an empty list.",
        ),
        Criterion("a range", 1, "In Slurm's ranges both ends are included: [3-5] is 3, 4 and 5.", needs=()),
        Criterion(
            "leading zeros",
            1,
            "007 is a text. Fill every number of a range with zeros to the width of the range's first, "
            "whatever its last is; a longer number keeps all its digits.",
            needs=("a range",),
        ),
        Criterion(
            "several in brackets",
            1,
            "Inside brackets a comma separates numbers and ranges, outside it separates names: find the "
            "brackets before you split by commas. What comes twice is kept twice, each in its place.",
            needs=("a range",),
        ),
        Criterion(
            "two brackets",
            2,
            "Every number of the first bracket goes with every number of the second, the second counting "
            "faster.",
            needs=("a range",),
        ),
    ),
    hints=(
        "Which commas separate names, and which separate numbers? How would you tell them apart by eye?",
        "A regular expression can say what a name is: anything but a comma, or a whole bracket, repeatedly.",
        "re.split with a group in its pattern keeps what the group matched: texts and brackets in turn.",
        'itertools.product yields every combination, the last counting fastest; f"{n:0{width}}" fills up.',
    ),
)
def expand_hostlist(answer: Answer, rng: Rng) -> Findings:
    """Lists in the style of real clusters, from plain names to several dimensions."""
    names = draw_names(rng)
    yield "plain names", (plain := expansions(answer, names))
    # What a row has found wrong the rows after it do without.
    as_sets = not plain.passed and expansions(answer, names, as_sets=True).passed
    yield "a range", expansions(answer, draw_bracket(rng, "my_gpu2" if plain.passed else "gpu2"), as_sets)
    yield "leading zeros", (zeros := expansions(answer, draw_zeros(rng), as_sets))
    width = 3 if zeros.passed else 1
    yield "several in brackets", (several := expansions(answer, draw_list(rng, width), as_sets))
    yield "two brackets", expansions(answer, draw_dimensions(rng, min(2, width), several.passed), as_sets)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number or a range as it stands in brackets, and what it stands for."""

    text: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostList:
    """A host list, and its hosts."""

    text: str
    hosts: list[str]

    def __add__(self, other: "HostList") -> "HostList":
        return HostList(f"{self.text},{other.text}", self.hosts + other.hosts)


def expansions(answer: Answer, cases: Sequence[HostList], as_sets: bool = False) -> Finding:
    """Passes if the answer expands every list. as_sets: in whatever order, however often a host comes, and as
    a text with commas, too.
    """
    return compare.first_failure(_expansion(answer, case, as_sets) for case in cases)


def _expansion(answer: Answer, case: HostList, as_sets: bool) -> Finding:
    what = f'the hosts of "{case.text}"'
    try:
        seen = answer.call(call_alone, case.text)
    except AnswerFailed as failure:
        return raised_in(what, failure)
    if as_sets and type(seen) is str:
        seen = [name for name in re.split("[, \\n]+", seen) if name]
    if as_sets and type(seen) in (list, tuple) and all(type(host) is str for host in seen):
        return compare.equal(sorted(set(seen)), sorted(set(case.hosts)), what)
    finding = compare.equal(seen, case.hosts, what)
    return finding if finding.passed else Finding(False, finding.seen + _first_other(seen, case.hosts))


def _first_other(seen: object, hosts: Sequence[str]) -> str:
    """Of a list that is too long to be shown whole, the first place where it is another one."""
    if type(seen) is not list or compare.shown(hosts) == repr(hosts):
        return ""
    for place, (got, wanted) in enumerate(zip_longest(seen, hosts, fillvalue="nothing"), 1):
        if not compare.same(got, wanted):
            return (
                f" The first that differs is number {place}: expected {wanted}, got {compare.shown(got, 40)}."
            )
    return ""


def draw_names(rng: Rng) -> list[HostList]:
    """No host, one, and several of which one comes twice."""
    number = rng.integer(1, 90)
    alone, following = _plain(f"node{number}"), _plain(f"node{number + 1}")
    others = _plain(f"login-{number}.hpc") + _plain(f"{number}_gpu") + _plain(f"nid{number:06}")
    return [HostList("", []), alone, following + alone + others + following]


def draw_bracket(rng: Rng, other: str = "my_gpu2") -> list[HostList]:
    """One range within a width, one from 0 on; one single number. other: what stands before that."""
    number = rng.integer(20, 40)
    prefix = rng.choice(("node", "gpu", "nid"))
    return [
        _product(prefix, [_range(number, number + rng.integer(2, 5))]),
        _product("uc1.N", [_range(0, rng.integer(2, 3))]),
        _product(other, [_range(number, number)]),
    ]


def draw_zeros(rng: Rng) -> list[HostList]:
    """As LUMI and Frontera number their nodes, with two widths, over the end of a width, and from 0 on; and
    without a zero, over the end of a width.
    """
    number = rng.integer(5000, 7000)
    return [
        _product("node", [_range(rng.integer(7, 9), rng.integer(11, 13))]),
        _product("nid", [_range(number, number + 3, width=6)]),
        _product(f"c{rng.integer(101, 199)}-", [_range(1, rng.integer(3, 6), width=3)]),
        _product("n", [_range(rng.integer(7, 8), rng.integer(10, 12), width=2)]),
        _product("n", [_range(rng.integer(7, 9), rng.integer(101, 103), width=2)]),
        _product("n", [_range(0, 0, width=3)]),
        _product("n", [_range(0, 2, width=3)]),
    ]


def draw_list(rng: Rng, width: int = 3) -> list[HostList]:
    """Numbers and ranges of different widths in one bracket, in any order, one twice, between other names.

    width: of the widest numbers; 1: none has a zero before it, and all have two digits.
    """
    tens = 0 if width > 1 else 10
    first, single, later = tens + rng.integer(1, 3), tens + 7, rng.integer(20, 30)
    parts = _range(first, first + 2, width), _range(single, single, width), _range(later, later + 1, width)
    bracket = _product("c101-", [_join(*parts)])
    narrow = _range(first, first, min(2, width)), _range(first, first)
    numbers = _range(later, later + 2), *narrow, _range(later, later)
    mixed = _product("n", [_join(*numbers)])
    names = _plain("login2") + _plain("login1"), _plain(f"n{later}") + _plain("login1")
    return [bracket, mixed, names[0] + bracket + mixed + names[1] + bracket]


def draw_dimensions(rng: Rng, width: int = 2, lists: bool = True) -> list[HostList]:
    """Two brackets in a name, and all kinds in one list.

    width: of numbers with zeros before them; 1: there are none, and a bracket's numbers have as
        many digits.
    lists: whether brackets hold several ranges.
    With three brackets, Slurm's own order follows no rule, and a text after the last one it does not expand.
    """
    rack, node = rng.integer(1, 5), rng.integer(1, 8 if width > 1 else 2)
    wider = width + 1 if width > 1 else 1
    inner, outer = [_range(node, node + 1, width)], [_range(rack, rack)]
    if lists:
        inner.append(_range(node + 7, node + 7, width))
        # In descending order, and one twice.
        outer = [_range(rack + 2, rack + 3), *outer, *outer]
    two = _product("rack", [_range(rack, rack + 1, wider)], "-node", [_join(*inner)])
    joined = _product("n1", [_range(rack, rack + 1)], [_range(node, node + 1, width)])
    # Brackets that are alike.
    twins = _product("a", [_range(node, node + 1, width)], "b", [_range(node, node + 1, width)])
    single = _product("gpu", [_range(rack, rack, wider)], "-", [_range(node, node, width)])
    long = _product("x1000c", [_join(*outer)], "s0b", [_range(8, 11 if width > 1 else 9)])
    return [two, joined, twins, single, long, long + _plain("login2") + two]


def _plain(name: str) -> HostList:
    return HostList(name, [name])


def _range(first: int, last: int, width: int = 1) -> Numbers:
    names = tuple(f"{number:0{width}}" for number in range(first, last + 1))
    return Numbers(names[0] if first == last else f"{names[0]}-{names[-1]}", names)


def _join(*several: Numbers) -> Numbers:
    return Numbers(
        ",".join(each.text for each in several), tuple(name for each in several for name in each.names)
    )


def _product(*parts: str | list[Numbers]) -> HostList:
    """A name of texts and brackets; a bracket is a list of one item."""
    text = "".join(part if isinstance(part, str) else f"[{part[0].text}]" for part in parts)
    choices = [(part,) if isinstance(part, str) else part[0].names for part in parts]
    return HostList(text, ["".join(names) for names in product(*choices)])
