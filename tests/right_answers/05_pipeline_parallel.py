"""Right answers of unit 05, written differently."""

import bisect
import copy
import functools
import itertools

import torch
import torch.distributed as dist

from course_lib.training.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Recompute,
)
from tests.answers import right

# ------------------------------------------------------------------------------------------- balance_stages


@right("balance_stages")
def remembers_what_it_has_found(costs, stages):
    """From the front, by recursion: where does the first stage end?"""
    if len(costs) < stages:
        raise ValueError(f"{stages} stages need {stages} layers; there are {len(costs)}.")
    until = [0.0, *itertools.accumulate(costs)]

    @functools.cache
    def best(begin, left):
        """The slowest of the stages that are left, and the length of the first of them."""
        if left == 1:
            return until[-1] - until[begin], len(costs) - begin
        return min(
            (max(until[end] - until[begin], best(end, left - 1)[0]), end - begin)
            for end in range(begin + 1, len(costs) - left + 2)
        )

    lengths, begin = [], 0
    for left in range(stages, 0, -1):
        lengths.append(best(begin, left)[1])
        begin += lengths[-1]
    return lengths


class TooFewLayers(ValueError):
    """Fewer than there are stages."""


@right("balance_stages")
def by_a_bound(costs, stages):
    """The smallest bound that can be kept by filling stages from the front, found by halving."""
    if len(costs) < stages:
        raise TooFewLayers(f"Each of {stages} stages needs a layer, and there are {len(costs)}.")

    def filled(bound):
        lengths, total = [0], 0.0
        for place, seconds in enumerate(costs):
            left = stages - len(lengths)
            full = total + seconds > bound or len(costs) - place == left
            if lengths[-1] and left and full:
                lengths.append(0)
                total = 0.0
            total += seconds
            lengths[-1] += 1
            if total > bound:
                return None
        return lengths

    until = [0.0, *itertools.accumulate(costs)]
    bounds = sorted({b - a for a, b in itertools.combinations(until, 2)})
    # A hair more, so that a sum in another order fits as well.
    kept = bisect.bisect_left(bounds, True, key=lambda bound: filled(bound * (1 + 1e-12)) is not None)
    return filled(bounds[kept] * (1 + 1e-12))


# ------------------------------------------------------------------------------------------------ run_stage


@right("run_stage")
def asks_autograd_for_all(stage, x, target, loss_function, share=1.0):
    """No backward(): gradients come as values, and are added by hand. Messages by irecv and isend."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    trained = [parameter for parameter in stage.parameters() if parameter.requires_grad]
    wanted = list(trained)
    given = x
    if rank:
        given = torch.zeros(x.shape, dtype=x.dtype)
        dist.irecv(given, rank - 1).wait()
        wanted.append(given.requires_grad_(True))
    output = stage(given)
    if rank == ranks - 1:
        loss = loss_function(output, target) * share
        gradients = torch.autograd.grad(loss, wanted) if wanted else []
    else:
        sending = dist.isend(output.detach().clone(memory_format=torch.contiguous_format), rank + 1)
        gradient = torch.zeros(output.shape, dtype=output.dtype)
        dist.irecv(gradient, rank + 1).wait()
        sending.wait()
        gradients = torch.autograd.grad(output, wanted, gradient) if wanted else []
    for parameter, found in zip(trained, gradients, strict=False):
        parameter.grad = found if parameter.grad is None else parameter.grad + found
    if rank:
        dist.isend(gradients[-1].contiguous(), rank - 1).wait()
    return loss.detach() if rank == ranks - 1 else None


@right("run_stage")
def an_inner_product(stage, x, target, loss_function, share=1.0):
    """The gradient of (output * gradient).sum() is that of the output times this gradient."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    given = x.clone(memory_format=torch.contiguous_format)
    if rank > 0:
        dist.recv(given, rank - 1)
        given.requires_grad = True
    output = stage(given)
    if rank < last:
        gradient = output.detach().contiguous().clone()
        dist.send(gradient, rank + 1)
        dist.recv(gradient, rank + 1)
        total = (output * gradient).sum()
    else:
        total = share * loss_function(output, target)
    if total.requires_grad:
        total.backward()
    if rank > 0:
        dist.send(given.grad.contiguous(), rank - 1)
    return total.detach() if rank == last else None


# ------------------------------------------------------------------------------------------------ schedules


@right("gpipe")
def oldest_first(stage, stages, micro_batches):
    return [kind(number) for kind in (Forward, Backward) for number in range(micro_batches)]


@right("gpipe")
def yields_them(stage, stages, micro_batches):
    for number in range(micro_batches):
        yield Forward(number)
    for number in range(micro_batches - 1, -1, -1):
        yield Backward(number)


@right("bubble_fraction")
def lets_time_pass(forward, backward, micro_batches, message=0.0):
    """Both halves of the step as tables of when each micro-batch leaves each stage."""

    def last_end(seconds):
        ends = [0.0] * micro_batches
        for place, each in enumerate(seconds):
            free = 0.0
            for number in range(micro_batches):
                free = max(free, ends[number] + message * (place > 0)) + each
                ends[number] = free
        return ends[-1]

    total = last_end(forward) + last_end(backward[::-1])
    return 1 - micro_batches * (sum(forward) + sum(backward)) / len(forward) / total


@right("bubble_fraction")
def idle_over_all(forward, backward, micro_batches, message=0.0):
    stages = len(forward)
    one_way = [sum(each) + (micro_batches - 1) * max(each) for each in (forward, backward)]
    seconds = sum(one_way) + 2 * message * (stages - 1)
    idle = sum(
        seconds - micro_batches * (there + back) for there, back in zip(forward, backward, strict=True)
    )
    return idle / (stages * seconds)


@right("peak_activations")
def by_sets(actions):
    again = [(a.micro_batch, a.chunk) for a in actions if type(a) is Recompute]
    kept, peak = set(), 0
    for action in actions:
        where = (action.micro_batch, action.chunk)
        match action:
            case Recompute():
                kept.add(where)
            case Forward() if where not in again:
                kept.add(where)
            case Backward() | BackwardWeight():
                kept.remove(where)
        peak = max(peak, len(kept))
    return peak


@right("peak_activations")
def by_running_sums(actions):
    again = {(a.micro_batch, a.chunk) for a in actions if isinstance(a, Recompute)}
    change = {Forward: 1, Recompute: 1, Backward: -1, BackwardWeight: -1}
    changes = [
        0
        if isinstance(action, Forward) and (action.micro_batch, action.chunk) in again
        else change.get(type(action), 0)
        for action in actions
    ]
    return max(itertools.accumulate(changes), default=0)


@right("with_recomputation")
def looks_behind(actions):
    out = list(actions)
    for place in range(len(actions) - 1, 0, -1):
        action = actions[place]
        where = (action.micro_batch, action.chunk)
        if type(action) in (Backward, BackwardInput) and actions[place - 1] != Forward(*where):
            out.insert(place, Recompute(*where))
    return out


@right("with_recomputation")
def by_what_comes_next(actions):
    out = []
    for action, after in zip(actions, [*actions[1:], None], strict=True):
        out.append(action)
        if isinstance(after, Backward | BackwardInput):
            where = (after.micro_batch, after.chunk)
            if action != Forward(*where):
                out.append(Recompute(*where))
    return out


@right("one_f_one_b")
def backwards_from_the_first(stage, stages, micro_batches):
    """p - s forwards, then a backward for each one more."""
    actions = [Forward(n) for n in range(min(micro_batches, stages - stage))]
    for number in range(micro_batches):
        actions.append(Backward(number))
        if number + stages - stage < micro_batches:
            actions.append(Forward(number + stages - stage))
    return actions


@right("one_f_one_b")
def as_its_memory_allows(stage, stages, micro_batches):
    """A forward whenever there is room for it, else a backward."""
    actions, there, back = [], 0, 0
    while back < micro_batches:
        if there < micro_batches and there - back < stages - stage:
            actions.append(Forward(there))
            there += 1
        else:
            actions.append(Backward(back))
            back += 1
    return actions


def _groups(stages, micro_batches):
    count = max(1, micro_batches // stages)
    size, more = divmod(micro_batches, count)
    starts = [number * size + min(number, more) for number in range(count + 1)]
    return [range(first, last) for first, last in itertools.pairwise(starts)]


@right("interleaved")
def in_turns(stage, stages, micro_batches, chunks):
    groups = _groups(stages, micro_batches)
    there = iter([Forward(n, c) for each in groups for c in range(chunks) for n in each])
    back = iter([Backward(n, chunks - 1 - c) for each in groups for c in range(chunks) for n in each])
    first = (chunks - 1) * len(groups[0]) + 2 * (stages - 1 - stage)
    actions = list(itertools.islice(there, first))
    for action in there:
        actions += [action, next(back)]
    return actions + list(back)


@right("interleaved")
def by_memory(stage, stages, micro_batches, chunks):
    """A forward whenever there is room for it, else a backward."""
    groups = _groups(stages, micro_batches)
    there = [(n, c) for each in groups for c in range(chunks) for n in each]
    back = [(n, c) for each in groups for c in reversed(range(chunks)) for n in each]
    room = (chunks - 1) * len(groups[0]) + 2 * (stages - 1 - stage) + 1
    actions, done, freed = [], 0, 0
    while freed < len(back):
        if done < len(there) and done - freed < room:
            actions.append(Forward(*there[done]))
            done += 1
        else:
            actions.append(Backward(*back[freed]))
            freed += 1
    return actions


@right("zero_bubble")
def by_counting(stage, stages, micro_batches):
    """A forward if there is room, else an input half, and the weight halves that cannot wait."""
    actions, there, first, second = [], 0, 0, 0
    while second < micro_batches:
        if there < micro_batches and there - first < stages - stage and there - second < stages:
            actions.append(Forward(there))
            there += 1
            continue
        if first < micro_batches:
            actions.append(BackwardInput(first))
            first += 1
        if first - second > stage or first == micro_batches:
            actions.append(BackwardWeight(second))
            second += 1
    return actions


@right("zero_bubble")
def from_one_f_one_b(stage, stages, micro_batches):
    """1F1B with `stage` weight halves on a waiting list."""
    warm_up = min(micro_batches, stages - stage)
    actions, waiting = [Forward(n) for n in range(warm_up)], []
    for number in range(micro_batches):
        actions.append(BackwardInput(number))
        waiting.append(BackwardWeight(number))
        if len(waiting) > stage:
            actions.append(waiting.pop(0))
        if number + warm_up < micro_batches:
            actions.append(Forward(number + warm_up))
    return actions + waiting


def _let_time_pass(seconds, micro_batches, bound, prefers_forward=False):
    """(end, schedule): in order of time, each stage does what it can, weight halves last."""
    stages, never = len(seconds), float("inf")
    ends = [[[], [], []] for _ in seconds]
    free, schedule = [0.0] * stages, [[] for _ in seconds]
    kinds = (Forward, BackwardInput, BackwardWeight)
    order = (0, 1, 2) if prefers_forward else (1, 0, 2)
    for _ in range(3 * stages * micro_batches):
        best = (never,)
        for stage, (forward, first, second) in enumerate(ends):
            before = ends[stage - 1][0] if stage else [0.0] * micro_batches
            after = ends[stage + 1][1] if stage < stages - 1 else forward
            room = len(forward) - len(second) < bound[stage]
            for kind, (mine, needed) in enumerate(((forward, before), (first, after), (second, first))):
                number = len(mine)
                if number < min(micro_batches, len(needed)) and (kind or room):
                    begin = max(free[stage], needed[number])
                    urgency = order.index(kind)
                    best = min(best, (begin, urgency, stage, kind, number))
        begin, _, stage, kind, number = best
        free[stage] = begin + seconds[stage][kind]
        ends[stage][kind].append(free[stage])
        schedule[stage].append(kinds[kind](number))
    return max(free), schedule


@right("plan_pipeline")
def every_bound_that_falls(seconds, micro_batches, memory):
    """Tries all bounds that are as large as the memory, or fall from stage to stage."""
    falling = [
        [min(most, least + slope * (len(memory) - 1 - stage)) for stage, most in enumerate(memory)]
        for least in range(1, max(memory) + 1)
        for slope in (0, 1, 2, 3)
    ]
    tried = [
        _let_time_pass(seconds, micro_batches, bound, forward)
        for bound in falling
        for forward in (False, True)
    ]
    return min(tried, key=lambda each: each[0])[1]


@right("plan_pipeline")
def one_stage_at_a_time(seconds, micro_batches, memory):
    """Begins with all the memory, and takes from one stage after another what it does not need."""
    best = _let_time_pass(seconds, micro_batches, memory)
    starts = [
        memory,
        [min(most, len(memory) - stage) for stage, most in enumerate(memory)],
        [1] * len(memory),
    ]
    for bound in starts:
        found = _let_time_pass(seconds, micro_batches, bound)
        best = min(best, found, key=lambda each: each[0])
        for _ in range(2):
            for stage, most in enumerate(memory):
                for less in range(1, most + 1):
                    for forward in (False, True):
                        changed = [*bound[:stage], less, *bound[stage + 1 :]]
                        trial = _let_time_pass(seconds, micro_batches, changed, forward)
                        if trial[0] < found[0]:
                            found, bound = trial, changed
        best = min(best, found, key=lambda each: each[0])
    return best[1]


# ---------------------------------------------------------------------------------------------- WeightStash


@right("WeightStash")
class WholeModules:
    """A copy of the whole stage for each version, made when the weights are first needed after a step."""

    def __init__(self, stage, optimizer):
        self.stage, self.optimizer = stage, optimizer
        self.copy = None
        self.batches = {}

    def forward(self, batch, x):
        if self.copy is None:
            self.copy = copy.deepcopy(self.stage)
            self.copy.zero_grad(set_to_none=True)
        given = x.clone().requires_grad_()
        self.batches[batch] = given, self.copy(given), self.copy
        return self.batches[batch][1].clone().detach()

    def backward(self, batch, gradient):
        given, output, version = self.batches.pop(batch)
        version.zero_grad()
        output.backward(gradient)
        for parameter, used in zip(self.stage.parameters(), version.parameters(), strict=True):
            parameter.grad, used.grad = used.grad, None
        self.optimizer.step()
        self.copy = None
        return given.grad

    @property
    def versions(self):
        used = [version for _, _, version in self.batches.values()]
        return len(set(used)) + all(version is not self.copy for version in used)


@right("WeightStash")
class NumberedVersions:
    """Versions by number, with a count of batches that need each; forward again when one comes back."""

    def __init__(self, stage, optimizer):
        self.stage, self.optimizer = stage, optimizer
        self.number, self.stored, self.needed, self.batches = 0, {}, {}, {}

    def forward(self, batch, x):
        if self.number not in self.stored:
            self.stored[self.number] = [p.detach().clone() for p in self.stage.parameters()]
            self.needed[self.number] = 0
        self.needed[self.number] += 1
        self.batches[batch] = self.number, x
        with torch.no_grad():
            return self.stage(x)

    def backward(self, batch, gradient):
        number, x = self.batches.pop(batch)
        names = [name for name, _ in self.stage.named_parameters()]
        frozen = [not p.requires_grad for p in self.stage.parameters()]
        used = dict(zip(names, (w.requires_grad_() for w in self.stored[number]), strict=True))
        x = x.detach().requires_grad_()
        output = torch.func.functional_call(self.stage, used, (x,))
        of_x, *found = torch.autograd.grad(output, [x, *used.values()], gradient)
        for parameter, of_weight, still in zip(self.stage.parameters(), found, frozen, strict=True):
            parameter.grad = None if still else of_weight
        self.needed[number] -= 1
        if not self.needed[number]:
            del self.stored[number], self.needed[number]
        self.optimizer.step()
        self.number += 1
        return of_x

    @property
    def versions(self):
        return len({*self.stored, self.number})


# -------------------------------------------------------------------------------------- pipedream_partition


@right("pipedream_partition")
def from_the_first_stage_on(seconds, activation_bytes, weight_bytes, bandwidth, workers):
    """By recursion over what is left, layers and workers; plans travel with their costs."""
    layers = len(seconds)

    @functools.cache
    def best(begin, left):
        found = None
        computing = weights = 0.0
        for end in range(begin + 1, layers + 1):
            computing += seconds[end - 1]
            weights += weight_bytes[end - 1]
            choices = [left] if end == layers else range(1, left)
            for replicas in choices:
                stage = max(computing / replicas, 2 * (replicas - 1) / replicas * weights / bandwidth)
                rest, plan = (0.0, ()) if end == layers else best(end, left - replicas)
                if plan is None:
                    continue
                cut = 0.0 if end == layers else 2 * activation_bytes[end - 1] / bandwidth
                slowest = max(stage, rest, cut)
                if found is None or slowest < found[0]:
                    found = slowest, ((end - begin, replicas), *plan)
        return found or (0.0, None)

    return list(best(0, workers)[1])


@right("pipedream_partition")
def by_a_bound_on_the_slowest_part(seconds, activation_bytes, weight_bytes, bandwidth, workers):
    """For a bound: which numbers of workers suffice for the first layers? The smallest such bound."""
    layers = len(seconds)
    computing, weights = [0.0, *itertools.accumulate(seconds)], [0, *itertools.accumulate(weight_bytes)]

    def stage(begin, end, replicas):
        exchange = 2 * (replicas - 1) * (weights[end] - weights[begin]) / bandwidth
        return max(computing[end] - computing[begin], exchange) / replicas

    costs = {
        (begin, end, replicas): stage(begin, end, replicas)
        for begin, end in itertools.combinations(range(layers + 1), 2)
        for replicas in range(1, workers + 1)
    }
    cuts = [2 * nbytes / bandwidth for nbytes in activation_bytes]

    def plan_within(bound):
        reached = {(0, 0): ()}
        for begin, end in sorted(itertools.combinations(range(layers + 1), 2), key=lambda pair: pair[::-1]):
            if begin and cuts[begin - 1] > bound:
                continue
            fitting = [k for k in range(1, workers + 1) if costs[begin, end, k] <= bound]
            for used, replicas in itertools.product(range(workers), fitting):
                plan = reached.get((begin, used))
                if plan is not None and used + replicas <= workers:
                    reached.setdefault((end, used + replicas), (*plan, (end - begin, replicas)))
        return reached.get((layers, workers))

    bounds = sorted({*costs.values(), *cuts})
    first = bisect.bisect_left(bounds, True, key=lambda bound: plan_within(bound) is not None)
    return list(plan_within(bounds[first]))
