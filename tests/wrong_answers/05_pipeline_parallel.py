"""Mistakes that people make in unit 05."""

import itertools

import numpy as np
import torch
import torch.distributed as dist

from course_lib.training.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
)
from tests.answers import instead, solved, wrong

# ------------------------------------------------------------------------------------------- balance_stages


def _best(costs, stages):
    """Right."""
    return solved("05_pipeline_parallel")["balance_stages"](costs, stages)


@wrong("balance_stages", fails="the slowest stage")
def equal_numbers_of_layers(costs, stages):
    """As if all layers cost the same."""
    return [len(part) for part in np.array_split(costs, stages)]


@wrong("balance_stages", fails="the slowest stage")
def closes_at_the_mean(costs, stages):
    """Greedy: the last stage gets what is left."""
    lengths, filled, taken = [], 0.0, 0
    for layer, seconds in enumerate(costs):
        filled, taken = filled + seconds, taken + 1
        to_come = stages - len(lengths) - 1
        if to_come and (filled >= sum(costs) / stages or len(costs) - layer - 1 == to_come):
            lengths.append(taken)
            filled, taken = 0.0, 0
    return [*lengths, taken]


@wrong("balance_stages", fails="no empty stage")
def stages_without_layers(costs, stages):
    """A layer that costs nothing opens no stage, so some stages stay empty."""
    if min(costs) > 0:
        return _best(costs, stages)
    return [len(costs)] + [0] * (stages - 1)


@wrong("balance_stages", fails="too few layers")
def fewer_stages_than_asked(costs, stages):
    """Returns as many stages as there are layers, without a word."""
    return _best(costs, min(stages, len(costs)))


@wrong("balance_stages", fails="many layers")
def tries_all_cuts(costs, stages):
    """Right, and for ever."""
    cuts = itertools.combinations(range(1, len(costs)), stages - 1)
    lengths = ([b - a for a, b in itertools.pairwise((0, *cut, len(costs)))] for cut in cuts)
    return min(lengths, key=lambda each: _slowest(costs, each))


def _slowest(costs, lengths):
    ends = list(itertools.accumulate(lengths))
    return max(sum(costs[end - length : end]) for end, length in zip(ends, lengths, strict=True))


# ------------------------------------------------------------------------------------------------ run_stage


def _ends():
    return dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1


def _arrived(x):
    """x on rank 0; on the others what the rank before sends."""
    if dist.get_rank() == 0:
        return x
    arrived = torch.empty(x.shape, dtype=x.dtype)
    dist.recv(arrived, dist.get_rank() - 1)
    return arrived.requires_grad_()


def _exchanged(output, gradient):
    """The next rank gets the output, and what it sends back fills `gradient`."""
    dist.send(output, dist.get_rank() + 1)
    dist.recv(gradient, dist.get_rank() + 1)
    return gradient


def _back(output):
    """The gradient of the output, once the next rank has had it."""
    return _exchanged(output.detach().contiguous(), torch.empty(output.shape, dtype=output.dtype))


def _step(stage, x, target, loss_function, share, back=_back):
    """All of it: `back(output)` gives the output's gradient."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    loss = None
    if last:
        loss = share * loss_function(output, target)
        if loss.requires_grad:
            loss.backward()
        loss = loss.detach()
    else:
        gradient = back(output)
        if output.requires_grad:
            output.backward(gradient)
    if not first:
        dist.send(arrived.grad.contiguous(), dist.get_rank() - 1)
    return loss


@wrong("run_stage", fails="loss and gradients")
def keeps_the_graph(stage, x, target, loss_function, share=1.0):
    """Returns the loss with all that autograd holds for it."""
    first, last = _ends()
    arrived = _arrived(x)
    output = stage(arrived)
    if last:
        output = share * loss_function(output, target)
        output.backward()
    else:
        output.backward(_back(output))
    if not first:
        dist.send(arrived.grad, dist.get_rank() - 1)
    return output if last else None


@wrong("run_stage", fails="any layout")
def makes_room_like_the_output(stage, x, target, loss_function, share=1.0):
    """empty_like keeps the order in memory, and a message does not arrive in it."""

    def back(output):
        return _exchanged(output.detach().contiguous(), torch.empty_like(output))

    return _step(stage, x, target, loss_function, share, back=back)


@wrong("run_stage", fails="doubles, frozen stages")
def room_for_float32(stage, x, target, loss_function, share=1.0):
    """The gradient arrives in PyTorch's default dtype."""

    def back(output):
        return _exchanged(output.detach().contiguous(), torch.empty(output.shape))

    return _step(stage, x, target, loss_function, share, back=back)


@wrong("run_stage", fails="messages and bytes")
def meets_in_a_barrier(stage, x, target, loss_function, share=1.0):
    """Waits for all, after each batch."""
    loss = _step(stage, x, target, loss_function, share)
    dist.barrier()
    return loss


@wrong("run_stage", fails="micro-batches")
def forgets_the_share(stage, x, target, loss_function, share=1.0):
    """The gradients of m micro-batches add up to m times those of the batch."""
    return _step(stage, x, target, loss_function, 1.0)


# ------------------------------------------------------------------------------------------------ schedules


@wrong("gpipe", fails="every micro-batch, once")
def forgets_backward(stage, stages, micro_batches):
    """Forwards only, as in inference."""
    return [Forward(number) for number in range(micro_batches)]


@wrong("gpipe", fails="every micro-batch, once")
def as_many_as_stages(stage, stages, micro_batches):
    """Takes the number of stages for that of micro-batches; the picture has four of each."""
    return [Forward(n) for n in range(stages)] + [Backward(n) for n in reversed(range(stages))]


@wrong("gpipe", fails="any numbers")
def waits_for_a_full_pipeline(stage, stages, micro_batches):
    """Right for as many micro-batches as stages; with fewer it lists forwards that nobody sends."""
    count = max(stages, micro_batches)
    return [Forward(n) for n in range(count)] + [Backward(n) for n in reversed(range(count))]


@wrong("gpipe", fails="forwards first")
def one_by_one(stage, stages, micro_batches):
    """Each micro-batch there and back before the next one: no pipeline at all."""
    return [kind(n) for n in range(micro_batches) for kind in (Forward, Backward)]


@wrong("gpipe", fails="no longer than it must be")
def turns_round_at_every_second_stage(stage, stages, micro_batches):
    """Stages disagree about the order in which gradients come back."""
    back = range(micro_batches) if stage % 2 else reversed(range(micro_batches))
    return [Forward(n) for n in range(micro_batches)] + [Backward(n) for n in back]


@wrong("bubble_fraction", fails="equal stages")
def of_the_ideal_time(forward, backward, micro_batches, message=0.0):
    """The bubble as a share of the time without it, (p - 1) / m."""
    p = len(forward)
    filling = sum(forward) + sum(backward) + 2 * (p - 1) * message
    seconds = filling + (micro_batches - 1) * (max(forward) + max(backward))
    return seconds / (micro_batches * (sum(forward) + sum(backward)) / p) - 1


@wrong("bubble_fraction", fails="stages that differ")
def knows_equal_stages_only(forward, backward, micro_batches, message=0.0):
    """The formula of the text, whatever the stages take."""
    return (len(forward) - 1) / (micro_batches + len(forward) - 1)


@wrong("bubble_fraction", fails="stages that differ")
def slowest_of_both_together(forward, backward, micro_batches, message=0.0):
    """Takes the stage that is slowest in forward and backward together, for both."""
    p = len(forward)
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    seconds = sum(both) + 2 * (p - 1) * message + (micro_batches - 1) * max(both)
    return 1 - micro_batches * sum(both) / (p * seconds)


@wrong("bubble_fraction", fails="messages")
def messages_there_but_not_back(forward, backward, micro_batches, message=0.0):
    """Gradients cross the cuts too."""
    p = len(forward)
    seconds = sum(forward) + sum(backward) + (p - 1) * message
    seconds += (micro_batches - 1) * (max(forward) + max(backward))
    return 1 - micro_batches * (sum(forward) + sum(backward)) / (p * seconds)


@wrong("bubble_fraction", fails="messages")
def a_message_to_itself(forward, backward, micro_batches, message=0.0):
    """The last stage, when it is also the first, sends to nobody."""
    p = len(forward)
    seconds = sum(forward) + sum(backward) + max(2, 2 * (p - 1)) * message
    seconds += (micro_batches - 1) * (max(forward) + max(backward))
    return 1 - micro_batches * (sum(forward) + sum(backward)) / (p * seconds)


@wrong("peak_activations", fails="whole backwards")
def counts_all_forwards(actions):
    """Nothing is ever freed."""
    return sum(isinstance(action, Forward) for action in actions)


@wrong("peak_activations", fails="whole backwards")
def what_is_left_at_the_end(actions):
    """The count at the end, not the largest one."""
    return sum(isinstance(action, Forward) - isinstance(action, Backward) for action in actions)


@wrong("peak_activations", fails="backward in halves")
def frees_with_the_input_half(actions):
    """As if the weights' gradients needed nothing of what forward has kept."""
    again = {(a.micro_batch, a.chunk) for a in actions if isinstance(a, Recompute)}
    kept = peak = 0
    for action in actions:
        where = (action.micro_batch, action.chunk)
        kept += isinstance(action, Recompute) or (isinstance(action, Forward) and where not in again)
        kept -= isinstance(action, Backward | BackwardInput)
        peak = max(peak, kept)
    return peak


@wrong("peak_activations", fails="chunks")
def counts_micro_batches_once(actions):
    """Two chunks of one micro-batch count as one."""
    again = {a.micro_batch for a in actions if isinstance(a, Recompute)}
    kept, peak = set(), 0
    for action in actions:
        keeps = isinstance(action, Recompute)
        if keeps or (isinstance(action, Forward) and action.micro_batch not in again):
            kept.add(action.micro_batch)
        elif isinstance(action, Backward | BackwardWeight):
            kept.discard(action.micro_batch)
        peak = max(peak, len(kept))
    return peak


@wrong("peak_activations", fails="recomputed")
def keeps_what_is_recomputed(actions):
    """A Forward counts, whether or not it is done again."""
    kept = peak = 0
    for action in actions:
        kept += isinstance(action, Forward)
        kept -= isinstance(action, Backward | BackwardWeight)
        peak = max(peak, kept)
    return peak


@wrong("with_recomputation", fails="before its backward")
def directly_after_the_backward(actions):
    """Too late: the backward has run without activations."""
    out = []
    for action in actions:
        out.append(action)
        if isinstance(action, Backward):
            out.append(Recompute(action.micro_batch, action.chunk))
    return out


@wrong("with_recomputation", fails="a new list")
def into_the_same_list(actions):
    """Changes its argument."""
    for action in [each for each in actions if isinstance(each, Backward | BackwardInput)]:
        actions.insert(actions.index(action), Recompute(action.micro_batch, action.chunk))
    return actions


@wrong("with_recomputation", fails="in halves, in chunks")
def before_whole_backwards_only(actions):
    """A backward in two halves is left without."""
    out = []
    for before, action in zip([None, *actions], actions, strict=False):
        where = (action.micro_batch, action.chunk)
        if isinstance(action, Backward) and before != Forward(*where):
            out.append(Recompute(*where))
        out.append(action)
    return out


@wrong("with_recomputation", fails="in halves, in chunks")
def always_the_first_chunk(actions):
    """Forgets which chunk it is."""
    out = []
    for before, action in zip([None, *actions], actions, strict=False):
        where = (action.micro_batch, action.chunk)
        if isinstance(action, Backward | BackwardInput) and before != Forward(*where):
            out.append(Recompute(action.micro_batch))
        out.append(action)
    return out


@wrong("with_recomputation", fails="where it saves something")
def even_directly_after_the_forward(actions):
    """Does again what has just been done."""
    out = []
    for action in actions:
        if isinstance(action, Backward | BackwardInput):
            out.append(Recompute(action.micro_batch, action.chunk))
        out.append(action)
    return out


def _alternating(warm_up, micro_batches):
    """`warm_up` forwards, then forward and backward in turns."""
    actions = [Forward(n) for n in range(warm_up)]
    for number in range(micro_batches):
        if warm_up + number < micro_batches:
            actions.append(Forward(warm_up + number))
        actions.append(Backward(number))
    return actions


@wrong("one_f_one_b", fails="every micro-batch, once")
def forgets_the_rest(stage, stages, micro_batches):
    """Those whose forwards were the warm-up never go back."""
    warm_up = min(micro_batches, stages - stage - 1)
    actions = [Forward(n) for n in range(warm_up)]
    for number in range(micro_batches - warm_up):
        actions += [Forward(warm_up + number), Backward(number)]
    return actions


@wrong("one_f_one_b", fails="every micro-batch, once")
def warms_up_the_wrong_way(stage, stages, micro_batches):
    """The last stage warms up longest: everyone waits for everyone."""
    return _alternating(min(micro_batches, stage), micro_batches)


@wrong("one_f_one_b", fails="any numbers")
def warms_up_with_what_is_not_there(stage, stages, micro_batches):
    """Does not look whether there are as many micro-batches as the warm-up wants."""
    warm_up = stages - stage - 1
    actions = [Forward(n) for n in range(warm_up)]
    for number in range(micro_batches - warm_up):
        actions += [Forward(warm_up + number), Backward(number)]
    return actions + [Backward(n) for n in range(max(0, micro_batches - warm_up), micro_batches)]


@wrong("one_f_one_b", fails="memory")
def one_forward_too_many(stage, stages, micro_batches):
    """p - s forwards, and then a forward first once more."""
    return _alternating(min(micro_batches, stages - stage), micro_batches)


@wrong("one_f_one_b", fails="step time")
def one_at_a_time(stage, stages, micro_batches):
    """Least memory of all: each micro-batch goes there and back by itself."""
    return _alternating(0, micro_batches)


def _grouped(stage, stages, micro_batches, chunks, group, warm_up, *, backwards=None):
    """Forwards and backwards in turns after a warm-up, in groups of `group` micro-batches."""
    starts = range(0, micro_batches, group)
    groups = [range(start, min(start + group, micro_batches)) for start in starts]
    forward = [Forward(n, c) for each in groups for c in range(chunks) for n in each]
    order = backwards or [*reversed(range(chunks))]
    backward = [Backward(n, c) for each in groups for c in order for n in each]
    warm_up = min(warm_up, len(forward))
    actions = forward[:warm_up]
    for number, each in enumerate(backward):
        if warm_up + number < len(forward):
            actions.append(forward[warm_up + number])
        actions.append(each)
    return actions


@wrong("interleaved", fails="every micro-batch, once")
def backward_from_the_first_chunk(stage, stages, micro_batches, chunks):
    """Backward goes through the chunks as forward does, and waits for ever."""
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
    return _grouped(stage, stages, micro_batches, chunks, stages, warm_up, backwards=[*range(chunks)])


@wrong("interleaved", fails="any numbers")
def groups_of_as_many_as_stages(stage, stages, micro_batches, chunks):
    """The last group may be smaller than the number of stages: with three chunks all wait for each other."""
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
    return _grouped(stage, stages, micro_batches, chunks, stages, warm_up)


@wrong("interleaved", fails="memory")
def chunk_after_chunk(stage, stages, micro_batches, chunks):
    """All micro-batches through the first chunk, then all through the second: everything is kept."""
    forward = [Forward(n, c) for c in range(chunks) for n in range(micro_batches)]
    return forward + [Backward(n, c) for c in reversed(range(chunks)) for n in range(micro_batches)]


@wrong("interleaved", fails="bubble")
def a_small_group_at_the_end(stage, stages, micro_batches, chunks):
    """Groups of the largest size, of which the last one may be smaller than the number of stages."""
    largest = -(-micro_batches // max(1, micro_batches // stages))
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * largest
    return _grouped(stage, stages, micro_batches, chunks, largest, warm_up)


@wrong("interleaved", fails="messages")
def warms_up_too_short(stage, stages, micro_batches, chunks):
    """One forward for each stage behind: the same bubble, but every message makes somebody wait."""
    count = max(1, micro_batches // stages)
    groups = [each.tolist() for each in torch.arange(micro_batches).tensor_split(count)]
    forward = [Forward(n, c) for each in groups for c in range(chunks) for n in each]
    backward = [Backward(n, c) for each in groups for c in reversed(range(chunks)) for n in each]
    warm_up = min(len(forward), stages - stage - 1 + (chunks - 1) * len(groups[0]))
    actions = forward[:warm_up]
    for there, back in zip(forward[warm_up:], backward, strict=False):
        actions += [there, back]
    return actions + backward[len(forward) - warm_up :]


def _halves(stage, stages, micro_batches, warm_up, late):
    """Weight halves come `late` micro-batches after their input halves."""
    actions = [Forward(n) for n in range(min(micro_batches, warm_up))]
    for number in range(micro_batches):
        actions.append(BackwardInput(number))
        if number >= late:
            actions.append(BackwardWeight(number - late))
        if warm_up + number < micro_batches:
            actions.append(Forward(warm_up + number))
    return actions + [BackwardWeight(n) for n in range(max(0, micro_batches - late), micro_batches)]


@wrong("zero_bubble", fails="every micro-batch, once")
def forgets_the_weights(stage, stages, micro_batches):
    """Weight halves that were put off are never done."""
    return _halves(stage, stages, micro_batches, stages - stage, stage)[: 3 * micro_batches - stage]


@wrong("zero_bubble", fails="memory")
def all_weights_at_the_end(stage, stages, micro_batches):
    """Nobody waits, and everything is kept until the end."""
    return _halves(stage, stages, micro_batches, stages - stage, micro_batches)


@wrong("zero_bubble", fails="memory")
def puts_off_one_too_many(stage, stages, micro_batches):
    """s + 1 weight halves wait on stage s."""
    return _halves(stage, stages, micro_batches, stages - stage, stage + 1)


@wrong("zero_bubble", fails="bubble")
def halves_without_delay(stage, stages, micro_batches):
    """1F1B with each backward cut in two, and both halves at once: no stage has anything left for the end."""
    return _halves(stage, stages, micro_batches, stages - stage, 0)


@wrong("zero_bubble", fails="few micro-batches")
def nothing_put_off_with_few(stage, stages, micro_batches):
    """As if putting off paid only once the pipeline is full."""
    put_off = stage if micro_batches >= stages else 0
    return _halves(stage, stages, micro_batches, stages - stage, put_off)


@wrong("plan_pipeline", fails="runs within the memory")
def does_not_look_at_the_memory(seconds, micro_batches, memory):
    """GPipe, which keeps everything."""
    forwards = [Forward(n) for n in range(micro_batches)]
    return [forwards + [Backward(n) for n in range(micro_batches)] for _ in seconds]


@wrong("plan_pipeline", fails="runs within the memory")
def waits_for_more_than_can_come(seconds, micro_batches, memory):
    """1F1B that warms up with what its own memory allows, though the stage before has less."""
    warm_ups = [min(micro_batches - 1, most - 1) for most in [1, *memory[1:]]]
    return [_alternating(warm_up, micro_batches) for warm_up in warm_ups]


@wrong("plan_pipeline", fails="no slower than 1F1B")
def one_micro_batch_at_a_time(seconds, micro_batches, memory):
    """Runs in any memory, and takes for ever."""
    return [_alternating(0, micro_batches) for _ in seconds]


@wrong("plan_pipeline", fails="within a tenth of the best")
def as_one_f_one_b(seconds, micro_batches, memory):
    """Whole backwards, after the longest warm-up that the memory allows."""
    stages = len(seconds)
    return [
        _alternating(min(micro_batches - 1, stages - stage - 1, min(memory[: stage + 1]) - 1), micro_batches)
        for stage in range(stages)
    ]


def _let_time_pass(seconds, micro_batches, room, gradients_first):
    """(end, schedule): whichever stage can begin first does what it can, weight halves last."""
    kinds = (Forward, BackwardInput, BackwardWeight)
    order = (1, 0, 2) if gradients_first else (0, 1, 2)
    free, kept = [0.0] * len(seconds), [0] * len(seconds)
    schedule, waiting = [[] for _ in seconds], [(0.0, 0, 0, number) for number in range(micro_batches)]
    while waiting:
        possible = [each for each in waiting if each[2] or kept[each[1]] < room[each[1]]]
        chosen = min(possible, key=lambda each: (max(free[each[1]], each[0]), order[each[2]], each[3]))
        waiting.remove(chosen)
        ready, stage, kind, number = chosen
        end = free[stage] = max(free[stage], ready) + seconds[stage][kind]
        schedule[stage].append(kinds[kind](number))
        kept[stage] += 1 - kind
        if kind == 0:
            waiting.append(
                (end, stage + 1, 0, number) if stage + 1 < len(seconds) else (end, stage, 1, number)
            )
        elif kind == 1:
            waiting.append((end, stage, 2, number))
            waiting += [(end, stage - 1, 1, number)] if stage else []
    return max(free), schedule


@wrong("plan_pipeline", fails="within 3 % of the best")
def gradients_first_always(seconds, micro_batches, memory):
    """Nobody's gradient waits, whatever that costs the stages behind."""
    stages = len(seconds)
    rooms = memory, [min(most, stages - stage) for stage, most in enumerate(memory)]
    return min(
        (_let_time_pass(seconds, micro_batches, room, True) for room in rooms), key=lambda each: each[0]
    )[1]


# ---------------------------------------------------------------------------------------------- WeightStash


@instead(
    "WeightStash",
    (
        "        trained =",
        "        weights = dict(self.stage.named_parameters())\n"
        "        output = torch.func.functional_call(self.stage, weights, (x,))\n        trained =",
    ),
    fails="weights after training",
)
def no_stashing():
    """Goes forward once more when the batch comes back, with weights that have moved on."""


@instead(
    "WeightStash",
    (
        "        self.optimizer.step()",
        "        self.stage.load_state_dict(weights)\n        self.optimizer.step()",
    ),
    fails="weights after training",
)
def steps_from_the_old_weights():
    """Puts the stashed weights back and steps from them: what other batches have taught is lost."""


@instead("WeightStash", ("return output.detach()", "return output"), fails="outputs and gradients")
def returns_the_graph():
    """Its output brings all activations along to whoever has it."""


@instead(
    "WeightStash",
    ("self.under_way.pop(batch)", "self.under_way.pop(next(iter(self.under_way)))"),
    fails="any order",
)
def first_in_first_out():
    """Takes the batch that has waited longest, whichever comes back."""


@instead(
    "WeightStash",
    (
        "self.newest = {}\n        return",
        "self.old, self.newest = [*getattr(self, 'old', []), weights], {}\n        return",
    ),
    fails="memory",
)
def never_forgets():
    """Keeps every version for ever."""


# -------------------------------------------------------------------------------------- pipedream_partition


def _best_plan(seconds, activations, weights, bandwidth, workers, *, cut=2.0, replicate=True):
    """The best plan of a model of costs, by trying all."""

    def plans(layers, left):
        if replicate or left == 1:
            yield [(layers, left)]
        for first, replicas in itertools.product(range(1, layers), range(1, left)):
            if replicate or replicas == 1:
                for rest in plans(layers - first, left - replicas):
                    yield [(first, replicas), *rest]

    def slowest(plan):
        worst, layer = 0.0, 0
        for layers, replicas in plan:
            part = slice(layer, layer + layers)
            worst = max(worst, cut * activations[layer - 1] / bandwidth if layer else 0.0)
            moved = 2 * (replicas - 1) * sum(weights[part]) / bandwidth
            worst = max(worst, sum(seconds[part]) / replicas, moved / replicas)
            layer += layers
        return worst

    return min(plans(len(seconds), workers), key=slowest, default=[(len(seconds), workers)])


@wrong("pipedream_partition", fails="on a fast network")
def never_replicates(seconds, activation_bytes, weight_bytes, bandwidth, workers):
    """A stage a worker, as in section 2; where there are too many workers, the last stage gets the rest."""
    stages = min(len(seconds), workers)
    plan = _best_plan(seconds, activation_bytes, weight_bytes, bandwidth, stages, replicate=False)
    return [*plan[:-1], (plan[-1][0], plan[-1][1] + workers - stages)]


@wrong("pipedream_partition", fails="on a fast network")
def leaves_workers_out(seconds, activation_bytes, weight_bytes, bandwidth, workers):
    """The best stage for one worker, however many there are."""
    return [(len(seconds), 1)]


@wrong("pipedream_partition", fails="on a slow network")
def always_data_parallel(seconds, activation_bytes, weight_bytes, bandwidth, workers):
    """Right wherever the network is fast."""
    return [(len(seconds), workers)]


@wrong("pipedream_partition", fails="on a slow network")
def no_gradients_at_the_cut(seconds, activation_bytes, weight_bytes, bandwidth, workers):
    """Counts the way forward over a cut, and not the way back."""
    return _best_plan(seconds, activation_bytes, weight_bytes, bandwidth, workers, cut=1.0)


@wrong("pipedream_partition", fails="a large model")
def tries_all_plans(seconds, activation_bytes, weight_bytes, bandwidth, workers):
    """Right, and for ever."""
    return _best_plan(seconds, activation_bytes, weight_bytes, bandwidth, workers)
