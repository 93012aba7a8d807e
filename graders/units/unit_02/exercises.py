"""Graders of unit 02, data parallelism: the rubrics, and in which order what is judged."""

from collections.abc import Iterator

import torch

from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer
from graders.grading.exercise import Criterion, Finding, exercise
from graders.grading.rng import Rng
from graders.units.unit_02 import drivers as drivers
from graders.units.unit_02.data_parallel import (
    accuracy_as_expected,
    all_loaded,
    averaged,
    averages,
    balance,
    buckets_as_specified,
    calls_and_payload,
    combined,
    deal,
    draw_chain,
    draw_gradients,
    draw_normed,
    draw_training,
    error_frees_the_others,
    first_alone,
    gradients_in_place,
    gradients_kept,
    launched_accuracy,
    loading_cluster,
    missing_gradients,
    nan_kept,
    never_waits_in_backward,
    partition,
    random_state_kept,
    reshuffling,
    same_tensors,
    shuffling,
    starts_during_backward,
    starts_equal,
    step_as_expected,
    tied_and_frozen,
    unused_parameters,
    weighted_mean,
    with_gaps,
)

UNIT = "02_data_parallel"


# ---------------------------------------------------------------------------------------- combine_gradients


@exercise(
    unit=UNIT,
    name="combine_gradients",
    minutes=5,
    difficulty=1,
    rubric=(
        Criterion("equal shards", 1, "With equal counts the formula is the plain mean of the gradients."),
        Criterion(
            "unequal shards",
            1,
            "Worker k's gradient is a mean over m_k samples, so in the mean over all n it weighs m_k / n.",
        ),
        Criterion(
            "empty shards",
            1,
            "0 * NaN is NaN: leave out a worker whose count is 0, and only such a worker. A NaN where there "
            "were samples has to be seen.",
        ),
        Criterion(
            "gradients unchanged",
            1,
            "Add into a new tensor: `total = gradients[0]; total += ...` overwrites worker 0's gradient, and "
            "so does every method whose name ends in an underscore.",
        ),
    ),
    hints=(
        "Write the loss over all n samples as a sum over workers of that worker's sum, divided by n.",
        "Worker k's sum is m_k times its mean. What does that make of its gradient?",
    ),
)
def combine_gradients(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """The m_k / n formula, with tensors of one, two and three dimensions, in single and double precision."""
    workers, count = rng.integer(2, 5), rng.integer(1, 9)
    gradients = draw_gradients(rng, workers, dims=2)
    seen = combined(answer, gradients, [count] * workers)
    what = f"the combination of {workers} means over {count} samples"
    yield compare.close("equal shards", seen["result"], torch.stack(gradients).mean(0), what)

    # A single sample counts too.
    counts = [1, *(rng.integer(5, 20) for _ in range(workers - 1))]
    doubles = draw_gradients(rng, workers, dims=1, dtype=torch.float64)
    seen = combined(answer, doubles, counts)
    what = f"the combination of means over {counts} samples"
    yield compare.close("unequal shards", seen["result"], weighted_mean(doubles, counts), what)

    gradients = draw_gradients(rng, workers, dims=3)
    nothing = torch.full_like(gradients[0], torch.nan)
    with_empty = [nothing, *gradients]
    empty = combined(answer, with_empty, [0, *counts])
    what = f"the combination of means over {[0, *counts]} samples"
    left_out = compare.close("empty shards", empty["result"], weighted_mean(gradients, counts), what)
    diverged = combined(answer, [nothing, *gradients[1:]], counts)
    yield nan_kept(diverged["result"]) if left_out.passed else left_out

    alone = combined(answer, gradients[:1], counts[:1])
    kept = [gradients_kept(*pair) for pair in ((seen, doubles), (empty, with_empty), (alone, gradients[:1]))]
    yield next((finding for finding in kept if not finding.passed), kept[0])


# -------------------------------------------------------------------------------------------- shard_indices


@exercise(
    unit=UNIT,
    name="shard_indices",
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "disjoint and complete",
            1,
            "Every rank must cut the same permutation: it may depend on seed and epoch, not on the rank and "
            "not on the rank's own random state. No index twice, none missing, also where nothing divides.",
        ),
        Criterion(
            "balanced",
            1,
            "Deal the permutation out like cards: the sizes then differ by at most one.",
        ),
        Criterion(
            "shuffled",
            1,
            "Shuffle all indices first, then take this rank's part; shuffling only within a rank's part "
            "leaves every rank with the same samples for ever.",
        ),
        Criterion(
            "reshuffled each epoch",
            1,
            "The permutation has to depend on the epoch too, as DistributedSampler's does after set_epoch.",
        ),
        Criterion(
            "random state kept",
            1,
            "Rng from a torch.Generator of your own; torch.manual_seed resets every dropout mask too, and "
            "random.seed and numpy.random.seed the augmentation.",
        ),
        Criterion(
            "no communication",
            1,
            "From the same seed and epoch every rank can draw the same permutation by itself.",
        ),
    ),
    hints=(
        "torch.randperm(length, generator=torch.Generator().manual_seed(...)) leaves the global state alone.",
        "A slice with a step, permutation[rank::world_size], gives parts whose sizes differ by at most one.",
    ),
)
def shard_indices(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A partition of a permutation that depends on seed and epoch only."""
    ranks = rng.integer(3, 5)
    length = ranks * rng.integer(12, 20) + ranks - 1
    epoch, seed = rng.integer(2, 50), rng.integer(0, 10_000)
    # From epoch 0 on, where seed * epoch is the same for every seed.
    dealt = deal(answer, length, [(0, seed), (1, seed), (0, seed + 1000), (epoch, seed)], ranks)
    even = deal(answer, 2 * ranks, [(epoch, seed)], ranks)
    scarce = deal(answer, ranks - 1, [(epoch, seed)], ranks)
    yield partition(dealt, even, scarce)
    yield balance(dealt, even, scarce)

    this, next_epoch, other_seed, later = (dealt.indices(pair) for pair in range(4))
    yield shuffling(this, other_seed)
    findings = [reshuffling(this, following, dealt.again[0]) for following in (next_epoch, later)]
    yield next((finding for finding in findings if not finding.passed), findings[0])
    yield random_state_kept(dealt)
    made = ", ".join(sorted(set(dealt.calls)))
    yield Finding("no communication", not made, f"Calls that communicate: {made or 'none'}.")


# --------------------------------------------------------------------------------------- broadcast_parameters


@exercise(
    unit=UNIT,
    name="broadcast_parameters",
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "parameters",
            1,
            "Every rank must end with rank src's values, frozen parameters too; src need not be rank 0.",
        ),
        Criterion(
            "buffers",
            1,
            "A batch norm's running mean is a buffer. state_dict() leaves out buffers registered with "
            "persistent=False; model.buffers() has them all.",
        ),
        Criterion(
            "in place",
            1,
            "Write into the tensors that are there: an optimizer may hold references to them already.",
        ),
        Criterion(
            "each tensor sent once",
            1,
            "dist.broadcast of each tensor is all it takes: no other collective, nothing sent twice.",
        ),
    ),
    hints=(
        "model.parameters() and model.buffers() yield tensors, and dist.broadcast(tensor, src) fills one.",
    ),
)
def broadcast_parameters(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Equal replicas, from whatever rank, with one broadcast a tensor."""
    ranks = rng.integer(3, 5)
    src = rng.integer(1, ranks - 1)
    values = [draw_normed(rng) for _ in range(ranks)]
    observed = answer.launch("unit_02.broadcast", per_rank(values), src, ranks=ranks)

    model = drivers.Normed()
    drivers.load_values(drivers.state_of(model), values[src])
    parameters, buffers = list(model.parameters()), list(model.buffers())
    yield same_tensors("parameters", observed, "parameters", parameters, f"rank {src}'s")
    yield same_tensors("buffers", observed, "buffers", buffers, f"rank {src}'s")

    in_place = [rank["in_place"] for rank in observed.results]
    wanted = [parameter.requires_grad for parameter in parameters]
    trainable = all(rank["trainable"] == wanted for rank in observed.results)
    seen = "The model keeps its tensors, and what is trainable stays so."
    if not all(in_place):
        seen = f"On rank {in_place.index(False)} other tensors have taken the place of the model's own."
    elif not trainable:
        seen = "requires_grad of some parameter has changed."
    yield Finding("in place", all(in_place) and trainable, seen)

    nbytes = sum(tensor.nbytes for tensor in (*parameters, *buffers))
    yield calls_and_payload("each tensor sent once", observed, "broadcast", nbytes)


# ------------------------------------------------------------------------------------------ average_gradients


@exercise(
    unit=UNIT,
    name="average_gradients",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "averages over ranks",
            2,
            "After the call every p.grad must be the sum over ranks divided, once, by the number of ranks.",
        ),
        Criterion(
            "in place",
            1,
            "Write the average into the gradient that is there, p.grad.copy_(...), and into nothing else.",
        ),
        Criterion(
            "missing gradients",
            1,
            "Where p.grad is None on this rank, it counts as zero; still all ranks must make the same calls, "
            "so nothing may be skipped.",
        ),
        Criterion(
            "each gradient sent once",
            1,
            "all_reduce is enough: no gathering, no second round, and nothing for frozen parameters.",
        ),
        Criterion(
            "one call",
            1,
            "Lay all gradients end to end in one flat tensor, and call all_reduce once.",
        ),
    ),
    hints=(
        "First make it right with one all_reduce a parameter; then flatten.",
        "torch.cat([g.flatten() for g in gradients]) lays them end to end; flat.split(sizes) cuts them.",
        "Give a trainable parameter without a gradient a tensor of zeros before you do anything else.",
    ),
)
def average_gradients(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """The mean over ranks, in place, in one call, whatever some rank lacks."""
    yield averages(answer, rng)

    ranks = rng.integer(2, 4)
    case = draw_chain(rng, ranks)
    observed = averaged(answer, case)
    yield gradients_in_place(observed, case.values)

    yield missing_gradients(answer, with_gaps(case))

    nbytes = sum(gradient.nbytes for gradient in case.gradients[0] if gradient is not None)
    yield calls_and_payload("each gradient sent once", observed, "all_reduce", nbytes)
    what = f"Calls of all_reduce for {len(case.gradients[0])} gradients"
    yield compare.at_most("one call", len(observed.calls(0)), 1, what)


# ------------------------------------------------------------------------------------------------ BucketedDDP


@exercise(
    unit=UNIT,
    name="BucketedDDP",
    minutes=45,
    difficulty=5,
    rubric=(
        Criterion(
            "starts equal",
            1,
            "The constructor broadcasts rank 0's parameters and buffers, and forward hands on to the model.",
        ),
        Criterion(
            "averages",
            2,
            "After finish() every p.grad is the mean over ranks, as with average_gradients. Wait for each "
            "all_reduce before you read its bucket, and write the result back.",
        ),
        Criterion(
            "every step",
            1,
            "What the hooks count in one step must be back at its start for the next: reset it in finish().",
        ),
        Criterion(
            "buckets",
            1,
            "Go through the trainable parameters in reverse, and close a bucket before the parameter that "
            "would take it above bucket_bytes. One all_reduce a bucket.",
        ),
        Criterion(
            "starts during backward",
            2,
            "The hook of a bucket's last gradient starts its all_reduce, for every bucket; do not leave it "
            "to a later hook, or to finish().",
        ),
        Criterion(
            "never waits in backward",
            1,
            "all_reduce(..., async_op=True) returns a handle at once; only finish() calls its wait().",
        ),
        Criterion(
            "unused parameters",
            1,
            "A parameter that this rank's forward did not use has no hook call. finish() starts what has not "
            "started, with zeros for it; and every rank must start its buckets in the same order.",
        ),
        Criterion(
            "tied and frozen parameters",
            1,
            "model.parameters() yields a tied parameter once; a frozen one is in no bucket and has no hook.",
        ),
    ),
    hints=(
        "Fill the buckets in the constructor, a list of lists of parameters; note each parameter's bucket.",
        "p.register_post_accumulate_grad_hook(hook) calls hook(p) as soon as p.grad is complete.",
        "Keep the number of gradients that each bucket still waits for, and the index of the next bucket to "
        "start. A hook counts down, then starts buckets as long as the next one waits for nothing.",
        "Starting bucket i + 1 only after bucket i keeps the order the same on every rank.",
        "finish(): start the buckets that are left, wait for all, divide, copy back, reset the counts.",
    ),
)
def bucketed_ddp(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A small DistributedDataParallel: equal replicas, bucketed averages, overlap with backward."""
    yield starts_equal(answer, rng)

    training = draw_training(rng)
    observed = training.launch(answer)
    yield step_as_expected("averages", training, observed, steps=range(1))
    yield step_as_expected("every step", training, observed, steps=range(1, len(training.batches[0])))
    yield buckets_as_specified(training, observed)
    yield starts_during_backward(training, observed)
    yield never_waits_in_backward(observed)

    yield unused_parameters(answer, rng)
    yield tied_and_frozen(answer, rng)


# -------------------------------------------------------------------------------------------- global_accuracy


@exercise(
    unit=UNIT,
    name="global_accuracy",
    minutes=5,
    difficulty=2,
    rubric=(
        Criterion(
            "weighted by samples",
            1,
            "Add up what is right and what there is, over all ranks, then divide: the mean of the ranks' "
            "accuracies is another number. Every rank returns it, as a float.",
        ),
        Criterion(
            "rank without samples",
            1,
            "A rank may have total == 0: divide only after summing.",
        ),
        Criterion(
            "one collective",
            1,
            "Put both counts in one tensor: latency is paid a call, not a number.",
        ),
    ),
    hints=("torch.tensor([correct, total]) is one tensor, and all_reduce adds it up element by element.",),
)
def global_accuracy(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Sums over ranks, one collective, one division."""
    ranks = rng.integer(3, 5)
    totals = [rng.integer(1, 9), *(rng.integer(50, 400) for _ in range(ranks - 1))]
    counts = [totals[0], *(rng.integer(1, total // 2) for total in totals[1:])]
    observed = launched_accuracy(answer, counts, totals)
    yield accuracy_as_expected("weighted by samples", observed, counts, totals)

    without = launched_accuracy(answer, [0, *counts], [0, *totals])
    yield accuracy_as_expected("rank without samples", without, counts, totals)

    made = max((observed.calls(rank) for rank in range(ranks)), key=len)
    text = f"Calls a rank makes: {', '.join(made) or 'none'}; expected one."
    yield Finding("one collective", len(made) == 1, text)


# -------------------------------------------------------------------------------------------------- load_once


@exercise(
    unit=UNIT,
    name="load_once",
    minutes=10,
    difficulty=2,
    rubric=(
        Criterion(
            "every rank has the data",
            1,
            "Every rank calls load() once, first or later, and returns what it gave.",
        ),
        Criterion(
            "others wait for the first",
            1,
            "A barrier holds the others back until the first rank has loaded: the first calls it after its "
            "load(), the others before theirs.",
        ),
        Criterion(
            "one first rank on each node",
            1,
            "Each node has its own disk. dist.get_node_local_rank() is 0 once on every node; get_rank() is 0 "
            "once in all.",
        ),
        Criterion(
            "an error frees the others",
            1,
            "If load() raises before the barrier, the others wait in it for ever. `try: ... finally:` runs "
            "the barrier either way, and lets the error through.",
        ),
    ),
    hints=(
        "All ranks call dist.barrier() exactly once; what differs is whether load() comes before or after.",
    ),
)
def load_once(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """One rank of a node loads first; all load; an error leaves nobody waiting."""
    devices = rng.integer(2, 4)
    one_node = loading_cluster(nodes=1, devices=devices)
    values = [rng.normal(3) for _ in range(devices)]
    observed = answer.launch("unit_02.loading", per_rank(values), ranks=devices, cluster=one_node)
    loaded = all_loaded(observed, values)
    without = answer.launch("unit_02.loading", None, ranks=devices, cluster=one_node)
    yield all_loaded(without, [None] * devices) if loaded.passed else loaded
    yield first_alone("others wait for the first", observed, one_node)

    two_nodes = loading_cluster(nodes=2, devices=2)
    values = [rng.normal(3) for _ in range(4)]
    observed = answer.launch("unit_02.loading", per_rank(values), ranks=4, cluster=two_nodes)
    yield first_alone("one first rank on each node", observed, two_nodes)

    # The first rank of the second node, whose number is not 0.
    observed = answer.launch("unit_02.failing_load", values[0], 2, ranks=4, cluster=two_nodes)
    yield error_frees_the_others(observed, failing=2)
