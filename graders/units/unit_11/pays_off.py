"""The grader of `pays_off`."""

from dataclasses import dataclass

from graders.grading.cases import Values, both
from graders.grading.expected import Expected
from graders.grading.judging import feature
from graders.grading.kit import Criterion, Rng
from graders.units.functions.stage import Arguments, of_function

SOONER, LATER, MUCH_LATER = 0.9, 1.1, 1.5


@dataclass(frozen=True, slots=True)
class Exchange:
    """adds_up: as the answer's. small: of a few bytes; else so large that latency hardly counts. taken: the
    seconds of compressing, as a part of those that are saved. gain: whether there is something to save.
    """

    ranks: int = feature(8, "{} ranks")
    adds_up: bool = feature(False, lambda adds_up: "added on the way" if adds_up else "gathered")
    small: bool = feature(False, lambda small: "few bytes" if small else "many bytes")
    taken: float = SOONER
    gain: bool = feature(True, lambda gain: "" if gain else "nothing to gain")


def around(*ranks: int, **features: bool) -> tuple[Values, ...]:
    """For each of these numbers of ranks a gain, and on the other side none."""
    return tuple(
        change
        for count in ranks
        for taken in (SOONER, LATER, MUCH_LATER)
        for change in both(ranks=count, taken=taken, **features)
    )


def saved(nbytes: int, ratio: float, ranks: int, alpha: float, beta: float, adds_up: bool) -> float:
    """Seconds that a compressed exchange takes less, where compressing takes none."""
    rounds, part = 2 * (ranks - 1), nbytes / ranks
    dense = rounds * (alpha + part * beta)
    if adds_up:
        return dense - rounds * (alpha + ratio * part * beta)
    return dense - (ranks - 1) * (alpha + ratio * nbytes * beta)


def an_exchange(rng: Rng, case: Exchange) -> Arguments:
    """All arguments, with few digits each."""
    nbytes = rng.integer(4, 40) if case.small else 10**8 * rng.integer(10, 40)
    ratio = rng.integer(10, 90) / 100 * (1 if case.adds_up else 2 / case.ranks)
    ratio = float(f"{ratio:.3g}") if case.gain else 1.0
    alpha = rng.integer(2, 30) * 1e-6
    beta = float(f"{rng.integer(10, 100) * (1e-11 if case.small else 1e-10):.3g}")
    seconds = case.taken * saved(nbytes, ratio, case.ranks, alpha, beta, case.adds_up)
    return [nbytes, ratio, float(f"{seconds:.4g}"), case.ranks, alpha, beta, case.adds_up]


@of_function(
    base=Exchange(),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "gathered",
            3,
            "How many bytes does a rank send in an all-gather round a ring, and how many in a ring "
            "all-reduce? What takes time beside messages?",
            vary=around(2, 8, 37),
        ),
        Criterion("added on the way", 2, "An all-reduce of fewer bytes.", vary=around(2, 5, adds_up=True)),
        Criterion(
            "small gradients",
            2,
            "Count the rounds of both: latency decides where there is little to send.",
            vary=around(2, 8, small=True) + around(2, 8, small=True, adds_up=True),
        ),
        Criterion(
            "no gain",
            1,
            "On one rank nothing is sent, and as long is not sooner.",
            vary=both(ranks=1) + both(adds_up=True, gain=False),
        ),
    ),
    hints=(
        "How many rounds has a ring all-reduce, and how many bytes has a message of each (unit 07)?",
        "In an all-gather, each rank's message goes round the whole ring: how many rounds, how many bytes in "
        "each?",
    ),
    arguments=an_exchange,
)
def pays_off(case: Exchange, given: Arguments) -> Expected:
    """Whether compressing takes less than is saved."""
    nbytes, ratio, seconds, ranks, alpha, beta, adds_up = given
    pays = seconds < saved(nbytes, ratio, ranks, alpha, beta, adds_up)
    names = ("nbytes", "ratio", "seconds", "ranks", "alpha", "beta", "adds_up")
    return Expected(pays, dict(zip(names, given, strict=True)), returned=None)
