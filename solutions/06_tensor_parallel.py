# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Tensor and sequence parallelism
#
# A layer that does not fit into one GPU is cut itself: each GPU holds a part of every matrix and computes a part of every product.
#
# After this unit you can
#
# - write the mean over all ranks with one collective call.

# %% tags=["parameters"]
ranks = 4
on = "simulated"

# %%
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from course_lib import launch, per_rank
from course_lib.data import load_text
from course_lib.figures.style import line_figure, new_figure
from graders import check, hint, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# ## 1 Two ways to cut a matrix

# %% [markdown]
# ## 2 Two functions for two passes
#
# Both cuts have a place where a rank's tensor meets those of the others, and in both the place is in one pass only. Where a
# tensor that all ranks have goes into branches, one on each rank, forward needs nobody. But each rank's backward brings only what *its* branch
# adds to the gradient, and the whole gradient is the sum over the branches. Where the branches end, it is the other way
# round: the value is a sum over ranks, and its derivative by each summand is 1. Megatron-LM calls these two places $f$ and $g$:
#
# | | forward | backward |
# |---|---|---|
# | $f$, where branches begin | the identity | an all-reduce |
# | $g$, where they end | an all-reduce | the identity |
#
# They are conjugates: what one does in forward the other does in backward. Autograd does not know of other ranks, so you
# have to tell it what to do in each pass. That is what `torch.autograd.Function` is for. Here is one that doubles gradients, and
# changes nothing else:


# %% demo=true
class DoubleInBackward(torch.autograd.Function):
    """Forward the identity, backward twice what arrives."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # for backward, which gets nothing else from here
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradient, None  # a gradient for each argument of forward; factor has none


leaf = torch.ones(2, requires_grad=True)
DoubleInBackward.apply(leaf, 2.0).sum().backward()
leaf.grad

# %% demo=true jupyter={"source_hidden": true}
assert leaf.grad.tolist() == [2, 2]

# %% [markdown]
# Now the two of Megatron-LM. `SumInBackward` and `SumInForward` are yours to fill in; `f` and `g` call them.


# %% exercise="f" points=8
def f(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Megatron's f: the identity in forward, an all-reduce in backward.

    x: of any shape and floating dtype, on every rank of the group (None: the default group). Returns a tensor
    with x's numbers. The gradient that x gets from it is the sum, over the ranks of the group, of the gradients that
    arrive at it; what x gets by other ways stays as it is.

    Calls: none in forward; in backward one dist.all_reduce, and no other. x stays as it is, and so does the
    gradient that arrives, which may be an expanded tensor.
    """
    return SumInBackward.apply(x, group)


class SumInBackward(torch.autograd.Function):
    """The two passes of f."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        return x
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None
        ### END SOLUTION


# %% exercise="g" points=7
def g(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Megatron's g: an all-reduce in forward, the identity in backward.

    x: of any shape and floating dtype, both the same on all ranks of the group (None: the default group). Returns
    the sum of all ranks' x. The gradient that x gets from it is the one that arrives at it; what x gets by other
    ways stays as it is.

    Calls: in forward one dist.all_reduce, and no other; none in backward. x stays as it is, and so does the
    gradient that arrives.
    """
    return SumInForward.apply(x, group)


class SumInForward(torch.autograd.Function):
    """The two passes of g."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        return gradient, None
        ### END SOLUTION


# %% [markdown]
# ## 3 Layers that are cut
#
# Unit 07's rule cuts here too: `tensor_split`, in which the first ranks' parts may be one longer. A layer is used like `nn.Linear`,
# by a program that runs on all ranks.
#
# How should its weights be drawn? If each rank made an `nn.Linear` of its part's size, two things would go wrong. All ranks have
# the same seed, so all parts would be equal: the whole matrix would repeat itself. And `nn.Linear` draws from a range that depends
# on the number of inputs, which in a row-parallel layer is the rank's part. A model that is cut over 8 ranks should begin as
# it would on one: only then can you compare the two.


# %% exercise="ColumnParallelLinear" points=14
class ColumnParallelLinear(nn.Module):
    """A linear layer, cut by its outputs: x [..., inputs] to this rank's part of nn.Linear's [..., outputs].

    layer = ColumnParallelLinear(inputs, outputs, bias=True, group=None)

    Constructor: called on all ranks of the group (None: the default group), in the same random state. `weight`
    [part of outputs, inputs] and `bias` [part of outputs] (None with bias=False) are this rank's part of
    torch.tensor_split, outputs at least as many as ranks. They hold what nn.Linear(inputs, outputs, bias) would have
    there, and leave the random state that it would leave. While it is made the whole may be in memory, afterwards
    its part alone. No communication.

    forward: x is the same on all ranks, with any number of dimensions, and stays as it is. x gets the gradient that
    it has in nn.Linear, the same on all ranks; weight and bias their part of it.

    Calls: none in forward; in backward one all_reduce of x's bytes.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        whole = nn.Linear(inputs, outputs, bias)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(whole.weight.detach().tensor_split(size)[rank].clone())
        self.bias = nn.Parameter(whole.bias.detach().tensor_split(size)[rank].clone()) if bias else None
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        return functional.linear(f(x, self.group), self.weight, self.bias)
        ### END SOLUTION


# %% exercise="RowParallelLinear" points=14
class RowParallelLinear(nn.Module):
    """A linear layer, cut by its inputs: this rank's part of x [..., inputs] to the whole [..., outputs].

    layer = RowParallelLinear(inputs, outputs, bias=True, group=None)

    Constructor: as that of ColumnParallelLinear, but `weight` [outputs, part of inputs] is cut along its other
    dimension, inputs at least as many as ranks, and `bias` [outputs] is whole on every rank.

    forward: x [..., part of inputs] is this rank's part of an x, cut along its last dimension; it stays as it is.
    Returns what nn.Linear makes of the whole x, the same on all ranks. x and weight get their part of the
    gradients in nn.Linear; bias gets the whole of its own, on every rank, so that all copies stay the same.

    Calls: in forward one all_reduce of the result's bytes; none in backward.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.group = group
        whole = nn.Linear(inputs, outputs, bias)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(whole.weight.detach().tensor_split(size, dim=1)[rank].clone())
        self.bias = whole.bias
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        y = g(functional.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias
        ### END SOLUTION


# %% [markdown]
# ## 4 Two layers, one all-reduce

# %% [markdown]
# ## 5 Attention by heads

# %% [markdown]
# ## 6 A dropout mask for many ranks
#
# Dropout sets numbers to zero at random, and every rank draws its masks from a random state of its own. So who cuts a
# model has to say in which places the ranks draw the same numbers, and in which they do not:
#
# - **Behind g** all ranks hold the same numbers. If their masks differ there, the ranks go on with different numbers, and
#   nothing says so: every later all-reduce adds up parts of different models.
# - **Between f and g** each rank holds other columns, or other heads. If all draw the same mask there, the first column of
#   rank 0 is dropped exactly when the first column of rank 1 is. What was to be independent repeats itself from rank to rank.
#
# So a rank needs two streams of random numbers. Neither may disturb the other: parts are not always equally large, and
# who has more columns draws more numbers. (Megatron-LM keeps two as well, seeded with `seed` and `seed + 2718 + rank`:
# `tensor_parallel/random.py`.)


# %% exercise="RandomStreams" points=10
class RandomStreams:
    """Two streams of random numbers for torch's default generator: one the same on all ranks, one of this rank's own.

    seed: at least 0, the same on all ranks. rank: this rank's number among those that share the layer.

    Once it is made, torch draws what it draws after torch.manual_seed(seed), as if no `with states.own():` were there.
    Within such a block it draws from a stream that is neither that one nor another rank's; each block goes on where the
    last one ended, also where an exception ended it. The same seed and rank give the same numbers once more. Nobody
    communicates.
    """

    def __init__(self, seed: int, rank: int) -> None:
        ### BEGIN SOLUTION
        self._own = torch.Generator().manual_seed(seed + 1 + rank).get_state()
        torch.manual_seed(seed)
        ### END SOLUTION

    @contextmanager
    def own(self) -> Iterator[None]:
        """Within the block torch draws from this rank's own stream."""
        ### BEGIN SOLUTION
        shared = torch.get_rng_state()
        torch.set_rng_state(self._own)
        try:
            yield
        finally:
            self._own = torch.get_rng_state()
            torch.set_rng_state(shared)
        ### END SOLUTION


# %% [markdown]
# Five columns on four ranks: rank 0 has two of them, the others have one. Each rank draws a mask for its columns of 8
# samples, then one for 4 columns that all hold. Above as torch does it by itself, below with your two streams:


# %% demo=true
# %%needs RandomStreams
def two_masks(apart: bool) -> tuple[Tensor, Tensor]:
    """A mask for this rank's columns [8, 1 or 2], and one for what is the same on all ranks [8, 4]."""
    rank, size = dist.get_rank(), dist.get_world_size()
    columns = len(torch.arange(size + 1).tensor_split(size)[rank])
    torch.manual_seed(7)
    with RandomStreams(7, rank).own() if apart else nullcontext():
        own = torch.rand(8, columns) < 0.5
    return own, torch.rand(8, 4) < 0.5


masks = {apart: launch(two_masks, apart, ranks=4, on=on).results for apart in (False, True)}
figure, panels = new_figure(
    rows=2,
    columns=8,
    height=4.2,
    width_ratios=[1, 2] * 4,
    alt="The masks of four ranks in black and white, in two rows. With one stream the columns of ranks 1 to 3 "
    "have one mask, and what all hold has another mask on rank 0 than on the others. With two streams no two "
    "ranks have one mask for their columns, and all have one for what all hold.",
)
for row, apart in zip(panels, masks):
    for rank, drawn in enumerate(masks[apart]):
        for axes, mask, what in zip(row[2 * rank :], drawn, ("own", "of all")):
            axes.imshow(mask, cmap="gray", vmin=0, vmax=1, aspect="auto")
            axes.set(xticks=[], yticks=[], title=f"{what}, {rank}")
    row[0].set_ylabel("two streams" if apart else "one stream")
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds RandomStreams
one, two = masks.values()
assert all(torch.equal(one[rank][0], one[1][0]) for rank in (2, 3))
assert not torch.equal(one[0][1], one[1][1])
assert all(torch.equal(shared, two[0][1]) for _, shared in two)
assert not any(torch.equal(two[rank][0], two[other][0]) for rank, other in ((1, 2), (1, 3), (2, 3)))

# %% [markdown]
# ## 7 Cutting the vocabulary
#
# The embedding is often a model's largest matrix. GPT-2's has 50,257 rows, one a token; Megatron-LM adds rows that no token
# has, up to a multiple of 128 times the number of ranks: 51,200 for 8 ranks, so that all have equally many. Here nothing
# is added. Parts are those of `torch.tensor_split`, and differ by a row where they must.
#
# A rank can look up the tokens whose rows it has. What should it say of all others?


# %% exercise="VocabParallelEmbedding" points=12
class VocabParallelEmbedding(nn.Module):
    """An embedding of V tokens, of which every rank holds some of the rows [D].

    embedding: the whole layer, with a weight [V, D] that is the same on all ranks of the group (None: the default
    group); V is at least p. It stays as it is. The rank at place r keeps a copy of part r of
    torch.tensor_split(embedding.weight, p), and of the others nothing: its one parameter is `weight` [V_r, D].
    """

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        place, size = dist.get_rank(group), dist.get_world_size(group)
        self.first = sum(len(part) for part in embedding.weight.tensor_split(size)[:place])
        self.weight = nn.Parameter(embedding.weight.detach().tensor_split(size)[place].clone())
        self.group = group
        ### END SOLUTION

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows of the tokens, [..., D], the same on every rank.

        tokens: int64 [...], from 0 to V - 1, the same on every rank; they stay as they are. In backward `weight` gets the
        gradient that its rows have in the whole layer. One all-reduce, of [..., D], in forward; nothing in backward.
        """
        ### BEGIN SOLUTION
        row = tokens - self.first
        here = (row >= 0) & (row < len(self.weight))
        rows = functional.embedding(row.where(here, 0), self.weight) * here.unsqueeze(-1)
        return g(rows, self.group)
        ### END SOLUTION


# %% [markdown]
# With the bytes of Python's documentation as tokens, on four ranks: what does each rank find?


# %% demo=true
# %%needs VocabParallelEmbedding g
def rows_found(tokens: Tensor, whole: nn.Embedding) -> tuple[int, int, Tensor]:
    """How many rows this rank has, how many of the tokens T it finds there, and the result [T, D]."""
    cut = VocabParallelEmbedding(whole)
    here = tokens // len(cut.weight) == dist.get_rank()
    return len(cut.weight), here.sum().item(), cut(tokens).detach()


tokens = load_text().train.tokens.long()
whole = nn.Embedding(256, 8)
found = launch(rows_found, tokens, whole, ranks=4, on=on).results
for rank, (rows, here, _) in enumerate(found):
    print(f"rank {rank} has {rows} rows, and among them those of {here:7,} of the {len(tokens):,} tokens")

# %% demo=true jupyter={"source_hidden": true}
# %%holds VocabParallelEmbedding g
assert all(torch.equal(result, whole(tokens)) for *_, result in found)
assert found[1][1] > 0.65 * len(tokens)
assert found[3][1] < 0.01 * len(tokens)

# %% [markdown]
# The result is the whole layer's, bit by bit: of the numbers that the all-reduce adds up, all but one are zero. The work
# is not shared evenly: rank 1 has the bytes 64 to 127, the letters among them, and two thirds of the text, rank 3 less than
# one token in a hundred. That costs no time here, since a rank looks up some row for every token, its own or not.

# %% [markdown]
# ## 8 A loss without all the logits
#
# At the other end the same matrix stands as the head, cut by columns: rank r has the logits of its part of the
# vocabulary, for all tokens. The loss of a token with logits $z$ and target $t$ is
#
# $$ \ln \sum_j e^{z_j} - z_t, $$
#
# where $j$ runs over the whole vocabulary. Gather the logits, and `cross_entropy` does the rest. Count what that costs:
# with 51,200 of them in float32, each token makes 204,800 bytes on every rank, where its vector of 3,072
# numbers has 12,288. For a micro-batch of 8 sequences of 1,024 tokens the gathered logits are 1.68 GB.
#
# **Predict:** which numbers of a token must a rank know of the others, to compute the loss and the gradient of its own
# logits? How many are they?

# %% demo=true jupyter={"source_hidden": true}
assert (51_200 * 4, 3072 * 4, round(51_200 * 4 * 8 * 1024 / 1e9, 2)) == (204_800, 12_288, 1.68)


# %% exercise="vocab_parallel_cross_entropy" points=15
def vocab_parallel_cross_entropy(
    logits_shard: Tensor, target: Tensor, vocabulary: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """The cross-entropy of each of N tokens [N], the same on every rank, from logits that are cut by columns.

    logits_shard: float [N, V_r], on the rank at place r of the group (None: the default group) part r of
    torch.tensor_split(logits, p, dim=1), where logits [N, V] are those of the whole vocabulary. V is at least p. Any
    logits are allowed whose loss is a number of their dtype. target: int64 [N], from 0 to V - 1, the same on every
    rank. Both stay as they are.

    The result has the dtype of the logits. In backward logits_shard gets its part of the whole loss's gradient.
    Nothing is communicated in backward, and in forward at most 3 (p - 1) numbers a token are sent by a rank,
    however large the vocabulary is.
    """
    ### BEGIN SOLUTION
    parts = torch.arange(vocabulary).tensor_split(dist.get_world_size(group))
    column = target - parts[dist.get_rank(group)][0]
    here = (column >= 0) & (column < logits_shard.shape[1])
    largest = logits_shard.detach().amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group)
    shifted = logits_shard - largest.unsqueeze(1)
    of_target = shifted.gather(1, column.where(here, 0).unsqueeze(1)).squeeze(1).where(here, 0)
    total, of_target = g(torch.stack([shifted.exp().sum(1), of_target]), group)
    return total.log() - of_target
    ### END SOLUTION


# %% [markdown]
# Three numbers a token, then: the largest logit, the sum, and the target's logit. Beside it, gathering. How the bytes grow
# with the vocabulary, for 64 tokens on four ranks:


# %% demo=true
# %%needs vocab_parallel_cross_entropy g
def gathered_cross_entropy(logits_shard: Tensor, target: Tensor, vocabulary: int) -> Tensor:
    """The same from gathered logits, where all parts are equally wide; without a gradient."""
    parts = [torch.empty_like(logits_shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits_shard)
    return functional.cross_entropy(torch.cat(parts, 1), target, reduction="none")


vocabularies = [256, 2048, 16_384, 51_200]
sent = {vocab_parallel_cross_entropy: [], gathered_cross_entropy: []}
for vocabulary in vocabularies:
    logits, target = 30 * torch.randn(64, vocabulary), torch.randint(vocabulary, (64,))
    shards = per_rank(list(logits.tensor_split(4, 1)))
    for function, bytes_sent in sent.items():
        run = launch(function, shards, target, vocabulary, ranks=4, on=on)
        bytes_sent.append(run.traffic[0].sent)
        expected = functional.cross_entropy(logits, target, reduction="none")
        assert all(torch.allclose(loss, expected, rtol=1e-5, atol=1e-5) for loss in run.results)
line_figure(
    {
        "three numbers a token": (vocabularies, sent[vocab_parallel_cross_entropy]),
        "logits gathered": (vocabularies, sent[gathered_cross_entropy]),
    },
    x="tokens in the vocabulary",
    y="bytes that a rank sends",
    log_x=True,
    log_y=True,
    alt="Bytes that each of four ranks sends for the loss of 64 tokens, against the size of the vocabulary, on "
    "logarithmic axes. Gathering grows in proportion to it; three numbers a token stay the same.",
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds vocab_parallel_cross_entropy g
assert len(set(sent[vocab_parallel_cross_entropy])) == 1
assert sent[vocab_parallel_cross_entropy][0] <= 3 * 3 * 64 * 4
assert sent[gathered_cross_entropy] == [3 * 64 * vocabulary // 4 * 4 for vocabulary in vocabularies]

# %% [markdown]
# ## 9 Cutting the sequence
#
# What stands outside of f and g is still done by every rank, for all tokens: norms, dropout, the residual sum. That is
# little computing, but all those activations are kept for backward, p times in all. They treat each token by itself. So
# Korthikanti et al. (2022) cut them along the sequence: between the blocks, each rank holds some of the tokens, all
# D numbers wide.
#
# A column-parallel layer needs all tokens, and a row-parallel one returns a sum for all tokens. So what stands before
# the one is no longer f, which did nothing, but has to bring the tokens together; and what stands behind the other
# need no longer give the whole sum to everyone. Each has one pass that you would have guessed; the other pass
# follows, as f's follows from g's. Here with the letters of `course_lib.models`: B samples, T tokens, D numbers a token.


# %% exercise="gather_sequence" points=9
def gather_sequence(x_BTD: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """All tokens, on every rank, from some of them on each.

    x_BTD: float [B, T / p, D], on the rank at place r of the group (None: the default group) part r of
    torch.tensor_split(whole, p, dim=1); of one shape on all ranks. It stays as it is. Returns the whole [B, T, D].

    Each rank goes on with the whole in its own way, so the gradients that arrive differ from rank to rank. x_BTD gets
    its part of their sum. One collective in each pass, in which no rank sends more than (p - 1) / p of the whole.
    """
    return GatherSequence.apply(x_BTD, group)


class GatherSequence(torch.autograd.Function):
    """The two passes of gather_sequence."""

    @staticmethod
    def forward(ctx, x_BTD: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        parts = [torch.empty_like(x_BTD.contiguous()) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x_BTD.contiguous(), group=group)
        return torch.cat(parts, dim=1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient_BTD: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        parts = [part.contiguous() for part in gradient_BTD.chunk(dist.get_world_size(ctx.group), dim=1)]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=ctx.group)
        return own, None
        ### END SOLUTION


# %% exercise="scatter_sequence" points=8
def scatter_sequence(x_BTD: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Some tokens of a sum, on each rank, from a part of the sum for all tokens on every rank.

    x_BTD: float [B, T, D], on each rank of the group (None: the default group) another one, of one shape; T divides by
    p. It stays as it is. Returns, on the rank at place r, part r of torch.tensor_split(sum, p, dim=1), [B, T / p, D].

    In backward x_BTD gets the gradient that it has through the results of all ranks. One collective in each pass, in
    which no rank sends more than (p - 1) / p of what x_BTD has.
    """
    return ScatterSequence.apply(x_BTD, group)


class ScatterSequence(torch.autograd.Function):
    """The two passes of scatter_sequence."""

    @staticmethod
    def forward(ctx, x_BTD: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ### BEGIN SOLUTION
        ctx.group = group
        parts = [part.contiguous() for part in x_BTD.chunk(dist.get_world_size(group), dim=1)]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=group)
        return own
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient_BTD: Tensor) -> tuple[Tensor, None]:
        ### BEGIN SOLUTION
        own = gradient_BTD.contiguous()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(parts, own, group=ctx.group)
        return torch.cat(parts, dim=1), None
        ### END SOLUTION


# %% [markdown]
# Behind both there is one more trap. A norm's weight is the same on every rank, but each rank now uses it for other
# tokens. **Predict:** what does its gradient lack on a rank, and which function of this unit, applied to the *weight*,
# would mend that?


# %% exercise="sequence_parallel_mlp" points=14
def sequence_parallel_mlp(
    x_BTD: Tensor,
    norm: nn.LayerNorm,
    up: nn.Linear,
    down: nn.Linear,
    bias: Tensor,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """x + MLP(norm(x)) for this rank's tokens, where MLP(h) is down(gelu(up(h))) + bias of the whole, uncut layers.

    x_BTD: float [B, T / p, D], this rank's part of T tokens, as in gather_sequence. norm and bias [D] are the same on
    all ranks of the group (None: the default group). up, from D to F / p, with a bias, and down, from F / p to D,
    without one, are this rank's parts: other columns and other rows on every rank. GELU is functional.gelu.
    Returns [B, T / p, D].

    In backward every parameter, and x_BTD, gets the gradient that it has in the whole layer, of all tokens: norm's and
    bias's are the same on all ranks. In forward one all-gather and one reduce-scatter; in backward one of each, and
    besides no more than 3 D numbers are given to all-reduces.
    """
    ### BEGIN SOLUTION
    weight, shift = f(norm.weight, group), f(norm.bias, group)
    h_BTD = functional.layer_norm(x_BTD, norm.normalized_shape, weight, shift, norm.eps)
    y_BTD = down(functional.gelu(up(gather_sequence(h_BTD, group))))
    return x_BTD + scatter_sequence(y_BTD, group) + f(bias, group)
    ### END SOLUTION


# %% [markdown]
# Beside it, the same MLP between f and g, with all tokens on every rank. Bytes sent in both passes, and what is
# kept for backward: all tensors that autograd saves, parameters left out, each counted once.


# %% demo=true
# %%needs sequence_parallel_mlp gather_sequence scatter_sequence f g
class Saved:
    """While it is entered: the bytes that autograd keeps for backward, in tensors that `known` does not have."""

    def __init__(self, known: list[Tensor]) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._held = {}

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._held[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    def __enter__(self) -> "Saved":
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._hooks.__exit__(*error)

    @property
    def nbytes(self) -> int:
        return sum(nbytes for nbytes, _ in self._held.values())


def tensor_parallel_mlp(x_BTD, norm, up, down, bias):
    """The same with all tokens on every rank."""
    h_BTD = f(norm(x_BTD))
    return x_BTD + g(down(functional.gelu(up(h_BTD)))) + bias


def one_layer(mlp, samples: int, tokens: int, width: int) -> int:
    """Bytes that this rank keeps for backward, of one layer."""
    size = dist.get_world_size()
    norm, up = nn.LayerNorm(width), nn.Linear(width, 4 * width // size)
    down, bias = nn.Linear(4 * width // size, width, bias=False), nn.Parameter(torch.zeros(width))
    own = tokens // size if mlp is sequence_parallel_mlp else tokens
    x_BTD = torch.randn(samples, own, width, requires_grad=True)
    with Saved([*norm.parameters(), *up.parameters(), *down.parameters(), bias]) as saved:
        y_BTD = mlp(x_BTD, norm, up, down, bias)
    y_BTD.sum().backward()
    return saved.nbytes


layer = {"samples": 4, "tokens": 64, "width": 128}
whole_bytes = 4 * layer["samples"] * layer["tokens"] * layer["width"]
kept, moved = {}, {}
for name, mlp in {
    "tensor parallel": tensor_parallel_mlp,
    "and sequence parallel": sequence_parallel_mlp,
}.items():
    run = launch(one_layer, mlp, *layer.values(), ranks=4, on=on)
    kept[name], moved[name] = run.results[0] / whole_bytes, run.traffic[0].sent / whole_bytes
    print(f"{name:22} kept for backward: {kept[name]:.2f} x_BTD    sent: {moved[name]:.2f} x_BTD")

# %% demo=true jupyter={"source_hidden": true}
# %%holds sequence_parallel_mlp gather_sequence scatter_sequence f g
assert math.isclose(kept["tensor parallel"], 4, rel_tol=0.01), kept
assert math.isclose(kept["and sequence parallel"], 3.25, rel_tol=0.01), kept
assert moved["tensor parallel"] == 3, moved
assert math.isclose(moved["and sequence parallel"], 3, rel_tol=0.01), moved

# %% [markdown]
# The bytes are the same, but for the gradients of the norm and the bias: an all-reduce *is* a reduce-scatter and an
# all-gather, and the two have only moved apart. What is kept, in units of x: the norm's input, 1, is now a quarter on each
# of four ranks; what goes into `up`, 1, is still whole on every rank, since `gather_sequence` has brought it together; and
# the two tensors inside the MLP, 4 wide each, were cut before, to 2 together. From 4 to 3.25, and the part that still does
# not shrink with more ranks is the gathered one. Korthikanti et al. get rid of that too: they keep their own part only,
# and gather once more in backward, while the other gradient is computed.

# %% [markdown]
# ## 9 Cutting the sequence

# %% [markdown]
# ## 10 A whole model on real text

# %% [markdown]
# ## 11 The same with DTensor

# %% [markdown]
# ## 12 Which collective a layout needs

# %% [markdown]
# ## 13 What it costs

# %% [markdown]
# ## 14 On real processes, and on nodes

# %% [markdown]
# ## 15 Open task

# %% [markdown]
# ## Where it comes from
#
# Papers, with their numbers.
#
# ## What goes wrong in practice
#
# Mistakes that people make, and how they show.
