"""Unit 11, whether a compressed exchange is over sooner than one that is not compressed."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.drivers import call


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "gathered",
            3,
            "How many bytes does a rank send in an all-gather round a ring, and how many in a ring "
            "all-reduce? What takes time beside messages?",
        ),
        Criterion("added on the way", 2, "An all-reduce of fewer bytes."),
        Criterion(
            "small gradients",
            2,
            "Count the rounds of both: latency decides where there is little to send.",
            needs=("gathered", "added on the way"),
        ),
        Criterion(
            "no gain",
            1,
            "On one rank nothing is sent, and as long is not sooner.",
            needs=("gathered", "small gradients"),
        ),
    ),
    hints=(
        "How many rounds has a ring all-reduce, and how many bytes has a message of each (unit 07)?",
        "In an all-gather, each rank's message goes round the whole ring: how many rounds, how many bytes in "
        "each?",
    ),
)
def pays_off(answer: Answer, rng: Rng) -> Findings:
    """On both sides of where the two are equal, for few ranks and for many."""
    gathered = [_at_least(rng, ranks, False) for ranks in (2, 3, 8, rng.integer(9, 60), 256)]
    added = [_at_least(rng, ranks, True) for ranks in (2, 5, rng.integer(9, 60))]
    small = [replace(each, nbytes=rng.integer(4, 40), beta=each.beta / 10) for each in (*gathered, *added)]
    yield "gathered", _judged(answer, _both_sides(gathered))
    yield "added on the way", _judged(answer, _both_sides(added))
    yield "small gradients", _judged(answer, _both_sides(small))
    one = replace(gathered[0], ranks=1)
    same = replace(added[0], ratio=1.0, seconds=0.0)
    yield "no gain", _judged(answer, [(one, False), (replace(one, seconds=0.0), False), (same, False)])


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of the answer, in its order."""

    nbytes: int
    ratio: float
    seconds: float
    ranks: int
    alpha: float
    beta: float
    adds_up: bool

    def saved(self) -> float:
        """Seconds that a compressed exchange takes less, where compressing takes none."""
        rounds, part = 2 * (self.ranks - 1), self.nbytes / self.ranks
        dense = rounds * (self.alpha + part * self.beta)
        if self.adds_up:
            return dense - rounds * (self.alpha + self.ratio * part * self.beta)
        return dense - (self.ranks - 1) * (self.alpha + self.ratio * self.nbytes * self.beta)


def _at_least(rng: Rng, ranks: int, adds_up: bool) -> Case:
    """A gradient of some gigabytes, compressed so well that there is something to gain."""
    # So large that latency hardly counts.
    nbytes, ratio = rng.integer(10**9, 4 * 10**9), rng.integer(10, 90) / 100
    ratio = ratio if adds_up else ratio * 2 / ranks
    alpha, beta = 1e-6 * rng.integer(2, 30), 1 / rng.integer(10**8, 10**9)
    return Case(nbytes, ratio, 0.0, ranks, alpha, beta, adds_up)


def _both_sides(cases: Sequence[Case]) -> list[tuple[Case, bool]]:
    """Each case with a little less and a little more time for compressing than there is to gain; and with a
    ratio at which it gains nothing even if compressing takes no time.
    """
    near = [
        (replace(each, seconds=each.saved() * (1 - off)), off > 0)
        for each in cases
        for off in (0.1, -0.1, 0.5)
    ]
    return [*near, *((each, False) for each in (replace(each, ratio=10.0**9) for each in cases))]


def _judged(answer: Answer, cases: Sequence[tuple[Case, bool]]) -> Finding:
    """Passes if the answer is the expected one in every case."""
    return compare.first_failure(
        compare.equal(answer.call(call, *astuple(case)), expected, _words(case)) for case, expected in cases
    )


def _words(case: Case) -> str:
    """A call that can be typed in again."""
    last = ", adds_up=True" if case.adds_up else ""
    arguments = (
        f"{case.nbytes}, {case.ratio!r}, {case.seconds!r}, {case.ranks}, {case.alpha!r}, {case.beta!r}"
    )
    return f"pays_off({arguments}{last})"
