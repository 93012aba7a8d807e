"""The grader of `expand_hostlist`."""

import re
from dataclasses import dataclass
from itertools import product

from graders.grading.cases import both, vary
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.drivers import in_turn_alone
from graders.units.functions.stage import Arguments, of_function

BRACKET = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Hosts:
    """text: a list in which N stands for a number that is drawn. width: to which numbers in brackets are
    filled with zeros.
    """

    text: str = feature("nodeN-[3-5]", "a text like {!r}")
    width: int = feature(1, lambda width: f"numbers of {width} digits" if width > 1 else "")


def one_list(rng: Rng, hosts: Hosts) -> Arguments:
    """The text, with numbers."""

    def filled(bracket: re.Match[str]) -> str:
        return re.sub(r"\d+", lambda number: number[0].zfill(hosts.width), bracket[0])

    return [BRACKET.sub(filled, hosts.text.replace("N", str(rng.integer(11, 99))))]


@of_function(
    base=Hosts(),
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "a range",
            2,
            "In Slurm's ranges both ends are included: [3-5] is 3, 4 and 5.",
            vary=vary(text=("gpuN[0-2]", "n[7]", "node[8-11]")),
        ),
        Criterion(
            "plain names",
            1,
            "Without brackets the list is what stands between the commas, in order, twice where a name "
            "stands twice; an empty text gives an empty list.",
            vary=vary(text=("", "nodeN", "loginN,node2,login-1,node2,nid005000")),
        ),
        Criterion(
            "several in brackets",
            1,
            "Inside brackets a comma separates numbers and ranges, outside it separates names: find the "
            "brackets before you split by commas. What comes twice is kept twice, each in its place.",
            vary=vary(text=("cN-[3-5,7,20-21]", "n[22-24,13,13]", "login2,cN-[13,17-18],n[15-16],login1")),
        ),
        Criterion(
            "leading zeros",
            1,
            "007 is a text. Fill every number of a range with zeros to the width of the range's first, "
            "whatever its last is; a longer number keeps all its digits.",
            vary=vary(width=(2, 3)) + both(text="n[8-11,20]", width=2) + both(text="n[98-101,07]", width=3),
        ),
        Criterion(
            "two brackets",
            1,
            "Every number of the first bracket goes with every number of the second, the second counting "
            "faster.",
            vary=vary(text=("rack[1-2]-node[3-5]", "x1000c[4-5]s0b[8-9],loginN,rack[1]-n[2]")),
        ),
    ),
    hints=(
        "Which commas separate names, and which separate numbers? How would you tell them apart by eye?",
        "A regular expression can say what a name is: anything but a comma, or a whole bracket, repeatedly.",
        "re.split with a group in its pattern keeps what the group matched: texts and brackets in turn.",
        'itertools.product yields every combination, the last counting fastest; f"{n:0{width}}" fills up.',
    ),
    arguments=one_list,
    driver=in_turn_alone,
)
def expand_hostlist(hosts: Hosts, given: Arguments) -> Expected:
    """As `scontrol show hostnames` does it. With three brackets its order follows no rule, and a text after
    the last bracket it does not expand.
    """
    [text] = given
    return Expected(expanded(text), {"text": text}, returned=None)


def expanded(text: str) -> list[str]:
    """The hosts of a list."""
    names = re.split(r",(?![^\[]*\])", text) if text else []
    return [
        "".join(parts)
        for name in names
        for parts in product(
            *(_numbers(part) if place % 2 else [part] for place, part in enumerate(BRACKET.split(name)))
        )
    ]


def _numbers(ranges: str) -> list[str]:
    pairs = (part.split("-") for part in ranges.split(","))
    return [
        str(number).zfill(len(ends[0])) for ends in pairs for number in range(int(ends[0]), int(ends[-1]) + 1)
    ]
