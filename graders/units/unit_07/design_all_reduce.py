"""The grader of `design_all_reduce`."""

from graders.grading.kit import Answer, Criterion, Findings, Rng, compare, exercise
from graders.units.unit_07.plans import Case

CLEAR = ((4, 2, 0.1, 20, 0.001), (2, 4, 0.1, 20, 4.0), (4, 2, 0.1, 20, 40.0))
"""A short, a middling and a long tensor: nodes, GPUs of a node, its latency and its bandwidth as multiples of
those between nodes, and the seconds of the tensor's bytes between two nodes, as a multiple of the latency.
The best plans are everyone at once; parts within nodes, then whole between them; parts in both."""
CLOSE = ((2, 2, 0.7, 3, 1.834), (2, 2, 0.7, 10, 0.9), (4, 2, 0.7, 3, 2.0), (1, 4, 0.5, 2, 4.0))
"""Nodes that are little faster than the network between them, so that each term of a plan's seconds counts,
and a single node. The best are as for the middling tensor; whole within nodes, and whole between them; and
twice everyone in parts.
"""
ODD = ((1, 1, 3), (1, 3, 4), (2, 2, 1), (3, 2, 10_001))
"""Nodes, GPUs of a node and elements: for the sum alone."""
SUM = "the sum on every rank"
HALF, TENTH, THIRTIETH = (
    "half of what can be saved",
    "within a tenth of the best known",
    "within a thirtieth of the best known",
)


@exercise(
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(SUM, 2, "Whatever the cluster and the length, x becomes the sum, and x is returned."),
        Criterion(
            HALF,
            2,
            "None of this unit's all-reduces suffices. A short tensor can be with everyone after one "
            "latency: who has to send to whom, and which irecv must have been called by then?",
        ),
        Criterion(
            TENTH,
            2,
            "Messages that are under way at the same time wait for one latency together. How few rounds can "
            "a reduce-scatter have?",
            needs=(SUM, HALF),
        ),
        Criterion(
            THIRTIETH,
            2,
            "Within nodes, between nodes, or at once; each in parts, or whole: compute the seconds of "
            "each, then choose.",
            needs=(SUM, TENTH),
        ),
    ),
    hints=(
        "Which counts for 100 bytes, latency or bandwidth, and which for 100 MB?",
        "Where p - 1 messages leave a rank at once, when has the last of them arrived?",
        "Two rounds of parts, or one round of the whole: from how many bytes on does the first one win?",
    ),
)
def design_all_reduce(answer: Answer, rng: Rng) -> Findings:
    """Clusters and lengths where one plan is the best by far, or by little; odd worlds for the sum alone."""
    clear = [Case.drawn(rng, *shape) for shape in CLEAR]
    cases = clear + [Case.drawn(rng, *shape) for shape in CLOSE]
    odd = [Case.odd(rng, *shape) for shape in ODD]
    runs = [case.launch(answer) for case in cases + odd]
    yield SUM, compare.first_failure(map(Case.right, cases + odd, runs))
    # Of a long tensor's time little can be saved.
    half = [max((case.best_of_unit() + case.best()) / 2, 1.1 * case.best()) for case in clear]
    yield HALF, compare.first_failure(map(Case.within, clear, runs, half))
    tenth = [1.1 * case.best() for case in clear]
    yield TENTH, compare.first_failure(map(Case.within, clear, runs, tenth))
    thirtieth = [(1 + 1 / 30) * case.best() for case in cases]
    yield THIRTIETH, compare.first_failure(map(Case.within, cases, runs, thirtieth))
