# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Memory
#
# Data parallelism gives every GPU the whole model: its weights, their gradients, and what the optimizer keeps. Each of
# 64 GPUs holds the same numbers as the other 63. This unit is about not doing that. What fills a GPU can be cut into
# shards, one for each rank; it can be put elsewhere and fetched again; or it can be thrown away and computed again. Each
# way has its price, in bytes on a wire or in computing time, and each is less dear than one would think.
#
# After this unit you can
#
# - say what fills a GPU in training, and how much of it is left when it is cut over ranks in the three stages of ZeRO;
# - write the three stages: an optimizer, gradients and a model of which each rank holds a part, with the same result as
#   without, and say what they send;
# - compute a norm of what nobody has whole, and put the parts together in one file;
# - move activations to the host, or compute them again, and plan which of the two pays where.

# %% tags=["parameters"]
# For the demonstrations: how many ranks they have where the text does not say, and whether these are "simulated"
# or "processes".
ranks = 4
on = "simulated"

# %%
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch, per_rank
from course_lib.figures.style import COLOURS, HATCHES, legend_beside, look, new_figure
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. Folded cells check that the text's numbers are what was measured.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# **Predict, before you measure.** Write your guesses into the cell below; the sections in parentheses have the answers.
#
# 1. Weights, gradients and Adam's numbers of a model take 120 GB on each of 64 GPUs. Adam's part alone is cut into 64
#    shards, one a GPU. How many GB does each hold then (section 1)?
# 2. In data parallelism each rank gives its gradients to an all-reduce. If each keeps only a shard of the gradients, and of
#    Adam's numbers, how many times as many bytes does it send in a step (section 4)?
# 3. And if it keeps only a shard of the weights too, and has to ask for the others' whenever it computes (section 5)?

# %% demo=true
guesses = predict(
    "09_memory",
    gigabytes_with_shards_of_adams_numbers=None,
    times_the_bytes_with_shards_of_gradients=None,
    times_the_bytes_with_shards_of_weights=None,
)

# %% [markdown]
# ## 1 What fills the memory
#
# Unit 01 counted what a GPU holds of a model in mixed precision with Adam, for each parameter: 2 bytes for the weight, 2 for
# its gradient, and $K = 12$ for the optimizer, which keeps a copy of the weight, the mean of the gradients and the mean
# of their squares in 4 bytes each. These 16 bytes are the **model states**. Beside them there are activations, about which
# sections 9 to 11 are, and buffers.
#
# With data parallelism on $p$ GPUs, all $p$ have the same model states. That is as wasteful as it sounds, and ZeRO, the
# Zero Redundancy Optimizer of Microsoft's DeepSpeed, does away with it in three stages. In stage 1 each rank keeps
# $1/p$ of the optimizer's numbers, in stage 2 also of the gradients, and in stage 3 also of the weights. What a rank has of
# something is its **shard**. No model is cut into layers or matrices here, as in units 05 and 06: every rank still trains the
# whole model, on samples of its own. It only does not keep what it does not need at the moment.


# %% exercise="zero_memory" points=6
def zero_memory(parameters: int, ranks: int, stage: int, state_bytes: int = 12) -> int:
    """Bytes of model states that the rank with the most holds.

    parameters: how many numbers the model learns. A weight takes 2 bytes, its gradient 2, and what the optimizer
        keeps for it state_bytes.
    stage: 0: every rank holds everything. 1: the optimizer's numbers are cut over the ranks; 2: gradients too;
        3: weights too. Shards are whole numbers of parameters, and the largest is as small as it can be.
    Returns an int. Raises ValueError for any other stage.

    S. Rajbhandari et al., ZeRO, 2020, figure 1.
    """
    ### BEGIN SOLUTION
    if stage not in range(4):
        raise ValueError(f"ZeRO has stages 0 to 3, not {stage}")
    shard = -(-parameters // ranks)
    weights = shard if stage == 3 else parameters
    gradients = shard if stage >= 2 else parameters
    states = shard if stage >= 1 else parameters
    return 2 * weights + 2 * gradients + state_bytes * states
    ### END SOLUTION


# %% [markdown]
# Figure 1 of the ZeRO paper has 7.5 billion parameters on 64 GPUs:

# %% demo=true jupyter={"source_hidden": true}
# %%needs zero_memory
PAPER = {"parameters": 7_500_000_000, "ranks": 64}
stages = ["data parallelism", "stage 1: optimizer", "stage 2: and gradients", "stage 3: and weights"]
gigabytes = [zero_memory(**PAPER, stage=stage) / 1e9 for stage in range(4)]
# A stage that cuts nothing but one kind shows how much that kind takes.
weights, gradients = 2 * PAPER["parameters"] / 1e9, 2 * PAPER["parameters"] / 1e9
of_kind = {
    "weights": [weights, weights, weights, weights / PAPER["ranks"]],
    "gradients": [gradients, gradients, gradients / PAPER["ranks"], gradients / PAPER["ranks"]],
}
of_kind["optimizer"] = [
    whole - w - g for whole, w, g in zip(gigabytes, of_kind["weights"], of_kind["gradients"], strict=True)
]
figure, axes = new_figure(
    height=2.6,
    alt="Four bars of what a GPU holds of 7.5 billion parameters: "
    + ", ".join(f"{name} {taken:.1f} GB" for name, taken in zip(stages, gigabytes, strict=True))
    + ". Three quarters of the first bar are the optimizer's.",
)
left = [0.0] * 4
for (kind, taken), colour, hatch in zip(of_kind.items(), ("sky_blue", "orange", "bluish_green"), HATCHES):
    axes.barh(stages, taken, left=left, color=COLOURS[colour], hatch=hatch, edgecolor="white", label=kind)
    left = [before + more for before, more in zip(left, taken, strict=True)]
for place, taken in enumerate(gigabytes):
    axes.text(taken + 1, place, f"{taken:.1f} GB", va="center")
axes.invert_yaxis()
axes.set(xlabel="model states on each GPU (GB)", xlim=(0, 135))
axes.grid(visible=False, axis="y")
legend_beside(axes)
figure

# %% demo=true jupyter={"source_hidden": true}
# %%holds zero_memory
assert [round(taken, 1) for taken in gigabytes] == [120.0, 31.4, 16.6, 1.9]
assert all(taken >= 0 for taken in of_kind["optimizer"])
guesses.measured(gigabytes_with_shards_of_adams_numbers=gigabytes[1])

# %% [markdown]
# 120, 31.4, 16.6 and 1.9 GB, as in the paper. The first stage brings most: three quarters of all bytes are the
# optimizer's, and it needs them for a moment only, at the end of a step. With more and more ranks the first two stages come
# to a floor of 4 and 2 bytes a parameter; the third has none.
#
# What does it cost? Memory that is cut has to be put together again by messages. The astonishing part of the paper is that the first two
# stages cost nothing at all, and the third half as much again.

# %% [markdown]
# ## 2 A shard for each rank
#
# Which part is whose? A shard need not end where a layer does. All parameters are laid end to end into one flat
# tensor, and that is cut. The two collectives that ZeRO lives on are those of unit 07's ring: a **reduce-scatter** sums a
# tensor over ranks and leaves each with one part of the sum, an **all-gather** gives everyone all parts. PyTorch's fast
# ones work on one flat tensor of equal parts:
#
# | Call | In | Out |
# |---|---|---|
# | `dist.reduce_scatter_single(part, whole)` | `whole` of $p$ parts, on each rank another | `part`: this rank's, summed over ranks |
# | `dist.all_gather_single(whole, part)` | `part`, this rank's | `whole`: all parts, in the order of the ranks |
#
# (Before PyTorch 2.13 they were called `reduce_scatter_tensor` and `all_gather_into_tensor`, and timelines still say
# so.) Equal parts have a consequence. Ten numbers on four ranks are three for each, and the flat tensor is **padded** with
# two zeros at its end: the last rank's part has one number and two zeros. So the shards differ from `tensor_split`'s,
# which would be 3, 3, 2, 2: here they are as equal as they can be only up to the padding. FSDP and DeepSpeed pad in the
# same way.


# %% exercise="shard_range" points=4
def shard_range(numel: int, ranks: int, rank: int) -> tuple[int, int]:
    """Which numbers of a flat tensor a rank holds: from the first one up to, and without, the second.

    The tensor of numel numbers, at least 0, is padded at its end until it has `ranks` parts of one length, the
    smallest that will do; rank has one of them, in the order of the ranks. The numbers meant are those of the
    tensor, without padding: a rank that has nothing but padding holds (numel, numel).
    """
    ### BEGIN SOLUTION
    length = -(-numel // ranks)
    return min(rank * length, numel), min((rank + 1) * length, numel)
    ### END SOLUTION


# %% demo=true
# %%needs shard_range
for numel, parts in ((12, 4), (10, 4), (5, 4)):
    print(f"{numel} numbers on {parts} ranks:", *(shard_range(numel, parts, rank) for rank in range(parts)))

# %% demo=true jupyter={"source_hidden": true}
# %%holds shard_range
assert [shard_range(10, 4, rank) for rank in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 10)]
assert [shard_range(5, 4, rank) for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]

# %% [markdown]
# Five numbers on four ranks: two for each of the first, one for the third, and the last has nothing at all. That looks silly, and
# happens: a bias of a few numbers on a few hundred GPUs. Whatever you write below has to work for a rank
# without numbers.

# %% [markdown]
# ## 3 Shards of the optimizer's state

# %% [markdown]
# ## 4 Shards of the gradients

# %% [markdown]
# ## 5 Shards of the parameters

# %% [markdown]
# ## 6 The norm of what nobody has whole

# %% [markdown]
# ## 7 The whole state in one file

# %% [markdown]
# ## 8 Traffic against memory

# %% [markdown]
# ## 9 Activations on the host

# %% [markdown]
# ## 10 Computing again

# %% [markdown]
# ## 11 Out of core

# %% [markdown]
# ## 12 PyTorch's own

# %% [markdown]
# ## 13 DeepSpeed

# %% [markdown]
# ## 14 Now on nodes

# %% [markdown]
# ## 15 Open task

# %% [markdown]
# ## Where it comes from

# %% [markdown]
# ## What goes wrong in practice
