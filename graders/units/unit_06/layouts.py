"""Unit 06, layouts: which collective an einsum needs on a mesh."""

from string import ascii_lowercase
from typing import NamedTuple

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_06 import drivers
from graders.units.unit_06.replies import LayoutReply

RIGHT = ("forward", "backward")


class Case(NamedTuple):
    """An einsum and a layout."""

    einsum: str
    layout: dict[str, str]

    @property
    def needed(self) -> list[list[str]]:
        """For the result and each operand, the axes along which letters that it does not have are cut."""
        operands, result = self.einsum.split("->")
        tensors = [result, *operands.split(",")]
        letters = sorted(set("".join(tensors)) & set(self.layout))
        return [sorted(self.layout[x] for x in letters if x not in tensor) for tensor in tensors]


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "forward",
            3,
            "A letter that the result lacks is summed: if it is cut, each rank has some of its terms.",
        ),
        Criterion(
            "backward",
            3,
            "An operand's gradient is an einsum, too, of the result's gradient and the other operands.",
        ),
        Criterion(
            "several axes",
            1,
            "Each axis once, sorted; letters that are not cut, or not there, need nothing.",
            needs=RIGHT,
        ),
        Criterion(
            "two letters along one axis",
            2,
            "A rank has one place along an axis. Raise ValueError, and only for letters that the einsum has.",
            needs=RIGHT,
        ),
        Criterion("arguments unchanged", 1, "The layout stays as it is.", needs=RIGHT),
    ),
    hints=(
        'What is the sum over in one number of the result of "bd,df->bf", and who has its terms?',
        "The gradient of one of two operands is an einsum of the result's and the other: what does it sum?",
        "Which letters does a tensor lack that others of the einsum have?",
    ),
)
def required_collectives(answer: Answer, rng: Rng) -> Findings:
    """Each letter of drawn einsums cut by itself, then several at once."""
    one = [Case(einsum, {letter: "all"}) for einsum in _drawn(rng) for letter in _letters(einsum)]
    seen = _asked(answer, one)
    yield "forward", compare.first_failure(map(_forward, one, seen))
    yield "backward", compare.first_failure(map(_whole, one, seen))
    several = [case for einsum in _drawn(rng) for case in _cut_often(rng, einsum)]
    more = _asked(answer, several)
    yield "several axes", compare.first_failure(map(_whole, several, more))
    yield "two letters along one axis", _refused(answer, rng)
    yield (
        "arguments unchanged",
        compare.first_failure(
            compare.equal(reply.layout, case.layout, f"{case.einsum}: the layout afterwards")
            for case, reply in zip([*one, *several], [*seen, *more], strict=True)
        ),
    )


LETTERS = ascii_lowercase

SHAPES = (
    "ab,bc->ac",
    "ab,cb->ca",
    "abc,adc->abd",
    "abcd,aecd->acbe",
    "ab,bc,cd->ad",
    "ab,b->a",
    "a,a->a",
    "ab->ba",
)
"""Products of matrices, the scores of attention, a chain, a matrix and a vector, and two that sum nothing."""


def _drawn(rng: Rng) -> list[str]:
    """All shapes, with drawn letters."""
    alphabet = list(LETTERS)
    table = {}
    for letter in "abcde":
        table[letter] = alphabet.pop(rng.integer(0, len(alphabet) - 1))
    return ["".join(table.get(character, character) for character in shape) for shape in SHAPES]


def _letters(einsum: str) -> list[str]:
    return sorted(set(einsum) - set(",->"))


def _cut_often(rng: Rng, einsum: str) -> list[Case]:
    """Every letter along an axis of its own, in another order; and one letter less, with a stranger."""
    letters = _letters(einsum)
    axes = ["rows", "columns", "depth", "pods", "nodes"][: len(letters)]
    turned = axes[rng.integer(0, len(axes) - 1) :] + axes
    layout = dict(zip(letters, turned, strict=False))
    left = rng.choice(letters)
    return [
        Case(einsum, layout),
        Case(einsum, {_strangers(einsum)[0]: layout[left], **{x: layout[x] for x in letters if x != left}}),
    ]


def _strangers(einsum: str) -> list[str]:
    """Letters that it does not have."""
    return [letter for letter in LETTERS if letter not in einsum]


def _asked(answer: Answer, cases: list[Case]) -> list[LayoutReply]:
    """What the answer makes of each."""
    return answer.call(drivers.layouts, [tuple(case) for case in cases])


def _forward(case: Case, reply: LayoutReply) -> Finding:
    """Passes if there is a list for each tensor, and the result's is right."""
    what = f"{case.einsum} with {case.layout}: the axes for the result"
    if reply.raised or type(reply.result) is not list or len(reply.result) != len(case.needed):
        said = f"raised {reply.raised}" if reply.raised else f"returned {compare.shown(reply.result)}"
        lists = compare.counted(len(case.needed), "list")
        return Finding(
            False, f"{case.einsum} with {case.layout} {said}; expected {lists}, one for each tensor."
        )
    return compare.equal(reply.result[0], case.needed[0], what)


def _whole(case: Case, reply: LayoutReply) -> Finding:
    what = f"{case.einsum} with {case.layout}"
    if reply.raised:
        return Finding(False, f"{what} raised {reply.raised}.")
    return compare.equal(reply.result, case.needed, what)


def _refused(answer: Answer, rng: Rng) -> Finding:
    """Passes if two letters along one axis raise ValueError, in one tensor or in two, not so strangers."""
    drawn = _drawn(rng)
    einsum, chain, vector = drawn[0], drawn[4], drawn[5]
    first, second = einsum[0], einsum[-1]
    wrong = [
        Case(einsum, {first: "all", second: "all"}),
        Case(einsum, {first: "all", einsum[1]: "all"}),
        # In a chain "ab,bc,cd->ad" no tensor has a and c.
        Case(chain, {chain[0]: "all", chain[4]: "all"}),
        Case(vector, {vector[0]: "rows", vector[1]: "rows", _strangers(vector)[0]: "columns"}),
    ]
    for case, reply in zip(wrong, _asked(answer, wrong), strict=True):
        if reply.raised != "ValueError":
            said = f"raised {reply.raised}" if reply.raised else f"returned {compare.shown(reply.result)}"
            return Finding(False, f"{case.einsum} with {case.layout} {said}; expected a ValueError.")
    one, two, three, *_ = _strangers(einsum)
    allowed = [Case(einsum, {first: "all", one: "all", two: "rows", three: "rows"})]
    return compare.first_failure(map(_whole, allowed, _asked(answer, allowed)))
