"""Unit 09, shards of the parameters: one unit after the other, and one ahead."""

from functools import partial

import torch

from graders.grading.kit import Answer, Criterion, Finding, Findings, Observed, Rng, compare, exercise
from graders.units.unit_09.assorted import AssortedUnit
from graders.units.unit_09.halves import halves_of
from graders.units.unit_09.held import at_most_held, held_at
from graders.units.unit_09.replies import UnitsReply
from graders.units.unit_09.sharded_units import SLACK, Units


@exercise(
    name="FullyShardedUnit",
    minutes=60,
    difficulty=5,
    rubric=(
        Criterion(
            "the shard",
            2,
            "This rank's part of flat(module.parameters(), ranks), as the unit's only parameter. Copy it; "
            "module and its parameters stay as they are.",
        ),
        Criterion(
            "forward",
            4,
            "The weights that count are those of the shards, which an optimizer changes. Gather them anew "
            "in each forward, wait for them, and have the module's code compute with them. What a backward "
            "has gathered is old in the next step.",
            needs=("the shard",),
        ),
        Criterion(
            "inputs and results of all kinds",
            1,
            "A unit may have several inputs, of which none needs a gradient, such as whole numbers, several "
            "results, and buffers, which are copies: module's stay as they are.",
            needs=("forward",),
        ),
        Criterion(
            "gradients",
            5,
            "shard.grad is this rank's part of the mean over ranks; the inputs' gradients are "
            "this rank's own. They are gradients of what forward returned: with the same dropout. What "
            "autograd saves of a weight may be a transposed view: its strides belong to where it lies.",
            needs=("forward", "inputs and results of all kinds"),
        ),
        Criterion(
            "every step",
            1,
            "Gradients add up, as for every parameter, and the weights of a step are those of its shards.",
            needs=("gradients",),
        ),
        Criterion(
            "keeps a shard",
            1,
            "Once the unit is made, it refers to no parameter of the module, and to no flat tensor of all.",
            needs=("forward",),
        ),
        Criterion(
            "lets go in forward",
            6,
            "Autograd keeps what backward needs, and the weights are among that. "
            "saved_tensors_hooks say what "
            "it keeps in place of a tensor, and what it takes that for in backward.",
            needs=("gradients", "keeps a shard"),
        ),
        Criterion(
            "lets go in backward",
            3,
            "When the unit's gradients are sent, nobody needs its weights, nor the whole gradient.",
            needs=("lets go in forward",),
        ),
        Criterion(
            "calls",
            2,
            "One all-gather in forward; one all-gather and one reduce-scatter in backward, however many "
            "parameters there are.",
            needs=("gradients",),
        ),
        Criterion(
            "start",
            3,
            "start() calls the all-gather with async_op=True and keeps its handle. The next "
            "forward waits for "
            "this one; a second start() does nothing.",
            needs=("calls",),
        ),
    ),
    hints=(
        "Where in the graph do gradients of the weights come together? An autograd.Function that makes all "
        "weights of the shard, in forward, gets the gradient of all of them in backward.",
        "How does the module's code compute with other tensors? torch.func.functional_call(module, named "
        "tensors, inputs). And a copy without numbers: copy.deepcopy takes a memo, id -> what to put there.",
        "How do you know in pack(tensor) that a tensor is a part of the weights? They have one storage; "
        "size, stride and storage_offset say where the tensor lies in it, and as_strided makes it again.",
    ),
)
def fully_sharded_unit(answer: Answer, rng: Rng) -> Findings:
    """Five units on two ranks; in double on three, with padding; started early; one rank; an odd block."""
    odd, alone = Units.draw(rng, 3, 2, 5, torch.float64), Units.draw(rng, 1, 1, 4)
    deep = Units.draw(rng, 2, 5, 24)
    runs = [(each, each.launch(answer, memory=each is deep)) for each in (deep, odd, alone)]
    yield "the shard", compare.first_failure(each.made(run) for each, run in runs)
    assorted = AssortedUnit.draw(rng)
    yield "forward", compare.first_failure(each.forward(run) for each, run in runs)
    of_assorted = assorted.launch(answer)
    yield "inputs and results of all kinds", assorted.forward(of_assorted)
    gradients = (each.gradients(run, 0) for each, run in runs)
    yield "gradients", compare.first_failure([*gradients, assorted.gradients(of_assorted)])
    yield "every step", compare.first_failure(each.gradients(run, 1) for each, run in runs)
    yield "keeps a shard", deep.keeps(runs[0][1])
    let_go = deep.lets_go(runs[0][1], "step begins", "forward ends", wholes=2)
    yield "lets go in forward", compare.first_failure((let_go, _nothing_left(runs[0][1])))
    yield "lets go in backward", deep.lets_go(runs[0][1], "backward begins", "backward ends", wholes=6)
    yield "calls", compare.first_failure(each.calls(run) for each, run in runs)
    early = odd.launch(answer, early=True)
    started = odd.forward(early), odd.calls(early), odd.started(early), assorted.started(of_assorted)
    yield "start", compare.first_failure([*started, assorted.started_in_vain(answer)])


def _nothing_left(run: Observed[UnitsReply]) -> Finding:
    """Passes if a forward under no_grad leaves no more than what it returns."""
    ranks = range(len(run.results))
    allowed = [held_at(run, rank, "evaluation") + SLACK for rank in ranks]
    return at_most_held([held_at(run, rank, "evaluated") for rank in ranks], allowed, "After no_grad")


@exercise(
    minutes=20,
    difficulty=4,
    rubric=(
        Criterion(
            "computes as without",
            1,
            "A Sequential of units, with the same results and gradients as without prefetching. The last "
            "unit starts nobody: weights that are asked for before the optimizer's step are old.",
        ),
        Criterion(
            "ahead in forward",
            2,
            "Before a unit computes, two have been started: itself, and the next one. "
            "module.register_forward_pre_hook(hook) calls hook(module, inputs) at that moment.",
            needs=("computes as without",),
        ),
        Criterion(
            "ahead in backward",
            3,
            "In backward the neighbour is the unit before; its own are asked for first, then those. "
            "module.register_full_backward_pre_hook(hook) calls "
            "hook(module, gradient) before its backward.",
            needs=("ahead in forward",),
        ),
        Criterion(
            "two units at most",
            2,
            "A unit starts its neighbour's weights, and nobody else's; not all of them at the beginning. "
            "It lets go of its own before the next one computes, and calls are those without prefetching.",
            needs=("ahead in forward", "ahead in backward"),
        ),
        Criterion(
            "nobody waits for the neighbour",
            2,
            "start() returns at once; only the unit that computes waits, and for its own weights alone. "
            "What is asked for first arrives first: its own before its neighbour's.",
            needs=("two units at most",),
        ),
    ),
    hints=(
        "What is to happen before a unit's forward, and before its backward? Two calls of start() each.",
        "In which order? Its own first: what is asked for first arrives first.",
        "Which unit is next? itertools.pairwise(units) gives each with the one behind it.",
    ),
)
def prefetch(answer: Answer, rng: Rng) -> Findings:
    """Five units on two ranks, two on three, and one."""
    deep, two, one = Units.draw(rng, 2, 5, 24), Units.draw(rng, 3, 2, 5), Units.draw(rng, 2, 1, 4)
    runs = [(each, each.launch(answer, together=True, memory=each is deep)) for each in (deep, two, one)]
    judges = Units.made, Units.forward, partial(Units.gradients, step=0), partial(Units.gradients, step=1)
    computed = (judge(each, run) for each, run in runs for judge in judges)
    yield "computes as without", compare.first_failure(computed)
    several = runs[:2]
    for name in ("forward", "backward"):
        yield (
            f"ahead in {name}",
            compare.first_failure(each.asked(run, name, ahead=True) for each, run in several),
        )
    further = [each.calls(run) for each, run in runs]
    further += [
        each.asked(run, name, ahead=False) for each, run in several for name in ("forward", "backward")
    ]
    held = [
        deep.two_at_once(runs[0][1]),
        deep.lets_go(runs[0][1], "step begins", "backward ends", wholes=7),
    ]
    yield "two units at most", compare.first_failure([*further, *held])
    waits = [*(each.waits(run) for each, run in several), _own_first(runs[0][1])]
    yield "nobody waits for the neighbour", compare.first_failure(waits)


def _own_first(run: Observed[UnitsReply]) -> Finding:
    """Passes if backward's first gradients are sent before the weights of the unit before have arrived."""
    for half in halves_of(run):
        gathers, scatters = (
            [call for call in half.calls if call.op.startswith(family)]
            for family in ("all_gather", "reduce_scatter")
        )
        if half.name == "backward" and scatters[0].start >= gathers[1].end:
            return Finding(False, f"{half}: the last unit computes when its neighbour's weights are there.")
    return Finding(True, "In backward the last unit does not wait for its neighbour's weights.")
