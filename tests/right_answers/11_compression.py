"""Right answers of unit 11, written differently."""

import torch
import torch.distributed as dist

from tests.answers import right

# --- fp16_hook


@right("fp16_hook")
def in_the_buffer(state, bucket):
    """Divides the buffer itself, and lets the future hand over what came."""
    buffer = bucket.buffer().div_(dist.get_world_size(state))
    future = dist.all_reduce(buffer.half(), group=state, async_op=True).get_future()
    return future.then(lambda arrived: buffer.copy_(arrived.value()[0]))


@right("fp16_hook")
def a_future_of_its_own(state, bucket):
    """A new future, which a callback of the other one fills."""
    gradients = bucket.buffer()
    half = gradients.div(dist.get_world_size(state)).half()
    mean = torch.futures.Future()
    arriving = dist.all_reduce(half, group=state, async_op=True).get_future()
    arriving.add_done_callback(lambda done: mean.set_result(done.value()[0].to(gradients.dtype)))
    return mean


# --- quantise, dequantise


@right("quantise")
def up_with_a_chance(x, levels, generator):
    """The lower level, and one more with the chance that is asked for."""
    length = x.square().sum().sqrt()
    scale = length / levels
    steps = x / torch.where(scale > 0, scale, 1)
    low = steps.floor()
    up = torch.rand(x.shape, generator=generator, dtype=x.dtype) < steps - low
    return (low + up).clamp(-levels, levels).to(torch.int8), scale


@right("dequantise")
def converts_first(codes, scale):
    """In the scale's dtype, and there in place."""
    return codes.to(scale.dtype).mul_(scale)


@right("dequantise")
def scale_in_front(codes, scale):
    return torch.mul(scale, codes)


# --- one_bit


@right("one_bit")
def by_weights(x, error):
    """A product with the powers of two."""
    total = x + error
    signs = torch.ones_like(total).masked_fill(total < 0, -1)
    scale = (total * signs).mean()
    error[:] = total - scale * signs
    eights = torch.zeros(-(-len(x) // 8) * 8, dtype=torch.int64)
    eights[: len(x)] = signs > 0
    return (eights.view(-1, 8) @ (2 ** torch.arange(8))).to(torch.uint8), scale


# --- top_k


@right("top_k")
def by_place(x, ratio, error):
    """Indices in rising order, and error filled in its own memory."""
    error.add_(x)
    flat = error.flatten().view_as(error.view(-1))
    chosen = torch.topk(flat.abs(), max(round(ratio * flat.numel()), 1), sorted=False).indices.sort().values
    values = flat.gather(0, chosen).clone()
    error.view(-1).scatter_(0, chosen, 0)
    return values, chosen.to(dtype=torch.int32)


# --- sparse_all_reduce


@right("sparse_all_reduce")
def messages_to_all(values, indices, length):
    """Messages between each two ranks, of as many pairs as there are."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(counts, torch.tensor([len(values)]))
    others = [other for other in range(ranks) if other != rank]
    held = {rank: (values, indices)}
    works = []
    for other in others:
        count = int(counts[other])
        held[other] = (values.new_empty(count), indices.new_empty(count))
        works += [dist.irecv(part, other, tag=tag) for tag, part in enumerate(held[other])]
        works += [dist.isend(part, other, tag=tag) for tag, part in enumerate((values, indices))]
    for work in works:
        work.wait()
    total = torch.zeros(length, dtype=values.dtype)
    for each in range(ranks):
        total.index_add_(0, held[each][1].long(), held[each][0])
    return total


@right("sparse_all_reduce")
def in_one_message(values, indices, length):
    """Values and indices as bytes of one tensor; what fills up points behind the end."""
    ranks = dist.get_world_size()
    most = torch.tensor([len(values)])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    room = int(most) - len(values)
    padded = torch.cat([indices, indices.new_full((room,), length)])
    both = torch.cat(
        [torch.cat([values, values.new_zeros(room)]).view(torch.uint8), padded.view(torch.uint8)]
    )
    received = [torch.empty_like(both) for _ in range(ranks)]
    dist.all_gather(received, both)
    total = values.new_zeros(length + 1)
    for part in received:
        cut = int(most) * values.element_size()
        total.scatter_add_(
            0, part[cut:].clone().view(indices.dtype).long(), part[:cut].clone().view(values.dtype)
        )
    return total[:length].clone()


@right("sparse_all_reduce")
def all_to_all_and_a_sparse_tensor(values, indices, length):
    """The same pairs to everyone by all_to_all; a sparse tensor of PyTorch's adds those of one place up."""
    ranks = dist.get_world_size()
    counts = torch.empty(ranks, dtype=torch.int64)
    dist.all_to_all_single(counts, torch.full((ranks,), len(values)))
    values_of = [values.new_empty(count) for count in counts.tolist()]
    indices_of = [indices.new_empty(count) for count in counts.tolist()]
    dist.all_to_all(values_of, [values] * ranks)
    dist.all_to_all(indices_of, [indices] * ranks)
    places = torch.cat(indices_of).long().unsqueeze(0)
    return torch.sparse_coo_tensor(places, torch.cat(values_of), (length,), check_invariants=True).to_dense()


# --- pays_off


@right("pays_off")
def message_by_message(nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
    """Adds up the seconds of each round."""

    def lasts(rounds, size):
        return sum(alpha + size * beta for _ in range(rounds))

    dense = lasts(2 * (ranks - 1), nbytes / ranks)
    if adds_up:
        return seconds + lasts(2 * (ranks - 1), ratio * nbytes / ranks) < dense
    return seconds + lasts(ranks - 1, ratio * nbytes) < dense


@right("dgc_step")
def counts_what_went(gradient, velocity, kept, momentum, ratio):
    """Through a flat copy that is written back, one place after the other."""
    torch.add(gradient, velocity, alpha=momentum, out=velocity)
    waiting = (kept + velocity).flatten().tolist()
    places = sorted(range(len(waiting)), key=lambda place: -abs(waiting[place]))
    places = places[: max(1, round(ratio * len(waiting)))]
    values = torch.tensor([waiting[place] for place in places], dtype=kept.dtype)
    for place in places:
        waiting[place] = 0.0
    kept.copy_(torch.tensor(waiting, dtype=kept.dtype).view(kept.shape))
    return values, torch.tensor(places, dtype=torch.int32)


@right("error_feedback")
def generator_of_steps(compress):
    """A coroutine, whose local variable is the memory."""

    def steps():
        x = yield
        missing = torch.zeros_like(x)
        while True:
            missing += x
            arrives = compress(missing.clone())
            missing -= arrives
            x = yield arrives

    running = steps()
    next(running)
    return running.send


@right("PowerSGD")
class FutureOfTheSecond:
    """Both all-reduces asynchronous, one following from the other; the basis is of singular vectors."""

    def __init__(self, rank, seed=0):
        self.rank, self.state = rank, {}
        self.generator = torch.Generator()
        self.generator.manual_seed(seed)

    def hook(self, bucket):
        buffer, ranks = bucket.buffer(), dist.get_world_size()
        of_bucket = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        low, whole = [], []
        for parameter, gradient in of_bucket:
            m = gradient.numel() // max(1, gradient.shape[0]) if gradient.dim() > 1 else 0
            small = gradient.dim() > 1 and self.rank * (gradient.shape[0] + m) < gradient.numel()
            if not small:
                whole.append(gradient)
                continue
            if id(parameter) not in self.state:
                q = torch.randn(m, self.rank, generator=self.generator, dtype=gradient.dtype)
                self.state[id(parameter)] = [q, torch.zeros(gradient.shape[0], m, dtype=gradient.dtype)]
            kept = self.state[id(parameter)]
            low.append((kept, gradient, gradient.reshape(-1, m) + kept[1]))
        first = torch.cat(
            [(matrix @ kept[0]).flatten() for kept, _, matrix in low] + [g.flatten() for g in whole]
        )

        def unpack(future):
            rest = future.value()[0]
            bases = []
            for _, gradient, _ in low:
                count = gradient.shape[0] * self.rank
                bases.append(torch.linalg.svd(rest[:count].view(-1, self.rank), full_matrices=False).U)
                rest = rest[count:]
            for gradient in whole:
                gradient.copy_(rest[: gradient.numel()].view(gradient.shape) / ranks)
                rest = rest[gradient.numel() :]
            if not low:
                return buffer
            second = torch.cat([(matrix.T @ p).flatten() for (*_, matrix), p in zip(low, bases, strict=True)])
            dist.all_reduce(second, async_op=True).get_future().wait()
            second /= ranks
            for (kept, gradient, matrix), p in zip(low, bases, strict=True):
                count = matrix.shape[1] * self.rank
                kept[0], second = second[:count].view(-1, self.rank).clone(), second[count:]
                gradient.copy_((p @ kept[0].T).view(gradient.shape))
                kept[1] = matrix - p @ kept[0].T
            return buffer

        return dist.all_reduce(first, async_op=True).get_future().then(unpack)


@right("PowerSGD")
class SecondTensorsFirst:
    """Whole gradients travel with Q; the basis is that of the largest eigenvectors of P transpose(P).

    What is kept is kept as attributes of the parameters.
    """

    def __init__(self, rank, seed=0):
        self.rank = rank
        self.draw = torch.Generator().manual_seed(seed)

    def hook(self, bucket):
        sides = {}
        for parameter in bucket.parameters():
            n = parameter.shape[0] if parameter.dim() > 1 else 1
            m = parameter.numel() // n
            if self.rank * (n + m) < n * m:
                sides[parameter] = n, m
                if not hasattr(parameter, "q"):
                    parameter.q = torch.randn(m, self.rank, generator=self.draw, dtype=parameter.dtype)
                    parameter.e = parameter.new_zeros(n, m)
        gradients = dict(zip(bucket.parameters(), bucket.gradients(), strict=True))
        left, matrices = {}, {}
        for parameter, shape in sides.items():
            matrices[parameter] = parameter.e.add_(gradients[parameter].reshape(shape)).detach()
            left[parameter] = matrices[parameter] @ parameter.q
        if left:
            self.reduce(left)
            left = {key: torch.linalg.eigh(p @ p.mT).eigenvectors[:, -self.rank :] for key, p in left.items()}
        right = {key: matrices[key].mT @ p for key, p in left.items()}
        others = {key: gradient for key, gradient in gradients.items() if key not in sides}
        self.reduce(right | others)
        for key, p in left.items():
            key.q = right[key]
            arrives = p @ right[key].mT
            gradients[key].copy_(arrives.view_as(gradients[key]))
            key.e = matrices[key] - arrives
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def reduce(self, tensors):
        together = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
        dist.all_reduce(together)
        together /= dist.get_world_size()
        for tensor, part in zip(
            tensors.values(), together.split([t.numel() for t in tensors.values()]), strict=True
        ):
            tensor.copy_(part.view(tensor.shape))


@right("design_hook")
def every_second_step(steps):
    """Twice as many numbers, half as often; in between all ranks have zeros, and remember."""
    missing, counted = [], []

    def hook(state, bucket):
        numbers = bucket.buffer()
        missing.append(numbers.clone() + (missing.pop() if missing else 0))
        numbers.zero_()
        counted.append(0)
        if len(counted) % 2:
            wanted = missing.pop()
            _, places = wanted.abs().topk(len(wanted) // 50)
            for source in range(dist.get_world_size()):
                values, at = wanted[places].half(), places.to(torch.int16)
                dist.broadcast(values, source)
                dist.broadcast(at, source)
                numbers[at.long()] += values.float() / dist.get_world_size()
            wanted[places] -= wanted[places].half().float()
            missing.append(wanted)
        done = torch.futures.Future()
        done.set_result(numbers)
        return done

    return None, hook


@right("design_hook")
def signs_of_a_few(steps):
    """Of the largest numbers their places, whose sign is that of the number, and one magnitude for all."""
    kept = {}

    def hook(state, bucket):
        wanted = bucket.buffer() + kept.get("missing", 0.0)
        places = wanted.abs().topk(8).indices
        size = wanted[places].abs().mean().half()
        signed = ((places + 1) * wanted[places].sign()).to(torch.int16)
        sent = torch.cat([size.view(1).view(torch.int16), signed])
        ranks = dist.get_world_size()
        everything = sent.new_empty(ranks * len(sent))
        dist.all_gather_into_tensor(everything, sent)
        bucket.buffer().zero_()
        for each in everything.view(ranks, -1):
            at, by = each[1:].abs().long() - 1, each[:1].view(torch.float16).float() / ranks
            bucket.buffer()[at] += each[1:].sign() * by
        wanted[places] -= wanted[places].sign() * size.float()
        kept["missing"] = wanted
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    return kept, hook
