"""The grader of `ExpertParallelMLP`."""

from graders.grading.kit import Answer, Criterion, Findings, Rng, compare, exercise
from graders.units.unit_10 import layer_findings as found
from graders.units.unit_10.layer_cases import PAIRS, Case

_LEARNS = ("outputs", "gradients of x", "average_gradients")


@exercise(
    name="ExpertParallelMLP",
    minutes=60,
    difficulty=5,
    rubric=(
        Criterion(
            "outputs", 4, "Rows arrive rank by rank; each expert wants its own, and all back in place."
        ),
        Criterion("gradients of x", 2, "Through the expert, and through the gate's weights."),
        Criterion(
            "average_gradients",
            2,
            "An expert has seen the tokens of all ranks: its gradient is the sum of what p losses send. The "
            "gate has seen its own rank's only.",
            needs=("outputs", "gradients of x"),
        ),
        Criterion(
            "parameters and routing",
            2,
            "The gate, and this rank's experts: copies, and nothing that keeps the others. And of the last "
            "forward all experts' probabilities, and the choices.",
        ),
        Criterion(
            "any ranks",
            2,
            "A rank without tokens, or whose experts nobody chose, has to make every call of both passes all "
            "the same: its result must hang on the graph. The group is dispatch's, combine's and the "
            "all-reduce's.",
            needs=_LEARNS,
        ),
        Criterion(
            "capacity",
            2,
            "Room for ceil(factor N k / E) of this rank's choices; the rest is dropped.",
            needs=_LEARNS,
        ),
        Criterion(
            "calls and bytes",
            2,
            "Counts and rows to the experts, rows back; in backward rows; the gate's gradient once. All rows "
            "of an expert in one call, whoever sent them.",
            needs=_LEARNS,
        ),
    ),
    hints=(
        "Which of your functions does a token pass on its way, in which order? What does each need from the "
        "one before?",
        "dispatch returns rows rank by rank. Which expert is each of them for, by `received`? Sort them by "
        "that, split them, and undo the sort at the end.",
        "If each rank's loss is the mean over its tokens, by what is an expert's gradient too large?",
    ),
)
def expert_parallel_mlp(answer: Answer, rng: Rng) -> Findings:
    """Drawn layers and tokens, among them ranks without any."""
    plain = Case.drawn(rng, 2, [(9,), (7,), (2, 4)])
    run = plain.launch(answer)
    yield "outputs", found.outputs(plain, run)
    yield "gradients of x", found.gradients(plain, run, x=True)
    yield "average_gradients", found.gradients(plain, run, x=False)
    yield (
        "parameters and routing",
        compare.first_failure((found.parameters(plain, run), found.routing(plain, run))),
    )
    several = [
        Case.drawn(rng, 2, [(4,), (0,), (3,)], lonely=[2, 3]),
        Case.drawn(rng, 3, [(2,)]),
        Case.drawn(rng, 2, [(3,)] * 6, groups=PAIRS),
    ]
    full = [Case.drawn(rng, 2, [(9,), (8,)], lonely=[1], factor=each) for each in (0.75, 1.0)]
    for name, cases, right in (
        ("any ranks", several, "With a rank without tokens, a single rank and groups all is right."),
        ("capacity", full, "With room for some of the choices, and for as many as there are, all is right."),
    ):
        yield (
            name,
            compare.first_failure((found.all_right(each, each.launch(answer)) for each in cases), right),
        )
    yield "calls and bytes", found.communication(plain, run)
