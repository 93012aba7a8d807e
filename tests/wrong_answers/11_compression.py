"""Mistakes that people make in unit 11."""

import torch
import torch.distributed as dist

from tests.answers import instead, wrong


@instead("fp16_hook", ("(gradients / dist.get_world_size(state))", "gradients"), fails="mean over ranks")
def fp16_sum():
    """Never divides."""


@instead("fp16_hook", (".to(torch.float16)", ".half().to(gradients.dtype)"), fails="half the bytes")
def rounded_but_wide():
    """Rounds to float16, and sends the numbers in the dtype that they had."""


@instead("fp16_hook", ("    return work", "    work.wait()\n    return work"), fails="does not wait")
def waits_in_the_hook():
    """Backward stands still."""


@instead(
    "fp16_hook",
    (
        "(gradients / dist.get_world_size(state)).to(torch.float16)",
        "gradients.half() / dist.get_world_size(state)",
    ),
    fails="no overflow",
)
def casts_first():
    """As torch's own hook: each rank's gradient has to fit."""


@instead("fp16_hook", ("group=state, ", ""), fails="group")
def all_of_them():
    """Sums over all ranks, whatever the group."""


@instead("quantise", ("torch.linalg.vector_norm(x)", "x.abs().max()"), fails="codes and scale")
def scale_of_the_largest():
    """The largest number is at the highest level, as others quantise; asked was the length."""


@instead("quantise", ("torch.rand(x.shape, generator=generator)", "0.5"), fails="right on average")
def nearest_level():
    """Nothing is drawn: small numbers are 0 for ever."""


@instead(
    "quantise",
    ("(x / scale + drawn).floor()", "torch.where(drawn < 0.5, (x / scale).floor(), (x / scale).ceil())"),
    fails="right on average",
)
def heads_or_tails():
    """Up or down with equal chance."""


@instead("quantise", ("torch.rand(x.shape,", "torch.rand((),"), fails="each by itself")
def one_draw_for_all():
    """All numbers go up, or none of those alike does."""


@instead("quantise", ("torch.rand(x.shape, generator=generator)", "torch.rand(x.shape)"), fails="generator")
def draws_from_the_global_state():
    """Forgets the generator."""


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


@instead("one_bit", ("torch.arange(8)", "torch.arange(7, -1, -1)"), fails="bits")
def highest_bit_first():
    """The order of NumPy's packbits, unless it is asked otherwise."""


@instead("one_bit", ("total >= 0", "total > 0"), fails="bits")
def zero_is_negative():
    """> for >=."""


@instead("one_bit", ("total.abs().mean()", "total.square().mean().sqrt()"), fails="scale")
def root_mean_square():
    """The same sum of squares as what is sent; it leaves more."""


@instead("one_bit", ("total.abs().mean()", "x.abs().mean()"), fails="scale")
def scale_of_x():
    """The mean magnitude of x, without what was left."""


@instead("one_bit", ("error.copy_(total -", "error = (total -"), fails="what is left")
def a_new_error():
    """The name is bound to a new tensor; the caller's stays."""


@instead("top_k", ("error += x", "error.copy_(x)"), fails="the largest")
def largest_of_x():
    """What was left is never sent."""


@instead("top_k", ("values = flat[indices]", "values = flat[indices].abs()"), fails="the largest")
def magnitudes_as_values():
    """What torch.topk returns of magnitudes has no sign."""


@instead("top_k", ("error += x", "error = error + x"), fails="what is left")
def nothing_is_kept():
    """The caller's error is never written."""


@instead("top_k", ("    flat[indices] = 0\n", ""), fails="what is left")
def keeps_all():
    """What was sent is kept as well, and sent again."""


@instead("top_k", ("indices.to(torch.int32)", "indices"), fails="arguments and dtypes")
def long_indices():
    """Twelve bytes a pair."""


@instead(
    "sparse_all_reduce",
    (
        "total.index_add_(0, torch.cat(gathered[1]), torch.cat(gathered[0]))",
        "total.index_copy_(0, torch.cat(gathered[1]).long(), torch.cat(gathered[0]))",
    ),
    fails="sum",
)
def adds_once():
    """Of a place that comes twice one value counts."""


@instead(
    "sparse_all_reduce",
    ("max(int(count) for count in counts)", "len(values)"),
    fails="unlike numbers of pairs",
)
def as_many_on_all():
    """Takes it that every rank has as many pairs as this one."""


@instead(
    "sparse_all_reduce",
    (
        "    # All ranks add in one order, that of the ranks.\n",
        "    gathered = [part[dist.get_rank() :] + part[: dist.get_rank()] for part in gathered]\n",
    ),
    fails="alike on all ranks",
)
def own_pairs_first():
    """Each rank begins with its own pairs: other last digits on each."""


@wrong("sparse_all_reduce", fails="no dense message")
def dense_after_all(values, indices, length):
    """An all-reduce of all `length` numbers."""
    total = values.new_zeros(length).index_add_(0, indices.long(), values)
    dist.all_reduce(total)
    return total


@instead(
    "sparse_all_reduce", ("in (values, indices)]", "in (values, indices.long())]"), fails="no dense message"
)
def places_in_eight_bytes():
    """Makes long integers of the indices before they are sent."""


@instead("pays_off", ("if adds_up:", "if True:"), fails="gathered")
def always_an_all_reduce():
    """Fewer bytes are fewer bytes: forgets that an all-gather grows with the ranks."""


@instead("pays_off", ("compressed + seconds", "compressed"), fails="gathered")
def seconds_for_nothing():
    """As if compressing took no time."""


@instead("pays_off", ("if adds_up:", "if False:"), fails="added on the way")
def always_gathered():
    """Does not look whether they add up."""


@instead(
    "pays_off", ("rounds = 2 * (ranks - 1)", "rounds, alpha = 2 * (ranks - 1), 0"), fails="small gradients"
)
def without_latency():
    """Bytes only."""


@instead(
    "pays_off",
    ("(ranks - 1) * (alpha + ratio * nbytes * beta)", "rounds * (alpha + ratio * nbytes / 2 * beta)"),
    fails="small gradients",
)
def as_many_rounds():
    """An all-gather in as many rounds as an all-reduce."""


@instead("dgc_step", ("kept.abs().flatten()", "kept.flatten()"), fails="what is sent")
def the_largest_not_the_longest():
    """Ranks by value, and not by magnitude."""


@instead("dgc_step", ("kept.add_(velocity)", "kept.add_(gradient)"), fails="what is sent")
def gradients_wait():
    """What waits are gradients, without momentum; the receiver's optimizer is to add it."""


@instead(
    "dgc_step",
    ("    return values", "    velocity.put_(indices, torch.zeros_like(values))\n    return values"),
    fails="what waits",
)
def masks_the_momentum():
    """As the paper's mask: of what was sent no momentum is left."""


@instead("dgc_step", ("kept.put_(indices, torch.zeros_like(values))", "kept.zero_()"), fails="what waits")
def forgets_the_rest():
    """What is not sent is lost."""


@instead(
    "dgc_step",
    ("velocity.mul_(momentum).add_(gradient)", "velocity.copy_(gradient.add_(velocity, alpha=momentum))"),
    fails="arguments and dtypes",
)
def adds_to_the_gradient():
    """The velocity is made in the gradient, and copied."""


@instead("error_feedback", ("missing = wanted - arrives", "missing = 0.0"), fails="what was lost comes again")
def remembers_nothing():
    """The biased compressor as it is."""


@instead(
    "error_feedback",
    ("missing = wanted - arrives", "missing = x - arrives"),
    fails="what was lost comes again",
)
def only_of_the_last_step():
    """What this x loses, without what was missing before."""


@instead("error_feedback", ("wanted.clone()", "wanted"), fails="tensors of others")
def lends_its_tensor():
    """What compress writes into its argument changes what was wanted, so that nothing seems lost."""


@instead("error_feedback", ("x + missing", "x.add_(missing)"), fails="x unchanged, one call")
def adds_in_place():
    """What is missing is added to the caller's x."""


@instead(
    "error_feedback",
    ("missing = wanted - arrives", "missing = wanted - compress(wanted.clone())"),
    fails="x unchanged, one call",
)
def compresses_twice():
    """Calls compress once for what arrives and once for what is lost."""


@instead("PowerSGD", ("torch.linalg.qr(each).Q", "each"), fails="the first step")
def not_orthonormal():
    """P as it came."""


@instead(
    "PowerSGD",
    ("left = summed(left + whole)", "left += summed(left + whole)[len(left) :]"),
    fails="the first step",
)
def each_its_own_p():
    """P is not summed: each rank has its own basis."""


@instead(
    "PowerSGD",
    ("gradient.copy_(total / dist.get_world_size())", "gradient.copy_(total)"),
    fails="other gradients",
)
def sums_the_others():
    """Biases get the sum over ranks."""


@instead(
    "PowerSGD",
    ("self.lost[parameter] += matrix", "self.lost[parameter] = matrix.clone()"),
    fails="the steps that follow",
)
def no_feedback():
    """What is lost is lost."""


@instead(
    "PowerSGD",
    (
        "zip(bucket.parameters(), bucket",
        "zip([(bucket.index(), *each) for each in enumerate(g.shape for g in bucket.gradients())], bucket",
    ),
    fails="buckets that change",
)
def by_place():
    """Keeps by the bucket and the place in it, as if buckets stayed."""


@instead(
    "PowerSGD",
    (
        "left = summed(left + whole)",
        "left = (summed(left) if left else []) + (summed(whole) if whole else [])",
    ),
    fails="two all-reduces",
)
def one_for_each_kind():
    """An all-reduce for the gradients that go whole, as in PyTorch's own."""


@instead(
    "design_hook",
    ("bucket.buffer().zero_()", "torch.zeros_like(wanted)"),
    ("set_result(total)", "set_result(bucket.buffer())"),
    fails="reaches the loss",
)
def sends_nothing():
    """Each rank's own gradient: as many models as ranks."""


@instead("design_hook", ("missing = wanted\n", "missing = 0.0\n"), fails="reaches the loss")
def without_memory():
    """What is not sent is lost."""


@instead("design_hook", ("len(wanted) // 100", "len(wanted) // 4"), fails="a fifth of the bytes")
def every_fourth():
    """Far more numbers than are needed."""


@instead("design_hook", ("len(wanted) // 100", "len(wanted) // 16"), fails="a twelfth of the bytes")
def one_in_sixteen():
    """More than is needed in each step."""


@instead(
    "design_hook",
    ("values.view(torch.int16), places.short()", "values.float().view(torch.int32), places.int()"),
    ("halves.view(torch.float16).float()", "halves.view(torch.float32)"),
    fails="a twenty-fifth of the bytes",
)
def wide_numbers():
    """As few as can be, of 32 bits, with places of 32 bits."""
