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
