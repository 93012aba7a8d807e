"""Mistakes that people make in unit 08."""

from itertools import takewhile

import torch
import torch.distributed as dist

from tests.answers import wrong

# --- server_bandwidth


@wrong("server_bandwidth", fails="one server")
def of_one_step(model_bytes, seconds_per_gradient, workers, servers=1):
    """Bytes a step, not a second."""
    return workers * model_bytes / servers, workers * model_bytes / servers


@wrong("server_bandwidth", fails="one server")
def sends_the_weights_once(model_bytes, seconds_per_gradient, workers, servers=1):
    """One copy of the weights leaves the server, as if the network made the others."""
    rate = model_bytes / seconds_per_gradient / servers
    return workers * rate, rate


@wrong("server_bandwidth", fails="one server")
def both_ways_together(model_bytes, seconds_per_gradient, workers, servers=1):
    """Adds what comes in and what goes out."""
    rate = 2 * workers * model_bytes / seconds_per_gradient / servers
    return rate, rate


@wrong("server_bandwidth", fails="several servers")
def one_server_for_all(model_bytes, seconds_per_gradient, workers, servers=1):
    """Each server takes in every gradient whole."""
    rate = workers * model_bytes / seconds_per_gradient
    return rate, rate


@wrong("server_bandwidth", fails="several servers")
def weights_on_every_server(model_bytes, seconds_per_gradient, workers, servers=1):
    """Gradients are shared out; the weights go out from each server whole."""
    rate = workers * model_bytes / seconds_per_gradient
    return rate / servers, rate


# --- parameter_server_sgd


class _Parts:
    """A right answer in parts, of which each mistake replaces one. To call the class is to call it."""

    def __new__(cls, *arguments):
        self = super().__new__(cls)
        self.take_arguments(*arguments)
        return self.run()


class _Star(_Parts):
    """A training with a server."""

    def take_arguments(self, w, gradient, steps, lr, *more):
        self.w, self.gradient, self.steps, self.lr, self.more = w, gradient, steps, lr, more
        self.rank, self.workers = dist.get_rank(), range(1, dist.get_world_size())

    def run(self):
        return self.work() if self.rank else self.serve()

    def work(self):
        weights = self.empty()
        for _ in range(self.steps):
            dist.recv(weights, 0)
            dist.send(self.gradient(weights), 0)

    def serve(self):
        weights = self.to_train()
        for _ in range(self.steps):
            weights -= self.lr * self.mean(self.ask_all(weights))
        return weights

    def empty(self):
        return torch.empty_like(self.w)

    def to_train(self):
        return self.w.clone()

    def ask_all(self, weights):
        for worker in self.workers:
            dist.send(weights, worker)
        return [self.received(worker) for worker in self.workers]

    def received(self, worker=None):
        arrived = self.empty()
        dist.recv(arrived, worker)
        return arrived

    def mean(self, gradients):
        return sum(gradients) / len(gradients)


@wrong("parameter_server_sgd", fails="trained weights")
class AddsWithoutDividing(_Star):
    """The sum of the gradients, not their mean."""

    def mean(self, gradients):
        return sum(gradients)


@wrong("parameter_server_sgd", fails="trained weights")
class CountsTheServer(_Star):
    """Divides by all ranks; the server has no gradient."""

    def mean(self, gradients):
        return sum(gradients) / dist.get_world_size()


@wrong("parameter_server_sgd", fails="trained weights")
class EveryRankReturns(_Star):
    """The workers return the weights of the last step but one."""

    def work(self):
        super().work()
        return self.w


@wrong("parameter_server_sgd", fails="w unchanged")
class TrainsTheCallersWeights(_Star):
    """Steps in place, in the caller's tensor."""

    def to_train(self):
        return self.w


@wrong("parameter_server_sgd", fails="the star")
def all_reduces_instead(w, gradient, steps, lr):
    """The right weights, and no parameter server."""
    weights = w.clone()
    dist.broadcast(weights, 0)
    for _ in range(steps):
        total = gradient(weights) if dist.get_rank() > 0 else torch.zeros_like(w)
        dist.all_reduce(total)
        weights = weights - lr * total / (dist.get_world_size() - 1)
    return weights if dist.get_rank() == 0 else None


class _SendsTheLastWeightsToo(_Star):
    """After the last step the workers get the weights once more, which nobody asks them for."""

    def work(self):
        super().work()
        dist.recv(self.empty(), 0)

    def serve(self):
        weights = super().serve()
        for worker in self.workers:
            dist.send(weights, worker)
        return weights


@wrong("parameter_server_sgd", fails="messages and bytes")
class SendsTheLastWeightsToo(_SendsTheLastWeightsToo):
    """After the last step the workers get the weights once more, which nobody asks them for."""


@wrong("parameter_server_sgd", fails="side by side")
class OneWorkerAfterTheOther(_Star):
    """Waits for the first worker's gradient before the second gets the weights."""

    def ask_all(self, weights):
        gradients = []
        for worker in self.workers:
            dist.send(weights, worker)
            gradients.append(self.received(worker))
        return gradients


# --- place_parameters


@wrong("place_parameters", fails="every number once")
def ends_included(sizes, servers):
    """(tensor, first, last) in place of (tensor, start, end)."""
    share = max(1, -(-sum(sizes) // servers))
    placed, before = [[] for _ in range(servers)], 0
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            start = max(0, server * share - before)
            end = min(size, (server + 1) * share - before)
            if start < end:
                placed[server].append((tensor, start, end - 1))
        before += size
    return placed


@wrong("place_parameters", fails="every number once")
def empty_pieces(sizes, servers):
    """Every tensor is cut in as many parts as there are servers, even if they are empty."""
    placed = [[] for _ in range(servers)]
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            placed[server].append((tensor, size * server // servers, size * (server + 1) // servers))
    return placed


@wrong("place_parameters", fails="busiest server")
def in_turns(sizes, servers):
    """Whole tensors, the first to server 0, the next to server 1."""
    placed = [[] for _ in range(servers)]
    for tensor, size in enumerate(sizes):
        if size:
            placed[tensor % servers].append((tensor, 0, size))
    return placed


@wrong("place_parameters", fails="busiest server")
def each_tensor_in_equal_parts(sizes, servers):
    """Every tensor cut by itself, larger parts first: the first servers get all the remainders."""
    placed = [[] for _ in range(servers)]
    for tensor, size in enumerate(sizes):
        start = 0
        for server in range(servers):
            end = start + size // servers + (server < size % servers)
            if start < end:
                placed[server].append((tensor, start, end))
            start = end
    return placed


@wrong("place_parameters", fails="few pieces")
def number_by_number(sizes, servers):
    """Deals out single numbers in turns: balanced, and each is a message."""
    placed = [[] for _ in range(servers)]
    numbers = [(tensor, at) for tensor, size in enumerate(sizes) for at in range(size)]
    for place, (tensor, at) in enumerate(numbers):
        placed[place % servers].append((tensor, at, at + 1))
    return placed


@wrong("place_parameters", fails="sizes unchanged")
def takes_from_the_sizes(sizes, servers):
    """Counts in the caller's list what is left of each tensor."""
    share, placed, taken = -(-sum(sizes) // servers), [], [0] * len(sizes)
    for _ in range(servers):
        pieces, room = [], share
        for tensor in range(len(sizes)):
            part = min(room, sizes[tensor])
            if part:
                pieces.append((tensor, taken[tensor], taken[tensor] + part))
                taken[tensor] += part
                sizes[tensor] -= part
                room -= part
        placed.append(pieces)
    return placed


# --- deal_dynamically


class _Dealer(_Parts):
    """Rank 0 deals numbers in this dtype, `end` when nothing is left, and workers ask for them."""

    dtype, end, times = torch.int64, -1, 1

    def take_arguments(self, batches, work):
        self.left, self.work_on, self.number = list(range(batches)), work, torch.zeros(1, dtype=self.dtype)

    def run(self):
        return self.work() if dist.get_rank() else self.deal()

    def work(self):
        mine = []
        while self.ask() != self.end:
            mine.append(int(self.number))
            self.work_on(mine[-1])
        return mine

    def ask(self):
        dist.send(self.number, 0)
        dist.recv(self.number, 0)
        return self.number

    def deal(self):
        whose = []
        for batch in self.left:
            whose.append(self.who_asks())
            self.give(batch, whose[-1])
        self.say_the_end()
        return whose

    def who_asks(self):
        return dist.recv(self.number)

    def give(self, number, worker):
        dist.send(torch.tensor([number]).to(self.dtype), worker)

    def say_the_end(self):
        for _ in range(1, dist.get_world_size()):
            self.give(self.end, self.who_asks())


@wrong("deal_dynamically", fails="each batch once")
class ForgetsToSayTheEnd(_Dealer):
    """When nothing is left, rank 0 returns, and the workers wait for an answer."""

    def say_the_end(self):
        pass


@wrong("deal_dynamically", fails="each batch once")
class WorksOnTheEnd(_Dealer):
    """Looks at the number after the work."""

    def work(self):
        mine = []
        while not mine or mine[-1] >= 0:
            mine.append(int(self.ask()))
            self.work_on(mine[-1])
        return mine[:-1]


@wrong("deal_dynamically", fails="who had which")
class CountsInsteadOfNaming(_Dealer):
    """Rank 0 returns how many batches each worker had."""

    def deal(self):
        whose = super().deal()
        return [whose.count(rank) for rank in range(dist.get_world_size())]


@wrong("deal_dynamically", fails="whoever is free")
def dealt_before(batches, work):
    """An even split that everyone can compute: no messages, and the slowest worker decides."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() == 0:
        return [1 + batch % workers for batch in range(batches)]
    mine = list(range(dist.get_rank() - 1, batches, workers))
    for batch in mine:
        work(batch)
    return mine


@wrong("deal_dynamically", fails="whoever is free")
class InRankOrder(_Dealer):
    """Rank 0 listens to worker 1, then to worker 2, and so on: who is fast waits for its turn."""

    turn = -1

    def who_asks(self):
        self.turn += 1
        return dist.recv(self.number, 1 + self.turn % (dist.get_world_size() - 1))


@wrong("deal_dynamically", fails="the star")
class WaitsForAllAtTheEnd(_Dealer):
    """A barrier, so that all are done together."""

    def run(self):
        had = super().run()
        dist.barrier()
        return had


@wrong("deal_dynamically", fails="small messages")
class SaysWhoItIs(_Dealer):
    """The request holds the worker's rank and its last batch: recv returns the rank anyhow."""

    def ask(self):
        dist.send(torch.tensor([dist.get_rank(), int(self.number)]), 0)
        dist.recv(self.number, 0)
        return self.number

    def who_asks(self):
        wish = torch.zeros(2, dtype=torch.int64)
        dist.recv(wish)
        return int(wish[0])


# --- downpour_sgd


class _Downpour(_Star):
    """A right training; `rate` is what the server multiplies with a sum."""

    def take_arguments(self, w, gradient, steps, lr, n_push, n_fetch):
        super().take_arguments(w, gradient, steps, lr)
        self.n_push, self.n_fetch, self.rate, self.local_rate = n_push, n_fetch, lr, lr

    # --- A worker

    def work(self):
        self.weights, self.total = self.empty(), self.zeros()
        for step in range(self.steps):
            self.before(step)
            each = self.gradient(self.weights)
            self.weights -= self.local_rate * each
            self.total += each
            self.after(step)
        self.finish()

    def zeros(self):
        return torch.zeros_like(self.w)

    def before(self, step):
        if step % self.n_fetch == 0:
            self.fetch(self.weights)

    def after(self, step):
        if self.due(step):
            self.push(self.total)
            self.total.zero_()

    def due(self, step):
        return (step + 1) % self.n_push == 0 or step + 1 == self.steps

    def fetch(self, weights):
        dist.send(torch.zeros(1), 0)
        dist.recv(weights, 0)

    def push(self, total):
        dist.send(torch.ones(1), 0)
        dist.send(total, 0)

    def finish(self):
        pass

    # --- The server

    def serve(self):
        weights, wish = self.to_train(), torch.empty(1)
        for _ in range(self.requests() * len(self.workers)):
            self.answer(self.next_wish(wish), weights, bool(wish))
        return weights

    def requests(self):
        return -(-self.steps // self.n_fetch) - (-self.steps // self.n_push)

    def next_wish(self, wish):
        return dist.recv(wish)

    def answer(self, worker, weights, pushes):
        if pushes:
            weights -= self.rate * self.received(worker)
        else:
            dist.send(weights, worker)


@wrong("downpour_sgd", fails="every gradient once")
class LosesTheLastSteps(_Downpour):
    """Where n_push does not divide the steps, the last gradients are never sent."""

    def due(self, step):
        return (step + 1) % self.n_push == 0

    def requests(self):
        return -(-self.steps // self.n_fetch) + self.steps // self.n_push


@wrong("downpour_sgd", fails="every gradient once")
class GoesOnWithTheSum(_Downpour):
    """The sum is never emptied: each push has all gradients since the beginning."""

    def after(self, step):
        if self.due(step):
            self.push(self.total)


@wrong("downpour_sgd", fails="w unchanged")
class ServesTheCallersWeights(_Downpour):
    """Steps in the caller's tensor."""

    def to_train(self):
        return self.w


@wrong("downpour_sgd", fails="the star")
class EndsWithABarrier(_Downpour):
    """All wait for all in the end."""

    def run(self):
        weights = super().run()
        dist.barrier()
        return weights


@wrong("downpour_sgd", fails="messages and bytes")
class FetchesInEveryStep(_Downpour):
    """n_fetch is not looked at."""

    def take_arguments(self, *arguments):
        super().take_arguments(*arguments)
        self.n_fetch = 1


@wrong("downpour_sgd", fails="order of the steps")
class FetchesBeforeItPushes(_Downpour):
    """The weights come without the worker's own last sum, which it still holds."""

    def before(self, step):
        super().before(step)
        if step:
            super().after(step - 1)

    def after(self, step):
        if step + 1 == self.steps:
            super().after(step)


@wrong("downpour_sgd", fails="weights of each step")
class StandsStillBetweenFetches(_Downpour):
    """A worker computes all gradients until the next fetch at the same weights."""

    def work(self):
        self.local_rate = 0
        super().work()


@wrong("downpour_sgd", fails="weights of each step")
class AlwaysSendsTheFirstWeights(_Downpour):
    """Gradients go to a copy, and fetches get what the copy was made of."""

    def answer(self, worker, weights, pushes):
        super().answer(worker, weights if pushes else self.w, pushes)


@wrong("downpour_sgd", fails="waits for nobody")
class ServesInTurns(_Downpour):
    """One message from each worker, in the order of their ranks, then the next from each."""

    turn = -1

    def next_wish(self, wish):
        self.turn += 1
        worker = 1 + self.turn % len(self.workers)
        dist.recv(wish, worker)
        return worker


# --- staleness


def _check_read(log):
    seen = set()
    for what, worker in log:
        if what == "read":
            seen.add(worker)
        elif worker not in seen:
            raise ValueError(f"worker {worker}")


@wrong("staleness", fails="updates in between")
def counts_itself(log):
    """The update itself is counted too."""
    _check_read(log)
    version, read, ages = 0, {}, []
    for what, worker in log:
        if what == "read":
            read[worker] = version
        else:
            version += 1
            ages.append(version - read[worker])
    return ages


@wrong("staleness", fails="updates in between")
def lines_of_the_log(log):
    """Counts readings in between as well."""
    _check_read(log)
    read, ages = {}, []
    for line, (what, worker) in enumerate(log):
        if what == "read":
            read[worker] = line
        else:
            ages.append(line - read[worker] - 1)
    return ages


@wrong("staleness", fails="several updates for one reading")
def others_only(log):
    """A worker's own updates do not count."""
    _check_read(log)
    since, ages = {}, []
    for what, worker in log:
        if what == "read":
            since[worker] = 0
        else:
            ages.append(since[worker])
            for other in since:
                since[other] += other != worker
    return ages


@wrong("staleness", fails="several updates for one reading")
def writing_is_reading(log):
    """After an update the worker is taken to know the weights."""
    _check_read(log)
    version, read, ages = 0, {}, []
    for what, worker in log:
        if what == "write":
            ages.append(version - read[worker])
            version += 1
        read[worker] = version
    return ages


@wrong("staleness", fails="nothing read")
def begins_with_version_0(log):
    """Who has read nothing is taken to have read the first weights."""
    version, read, ages = 0, {}, []
    for what, worker in log:
        if what == "read":
            read[worker] = version
        else:
            ages.append(version - read.get(worker, 0))
            version += 1
    return ages


@wrong("staleness", fails="nothing read")
def key_error(log):
    """The dictionary's own error."""
    version, read, ages = 0, {}, []
    for what, worker in log:
        if what == "read":
            read[worker] = version
        else:
            ages.append(version - read[worker])
            version += 1
    return ages


@wrong("staleness", fails="log unchanged")
def takes_from_the_log(log):
    """Reads the log by emptying it."""
    _check_read(log)
    version, read, ages = 0, {}, []
    while log:
        what, worker = log.pop(0)
        if what == "read":
            read[worker] = version
        else:
            ages.append(version - read[worker])
            version += 1
    return ages


# --- BoundedClock


class _Clock:
    """As it should be."""

    def __init__(self, workers, bound):
        self.steps, self.bound = [0] * workers, bound

    def may_go_on(self, worker):
        return self.steps[worker] - min(self.steps) <= self.bound

    def tick(self, worker):
        if not self.may_go_on(worker):
            raise RuntimeError
        self.steps[worker] += 1


@wrong("BoundedClock", fails="who may go on")
class LessThanTheBound(_Clock):
    """A lead of exactly `bound` is too much already."""

    def may_go_on(self, worker):
        return self.steps[worker] - min(self.steps) < max(self.bound, 1)


@wrong("BoundedClock", fails="who may go on")
class AheadOfTheSecond(_Clock):
    """Measures the lead over the slowest of the others."""

    def may_go_on(self, worker):
        others = [steps for other, steps in enumerate(self.steps) if other != worker]
        return self.steps[worker] - min(others, default=0) <= self.bound


@wrong("BoundedClock", fails="no bound, and none ahead")
class NoBoundIsZero(_Clock):
    """`bound or math.inf` takes 0 for none."""

    def __init__(self, workers, bound):
        super().__init__(workers, bound or float("inf"))


@wrong("BoundedClock", fails="no bound, and none ahead")
class WholeBounds(_Clock):
    """int(math.inf) is an error."""

    def __init__(self, workers, bound):
        super().__init__(workers, int(bound))


@wrong("BoundedClock", fails="without leave")
class CountsAnyTick(_Clock):
    """Whoever says that it has finished a step is believed."""

    def tick(self, worker):
        self.steps[worker] += 1


@wrong("BoundedClock", fails="without leave")
class RefusesTooLate(_Clock):
    """Raises, and has counted the step."""

    def tick(self, worker):
        allowed = self.may_go_on(worker)
        self.steps[worker] += 1
        if not allowed:
            raise RuntimeError


@wrong("BoundedClock", fails="two clocks")
class OneForAll:
    """The steps belong to the class."""

    steps: list

    def __init__(self, workers, bound):
        type(self).steps, self.bound = [0] * workers, bound

    def may_go_on(self, worker):
        return self.steps[worker] - min(self.steps) <= self.bound

    def tick(self, worker):
        if not self.may_go_on(worker):
            raise RuntimeError
        self.steps[worker] += 1


# --- ssp_sgd


class _Bounded(_Star):
    """A right training. Who waits is kept with the weights of when it began to wait, which are not sent."""

    def take_arguments(self, w, gradient, steps, lr, bound):
        super().take_arguments(w, gradient, steps, lr)
        self.bound, self.rate = bound, lr / len(self.workers)

    def serve(self):
        weights, self.clock = self.to_train(), _Clock(len(self.workers), self.lead())
        left = dict.fromkeys(self.workers, self.steps)
        waiting = dict.fromkeys(self.workers, weights)
        for _ in range(self.steps * len(self.workers)):
            for worker in self.free(list(waiting)):
                self.let_go(worker, weights, waiting.pop(worker))
                left[worker] -= 1
            worker, arrived = self.next_gradient()
            weights -= self.rate * arrived
            self.clock.tick(worker - 1)
            if left[worker]:
                waiting[worker] = weights.clone()
        return weights

    def lead(self):
        return self.bound

    def next_gradient(self):
        arrived = self.empty()
        return dist.recv(arrived), arrived

    def free(self, waiting):
        return [worker for worker in waiting if self.clock.may_go_on(worker - 1)]

    def let_go(self, worker, weights, as_they_were):
        dist.send(weights, worker)


@wrong("ssp_sgd", fails="every gradient once")
class WholeSteps(_Bounded):
    """lr times each gradient, K times too much."""

    def to_train(self):
        self.rate = self.lr
        return super().to_train()


@wrong("ssp_sgd", fails="w unchanged")
class BoundedInPlace(_Bounded):
    """Steps in the caller's tensor."""

    def to_train(self):
        return self.w


@wrong("ssp_sgd", fails="the star")
class ABarrierInTheEnd(_Bounded):
    """All wait for all in the end."""

    def run(self):
        weights = super().run()
        dist.barrier()
        return weights


@wrong("ssp_sgd", fails="messages and bytes")
class WeightsAfterTheLastStep(_SendsTheLastWeightsToo, _Bounded):
    """The workers get the last weights as well."""


@wrong("ssp_sgd", fails="lead at most the bound")
class NobodyEverWaits(_Bounded):
    """The bound is not looked at."""

    def lead(self):
        return float("inf")


@wrong("ssp_sgd", fails="nobody within it waits")
class AlwaysInStep(_Bounded):
    """Synchronous, whatever the bound."""

    def lead(self):
        return 0


@wrong("ssp_sgd", fails="nobody within it waits")
class FirstComeFirstServed(_Bounded):
    """Only the first of those who wait is looked at: others wait behind it."""

    def free(self, waiting):
        return list(takewhile(lambda worker: self.clock.may_go_on(worker - 1), waiting))


@wrong("ssp_sgd", fails="weights as they are")
class WeightsAsTheyWere(_Bounded):
    """Whoever waits gets the weights of the moment when it began to wait."""

    def let_go(self, worker, weights, as_they_were):
        dist.send(as_they_were, worker)


# ----------------------------------------------------------------------------------------------- tree_step


def _trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def _end_to_end(parameters):
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])


def _descend(parameters, mean, lr):
    with torch.no_grad():
        for p, gradient in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            p.sub_(lr * gradient.view_as(p))


def _along_a_tree(total):
    """The solution's sum."""
    rank, size, distance = dist.get_rank(), dist.get_world_size(), 1
    arriving = torch.empty_like(total)
    while distance < size and rank % (2 * distance) == 0:
        if rank + distance < size:
            dist.recv(arriving, rank + distance)
            total += arriving
        distance *= 2
    if rank:
        dist.send(total, rank - distance)
        dist.recv(total, rank - distance)
    while distance > 1:
        distance //= 2
        if rank + distance < size:
            dist.send(total, rank + distance)
    return total


@wrong("tree_step", fails="the step")
def the_sum_instead_of_the_mean(model, lr):
    """A step that grows with the number of ranks."""
    trained = _trainable(model)
    _descend(trained, _along_a_tree(_end_to_end(trained)), lr)


@wrong("tree_step", fails="any number of ranks")
def powers_of_two(model, lr):
    """Receives from ranks that do not exist."""
    trained = _trainable(model)
    total = _end_to_end(trained)
    rank, size, distance = dist.get_rank(), dist.get_world_size(), 1
    arriving = torch.empty_like(total)
    while distance < size and rank % (2 * distance) == 0:
        dist.recv(arriving, rank + distance)
        total += arriving
        distance *= 2
    if rank:
        dist.send(total, rank - distance)
        dist.recv(total, rank - distance)
    while distance > 1:
        distance //= 2
        dist.send(total, rank + distance)
    _descend(trained, total / size, lr)


@wrong("tree_step", fails="missing gradients")
def skips_what_has_no_gradient(model, lr):
    """Ranks then send messages of different lengths."""
    trained = [p for p in _trainable(model) if p.grad is not None]
    _descend(trained, _along_a_tree(_end_to_end(trained)) / dist.get_world_size(), lr)


@wrong("tree_step", fails="the same model everywhere")
def frozen_ones_too(model, lr):
    """Whatever has a gradient, be it from long ago."""
    everything = list(model.parameters())
    _descend(everything, _along_a_tree(_end_to_end(everything)) / dist.get_world_size(), lr)


@wrong("tree_step", fails="the same model everywhere")
def each_adds_in_its_own_order(model, lr):
    """Everyone sends to everyone and begins with its own: the last digits differ."""
    trained = _trainable(model)
    mine = _end_to_end(trained)
    rank, size, total = dist.get_rank(), dist.get_world_size(), mine.clone()
    for distance in range(1, size):
        arriving = torch.empty_like(mine)
        sending = dist.isend(mine, (rank + distance) % size)
        dist.recv(arriving, (rank - distance) % size)
        sending.wait()
        total += arriving
    _descend(trained, total / size, lr)


@wrong("tree_step", fails="messages")
def a_message_a_parameter(model, lr):
    """The tree once for each parameter."""
    for p in _trainable(model):
        _descend([p], _along_a_tree(_end_to_end([p])) / dist.get_world_size(), lr)


@wrong("tree_step", fails="no bottleneck")
def a_star(model, lr):
    """The parameter server once more."""
    trained = _trainable(model)
    total = _end_to_end(trained)
    arriving = torch.empty_like(total)
    if dist.get_rank():
        dist.send(total, 0)
        dist.recv(total, 0)
    else:
        others = range(1, dist.get_world_size())
        for other in others:
            dist.recv(arriving, other)
            total += arriving
        for other in others:
            dist.send(total, other)
    _descend(trained, total / dist.get_world_size(), lr)


@wrong("tree_step", fails="rounds")
def a_chain(model, lr):
    """Each passes the sum on to the one before: p - 1 rounds up, and as many down."""
    trained = _trainable(model)
    total = _end_to_end(trained)
    rank, size, arriving = dist.get_rank(), dist.get_world_size(), torch.empty_like(total)
    if rank + 1 < size:
        dist.recv(arriving, rank + 1)
        total += arriving
    if rank:
        dist.send(total, rank - 1)
        dist.recv(total, rank - 1)
    if rank + 1 < size:
        dist.send(total, rank + 1)
    _descend(trained, total / size, lr)


# ----------------------------------------------------------------------------------------------- local_sgd


def _average(parameters):
    with torch.no_grad():
        flat = torch.cat([p.flatten() for p in parameters])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.copy_(mean.view_as(p))


def _trains(model, optimizer, batches, loss_fn, after_step, clear=True, before_step=lambda: None):
    """A training that does something after each step, which it is told the number of, from 1."""
    losses = []
    for step, (inputs, targets) in enumerate(batches, start=1):
        if clear:
            optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(loss.item())
        after_step(step)
    return losses


def _due(step, batches, period):
    return step % period == 0 or step == len(batches)


def _averages(model, batches, period, what=None):
    """What a right training does after each step, unless something else is averaged."""

    def after_step(step):
        if _due(step, batches, period):
            _average((what or _trainable)(model))

    return after_step


@wrong("local_sgd", fails="the weights")
def averages_gradients(model, optimizer, batches, loss_fn, period):
    """Of each period's last step: what the ranks did before stays apart."""
    step_number = [0]

    def before_step():
        step_number[0] += 1
        if _due(step_number[0], batches, period):
            for p in _trainable(model):
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad.contiguous()
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

    return _trains(model, optimizer, batches, loss_fn, lambda step: None, before_step=before_step)


@wrong("local_sgd", fails="the weights")
def keeps_old_gradients(model, optimizer, batches, loss_fn, period):
    """No zero_grad."""
    return _trains(model, optimizer, batches, loss_fn, _averages(model, batches, period), clear=False)


@wrong("local_sgd", fails="any period, any number of ranks")
def leaves_the_rest(model, optimizer, batches, loss_fn, period):
    """Seven steps by threes: after the seventh the ranks are apart."""

    def after_step(step):
        if step % period == 0:
            _average(_trainable(model))

    return _trains(model, optimizer, batches, loss_fn, after_step)


@wrong("local_sgd", fails="any period, any number of ranks")
def there_is_always_a_step(model, optimizer, batches, loss_fn, period):
    """Asks for the last step's number where there was none."""

    def after_step(step):
        nonlocal last
        last = step
        if step % period == 0:
            _average(_trainable(model))

    last = -1
    losses = _trains(model, optimizer, batches, loss_fn, after_step)
    if last % period:
        _average(_trainable(model))
    return [losses[0], *losses[1:]]


@wrong("local_sgd", fails="layers that only some ranks train")
def what_has_a_gradient(model, optimizer, batches, loss_fn, period):
    """As torch's averagers do: a layer that this rank has not used is left out."""

    def after_step(step):
        if _due(step, batches, period):
            for p in _trainable(model):
                if p.grad is not None:
                    _average([p])

    return _trains(model, optimizer, batches, loss_fn, after_step)


@wrong("local_sgd", fails="what stays a rank's own")
def buffers_too(model, optimizer, batches, loss_fn, period):
    """Everything in the state dict."""

    what = lambda model: [*_trainable(model), *model.buffers()]  # noqa: E731
    return _trains(model, optimizer, batches, loss_fn, _averages(model, batches, period, what))


@wrong("local_sgd", fails="losses")
def tensors_with_a_history(model, optimizer, batches, loss_fn, period):
    """The mean loss of each period."""

    losses = _trains(model, optimizer, batches, loss_fn, _averages(model, batches, period))
    return [sum(losses[i : i + period]) / period for i in range(0, len(losses), period)]


@wrong("local_sgd", fails="all-reduces")
def once_more_at_the_end(model, optimizer, batches, loss_fn, period):
    """Also where the last step was the last of a period."""

    def after_step(step):
        if step % period == 0:
            _average(_trainable(model))

    losses = _trains(model, optimizer, batches, loss_fn, after_step)
    _average(_trainable(model))
    return losses


@wrong("local_sgd", fails="all-reduces")
def a_call_a_parameter(model, optimizer, batches, loss_fn, period):
    """Many short messages."""

    def after_step(step):
        if _due(step, batches, period):
            for p in _trainable(model):
                _average([p])

    return _trains(model, optimizer, batches, loss_fn, after_step)


# ----------------------------------------------------------------------------------------- federated_round


class _Round(_Parts):
    """A right round."""

    def take_arguments(self, w, client_update, samples, fraction, seed):
        self.w, self.update, self.samples = w, client_update, samples
        self.rank, self.clients = dist.get_rank(), dist.get_world_size() - 1
        self.fraction, self.seed = fraction, seed

    def run(self):
        chosen = self.chosen()
        if self.rank in chosen:
            self.answer()
        return None if self.rank else self.serve(chosen)

    def count(self):
        return max(1, round(self.fraction * self.clients))

    def chosen(self):
        return self.drawn(torch.Generator().manual_seed(self.seed))

    def drawn(self, generator):
        order = torch.randperm(self.clients, generator=generator)
        return [1 + client for client in order[: self.count()].tolist()]

    def trained(self, weights):
        return self.update(weights, self.samples) if len(self.samples) else weights

    def answer(self):
        weights = self.trained(self.received())
        dist.send(torch.cat([weights, weights.new_tensor([len(self.samples)]), self.besides()]), 0)

    def received(self):
        weights = torch.empty_like(self.w)
        dist.recv(weights, 0)
        return weights

    def besides(self):
        return self.w.new_empty(0)

    def ask(self, client):
        dist.send(self.w, client)

    def take(self, client):
        n = len(self.w)
        arriving = self.w.new_empty(n + 1 + len(self.besides()))
        dist.recv(arriving, client)
        return arriving[:n], arriving[n]

    def mean(self, parts):
        n = sum(count for _, count in parts)
        return sum(count * weights for weights, count in parts) / n if n else self.without_samples()

    def without_samples(self):
        return self.w.clone()

    def serve(self, chosen):
        for client in chosen:
            self.ask(client)
        return self.mean([self.take(client) for client in chosen])


@wrong("federated_round", fails="the mean of the chosen")
class AllCountAlike(_Round):
    """1 / K for each, however many samples it has."""

    def mean(self, parts):
        return torch.stack([weights for weights, _ in parts]).mean(0)


@wrong("federated_round", fails="the mean of the chosen")
class TrainsFromItsOwn(_Round):
    """From the client's w, in place of what the server sent."""

    def trained(self, weights):
        return super().trained(self.w.clone())


@wrong("federated_round", fails="how many are chosen")
class RoundsDown(_Round):
    """int() for round()."""

    def count(self):
        return max(1, int(self.fraction * self.clients))


@wrong("federated_round", fails="chosen at random")
class AlwaysTheFirst(_Round):
    """Clients 1 to m."""

    def chosen(self):
        return list(range(1, self.count() + 1))


@wrong("federated_round", fails="chosen at random")
class WhateverComes(_Round):
    """From the state that the ranks happen to have."""

    def chosen(self):
        return self.drawn(None)


@wrong("federated_round", fails="clients without samples")
class DividesByNothing(_Round):
    """0 / 0."""

    def mean(self, parts):
        return sum(count * weights for weights, count in parts) / sum(count for _, count in parts)


@wrong("federated_round", fails="clients without samples")
class TrainsOnNothing(_Round):
    """The mean of no samples is no number."""

    def trained(self, weights):
        return self.update(weights, self.samples)


@wrong("federated_round", fails="what was given")
class SeedsEverybody(_Round):
    """torch.manual_seed: whoever drops out next does so as in the round before."""

    def chosen(self):
        torch.manual_seed(self.seed)
        return self.drawn(None)


@wrong("federated_round", fails="what was given")
class ReceivesIntoW(_Round):
    """And trains in it."""

    def received(self):
        dist.recv(self.w, 0)
        return self.w


@wrong("federated_round", fails="samples stay where they are")
class ASampleForGoodMeasure(_Round):
    """Sends its first sample along, as an example."""

    def besides(self):
        return self.samples[0] if len(self.samples) else torch.zeros_like(self.w)


@wrong("federated_round", fails="only the chosen talk")
class TellsEveryone(_Round):
    """A broadcast, and a reduce to which those who are not chosen bring zeros."""

    def run(self):
        weights, share = self.w.clone(), self.w.new_zeros(len(self.w) + 1)
        dist.broadcast(weights, 0)
        if self.rank in self.chosen() and len(self.samples):
            share = torch.cat([self.trained(weights), self.w.new_ones(1)]) * len(self.samples)
        dist.reduce(share, 0)
        if self.rank:
            return None
        return share[:-1] / share[-1] if share[-1] else self.w.clone()


@wrong("federated_round", fails="clients train at the same time")
class OneClientAtATime(_Round):
    """Asks the next when the last has answered."""

    def serve(self, chosen):
        parts = []
        for client in chosen:
            self.ask(client)
            parts.append(self.take(client))
        return self.mean(parts)


# --- design_averaging


class _Rounds:
    """Periods of local steps, and a mean of all ranks; with parts that the wrong ones replace.

    period: in steps of the fastest rank; None: few where messages are cheap. by_level: within nodes, then
    between them; else one ring of all. waits: a slow rank makes as many steps as the others. rate: times lr.
    """

    period, by_level, waits, rate = None, True, False, 1

    def __init__(self, w, gradient, steps, lr, seconds, cluster):
        self.rank, self.gpus, self.gradient = dist.get_rank(), cluster.devices_per_node, gradient
        self.groups = list(self.both(cluster)) if self.by_level else [dist.group.WORLD]
        cheap = cluster.inter_node.latency < min(seconds) / 10
        lasts = max((self.period or (2 if cheap else 16)) * min(seconds), *seconds)
        most = int(lasts / min(seconds) + 1e-6)
        own = most if self.waits else int(lasts / seconds[self.rank] + 1e-6)
        for _ in range(steps // most):
            w = self.together(self.alone(w, own, self.rate * lr))

    def both(self, cluster):
        firsts = range(0, cluster.size, self.gpus)
        yield [dist.new_group([*range(first, first + self.gpus)]) for first in firsts][self.rank // self.gpus]
        rails = [dist.new_group([first + place for first in firsts]) for place in range(self.gpus)]
        yield rails[self.rank % self.gpus]

    def alone(self, w, steps, lr):
        for _ in range(steps):
            w = w - lr * self.gradient(w)
        return w

    def together(self, w):
        for group in self.groups:
            dist.all_reduce(w, group=group)
            w = w / dist.get_world_size(group)
        return w


@wrong("design_averaging", fails="reaches the loss")
class Alone(_Rounds):
    """No message takes no time, and each node's ranks learn what their own data is like."""

    def together(self, w):
        return w


@wrong("design_averaging", fails="reaches the loss")
class WithinNodesOnly(_Rounds):
    """The mean of those that are near."""

    def both(self, cluster):
        yield next(iter(super().both(cluster)))


@wrong("design_averaging", fails="half of what can be saved")
class InEachStep(_Rounds):
    """An all-reduce of everyone after each step, as unit 02 has it."""

    period, by_level, waits = 1, False, True


@wrong("design_averaging", fails="half of what can be saved")
class WaitsForTheSlow(_Rounds):
    """Few messages, and as many steps from each rank."""

    waits = True


@wrong("design_averaging", fails="at most half as long again as the best known")
class TooOften(_Rounds):
    """By level and nobody waits, but every three steps, whatever messages cost."""

    period = 3


@wrong("design_averaging", fails="at most a third longer than the best known")
class OneRing(_Rounds):
    """Long periods, and then a ring of all ranks over the slow network."""

    by_level = False
