"""The grader of `ExpertParallelMLP`."""

from collections.abc import Callable

import torch

from graders.grading.cases import both
from graders.grading.kit import Answer, Criterion, Finding, Observed, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.passes import bytes_in_passes, calls_in_passes
from graders.units.unit_10.drivers import Told
from graders.units.unit_10.layer_cases import PAIRS, WIDTH, Layer, Setting

Run = Observed[Told]
PASSES = ("making", "forward", "backward", "average")
_LEARNS = ("outputs", "gradients of x", "average_gradients")


@one_by_one(
    base=Setting(),
    name="ExpertParallelMLP",
    minutes=60,
    difficulty=5,
    rubric=(
        Criterion(
            "outputs", 4, "Rows arrive rank by rank; each expert wants its own, and all back in place."
        ),
        Criterion(
            "gradients of x",
            2,
            "Through the expert, and through the gate's weights.",
            how=look("gradients of x"),
        ),
        Criterion(
            "average_gradients",
            2,
            "An expert has seen the tokens of all ranks: its gradient is the sum of what p losses send. The "
            "gate has seen its own rank's only.",
            needs=("outputs", "gradients of x"),
            how=look("average_gradients"),
        ),
        Criterion(
            "parameters and routing",
            2,
            "The gate, and this rank's experts: copies, and nothing that keeps the others. And of the last "
            "forward all experts' probabilities, and the choices.",
            how=look("parameters and routing"),
        ),
        Criterion(
            "any ranks",
            2,
            "A rank without tokens, or whose experts nobody chose, has to make every call of both passes all "
            "the same: its result must hang on the graph. The group is dispatch's, combine's and the "
            "all-reduce's.",
            needs=_LEARNS,
            vary=both(shapes=((4,), (0,), (3,)), lonely=(2, 3))
            + both(shapes=((2,),), own=3)
            + both(shapes=((3,),) * 6, groups=PAIRS),
        ),
        Criterion(
            "capacity",
            2,
            "Room for ceil(factor N k / E) of this rank's choices; the rest is dropped.",
            needs=_LEARNS,
            vary=both(shapes=((9,), (8,)), lonely=(1,), factor=0.75)
            + both(shapes=((9,), (8,)), lonely=(1,), factor=1.0),
        ),
        Criterion(
            "calls and bytes",
            2,
            "Counts and rows to the experts, rows back; in backward rows; the gate's gradient once. All rows "
            "of an expert in one call, whoever sent them.",
            needs=_LEARNS,
            how=look("calls and bytes"),
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
def expert_parallel_mlp(answer: Answer, case: Setting, rng: Rng) -> tuple[Finding, Looks]:
    """A step of the layer; in cases that are not ordinary all of it at once."""
    layer = Layer.drawn(rng, case)
    run = layer.launch(answer)
    if case != Setting():
        return right(layer, run, lambda name: True), {}
    return right(layer, run, lambda name: name == "the result"), {
        "gradients of x": lambda: right(layer, run, lambda name: name == "x"),
        "average_gradients": lambda: right(layer, run, lambda name: name not in ("the result", "x")),
        "parameters and routing": lambda: compare.first_failure(
            (parameters(layer, run), routing(layer, run))
        ),
        "calls and bytes": lambda: communication(layer, run),
    }


def right(layer: Layer, run: Run, wanted: Callable[[str], bool]) -> Finding:
    """Passes if on all ranks results, or gradients, of these names are right."""
    findings = []
    for rank, (expected, (_, told, _, _)) in enumerate(zip(layer.expected, run.results, strict=True)):
        for name in filter(wanted, expected):
            what = f"{name if name == 'the result' else f'the gradient of {name}'} on rank {rank}"
            findings.append(compare.close(told.get(name), expected[name], what, 1e-4, 1e-5))
    return compare.first_failure(findings)


def parameters(layer: Layer, run: Run) -> Finding:
    """Passes if every rank has copies of the gate and of its experts, and nothing else."""
    limit = sum(each.nbytes for each in layer.values[: 1 + 4 * layer.case.own])
    findings = []
    for rank, (expected, (kept, told, _, _)) in enumerate(zip(layer.expected, run.results, strict=True)):
        findings.append(compare.equal(sorted(told), sorted(expected), f"what rank {rank} has, by name,"))
        findings.append(compare.at_most(kept, limit, f"Bytes in memory by rank {rank}'s layer"))
    return compare.first_failure(findings)


def routing(layer: Layer, run: Run) -> Finding:
    """Passes if probabilities and choices are right, and the gate can learn from the probabilities."""
    findings = []
    for rank, ((_, _, told, _), x) in enumerate(zip(run.results, layer.x, strict=True)):
        weight = layer.values[0].clone().requires_grad_()
        probabilities = (x.reshape(-1, WIDTH) @ weight.T).softmax(1)
        (gradient,) = torch.autograd.grad((probabilities**2).sum() / 2, weight)
        (seen, experts), learnt = told
        findings += [
            compare.close(seen, probabilities.detach(), f"the probabilities of routing on rank {rank}"),
            compare.close(experts, layer.chosen(rank), f"the experts of routing on rank {rank}"),
            compare.close(learnt, gradient, f"the gate's gradient by routing's probabilities on rank {rank}"),
        ]
    return compare.first_failure(findings)


def communication(layer: Layer, run: Run) -> Finding:
    """The calls that are needed, of rows as x has them; and each expert is called once with all its rows."""
    ranks, gate, own = range(len(layer.x)), layer.values[0], layer.case.own
    chosen = [layer.chosen(rank).flatten() for rank in ranks]
    numbers = torch.cat(chosen).bincount(minlength=len(gate))
    limits = []
    for rank in ranks:
        here = int(numbers[rank * own : (rank + 1) * own].sum())
        both_ways = 16 * (len(chosen[rank]) + here)
        limits.append([0, both_ways + 8 * len(gate), both_ways, gate.nbytes])
    rows = [[own] for own in numbers.tolist()]
    seen = [own for *_, of_rank in run.results for own in of_rank]
    expected = [[], ["all_to_all_single"] * 3, ["all_to_all_single"] * 2, ["all_reduce"]]
    return compare.first_failure(
        (
            calls_in_passes(run, PASSES, expected),
            bytes_in_passes(run, PASSES, limits),
            compare.equal(seen, rows, "how many rows each expert is called with, call by call"),
        )
    )
