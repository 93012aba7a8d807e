"""Mistakes that people make in unit 08."""

import torch
import torch.distributed as dist

from tests.answers import wrong

# --- server_bandwidth


@wrong("server_bandwidth", fails="one server")
def of_one_worker(model_bytes, seconds_per_gradient, workers, servers=1):
    """What a worker sends; the server has all of them."""
    return model_bytes / seconds_per_gradient / servers, model_bytes / seconds_per_gradient / servers


@wrong("server_bandwidth", fails="one server")
def of_one_step(model_bytes, seconds_per_gradient, workers, servers=1):
    """Bytes a step, not a second."""
    return workers * model_bytes / servers, workers * model_bytes / servers


@wrong("server_bandwidth", fails="one server")
def seconds_as_a_rate(model_bytes, seconds_per_gradient, workers, servers=1):
    """Takes the seconds of a gradient for gradients a second."""
    rate = workers * model_bytes * seconds_per_gradient / servers
    return rate, rate


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


@wrong("server_bandwidth", fails="one server")
def whole_bytes(model_bytes, seconds_per_gradient, workers, servers=1):
    """Rounds down, though a rate need not be whole."""
    rate = int(workers * model_bytes / seconds_per_gradient / servers)
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


def _worker(w, gradient, steps):
    weights = torch.empty_like(w)
    for _ in range(steps):
        dist.recv(weights, 0)
        dist.send(gradient(weights), 0)


@wrong("parameter_server_sgd", fails="trained weights")
def adds_without_dividing(w, gradient, steps, lr):
    """The sum of the gradients, not their mean."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def counts_the_server(w, gradient, steps, lr):
    """Divides by all ranks; the server has no gradient."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / dist.get_world_size()
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def steps_with_each_gradient(w, gradient, steps, lr):
    """The server steps whenever a gradient comes, and sends the next worker what it has by then."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
            dist.recv(arrived, worker)
            weights -= lr * arrived / workers
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def keeps_the_last_gradient(w, gradient, steps, lr):
    """Receives all gradients into one tensor, and uses what is there in the end."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
        weights -= lr * arrived
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def every_rank_returns(w, gradient, steps, lr):
    """The workers return the weights of the last step but one."""
    workers = dist.get_world_size() - 1
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        if dist.get_rank() > 0:
            dist.recv(weights, 0)
            dist.send(gradient(weights), 0)
            continue
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / workers
    return weights


@wrong("parameter_server_sgd", fails="w unchanged")
def trains_the_callers_weights(w, gradient, steps, lr):
    """Steps in place, in the caller's tensor."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    arrived = torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(w, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        w -= lr * total / workers
    return w


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


@wrong("parameter_server_sgd", fails="messages and bytes")
def sends_the_last_weights_too(w, gradient, steps, lr):
    """After the last step the workers get the weights once more, which nobody asks them for."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        _worker(w, gradient, steps)
        dist.recv(torch.empty_like(w), 0)
        return None
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / workers
    for worker in range(1, workers + 1):
        dist.send(weights, worker)
    return weights


@wrong("parameter_server_sgd", fails="side by side")
def one_worker_after_the_other(w, gradient, steps, lr):
    """Waits for the first worker's gradient before the second gets the weights."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros_like(w)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / workers
    return weights


@wrong("parameter_server_sgd", fails="trained weights")
def adds_in_single_precision(w, gradient, steps, lr):
    """torch.zeros without w's dtype: of a double's digits half are lost."""
    workers = dist.get_world_size() - 1
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    weights, arrived = w.clone(), torch.empty_like(w)
    for _ in range(steps):
        total = torch.zeros(w.shape)
        for worker in range(1, workers + 1):
            dist.send(weights, worker)
        for worker in range(1, workers + 1):
            dist.recv(arrived, worker)
            total += arrived
        weights -= lr * total / workers
    return weights


# --- place_parameters


@wrong("place_parameters", fails="every number once")
def rounds_the_share_down(sizes, servers):
    """Each server gets total // servers numbers; the rest has no place."""
    share = sum(sizes) // servers
    placed, before = [[] for _ in range(servers)], 0
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            start = max(0, server * share - before)
            end = min(size, (server + 1) * share - before)
            if start < end:
                placed[server].append((tensor, start, end))
        before += size
    return placed


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
def largest_first(sizes, servers):
    """Whole tensors, the largest first, each to the server that has least: the best without cutting."""
    placed, held = [[] for _ in range(servers)], [0] * servers
    for tensor in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        server = held.index(min(held))
        held[server] += sizes[tensor]
        if sizes[tensor]:
            placed[server].append((tensor, 0, sizes[tensor]))
    return placed


@wrong("place_parameters", fails="busiest server")
def rest_on_the_last(sizes, servers):
    """total // servers each, and what remains on the last one."""
    share = sum(sizes) // servers
    placed, before = [[] for _ in range(servers)], 0
    for tensor, size in enumerate(sizes):
        for server in range(servers):
            last = server == servers - 1
            start = max(0, server * share - before)
            end = size if last else min(size, (server + 1) * share - before)
            if start < end:
                placed[server].append((tensor, start, end))
        before += size
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


@wrong("place_parameters", fails="every number once")
def looks_for_a_place_for_nothing(sizes, servers):
    """A tensor without numbers at the end is beyond the last server."""
    share = -(-sum(sizes) // servers)
    placed, before = [[] for _ in range(servers)], 0
    for tensor, size in enumerate(sizes):
        pieces, start = placed[before // share], 0
        while start < size:
            pieces = placed[(before + start) // share]
            end = min(size, ((before + start) // share + 1) * share - before)
            pieces.append((tensor, start, end))
            start = end
        before += size
    return placed


# --- deal_dynamically


def _asks(work):
    """A worker as it should be."""
    number, mine = torch.zeros(1, dtype=torch.int64), []
    while True:
        dist.send(number, 0)
        dist.recv(number, 0)
        if number < 0:
            return mine
        mine.append(int(number))
        work(mine[-1])


@wrong("deal_dynamically", fails="each batch once")
def forgets_to_say_the_end(batches, work):
    """When nothing is left, rank 0 returns, and the workers wait for an answer."""
    if dist.get_rank() > 0:
        return _asks(work)
    number, whose = torch.zeros(1, dtype=torch.int64), []
    for batch in range(batches):
        whose.append(dist.recv(number))
        dist.send(torch.tensor([batch]), whose[-1])
    return whose


@wrong("deal_dynamically", fails="each batch once")
def one_batch_too_many(batches, work):
    """Whoever gets a number above the last one stops, and not at the number behind the last."""
    number, mine = torch.zeros(1, dtype=torch.int64), []
    if dist.get_rank() > 0:
        while True:
            dist.send(number, 0)
            dist.recv(number, 0)
            if number > batches:
                return mine
            mine.append(int(number))
            work(mine[-1])
    whose = []
    for batch in range(batches + 1):
        whose.append(dist.recv(number))
        dist.send(torch.tensor([batch]), whose[-1])
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([batches + 1]), dist.recv(number))
    return whose[:-1]


@wrong("deal_dynamically", fails="who had which")
def counts_instead_of_naming(batches, work):
    """Rank 0 returns how many batches each worker had."""
    if dist.get_rank() > 0:
        return _asks(work)
    number, counts = torch.zeros(1, dtype=torch.int64), [0] * dist.get_world_size()
    for batch in range(batches):
        worker = dist.recv(number)
        counts[worker] += 1
        dist.send(torch.tensor([batch]), worker)
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([-1]), dist.recv(number))
    return counts


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
def in_rank_order(batches, work):
    """Rank 0 listens to worker 1, then to worker 2, and so on: who is fast waits for its turn."""
    if dist.get_rank() > 0:
        return _asks(work)
    workers = dist.get_world_size() - 1
    number, whose = torch.zeros(1, dtype=torch.int64), []
    for turn in range(batches + workers):
        worker = 1 + turn % workers
        dist.recv(number, worker)
        dist.send(torch.tensor([turn if turn < batches else -1]), worker)
        whose.append(worker)
    return whose[:batches]


@wrong("deal_dynamically", fails="whoever is free")
def asks_before_it_is_free(batches, work):
    """A worker asks for the next batch before it begins with this one: the slow one hoards."""
    number, mine = torch.zeros(1, dtype=torch.int64), []
    if dist.get_rank() > 0:
        dist.send(number, 0)
        dist.recv(number, 0)
        while number >= 0:
            mine.append(int(number))
            dist.send(number, 0)
            dist.recv(number, 0)
            work(mine[-1])
        return mine
    whose = []
    for batch in range(batches):
        whose.append(dist.recv(number))
        dist.send(torch.tensor([batch]), whose[-1])
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([-1]), dist.recv(number))
    return whose


@wrong("deal_dynamically", fails="whoever is free")
def from_the_last_to_the_first(batches, work):
    """Takes batches from the end of a list."""
    if dist.get_rank() > 0:
        return _asks(work)
    number, whose, left = torch.zeros(1, dtype=torch.int64), [None] * batches, list(range(batches))
    while left:
        batch, worker = left.pop(), dist.recv(number)
        whose[batch] = worker
        dist.send(torch.tensor([batch]), worker)
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([-1]), dist.recv(number))
    return whose


@wrong("deal_dynamically", fails="each batch once")
def numbers_of_a_byte(batches, work):
    """Saves bytes where batches are many: number 128 arrives as -128."""
    number, mine = torch.zeros(1, dtype=torch.int8), []
    if dist.get_rank() > 0:
        while True:
            dist.send(number, 0)
            dist.recv(number, 0)
            if number < 0:
                return mine
            mine.append(int(number))
            work(mine[-1])
    whose = []
    for batch in range(batches):
        whose.append(dist.recv(number))
        dist.send(torch.tensor([batch]).to(torch.int8), whose[-1])
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([-1], dtype=torch.int8), dist.recv(number))
    return whose


@wrong("deal_dynamically", fails="each batch once")
def works_on_the_end(batches, work):
    """Looks at the number after the work."""
    number, mine = torch.zeros(1, dtype=torch.int64), []
    if dist.get_rank() > 0:
        while number >= 0:
            dist.send(number, 0)
            dist.recv(number, 0)
            work(int(number))
            mine.append(int(number))
        return mine[:-1]
    whose = []
    for batch in range(batches):
        whose.append(dist.recv(number))
        dist.send(torch.tensor([batch]), whose[-1])
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([-1]), dist.recv(number))
    return whose


@wrong("deal_dynamically", fails="the star")
def waits_for_all_at_the_end(batches, work):
    """A barrier, so that all are done together."""
    if dist.get_rank() > 0:
        mine = _asks(work)
        dist.barrier()
        return mine
    number, whose = torch.zeros(1, dtype=torch.int64), []
    for batch in range(batches):
        whose.append(dist.recv(number))
        dist.send(torch.tensor([batch]), whose[-1])
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([-1]), dist.recv(number))
    dist.barrier()
    return whose


@wrong("deal_dynamically", fails="small messages")
def says_who_it_is(batches, work):
    """The request holds the worker's rank and its last batch: recv returns the rank anyhow."""
    number, mine = torch.zeros(1, dtype=torch.int64), []
    if dist.get_rank() > 0:
        while True:
            dist.send(torch.tensor([dist.get_rank(), int(number)]), 0)
            dist.recv(number, 0)
            if number < 0:
                return mine
            mine.append(int(number))
            work(mine[-1])
    wish, whose = torch.zeros(2, dtype=torch.int64), []
    for batch in range(batches):
        dist.recv(wish)
        whose.append(int(wish[0]))
        dist.send(torch.tensor([batch]), whose[-1])
    for _ in range(1, dist.get_world_size()):
        dist.send(torch.tensor([-1]), dist.recv(wish))
    return whose


# --- downpour_sgd


def _fetch(weights):
    dist.send(torch.zeros(1), 0)
    dist.recv(weights, 0)


def _push(total):
    dist.send(torch.ones(1), 0)
    dist.send(total, 0)


def _times(steps, every):
    """How often something happens that is done every so many steps, in the last if not before."""
    return -(-steps // every)


def _serve(weights, lr, requests):
    """A server as it should be, for so many messages of each worker."""
    wish, total = torch.empty(1), torch.empty_like(weights)
    for _ in range(requests * (dist.get_world_size() - 1)):
        worker = dist.recv(wish)
        if wish:
            dist.recv(total, worker)
            weights -= lr * total
        else:
            dist.send(weights, worker)
    return weights


def _work(w, gradient, steps, lr, n_push, n_fetch):
    """A worker as it should be."""
    weights, total = torch.empty_like(w), torch.zeros_like(w)
    for step in range(steps):
        if step % n_fetch == 0:
            _fetch(weights)
        each = gradient(weights)
        weights -= lr * each
        total += each
        if (step + 1) % n_push == 0 or step + 1 == steps:
            _push(total)
            total.zero_()


@wrong("downpour_sgd", fails="every gradient once")
def loses_the_last_steps(w, gradient, steps, lr, n_push, n_fetch):
    """Where n_push does not divide the steps, the last gradients are never sent."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr, _times(steps, n_fetch) + steps // n_push)
    weights, total = torch.empty_like(w), torch.zeros_like(w)
    for step in range(steps):
        if step % n_fetch == 0:
            _fetch(weights)
        each = gradient(weights)
        weights -= lr * each
        total += each
        if (step + 1) % n_push == 0:
            _push(total)
            total.zero_()
    return None


@wrong("downpour_sgd", fails="every gradient once")
def goes_on_with_the_sum(w, gradient, steps, lr, n_push, n_fetch):
    """The sum is never emptied: each push has all gradients since the beginning."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr, _times(steps, n_fetch) + _times(steps, n_push))
    weights, total = torch.empty_like(w), torch.zeros_like(w)
    for step in range(steps):
        if step % n_fetch == 0:
            _fetch(weights)
        each = gradient(weights)
        weights -= lr * each
        total += each
        if (step + 1) % n_push == 0 or step + 1 == steps:
            _push(total)
    return None


@wrong("downpour_sgd", fails="every gradient once")
def divides_by_the_workers(w, gradient, steps, lr, n_push, n_fetch):
    """As in synchronous training, the server takes lr / K."""
    if dist.get_rank() == 0:
        rate = lr / (dist.get_world_size() - 1)
        return _serve(w.clone(), rate, _times(steps, n_fetch) + _times(steps, n_push))
    return _work(w, gradient, steps, lr, n_push, n_fetch)


@wrong("downpour_sgd", fails="every gradient once")
def sends_the_mean_of_the_steps(w, gradient, steps, lr, n_push, n_fetch):
    """Divides the sum by n_push."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr / n_push, _times(steps, n_fetch) + _times(steps, n_push))
    return _work(w, gradient, steps, lr, n_push, n_fetch)


@wrong("downpour_sgd", fails="every gradient once")
def pushes_weights(w, gradient, steps, lr, n_push, n_fetch):
    """The server takes over the weights of whoever comes: the others' work is lost."""
    if dist.get_rank() == 0:
        weights, wish = w.clone(), torch.empty(1)
        requests = _times(steps, n_fetch) + _times(steps, n_push)
        for _ in range(requests * (dist.get_world_size() - 1)):
            worker = dist.recv(wish)
            if wish:
                dist.recv(weights, worker)
            else:
                dist.send(weights, worker)
        return weights
    weights = torch.empty_like(w)
    for step in range(steps):
        if step % n_fetch == 0:
            _fetch(weights)
        weights -= lr * gradient(weights)
        if (step + 1) % n_push == 0 or step + 1 == steps:
            _push(weights)
    return None


@wrong("downpour_sgd", fails="w unchanged")
def serves_the_callers_weights(w, gradient, steps, lr, n_push, n_fetch):
    """Steps in the caller's tensor."""
    if dist.get_rank() == 0:
        return _serve(w, lr, _times(steps, n_fetch) + _times(steps, n_push))
    return _work(w, gradient, steps, lr, n_push, n_fetch)


@wrong("downpour_sgd", fails="the star")
def ends_with_a_barrier(w, gradient, steps, lr, n_push, n_fetch):
    """All wait for all in the end."""
    if dist.get_rank() == 0:
        weights = _serve(w.clone(), lr, _times(steps, n_fetch) + _times(steps, n_push))
        dist.barrier()
        return weights
    _work(w, gradient, steps, lr, n_push, n_fetch)
    dist.barrier()
    return None


@wrong("downpour_sgd", fails="messages and bytes")
def fetches_in_every_step(w, gradient, steps, lr, n_push, n_fetch):
    """n_fetch is not looked at."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr, steps + _times(steps, n_push))
    return _work(w, gradient, steps, lr, n_push, 1)


@wrong("downpour_sgd", fails="messages and bytes")
def pushes_in_every_step(w, gradient, steps, lr, n_push, n_fetch):
    """n_push is not looked at."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr, steps + _times(steps, n_fetch))
    return _work(w, gradient, steps, lr, 1, n_fetch)


@wrong("downpour_sgd", fails="messages and bytes")
def acknowledges(w, gradient, steps, lr, n_push, n_fetch):
    """The server answers each request with a number, before what was asked for."""
    wish, total = torch.zeros(1), torch.zeros_like(w)
    weights = w.clone()
    if dist.get_rank() == 0:
        for _ in range((_times(steps, n_fetch) + _times(steps, n_push)) * (dist.get_world_size() - 1)):
            worker = dist.recv(wish)
            dist.send(wish, worker)
            if wish:
                dist.recv(total, worker)
                weights -= lr * total
            else:
                dist.send(weights, worker)
        return weights
    for step in range(steps):
        if step % n_fetch == 0:
            dist.send(torch.zeros(1), 0)
            dist.recv(wish, 0)
            dist.recv(weights, 0)
        each = gradient(weights)
        weights -= lr * each
        total += each
        if (step + 1) % n_push == 0 or step + 1 == steps:
            dist.send(torch.ones(1), 0)
            dist.recv(wish, 0)
            dist.send(total, 0)
            total.zero_()
    return None


@wrong("downpour_sgd", fails="order of the steps")
def keeps_all_sums_to_the_end(w, gradient, steps, lr, n_push, n_fetch):
    """Every sum is pushed after the last step: until then nobody learns anything."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr, _times(steps, n_fetch) + _times(steps, n_push))
    weights, total, sums = torch.empty_like(w), torch.zeros_like(w), []
    for step in range(steps):
        if step % n_fetch == 0:
            _fetch(weights)
        each = gradient(weights)
        weights -= lr * each
        total += each
        if (step + 1) % n_push == 0 or step + 1 == steps:
            sums.append(total.clone())
            total.zero_()
    for each in sums:
        _push(each)
    return None


@wrong("downpour_sgd", fails="order of the steps")
def fetches_before_it_pushes(w, gradient, steps, lr, n_push, n_fetch):
    """The weights come without the worker's own last sum, which it still holds."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr, _times(steps, n_fetch) + _times(steps, n_push))
    weights, total = torch.empty_like(w), torch.zeros_like(w)
    for step in range(steps):
        if step % n_fetch == 0:
            _fetch(weights)
        if step and step % n_push == 0:
            _push(total)
            total.zero_()
        each = gradient(weights)
        weights -= lr * each
        total += each
    if steps:
        _push(total)
    return None


@wrong("downpour_sgd", fails="weights of each step")
def stands_still_between_fetches(w, gradient, steps, lr, n_push, n_fetch):
    """A worker computes all gradients until the next fetch at the same weights."""
    if dist.get_rank() == 0:
        return _serve(w.clone(), lr, _times(steps, n_fetch) + _times(steps, n_push))
    return _work(w, gradient, steps, 0.0, n_push, n_fetch)


@wrong("downpour_sgd", fails="weights of each step")
def always_sends_the_first_weights(w, gradient, steps, lr, n_push, n_fetch):
    """Gradients go to a copy, and fetches get what the copy was made of."""
    if dist.get_rank() > 0:
        return _work(w, gradient, steps, lr, n_push, n_fetch)
    weights, wish, total = w.clone(), torch.empty(1), torch.empty_like(w)
    requests = _times(steps, n_fetch) + _times(steps, n_push)
    for _ in range(requests * (dist.get_world_size() - 1)):
        worker = dist.recv(wish)
        if wish:
            dist.recv(total, worker)
            weights -= lr * total
        else:
            dist.send(w, worker)
    return weights


@wrong("downpour_sgd", fails="waits for nobody")
def serves_in_turns(w, gradient, steps, lr, n_push, n_fetch):
    """One message from each worker, in the order of their ranks, then the next from each."""
    if dist.get_rank() > 0:
        return _work(w, gradient, steps, lr, n_push, n_fetch)
    weights, wish, total = w.clone(), torch.empty(1), torch.empty_like(w)
    for _ in range(_times(steps, n_fetch) + _times(steps, n_push)):
        for worker in range(1, dist.get_world_size()):
            dist.recv(wish, worker)
            if wish:
                dist.recv(total, worker)
                weights -= lr * total
            else:
                dist.send(weights, worker)
    return weights


# --- staleness


@wrong("staleness", fails="updates in between")
def counts_from_the_beginning(log):
    """The version at the update, whatever was read."""
    _check_read(log)
    return list(range(sum(what == "write" for what, _ in log)))


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


@wrong("staleness", fails="updates in between")
def since_anyone_read(log):
    """One version for all: that of the last reading, whoever read."""
    _check_read(log)
    version, read, ages = 0, 0, []
    for what, _ in log:
        if what == "read":
            read = version
        else:
            ages.append(version - read)
            version += 1
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
class CountsTheNextStep(_Clock):
    """Looks at the lead that the worker would have after its next step."""

    def may_go_on(self, worker):
        lead = self.steps[worker] - min(self.steps)
        return lead == 0 or lead + 1 <= self.bound


@wrong("BoundedClock", fails="who may go on")
class AheadOfTheSecond(_Clock):
    """Measures the lead over the slowest of the others."""

    def may_go_on(self, worker):
        others = [steps for other, steps in enumerate(self.steps) if other != worker]
        return self.steps[worker] - min(others, default=0) <= self.bound


@wrong("BoundedClock", fails="who may go on")
class FewTicks(_Clock):
    """Allows a number of steps in all, not ahead of the others."""

    def may_go_on(self, worker):
        return self.steps[worker] <= self.bound


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


@wrong("BoundedClock", fails="without leave")
class IgnoresThem(_Clock):
    """Does not count the step, and says nothing."""

    def tick(self, worker):
        self.steps[worker] += self.may_go_on(worker)


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


@wrong("BoundedClock", fails="without leave")
class GoesByWhatItSaid(_Clock):
    """A tick looks at what may_go_on said last, if anyone has asked."""

    def __init__(self, workers, bound):
        super().__init__(workers, bound)
        self.said = [True] * workers

    def may_go_on(self, worker):
        self.said[worker] = super().may_go_on(worker)
        return self.said[worker]

    def tick(self, worker):
        if not self.said[worker]:
            raise RuntimeError
        self.steps[worker] += 1


@wrong("BoundedClock", fails="two clocks")
class OneBoundForAll(_Clock):
    """The bound belongs to the class: the last clock's counts."""

    def __init__(self, workers, bound):
        self.steps, type(self).bound = [0] * workers, bound


# --- ssp_sgd


def _bounded(weights, lr, steps, bound, copies=False):
    """A server as it should be, unless copies are made when a worker begins to wait."""
    workers = dist.get_world_size() - 1
    clock, arrived = _Clock(workers, bound), torch.empty_like(weights)
    left, waiting = [steps] * workers, [(worker, weights) for worker in range(workers)]
    for _ in range(steps * workers):
        free = [each for each in waiting if clock.may_go_on(each[0])]
        waiting = [each for each in waiting if each not in free]
        for worker, copy in free:
            dist.send(copy, worker + 1)
            left[worker] -= 1
        worker = dist.recv(arrived) - 1
        weights -= lr * arrived
        clock.tick(worker)
        if left[worker]:
            waiting.append((worker, weights.clone() if copies else weights))
    return weights


@wrong("ssp_sgd", fails="every gradient once")
def whole_steps(w, gradient, steps, lr, bound):
    """lr times each gradient, K times too much."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    return _bounded(w.clone(), lr, steps, bound)


@wrong("ssp_sgd", fails="nobody within it waits")
def first_come_first_served(w, gradient, steps, lr, bound):
    """Only the first of those who wait is looked at: others wait behind it."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    workers = dist.get_world_size() - 1
    weights, arrived, clock = w.clone(), torch.empty_like(w), _Clock(workers, bound)
    left, waiting = [steps] * workers, list(range(workers))
    for _ in range(steps * workers):
        while waiting and clock.may_go_on(waiting[0]):
            dist.send(weights, waiting[0] + 1)
            left[waiting.pop(0)] -= 1
        worker = dist.recv(arrived) - 1
        weights -= lr / workers * arrived
        clock.tick(worker)
        if left[worker]:
            waiting.append(worker)
    return weights


@wrong("ssp_sgd", fails="w unchanged")
def bounded_in_place(w, gradient, steps, lr, bound):
    """Steps in the caller's tensor."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    return _bounded(w, lr / (dist.get_world_size() - 1), steps, bound)


@wrong("ssp_sgd", fails="the star")
def a_barrier_in_the_end(w, gradient, steps, lr, bound):
    """All wait for all in the end."""
    if dist.get_rank() > 0:
        _worker(w, gradient, steps)
        return dist.barrier()
    weights = _bounded(w.clone(), lr / (dist.get_world_size() - 1), steps, bound)
    dist.barrier()
    return weights


@wrong("ssp_sgd", fails="messages and bytes")
def weights_after_the_last_step(w, gradient, steps, lr, bound):
    """The workers get the last weights as well."""
    if dist.get_rank() > 0:
        _worker(w, gradient, steps)
        dist.recv(torch.empty_like(w), 0)
        return None
    weights = _bounded(w.clone(), lr / (dist.get_world_size() - 1), steps, bound)
    for worker in range(1, dist.get_world_size()):
        dist.send(weights, worker)
    return weights


@wrong("ssp_sgd", fails="lead at most the bound")
def nobody_ever_waits(w, gradient, steps, lr, bound):
    """The bound is not looked at."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    return _bounded(w.clone(), lr / (dist.get_world_size() - 1), steps, float("inf"))


@wrong("ssp_sgd", fails="lead at most the bound")
def one_step_too_far(w, gradient, steps, lr, bound):
    """A worker may be bound + 1 steps ahead."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    return _bounded(w.clone(), lr / (dist.get_world_size() - 1), steps, bound + 1)


@wrong("ssp_sgd", fails="nobody within it waits")
def always_in_step(w, gradient, steps, lr, bound):
    """Synchronous, whatever the bound."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    return _bounded(w.clone(), lr / (dist.get_world_size() - 1), steps, 0)


@wrong("ssp_sgd", fails="nobody within it waits")
def waits_at_the_bound(w, gradient, steps, lr, bound):
    """A worker whose lead is the bound waits."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    return _bounded(w.clone(), lr / (dist.get_world_size() - 1), steps, max(0, bound - 1))


@wrong("ssp_sgd", fails="weights as they are")
def weights_as_they_were(w, gradient, steps, lr, bound):
    """Whoever waits gets the weights of the moment when it began to wait."""
    if dist.get_rank() > 0:
        return _worker(w, gradient, steps)
    return _bounded(w.clone(), lr / (dist.get_world_size() - 1), steps, bound, copies=True)


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


@wrong("tree_step", fails="the step")
def every_rank_for_itself(model, lr):
    """Nobody is asked."""
    trained = _trainable(model)
    _descend(trained, _end_to_end(trained), lr)


@wrong("tree_step", fails="the step")
def means_of_means(model, lr):
    """Half of the sum in each round: right for powers of two only if all have gone through as many."""
    trained = _trainable(model)
    _descend(trained, _along_a_tree(_end_to_end(trained) / 2), lr)


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


@wrong("tree_step", fails="any number of ranks")
def three_levels(model, lr):
    """Enough for eight ranks."""
    trained = _trainable(model)
    total = _end_to_end(trained)
    rank, size, arriving = dist.get_rank(), dist.get_world_size(), torch.empty_like(total)
    for distance in (1, 2, 4):
        if rank % (2 * distance) == distance:
            dist.send(total, rank - distance)
            dist.recv(total, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < size:
            dist.recv(arriving, rank + distance)
            total += arriving
    for distance in (4, 2, 1):
        if rank % (2 * distance) == 0 and rank + distance < size:
            dist.send(total, rank + distance)
    _descend(trained, total / size, lr)


@wrong("tree_step", fails="missing gradients")
def skips_what_has_no_gradient(model, lr):
    """Ranks then send messages of different lengths."""
    trained = [p for p in _trainable(model) if p.grad is not None]
    _descend(trained, _along_a_tree(_end_to_end(trained)) / dist.get_world_size(), lr)


@wrong("tree_step", fails="missing gradients")
def divides_by_those_who_have_one(model, lr):
    """A gradient that a rank lacks does not count there, in place of counting as zero."""
    trained = _trainable(model)
    has = torch.cat([torch.full((p.numel(),), float(p.grad is not None)) for p in trained])
    both = _along_a_tree(torch.cat([_end_to_end(trained), has.to(trained[0].dtype)]))
    total, count = both.chunk(2)
    _descend(trained, total / count.clamp(min=1), lr)


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


@wrong("tree_step", fails="only send and recv")
def calls_all_reduce(model, lr):
    """Somebody else's tree."""
    trained = _trainable(model)
    total = _end_to_end(trained)
    dist.all_reduce(total)
    _descend(trained, total / dist.get_world_size(), lr)


@wrong("tree_step", fails="messages")
def a_message_a_parameter(model, lr):
    """The tree once for each parameter."""
    for p in _trainable(model):
        _descend([p], _along_a_tree(_end_to_end([p])) / dist.get_world_size(), lr)


@wrong("tree_step", fails="messages")
def doubling(model, lr):
    """All ranks exchange in each round: as fast, and p / 2 times as many messages."""
    trained = _trainable(model)
    total = _end_to_end(trained)
    rank, size = dist.get_rank(), dist.get_world_size()
    largest, distance = 1 << (size.bit_length() - 1), 1
    arriving = torch.empty_like(total)
    if rank >= largest:
        dist.send(total, rank - largest)
        dist.recv(total, rank - largest)
        _descend(trained, total / size, lr)
        return
    if rank + largest < size:
        dist.recv(arriving, rank + largest)
        total += arriving
    while distance < largest:
        sending = dist.isend(total.clone(), rank ^ distance)
        dist.recv(arriving, rank ^ distance)
        sending.wait()
        total = total + arriving if rank & distance == 0 else arriving + total
        distance *= 2
    if rank + largest < size:
        dist.send(total, rank + largest)
    _descend(trained, total / size, lr)


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


@wrong("tree_step", fails="rounds")
def a_heap(model, lr):
    """Two children for everyone: each level takes two rounds."""
    trained = _trainable(model)
    total = _end_to_end(trained)
    rank, size, arriving = dist.get_rank(), dist.get_world_size(), torch.empty_like(total)
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < size]
    for child in children:
        dist.recv(arriving, child)
        total += arriving
    if rank:
        dist.send(total, (rank - 1) // 2)
        dist.recv(total, (rank - 1) // 2)
    for child in children:
        dist.send(total, child)
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


@wrong("local_sgd", fails="the weights")
def never_speaks(model, optimizer, batches, loss_fn, period):
    """Each rank has its own model."""
    return _trains(model, optimizer, batches, loss_fn, lambda step: None)


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

    def after_step(step):
        if _due(step, batches, period):
            _average(_trainable(model))

    return _trains(model, optimizer, batches, loss_fn, after_step, clear=False)


@wrong("local_sgd", fails="the weights")
def counts_from_zero(model, optimizer, batches, loss_fn, period):
    """Averages after the first step, and then one step late."""

    def after_step(step):
        if (step - 1) % period == 0 or step == len(batches):
            _average(_trainable(model))

    return _trains(model, optimizer, batches, loss_fn, after_step)


@wrong("local_sgd", fails="the weights")
def forgets_the_momentum(model, optimizer, batches, loss_fn, period):
    """Begins each period with a new optimizer."""

    def after_step(step):
        if _due(step, batches, period):
            _average(_trainable(model))
            optimizer.state.clear()

    return _trains(model, optimizer, batches, loss_fn, after_step)


@wrong("local_sgd", fails="any period, any number of ranks")
def leaves_the_rest(model, optimizer, batches, loss_fn, period):
    """Seven steps by threes: after the seventh the ranks are apart."""

    def after_step(step):
        if step % period == 0:
            _average(_trainable(model))

    return _trains(model, optimizer, batches, loss_fn, after_step)


@wrong("local_sgd", fails="any period, any number of ranks")
def drops_the_rest(model, optimizer, batches, loss_fn, period):
    """Whole periods only."""
    whole = batches[: len(batches) // period * period]

    def after_step(step):
        if step % period == 0:
            _average(_trainable(model))

    return _trains(model, optimizer, whole, loss_fn, after_step)


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


@wrong("local_sgd", fails="what stays a rank's own")
def evaluates_from_now_on(model, optimizer, batches, loss_fn, period):
    """Leaves train mode."""

    def after_step(step):
        if _due(step, batches, period):
            _average(_trainable(model))

    model.eval()
    return _trains(model, optimizer, batches, loss_fn, after_step)


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

    def after_step(step):
        if _due(step, batches, period):
            _average([*_trainable(model), *model.buffers()])

    return _trains(model, optimizer, batches, loss_fn, after_step)


@wrong("local_sgd", fails="what stays a rank's own")
def new_parameters(model, optimizer, batches, loss_fn, period):
    """At the end the model has parameters that its optimizer does not know."""

    def after_step(step):
        if _due(step, batches, period):
            _average(_trainable(model))

    losses = _trains(model, optimizer, batches, loss_fn, after_step)
    new = {p: torch.nn.Parameter(p.detach().clone(), p.requires_grad) for p in model.parameters()}
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, new[p])
    return losses


@wrong("local_sgd", fails="losses")
def tensors_with_a_history(model, optimizer, batches, loss_fn, period):
    """The mean loss of each period."""

    def after_step(step):
        if _due(step, batches, period):
            _average(_trainable(model))

    losses = _trains(model, optimizer, batches, loss_fn, after_step)
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


@wrong("local_sgd", fails="all-reduces")
def sends_what_is_frozen(model, optimizer, batches, loss_fn, period):
    """The frozen layer travels, and comes back as it was."""

    def after_step(step):
        if _due(step, batches, period):
            frozen = [p.detach().clone() for p in model.parameters() if not p.requires_grad]
            _average([*_trainable(model), *frozen])

    return _trains(model, optimizer, batches, loss_fn, after_step)


# ----------------------------------------------------------------------------------------- federated_round


class _Round:
    """A right round, of which each mistake replaces a part."""

    def __init__(self, w, client_update, samples, fraction, seed):
        self.w, self.update, self.samples = w, client_update, samples
        self.rank, self.clients = dist.get_rank(), dist.get_world_size() - 1
        self.fraction, self.seed = fraction, seed

    def count(self):
        return max(1, round(self.fraction * self.clients))

    def chosen(self):
        generator = torch.Generator().manual_seed(self.seed)
        return [
            1 + client
            for client in torch.randperm(self.clients, generator=generator)[: self.count()].tolist()
        ]

    def trained(self, weights):
        return self.update(weights, self.samples) if len(self.samples) else weights

    def answer(self):
        weights = torch.empty_like(self.w)
        dist.recv(weights, 0)
        weights = self.trained(weights)
        dist.send(torch.cat([weights, weights.new_tensor([len(self.samples)])]), 0)

    def ask(self, client):
        dist.send(self.w, client)

    def take(self, client):
        arriving = self.w.new_empty(len(self.w) + 1)
        dist.recv(arriving, client)
        return arriving[:-1], arriving[-1]

    def mean(self, parts):
        n = sum(count for _, count in parts)
        return sum(count * weights for weights, count in parts) / n if n else self.w.clone()

    def serve(self, chosen):
        for client in chosen:
            self.ask(client)
        return self.mean([self.take(client) for client in chosen])

    def hold(self):
        chosen = self.chosen()
        if self.rank in chosen:
            self.answer()
        return None if self.rank else self.serve(chosen)


def _held(kind, arguments):
    return kind(*arguments).hold()


@wrong("federated_round", fails="the mean of the chosen")
def all_count_alike(*arguments):
    """1 / K for each, however many samples it has."""

    class Alike(_Round):
        def mean(self, parts):
            return torch.stack([weights for weights, _ in parts]).mean(0)

    return _held(Alike, arguments)


@wrong("federated_round", fails="the mean of the chosen")
def trains_from_its_own(*arguments):
    """From the client's w, in place of what the server sent."""

    class Own(_Round):
        def trained(self, weights):
            return super().trained(self.w.clone())

    return _held(Own, arguments)


@wrong("federated_round", fails="the mean of the chosen")
def keeps_the_server_in_the_mean(*arguments):
    """The old weights count as one more client."""

    class Damped(_Round):
        def mean(self, parts):
            return (super().mean(parts) + self.w) / 2

    return _held(Damped, arguments)


@wrong("federated_round", fails="the mean of the chosen")
def returns_on_all_ranks(*arguments):
    """Clients return what they had."""
    result = _held(_Round, arguments)
    return arguments[0] if result is None else result


@wrong("federated_round", fails="how many are chosen")
def rounds_down(*arguments):
    """int() for round()."""

    class Down(_Round):
        def count(self):
            return max(1, int(self.fraction * self.clients))

    return _held(Down, arguments)


@wrong("federated_round", fails="how many are chosen")
def rounds_up(*arguments):
    """So many at least."""

    class Up(_Round):
        def count(self):
            return max(1, -int(-self.fraction * self.clients // 1))

    return _held(Up, arguments)


@wrong("federated_round", fails="how many are chosen")
def nobody_if_few(*arguments):
    """Without the 1."""

    class Few(_Round):
        def count(self):
            return round(self.fraction * self.clients)

    return _held(Few, arguments)


@wrong("federated_round", fails="chosen at random")
def always_the_first(*arguments):
    """Clients 1 to m."""

    class First(_Round):
        def chosen(self):
            return list(range(1, self.count() + 1))

    return _held(First, arguments)


@wrong("federated_round", fails="chosen at random")
def one_after_the_other(*arguments):
    """Neighbours, beginning with the seed's."""

    class Neighbours(_Round):
        def chosen(self):
            return [1 + (self.seed + place) % self.clients for place in range(self.count())]

    return _held(Neighbours, arguments)


@wrong("federated_round", fails="chosen at random")
def whatever_comes(*arguments):
    """From the state that the ranks happen to have."""

    class Next(_Round):
        def chosen(self):
            return [1 + client for client in torch.randperm(self.clients)[: self.count()].tolist()]

    return _held(Next, arguments)


@wrong("federated_round", fails="clients without samples")
def divides_by_nothing(*arguments):
    """0 / 0."""

    class Zero(_Round):
        def mean(self, parts):
            return sum(count * weights for weights, count in parts) / sum(count for _, count in parts)

    return _held(Zero, arguments)


@wrong("federated_round", fails="clients without samples")
def trains_on_nothing(*arguments):
    """The mean of no samples is no number."""

    class Nothing(_Round):
        def trained(self, weights):
            return self.update(weights, self.samples)

    return _held(Nothing, arguments)


@wrong("federated_round", fails="what was given")
def seeds_everybody(*arguments):
    """torch.manual_seed: whoever drops out next does so as in the round before."""

    class Global(_Round):
        def chosen(self):
            torch.manual_seed(self.seed)
            return [1 + client for client in torch.randperm(self.clients)[: self.count()].tolist()]

    return _held(Global, arguments)


@wrong("federated_round", fails="what was given")
def receives_into_w(*arguments):
    """And trains in it."""

    class Into(_Round):
        def answer(self):
            dist.recv(self.w, 0)
            weights = self.trained(self.w)
            dist.send(torch.cat([weights, weights.new_tensor([len(self.samples)])]), 0)

    return _held(Into, arguments)


@wrong("federated_round", fails="samples stay where they are")
def a_sample_for_good_measure(*arguments):
    """Sends its first sample along, as an example."""

    class Example(_Round):
        def answer(self):
            weights = torch.empty_like(self.w)
            dist.recv(weights, 0)
            weights = self.trained(weights)
            example = self.samples[0] if len(self.samples) else torch.zeros_like(self.w)
            dist.send(torch.cat([weights, weights.new_tensor([len(self.samples)]), example]), 0)

        def take(self, client):
            arriving = self.w.new_empty(2 * len(self.w) + 1)
            dist.recv(arriving, client)
            return arriving[: len(self.w)], arriving[len(self.w)]

    return _held(Example, arguments)


@wrong("federated_round", fails="samples stay where they are")
def server_weighs_the_data(*arguments):
    """Sends all samples, of which the server counts the rows."""

    class Rows(_Round):
        def answer(self):
            super().answer()
            dist.send(self.samples.contiguous(), 0)

        def take(self, client):
            weights, count = super().take(client)
            rows = self.w.new_empty(int(count), len(self.w))
            dist.recv(rows, client)
            return weights, torch.tensor(float(len(rows)), dtype=self.w.dtype)

    return _held(Rows, arguments)


@wrong("federated_round", fails="only the chosen talk")
def tells_everyone(w, client_update, samples, fraction, seed):
    """A broadcast, and a reduce to which those who are not chosen bring zeros."""
    held = _Round(w, client_update, samples, fraction, seed)
    weights = w.clone()
    dist.broadcast(weights, 0)
    share = w.new_zeros(len(w) + 1)
    if held.rank in held.chosen() and len(samples):
        share = torch.cat([held.trained(weights), w.new_ones(1)]) * len(samples)
    dist.reduce(share, 0)
    if held.rank:
        return None
    return share[:-1] / share[-1] if share[-1] else w.clone()


@wrong("federated_round", fails="only the chosen talk")
def asks_twice(*arguments):
    """Sends the count alone, then the weights twice."""

    class Twice(_Round):
        def answer(self):
            super().answer()
            dist.send(torch.zeros_like(self.w), 0)

        def take(self, client):
            part = super().take(client)
            dist.recv(torch.empty_like(self.w), client)
            return part

    return _held(Twice, arguments)


@wrong("federated_round", fails="clients train at the same time")
def one_client_at_a_time(*arguments):
    """Asks the next when the last has answered."""

    class Serial(_Round):
        def serve(self, chosen):
            parts = []
            for client in chosen:
                self.ask(client)
                parts.append(self.take(client))
            return self.mean(parts)

    return _held(Serial, arguments)
