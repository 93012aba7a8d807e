"""Mistakes that people make in unit 11."""

import torch
import torch.distributed as dist
from torch.nn import functional

from tests.answers import wrong

# --- fp16_hook


class _Hook:
    """fp16_hook in three steps, each of which a mistake can replace."""

    def __new__(cls, state, bucket):
        self = super().__new__(cls)
        gradients = bucket.buffer()
        half = self.packed(gradients, dist.get_world_size(state))
        work = dist.all_reduce(half, group=self.group(state), async_op=True)
        return self.future(work, half, gradients, dist.get_world_size(state))

    def packed(self, gradients, ranks):
        return (gradients / ranks).to(torch.float16)

    def group(self, state):
        return state

    def future(self, work, half, gradients, ranks):
        return work.get_future().then(lambda _: half.to(gradients.dtype))


@wrong("fp16_hook", fails="mean over ranks")
class Fp16Sum(_Hook):
    """Never divides."""

    def packed(self, gradients, ranks):
        return gradients.to(torch.float16)


@wrong("fp16_hook", fails="mean over ranks")
class HalfPrecisionStays(_Hook):
    """What comes back is still in float16."""

    def future(self, work, half, gradients, ranks):
        return work.get_future().then(lambda _: half)


@wrong("fp16_hook", fails="half the bytes")
class RoundedButWide(_Hook):
    """Rounds to float16, and sends the numbers in the dtype that they had."""

    def packed(self, gradients, ranks):
        return (gradients / ranks).half().to(gradients.dtype)


@wrong("fp16_hook", fails="half the bytes")
class AsksForAScale(_Hook):
    """A second collective for the largest number, by which all are divided: one too many."""

    def packed(self, gradients, ranks):
        dist.all_reduce(gradients.abs().max(), dist.ReduceOp.MAX)
        return super().packed(gradients, ranks)


@wrong("fp16_hook", fails="does not wait")
class WaitsInTheHook(_Hook):
    """A future that is done when it is returned: backward stood still."""

    def future(self, work, half, gradients, ranks):
        work.wait()
        done = torch.futures.Future()
        done.set_result(half.to(gradients.dtype))
        return done


@wrong("fp16_hook", fails="no overflow")
class DividesAfter(_Hook):
    """The sum has to fit, not the mean."""

    def packed(self, gradients, ranks):
        return gradients.to(torch.float16)

    def future(self, work, half, gradients, ranks):
        return work.get_future().then(lambda _: half.to(gradients.dtype) / ranks)


@wrong("fp16_hook", fails="no overflow")
class CastsFirst(_Hook):
    """As torch's own hook: each rank's gradient has to fit."""

    def packed(self, gradients, ranks):
        return gradients.to(torch.float16) / ranks


@wrong("fp16_hook", fails="group")
def all_of_them(state, bucket):
    """Averages over all ranks, whatever the group."""
    return _Hook(None, bucket)


@wrong("fp16_hook", fails="group")
class DividesByAll(_Hook):
    """The sum of the group, divided by the number of all ranks."""

    def packed(self, gradients, ranks):
        return super().packed(gradients, dist.get_world_size())


# --- quantise


class _Quantise:
    """quantise in steps, each of which a mistake can replace."""

    def __new__(cls, x, levels, generator):
        self = super().__new__(cls)
        scale = self.scale(x, levels)
        if scale == 0:
            return torch.zeros(x.shape, dtype=torch.int8), scale
        return self.codes(x / scale, levels, generator).to(torch.int8), scale

    def scale(self, x, levels):
        return torch.linalg.vector_norm(x) / levels

    def codes(self, steps, levels, generator):
        return (steps + self.drawn(steps, generator)).floor().clamp(-levels, levels)

    def drawn(self, steps, generator):
        return torch.rand(steps.shape, generator=generator, dtype=steps.dtype)


@wrong("quantise", fails="codes and scale")
class ScaleOfTheLargest(_Quantise):
    """The largest number is at the highest level, as others quantise; asked was the length."""

    def scale(self, x, levels):
        return x.abs().max() / levels if x.numel() else x.new_zeros(())


@wrong("quantise", fails="codes and scale")
def without_a_sign(x, levels, generator):
    """The magnitudes' codes."""
    return _Quantise(x.abs(), levels, generator)


@wrong("quantise", fails="right on average")
class NearestLevel(_Quantise):
    """Nothing is drawn: small numbers are 0 for ever."""

    def drawn(self, steps, generator):
        return 0.5


@wrong("quantise", fails="right on average")
class HeadsOrTails(_Quantise):
    """Up or down with equal chance."""

    def drawn(self, steps, generator):
        heads = super().drawn(steps, generator) < 0.5
        return torch.where(heads & (steps != steps.floor()), 0.999, 0.0)


@wrong("quantise", fails="each by itself")
class OneDrawForAll(_Quantise):
    """All numbers go up, or none of those alike does."""

    def drawn(self, steps, generator):
        return torch.rand((), generator=generator, dtype=steps.dtype)


@wrong("quantise", fails="each by itself")
class OneDrawAColumn(_Quantise):
    """As many draws as the last dimension has."""

    def drawn(self, steps, generator):
        return torch.rand(steps.shape[-1:], generator=generator, dtype=steps.dtype)


@wrong("quantise", fails="generator")
class DrawsFromTheGlobalState(_Quantise):
    """Forgets the generator."""

    def drawn(self, steps, generator):
        return torch.rand(steps.shape, dtype=steps.dtype)


@wrong("quantise", fails="generator")
def divides_x_itself(x, levels, generator):
    """x is in units of the scale afterwards."""
    codes, scale = _Quantise(x, levels, generator)
    if scale > 0:
        x.div_(scale)
    return codes, scale


# --- dequantise


@wrong("dequantise", fails="numbers")
def scale_as_a_number(codes, scale):
    """.item() forgets the dtype: float64 becomes float32."""
    return codes * scale.item()


@wrong("dequantise", fails="numbers")
def divides_by_the_scale(codes, scale):
    """The wrong way round."""
    return codes / scale


@wrong("dequantise", fails="numbers")
def in_eight_bits(codes, scale):
    """The product has no room."""
    return (codes * scale.round().to(torch.int8)).to(scale.dtype)


@wrong("dequantise", fails="numbers")
def unsigned(codes, scale):
    """-1 is read as 255."""
    return codes.view(torch.uint8) * scale


@wrong("dequantise", fails="numbers")
def a_level_too_many(codes, scale):
    """Takes 127 codes for the whole length."""
    return codes * scale / 127


# --- one_bit


class _Bits:
    """one_bit in steps, each of which a mistake can replace."""

    def __new__(cls, x, error):
        self = super().__new__(cls)
        total = self.total(x, error)
        positive = self.positive(total)
        scale = self.scale(total, positive)
        self.keep(x, error, total - torch.where(positive, scale, -scale))
        return self.packed(positive), scale

    def total(self, x, error):
        return x + error

    def positive(self, total):
        return total >= 0

    def scale(self, total, positive):
        return total.abs().mean()

    def keep(self, x, error, left):
        error.copy_(left)

    def packed(self, positive):
        eights = functional.pad(positive.to(torch.uint8), (0, -len(positive) % 8)).view(-1, 8)
        return (eights << self.places()).sum(1, dtype=torch.uint8)

    def places(self):
        return torch.arange(8, dtype=torch.uint8)


@wrong("one_bit", fails="bits")
class HighestBitFirst(_Bits):
    """The order of NumPy's packbits, unless it is asked otherwise."""

    def places(self):
        return super().places().flip(0)


@wrong("one_bit", fails="bits")
class ZeroIsNegative(_Bits):
    """> for >=."""

    def positive(self, total):
        return total > 0


@wrong("one_bit", fails="scale")
class RootMeanSquare(_Bits):
    """The same sum of squares as what is sent; it leaves more."""

    def scale(self, total, positive):
        return total.square().mean().sqrt()


@wrong("one_bit", fails="scale")
class ScaleOfX(_Bits):
    """The mean magnitude of x, without what was left."""

    def total(self, x, error):
        self.magnitude = x.abs().mean()
        return super().total(x, error)

    def scale(self, total, positive):
        return self.magnitude


@wrong("one_bit", fails="what is left")
class LeavesXAlone(_Bits):
    """What was left before is forgotten: x less what was sent."""

    def keep(self, x, error, left):
        error.copy_(left - error)


@wrong("one_bit", fails="what is left")
class ANewError(_Bits):
    """The name is bound to a new tensor; the caller's stays."""

    def keep(self, x, error, left):
        self.error = left


@wrong("one_bit", fails="x unchanged")
class ErrorIntoX(_Bits):
    """x += error."""

    def total(self, x, error):
        return x.add_(error)


# --- top_k


class _TopK:
    """top_k in steps, each of which a mistake can replace."""

    def __new__(cls, x, ratio, error):
        self = super().__new__(cls)
        flat = self.total(x, error).flatten()
        indices = self.ranked(flat).topk(self.count(ratio, len(flat))).indices
        values = self.values(flat, indices)
        self.keep(error, self.left(flat, indices))
        return values, self.places(indices)

    def total(self, x, error):
        return x + error

    def ranked(self, flat):
        return flat.abs()

    def count(self, ratio, length):
        return max(1, round(ratio * length))

    def values(self, flat, indices):
        return flat[indices]

    def left(self, flat, indices):
        return flat.index_fill(0, indices, 0)

    def keep(self, error, left):
        error.copy_(left.view(error.shape))

    def places(self, indices):
        return indices.to(torch.int32)


@wrong("top_k", fails="the largest")
class LargestOfX(_TopK):
    """What was left is never sent."""

    def total(self, x, error):
        return x.clone()


@wrong("top_k", fails="the largest")
class MagnitudesAsValues(_TopK):
    """What torch.topk returns of magnitudes has no sign."""

    def values(self, flat, indices):
        return flat.abs()[indices]


@wrong("top_k", fails="arguments and dtypes")
class LongIndices(_TopK):
    """Twelve bytes a pair."""

    def places(self, indices):
        return indices


@wrong("top_k", fails="what is left")
class NothingIsKept(_TopK):
    """Error is never written."""

    def keep(self, error, left):
        pass


@wrong("top_k", fails="what is left")
class KeepsAll(_TopK):
    """What was sent is kept as well, and sent again."""

    def left(self, flat, indices):
        return flat


@wrong("top_k", fails="arguments and dtypes")
class TopKIntoX(_TopK):
    """x += error."""

    def total(self, x, error):
        return x.add_(error)


# --- sparse_all_reduce


def _gathered(tensor):
    """Of each rank, in the order of ranks."""
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return everyone


class _Sparse:
    """sparse_all_reduce in steps, each of which a mistake can replace."""

    def __new__(cls, values, indices, length):
        self = super().__new__(cls)
        most = self.most(values)
        both = [_gathered(functional.pad(part, (0, most - len(part)))) for part in (values, indices)]
        pairs = self.ordered(list(zip(*both, strict=True)))
        gathered = [torch.cat(part) for part in zip(*pairs, strict=True)]
        return self.add(values.new_zeros(length), gathered[1].long(), gathered[0])

    def most(self, values):
        return int(torch.cat(_gathered(torch.tensor([len(values)]))).max())

    def ordered(self, pairs):
        return pairs

    def add(self, total, indices, values):
        return total.index_add_(0, indices, values)


@wrong("sparse_all_reduce", fails="sum")
class AddsOnce(_Sparse):
    """total[indices] += values reads before it writes: of a place that comes twice one counts."""

    def add(self, total, indices, values):
        total[indices] += values
        return total


@wrong("sparse_all_reduce", fails="unlike numbers of pairs")
class AsManyOnAll(_Sparse):
    """Takes it that every rank has as many pairs as this one."""

    def most(self, values):
        return len(values)


@wrong("sparse_all_reduce", fails="alike on all ranks")
class OwnPairsFirst(_Sparse):
    """Each rank begins with its own pairs: other last digits on each."""

    def ordered(self, pairs):
        rank = dist.get_rank()
        return pairs[rank:] + pairs[:rank]


@wrong("sparse_all_reduce", fails="no dense message")
def dense_after_all(values, indices, length):
    """An all-reduce of all `length` numbers."""
    total = values.new_zeros(length).index_add_(0, indices.long(), values)
    dist.all_reduce(total)
    return total


@wrong("sparse_all_reduce", fails="no dense message")
def places_in_eight_bytes(values, indices, length):
    """Makes long integers of the indices before they are sent."""
    return _Sparse(values, indices.long(), length)


@wrong("sparse_all_reduce", fails="arguments unchanged")
def sorts_its_pairs(values, indices, length):
    """Orders indices and values by place, in the tensors themselves."""
    order = indices.argsort()
    values.copy_(values[order])
    indices.copy_(indices[order])
    return _Sparse(values, indices, length)


# --- pays_off


class _Pays:
    """pays_off from the seconds of each kind of exchange, which a mistake can replace."""

    def __new__(cls, nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
        self = super().__new__(cls)
        small = ratio * nbytes
        way = self.reduced if adds_up else self.gathered
        return way(small, ranks, alpha, beta) + seconds < self.reduced(nbytes, ranks, alpha, beta)

    def reduced(self, nbytes, ranks, alpha, beta):
        return 2 * (ranks - 1) * (alpha + nbytes / ranks * beta)

    def gathered(self, nbytes, ranks, alpha, beta):
        return (ranks - 1) * (alpha + nbytes * beta)


@wrong("pays_off", fails="gathered")
def always_an_all_reduce(nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
    """Fewer bytes are fewer bytes: forgets that an all-gather grows with the ranks."""
    return _Pays(nbytes, ratio, seconds, ranks, alpha, beta, True)


@wrong("pays_off", fails="gathered")
def seconds_for_nothing(nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
    """As if compressing took no time."""
    return _Pays(nbytes, ratio, 0, ranks, alpha, beta, adds_up)


@wrong("pays_off", fails="added on the way")
def always_gathered(nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
    """Does not look whether they add up."""
    return _Pays(nbytes, ratio, seconds, ranks, alpha, beta, False)


@wrong("pays_off", fails="small gradients")
def without_latency(nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
    """Bytes only."""
    return _Pays(nbytes, ratio, seconds, ranks, 0, beta, adds_up)


@wrong("pays_off", fails="small gradients")
class AsManyRounds(_Pays):
    """An all-gather has as many rounds as an all-reduce here; it has half."""

    def gathered(self, nbytes, ranks, alpha, beta):
        return (ranks - 1) * (2 * alpha + nbytes * beta)


@wrong("pays_off", fails="no gain")
class AtLeastAsSoon(_Pays):
    """<= for <: pays where nothing is gained."""

    def __new__(cls, nbytes, ratio, seconds, ranks, alpha, beta, adds_up=False):
        self = object.__new__(cls)
        way = self.reduced if adds_up else self.gathered
        return way(ratio * nbytes, ranks, alpha, beta) + seconds <= self.reduced(nbytes, ranks, alpha, beta)


# ------------------------------------------------------------------------------------------- dgc_step


class _Dgc:
    """A right one, of parts that the wrong ones replace."""

    def __new__(cls, gradient, velocity, kept, momentum, ratio):
        self = super().__new__(cls)
        self.add(gradient, velocity, kept, momentum)
        indices = self.chosen(kept.flatten(), self.count(ratio, kept.numel()))
        values = self.values(kept, indices)
        self.sent(velocity, kept, indices)
        return values, indices.int()

    def count(self, ratio, numel):
        return max(1, round(ratio * numel))

    def add(self, gradient, velocity, kept, momentum):
        velocity.mul_(momentum).add_(gradient)
        kept.add_(velocity)

    def chosen(self, waiting, count):
        return waiting.abs().topk(count).indices

    def values(self, kept, indices):
        return kept.take(indices)

    def sent(self, velocity, kept, indices):
        kept.put_(indices, torch.zeros_like(kept.take(indices)))


@wrong("dgc_step", fails="what is sent")
class TheLargestNotTheLongest(_Dgc):
    """The largest numbers, whatever is far below zero."""

    def chosen(self, waiting, count):
        return waiting.topk(count).indices


@wrong("dgc_step", fails="what waits")
class MasksTheMomentum(_Dgc):
    """The paper's mask for both: where all is sent, no momentum is left."""

    def sent(self, velocity, kept, indices):
        super().sent(velocity, kept, indices)
        super().sent(velocity, velocity, indices)


@wrong("dgc_step", fails="what is sent")
class GradientsWait(_Dgc):
    """What waits are gradients, without momentum; the receiver's optimizer is to add it."""

    def add(self, gradient, velocity, kept, momentum):
        velocity.mul_(momentum).add_(gradient)
        kept.add_(gradient)


@wrong("dgc_step", fails="what waits")
class ForgetsTheRest(_Dgc):
    """Sends the largest of this step's velocity, and loses what is not sent."""

    def sent(self, velocity, kept, indices):
        kept.zero_()


@wrong("dgc_step", fails="arguments and dtypes")
class AddsToTheGradient(_Dgc):
    """The velocity is made in the gradient, and copied."""

    def add(self, gradient, velocity, kept, momentum):
        gradient.add_(velocity, alpha=momentum)
        velocity.copy_(gradient)
        kept.add_(velocity)


@wrong("dgc_step", fails="arguments and dtypes")
class PlacesOfTopk(_Dgc):
    """Places in 64 bits, as topk returns them."""

    def __new__(cls, *arguments):
        values, indices = super().__new__(cls, *arguments)
        return values, indices.long()


# ------------------------------------------------------------------------------------- error_feedback


class _Feedback:
    """A right one, of parts that the wrong ones replace."""

    def __init__(self, compress):
        self.compress = compress
        self.missing = torch.zeros(())

    def __call__(self, x):
        wanted = self.wanted(x)
        arrives = self.arriving(wanted)
        self.missing = self.left(x, wanted, arrives)
        return arrives

    def wanted(self, x):
        return x + self.missing.to(x.dtype)

    def arriving(self, wanted):
        return self.compress(wanted.clone())

    def left(self, x, wanted, arrives):
        return wanted - arrives


@wrong("error_feedback", fails="what was lost comes again")
class RemembersNothing(_Feedback):
    """The biased compressor as it is."""

    def left(self, x, wanted, arrives):
        return torch.zeros_like(x)


@wrong("error_feedback", fails="what was lost comes again")
class OnlyOfTheLastStep(_Feedback):
    """What this x loses, without what was missing before."""

    def left(self, x, wanted, arrives):
        return x - arrives


@wrong("error_feedback", fails="memories of their own")
class OneMemoryForAll(_Feedback):
    """One memory for tensors of one shape, whoever asks."""

    kept = {}  # noqa: RUF012, that is the mistake

    def __init__(self, compress):
        super().__init__(compress)
        self.kept.clear()

    def __call__(self, x):
        self.missing = self.kept.get(x.shape, torch.zeros_like(x))
        arrives = super().__call__(x)
        self.kept[x.shape] = self.missing
        return arrives


@wrong("error_feedback", fails="tensors of others")
class SubtractsLater(_Feedback):
    """Keeps the very tensors, and subtracts them in the next step."""

    def left(self, x, wanted, arrives):
        self.pair = wanted, arrives
        return

    def wanted(self, x):
        before = self.pair[0] - self.pair[1] if hasattr(self, "pair") else torch.zeros_like(x)
        return x + before


@wrong("error_feedback", fails="tensors of others")
class LendsItsTensor(_Feedback):
    """What compress writes into its argument changes what was wanted, so that nothing seems lost."""

    def arriving(self, wanted):
        return self.compress(wanted)


@wrong("error_feedback", fails="x unchanged, one call")
class AddsInPlace(_Feedback):
    """What is missing is added to the caller's x."""

    def wanted(self, x):
        return x.add_(self.missing.to(x.dtype))


@wrong("error_feedback", fails="x unchanged, one call")
class CompressesTwice(_Feedback):
    """Calls compress once for what arrives and once for what is lost."""

    def left(self, x, wanted, arrives):
        return wanted - self.compress(wanted.clone())


# ------------------------------------------------------------------------------------------- PowerSGD


def _summed(tensors):
    together = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(together)
    parts = together.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


class _PowerSGD:
    """A right one, of parts that the wrong ones replace."""

    def __init__(self, rank, seed=0):
        self.rank = rank
        self.generator = torch.Generator().manual_seed(seed)
        self.right, self.lost = {}, {}

    def hook(self, bucket):
        parameters, gradients = bucket.parameters(), bucket.gradients()
        self.bucket = bucket
        low = [i for i, each in enumerate(gradients) if self.compressible(each)]
        whole = [i for i in range(len(gradients)) if i not in low]
        keys = {i: self.key(parameters[i], i) for i in low}
        for i in low:
            if keys[i] not in self.right:
                self.right[keys[i]] = self.drawn(gradients[i].flatten(1))
        matrices = {i: gradients[i].flatten(1) + self.missing(keys[i], gradients[i]) for i in low}
        left, totals = self.first(
            [matrices[i] @ self.right[keys[i]] for i in low], [gradients[i] for i in whole]
        )
        for i, total in zip(whole, totals, strict=True):
            gradients[i].copy_(self.mean(total))
        left = [self.orthonormal(each) for each in left]
        right = self.second([matrices[i].mT @ each for i, each in zip(low, left, strict=True)])
        for i, p, q in zip(low, left, right, strict=True):
            arrives = p @ q.mT
            self.lost[keys[i]] = self.error(matrices[i], gradients[i].flatten(1), arrives)
            self.right[keys[i]] = self.kept(q)
            gradients[i].copy_(arrives.view_as(gradients[i]))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def compressible(self, gradient):
        if gradient.dim() < 2:
            return False
        n, m = gradient.flatten(1).shape
        return self.rank * (n + m) < n * m

    def key(self, parameter, place):
        return parameter

    def drawn(self, matrix):
        return torch.randn(matrix.shape[1], self.rank, generator=self.generator, dtype=matrix.dtype)

    def missing(self, key, gradient):
        return self.lost.get(key, 0)

    def first(self, left, whole):
        together = _summed(left + whole)
        return together[: len(left)], together[len(left) :]

    def second(self, right):
        return [each / dist.get_world_size() for each in _summed(right)] if right else []

    def mean(self, total):
        return total / dist.get_world_size()

    def orthonormal(self, left):
        return torch.linalg.qr(left).Q

    def error(self, matrix, gradient, arrives):
        return matrix - arrives

    def kept(self, q):
        return q


@wrong("PowerSGD", fails="the first step")
class NotOrthonormal(_PowerSGD):
    """P as it came."""

    def orthonormal(self, left):
        return left


@wrong("PowerSGD", fails="the first step")
class EachItsOwnP(_PowerSGD):
    """P is not summed: each rank has its own basis."""

    def first(self, left, whole):
        return left, _summed(left + whole)[len(left) :]


@wrong("PowerSGD", fails="other gradients")
class SumsTheOthers(_PowerSGD):
    """Biases get the sum over ranks."""

    def mean(self, total):
        return total


@wrong("PowerSGD", fails="other gradients")
class WhereItIsAsMuch(_PowerSGD):
    """Compresses where that sends as many numbers as the gradient has."""

    def compressible(self, gradient):
        n, m = gradient.flatten(1).shape if gradient.dim() > 1 else (0, 0)
        return gradient.dim() > 1 and self.rank * (n + m) <= n * m


@wrong("PowerSGD", fails="the steps that follow")
class NoFeedback(_PowerSGD):
    """What is lost is lost."""

    def missing(self, key, gradient):
        return 0


@wrong("PowerSGD", fails="the steps that follow")
class DrawsAnew(_PowerSGD):
    """A new Q in every step."""

    def hook(self, bucket):
        for parameter in bucket.parameters():
            self.right.pop(parameter, None)
        return super().hook(bucket)


@wrong("PowerSGD", fails="buckets that change")
class ByPlace(_PowerSGD):
    """Keeps by the bucket and the place in it, as if buckets stayed; what does not fit begins anew."""

    def key(self, parameter, place):
        return self.bucket.index(), place, parameter.shape


@wrong("PowerSGD", fails="small ranks and zeros")
class GramSchmidt(_PowerSGD):
    """Divides by the length of what is left of a column, which may be nothing."""

    def orthonormal(self, left):
        columns = []
        for column in left.mT:
            for before in columns:
                column = column - (before @ column) * before
            columns.append(column / column.norm())
        return torch.stack(columns, dim=1)


@wrong("PowerSGD", fails="small ranks and zeros")
class ZerosForGood(_PowerSGD):
    """Leaves a column without length at zero, and with it Q, in all steps to come."""

    def orthonormal(self, left):
        q, r = torch.linalg.qr(left)
        return q * (r.diagonal().abs() > 0)


@wrong("PowerSGD", fails="two all-reduces")
class OneForEachKind(_PowerSGD):
    """An all-reduce for the gradients that go whole, as in PyTorch's own."""

    def first(self, left, whole):
        return (_summed(left) if left else []), (_summed(whole) if whole else [])


@wrong("PowerSGD", fails="numbers sent")
class AllGradientsToo(_PowerSGD):
    """The whole bucket travels with P, for those of its gradients that are not compressed."""

    def first(self, left, whole):
        together = _summed([*left, *whole, self.bucket.buffer()])
        return together[: len(left)], together[len(left) : -1]


# ---------------------------------------------------------------------------------------- design_hook


class _Design:
    """A hook that sends the largest numbers, of parts that the wrong ones replace."""

    part, value, place = 0.01, torch.float16, torch.int16

    def __new__(cls, steps):
        self = super().__new__(cls)
        self.missing, self.steps = torch.zeros(()), steps
        return self, cls.hook

    def hook(self, bucket):
        done = torch.futures.Future()
        done.set_result(self.exchanged(bucket.buffer()))
        return done

    def exchanged(self, numbers):
        wanted = numbers + self.missing
        places = wanted.abs().topk(max(1, int(self.part * len(wanted)))).indices
        values = wanted[places].to(self.value)
        self.missing = self.left(wanted, places, values.to(wanted.dtype))
        total = torch.zeros_like(wanted)
        for of_rank, at in zip(_gathered(values), _gathered(places.to(self.place)), strict=True):
            total.index_add_(0, at.long(), of_rank.to(total.dtype))
        return numbers.copy_(total / dist.get_world_size())

    def left(self, wanted, places, values):
        return wanted.index_add(0, places, -values)


@wrong("design_hook", fails="reaches the loss")
class SendsNothing(_Design):
    """The fewest bytes of all, and as many models as ranks."""

    def exchanged(self, numbers):
        return numbers


@wrong("design_hook", fails="reaches the loss")
class WithoutMemory(_Design):
    """What is not sent is lost."""

    def left(self, wanted, places, values):
        return torch.zeros_like(wanted)


@wrong("design_hook", fails="a fifth of the bytes")
class AllOfThem(_Design):
    """The mean gradients as they are."""

    def exchanged(self, numbers):
        dist.all_reduce(numbers)
        return numbers.div_(dist.get_world_size())


@wrong("design_hook", fails="a fifth of the bytes")
class HalfOfTheBits(_Design):
    """The mean gradients in half precision."""

    def exchanged(self, numbers):
        half = (numbers / dist.get_world_size()).half()
        dist.all_reduce(half)
        return numbers.copy_(half)


@wrong("design_hook", fails="a twelfth of the bytes")
class RankOne(_PowerSGD):
    """PowerSGD with the smallest rank that there is."""

    def __new__(cls, steps):
        self = super().__new__(cls)
        self.__init__(1)
        return self, cls.hook


@wrong("design_hook", fails="a twelfth of the bytes")
class ThreeInAHundred(_Design):
    """More than is needed in each step, with places of 32 bits."""

    part, value, place = 0.03, torch.float32, torch.int32


@wrong("design_hook", fails="a twenty-fifth of the bytes")
class WideNumbers(_Design):
    """As few as can be, of 32 bits, with places of 32 bits."""

    value, place = torch.float32, torch.int32
