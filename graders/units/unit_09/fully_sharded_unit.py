"""The grader of `FullyShardedUnit`."""

import torch

from graders.grading.cases import both, vary
from graders.grading.communication import steps_of
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import Looks, look, one_by_one
from graders.units.unit_09.drivers.units import assorted_unit
from graders.units.unit_09.held import at_most_held, most_held
from graders.units.unit_09.models import Assorted
from graders.units.unit_09.sharded_units import FORWARD, GRADIENTS, STEPS, Run, Setting, Units, calls


@one_by_one(
    base=Setting(),
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
            "in each forward, wait for them, and have the module's code compute with them.",
            vary=vary(asked=(FORWARD,)),
        ),
        Criterion(
            "gradients",
            5,
            "shard.grad is this rank's part of the mean over ranks; the inputs' gradients are this rank's "
            "own. What autograd saves of a weight may be a transposed view: its strides belong to where it "
            "lies.",
            needs=("forward",),
            vary=vary(asked=(GRADIENTS,)),
        ),
        Criterion(
            "every step, any ranks and inputs",
            3,
            "Gradients add up, as for every parameter, and the weights of a step are those of its shards. "
            "Ranks need not divide the parameters: the padding's gradient is 0. A unit may have several "
            "inputs, of which none needs a gradient, such as whole numbers, several results, and dropout.",
            needs=("gradients",),
            vary=vary(asked=(STEPS,))
            + both(asked=STEPS, ranks=3, width=5)
            + both(asked=GRADIENTS, block=True, ranks=1),
        ),
        Criterion(
            "lets go in forward",
            6,
            "Once made, the unit refers to no flat tensor of all. Autograd keeps what backward needs, and "
            "the weights are among that. saved_tensors_hooks say what it keeps in place of a tensor, and "
            "what it takes that for in backward.",
            needs=("every step, any ranks and inputs",),
            vary=both(asked=GRADIENTS, deep=True, units=4, width=24),
            how=look("lets go in forward"),
        ),
        Criterion(
            "lets go in backward",
            3,
            "When the unit's gradients are sent, nobody needs its weights, nor the whole gradient.",
            needs=("lets go in forward",),
            how=look("lets go in backward"),
        ),
        Criterion(
            "calls",
            2,
            "One all-gather in forward; one all-gather and one reduce-scatter in backward, however many "
            "parameters there are.",
            needs=("gradients",),
            how=look("calls"),
        ),
        Criterion(
            "start",
            3,
            "start() calls the all-gather with async_op=True and keeps its handle. The next forward waits "
            "for this one; a second start() does nothing. (FullyShardedDataParallel starts by itself, one "
            "unit ahead, and cannot be asked to.)",
            needs=("calls",),
            vary=both(asked=STEPS, early=True),
            how=look("start"),
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
def fully_sharded_unit(answer: Answer, case: Setting, rng: Rng) -> tuple[Finding, Looks]:
    """Units of layers, one behind the other; or one of another module, on one rank."""
    if case.block:
        return assorted(answer, rng), {}
    units = Units.draw(rng, case)
    run = units.launch(answer)
    looks: Looks = {"calls": lambda: calls(units, run)} if case.asked in (GRADIENTS, STEPS) else {}
    if case.early:
        looks["start"] = lambda: started(run)
    if case.deep:
        looks["lets go in forward"] = lambda: lets_go_in_forward(units, run)
        looks["lets go in backward"] = lambda: lets_go_in_backward(units, run)
    return compare.first_failure(units.results(run)), looks


def assorted(answer: Answer, rng: Rng) -> Finding:
    """Passes if results and gradients are those of an `Assorted`, with the same dropout."""
    weight, tokens, x, seed = rng.normal(5, 3), rng.integers(0, 4, 6), rng.normal(6, 3), rng.integer(0, 10**6)
    module = Assorted(weight)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        results = module(tokens, x)
    (gradient,) = torch.autograd.grad(sum(each.square().sum() for each in results), [*module.parameters()])
    [(seen, gradients)] = answer.launch(assorted_unit, weight, tokens, x, seed, ranks=1).results
    if type(seen) is not list or len(seen) != 2:
        return Finding(False, f"forward returns {compare.shown(seen)}; expected a tuple of two.")
    wanted = [*(each.detach() for each in results), gradient.flatten()]
    names = ["result 0", "result 1", "shard.grad"]
    return compare.first_failure(
        compare.close(each, expected, f"{name} of a block with an embedding and dropout", 1e-4, 1e-5)
        for each, expected, name in zip([*seen, *gradients], wanted, names, strict=True)
    )


def started(run: Run) -> Finding:
    """Passes if start() returns before the weights are there."""
    for step in steps_of(run, "backward ends"):
        call, mark = step.calls[0], step.marks.get("started")
        begun = mark is not None and call.sequence < mark.sequence
        if mark is None or not begun or mark.start >= call.end:
            said = "it waited for the weights" if begun else "no all-gather has begun"
            return Finding(False, f"{step}: when start() returns, {said}.")
    return Finding(True, "start() begins to gather, and returns at once.")


def holds(units: Units, run: Run, begin: str, end: str, shards: int, wholes: int) -> Finding:
    """Passes if between two marks no rank holds more than what it is given, so many times its shards and the
    weights of a unit, activations, and small tensors, which nobody counts.
    """
    count, own = units.setting.units, units.values[0]
    whole, activations = sum(each.nbytes for each in own), 6 * count * own[0].nbytes
    given = count * whole + sum(x.nbytes for x in units.batches[0])
    allowed = given + shards * count * units.part(own, 0).nbytes + wholes * whole + activations + 1024
    seen = [most_held(run, rank, begin, end) for rank in range(units.setting.ranks)]
    return at_most_held(seen, [allowed] * len(seen), f"From the mark {begin!r} to the mark {end!r}")


def lets_go_in_forward(units: Units, run: Run) -> Finding:
    """Once made, units refer to their shards alone, of which the driver has copies then; in forward there are
    no more than one unit's weights, and what they are made of.
    """
    made = holds(units, run, "made", "made", shards=1, wholes=0)
    return compare.first_failure((made, holds(units, run, "step begins", "forward ends", shards=2, wholes=2)))


def lets_go_in_backward(units: Units, run: Run) -> Finding:
    """In backward there are no more than a unit's weights, their flat gradient, and what the two are made of;
    afterwards only shards, and their gradients.
    """
    within = holds(units, run, "backward begins", "backward ends", shards=3, wholes=6)
    after = holds(units, run, "backward ends", "backward ends", shards=3, wholes=0)
    return compare.first_failure((within, after))
