"""The grader of `required_collectives`."""

from dataclasses import dataclass
from string import ascii_lowercase

from graders.grading.cases import both, vary
from graders.grading.expected import ANYTHING, Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_06 import drivers

RIGHT = ("forward", "backward")
MATRICES, CHAIN, SCORES, VECTOR = "ab,bc->ac", "ab,bc,cd->ad", "abcd,aecd->acbe", "ab,b->a"
AXES = {"a": "rows", "b": "columns", "c": "depth", "d": "pods", "e": "nodes", "z": "hosts"}


@dataclass(frozen=True, slots=True)
class Layout:
    """An einsum, whose letters are drawn, and which of them are cut; z is one that it does not have.

    backward: whether the operands' lists are looked at. together: whether all are cut along one axis.
    """

    einsum: str = MATRICES
    cut: str = feature("b", lambda cut: f"{len(cut)} letter{'s' * (len(cut) != 1)} cut")
    backward: bool = feature(False, lambda backward: "the lists of all tensors" if backward else "")
    together: bool = feature(False, lambda together: "along one axis" if together else "")


@of_function(
    base=Layout(),
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            RIGHT[0],
            3,
            "A letter that the result lacks is summed: if it is cut, each rank has some of its terms.",
            vary=vary(cut=("a", "c", "")) + both(einsum=SCORES, cut="d") + both(einsum=VECTOR, cut="b"),
        ),
        Criterion(
            RIGHT[1],
            3,
            "An operand's gradient is an einsum, too, of the result's gradient and the other operands.",
            vary=both(backward=True, cut="a")
            + both(backward=True, cut="c")
            + both(backward=True, cut="b", einsum=CHAIN),
        ),
        Criterion(
            "several axes",
            2,
            "Sorted by axis; letters that are not cut, or not there, need nothing.",
            needs=RIGHT,
            vary=both(backward=True, cut="dbca", einsum=CHAIN)
            + both(backward=True, cut="zaecd", einsum=SCORES),
        ),
        Criterion(
            "two letters along one axis",
            1,
            "A rank has one place along an axis. Raise ValueError, and only for letters that the einsum has.",
            needs=RIGHT,
            # In a chain no tensor has both.
            vary=both(together=True, cut="ac", einsum=CHAIN) + both(together=True, cut="bz"),
        ),
        Criterion("arguments unchanged", 1, "The layout stays as it is.", needs=RIGHT, how=kept),
    ),
    hints=(
        'What is the sum over in one number of the result of "bd,df->bf", and who has its terms?',
        "The gradient of one of two operands is an einsum of the result's and the other: what does it sum?",
        "Which letters does a tensor lack that others of the einsum have?",
    ),
    arguments=lambda rng, case: _drawn(rng, case),
    driver=drivers.einsums,
)
def required_collectives(case: Layout, given: Arguments) -> Expected:
    """For each tensor the axes along which letters that it does not have are cut."""
    einsum, layout = given
    operands, result = einsum.split("->")
    tensors = [result, *operands.split(",")]
    letters = sorted(set("".join(tensors)) & set(layout))
    kept_as = {"einsum": einsum, "layout": dict(layout)}
    if len({layout[letter] for letter in letters}) < len(letters):
        return Expected(drivers.REFUSED, kept_as, returned=None)
    needed = [sorted(layout[letter] for letter in letters if letter not in each) for each in tensors]
    asked = needed if case.backward else [needed[0], *[ANYTHING] * (len(needed) - 1)]
    return Expected(asked, kept_as, returned=None)


def _drawn(rng: Rng, case: Layout) -> Arguments:
    """The einsum and the layout, with drawn letters."""
    alphabet = list(ascii_lowercase)
    names = {letter: alphabet.pop(rng.integer(0, len(alphabet) - 1)) for letter in AXES}
    einsum = "".join(names.get(character, character) for character in case.einsum)
    axes = {letter: "all" if case.together else AXES[letter] for letter in case.cut}
    return [einsum, {names[letter]: axis for letter, axis in axes.items()}]
