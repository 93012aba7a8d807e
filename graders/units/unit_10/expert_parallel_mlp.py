"""The grader of `ExpertParallelMLP`."""

import torch

from graders.grading.kit import Answer, Criterion, Findings, Rng, compare, exercise
from graders.units.unit_10 import layer_findings as found
from graders.units.unit_10.layer_cases import Case
from graders.units.unit_10.worlds import PAIRS

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
            "parameters", 1, "The gate, and this rank's experts: copies, and nothing that keeps the others."
        ),
        Criterion(
            "nobody comes",
            1,
            "A rank without tokens, or whose experts nobody chose, has to make every call of both passes all "
            "the same: its result must hang on the graph.",
            needs=_LEARNS,
        ),
        Criterion(
            "capacity",
            2,
            "Room for ceil(factor N k / E) of this rank's choices; the rest is dropped.",
            needs=_LEARNS,
        ),
        Criterion("routing", 1, "Of the last forward: all experts' probabilities, and the choices."),
        Criterion(
            "calls and bytes",
            1,
            "Counts and rows to the experts, rows back; in backward rows, and those for x only where it "
            "needs a gradient; the gate's gradient once.",
            needs=_LEARNS,
        ),
        Criterion("one call an expert", 1, "All rows of an expert in one call, whoever sent them."),
        Criterion("group", 1, "The group is dispatch's, combine's and the all-reduce's.", needs=_LEARNS),
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
    plain = Case.drawn(rng, 3, 2, 2, [(9,), (7,), (2, 4)])
    run = plain.launch(answer)
    yield "outputs", found.outputs(plain, run)
    yield "gradients of x", found.gradients_of_x(plain, run)
    yield "average_gradients", found.averaged(plain, run)
    yield "parameters", found.parameters(plain, run)
    empty = [
        Case.drawn(rng, 3, 2, 2, [(4,), (0,), (3,)], lonely=[2, 3]),
        # Nothing comes from x: what rank 0 has to take part in backward for is its experts.
        Case.drawn(rng, 2, 2, 2, [(3,), (2,)], lonely=[0, 1], learns=False),
        Case.drawn(rng, 2, 1, 2, [(2, 3), (0,)], frozen=[0, 1], dtype=torch.float64, gaps=True),
        Case.drawn(rng, 1, 3, 1, [()]),
    ]
    idle = [each.launch(answer) for each in empty]
    right = (
        "With ranks without tokens, experts to whom nobody comes, frozen ones and a single rank all is right."
    )
    yield "nobody comes", compare.first_failure(map(found.all_right, empty, idle), right)
    full = [Case.drawn(rng, 2, 2, 2, [(9,), (8,)], lonely=[1], factor=each) for each in (0.75, 1.0)]
    right = "With room for three quarters of the choices, and for as many as there are, all is right."
    yield (
        "capacity",
        compare.first_failure((found.all_right(each, each.launch(answer)) for each in full), right),
    )
    yield "routing", found.routing(plain, run)
    learnt = zip((plain, *empty[1:3]), (run, *idle[1:3]), strict=True)
    yield (
        "calls and bytes",
        compare.first_failure(each for case, seen in learnt for each in found.communication(case, seen)),
    )
    yield "one call an expert", compare.first_failure(map(found.rows, (plain, *empty), (run, *idle)))
    grouped = Case.drawn(rng, 6, 2, 2, [(3,)] * 6, groups=PAIRS)
    right = "Of six ranks each pair has a layer of its own."
    yield "group", compare.first_failure([found.all_right(grouped, grouped.launch(answer))], right)
