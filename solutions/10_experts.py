# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Experts
#
# In every model so far each token passes through all parameters, so twice the parameters cost twice the operations for every
# token. In a **mixture of experts** a layer has many MLPs, the experts, and a small gate sends each token to a few of them.
# More experts make the model larger, but a token costs as much as before. So many parameters need many ranks, with some experts
# on each, and the tokens have to travel between ranks. This unit is about how they travel, what it costs, and what happens when
# many of them want the same expert.
#
# After this unit you can
#
# - choose experts for tokens, and plan which tokens go where when an expert has limited room;
# - send tokens to the ranks of their experts and back, in forward and in backward, with no row sent twice and none for padding;
# - write a layer of experts on many ranks that computes and learns what it would on one;
# - keep the load even, and say what an uneven one costs;
# - exchange tokens between nodes in fewer messages, and say when that pays;
# - place experts, and copies of the busiest ones, so that the fullest rank has little to do.
#
# In all exercises arguments stay as they are, and tensors may be contiguous in memory or not. Tensors that count or number
# something, such as experts, are int64; others may have any floating dtype. What you return is on their device. `group` holds the
# ranks that take part (None: all). All of them make the calls that are listed, and no others; each row is sent once.

# %% tags=["parameters"]
# For the demonstrations: how many ranks they have where the text does not say, and whether these are "simulated"
# or "processes".
ranks = 4
on = "simulated"

# %%
import copy
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib import Cluster, launch, per_rank
from course_lib.cluster import presets
from course_lib.data import load_text
from course_lib.figures.plots import line_figure
from course_lib.figures.style import COLOURS, HATCHES, LINE_STYLES, look, new_figure, rank_colour
from course_lib.models import MLP, Transformer, TransformerConfig, next_token_loss, parameter_count
from graders import check, hint, predict, progress, reset

# %% demo=true jupyter={"source_hidden": true}
# `%%needs` waits until an exercise is solved. Folded cells check that the text's numbers are what was measured.
# %load_ext course_lib.notebook.magics

# %% [markdown]
# **Predict, before you measure.** Write your guesses into the cell below. The sections in parentheses have the answers.
#
# 1. A layer has 64 experts instead of 8, and a token goes to 2 of them in both. How many times as many floating-point
#    operations does a token take (section 1)?
# 2. A small model with 8 experts, of which each token goes to 2, learns from text for 50 steps. Nothing is done for balance.
#    What percentage of all choices goes to the two busiest experts in the last ten steps (section 7)?
# 3. On 4 nodes with 8 GPUs each every GPU has something for every other. Sent one by one, 768 messages cross from node to node.
#    With how few can it be done (section 6)?

# %% demo=true
guesses = predict(
    "10_experts",
    times_the_operations_with_8_times_the_experts=None,
    percent_of_choices_that_two_of_eight_experts_get=None,
    messages_between_4_nodes=None,
)

# %% [markdown]
# ## 1 Some of the parameters for each token
#
# A transformer's MLP treats each token by itself, so it need not be the same MLP for all tokens. Let there be E MLPs, the
# **experts**, and let each token go to k of them. Usually k is between 1 and 8, and E can be in the hundreds. A **gate** chooses
# the k experts. It is a linear layer with one output for each expert. For N tokens, perhaps none, it makes logits [N, E], and a
# token goes to the k experts with its largest logits. The token's result is a weighted mean of what these k experts compute. The
# weights come from the gate too, and add up to 1. In the figure k is 2:

# %% demo=true jupyter={"source_hidden": true}
ROUTES = ((0, 2), (1, 2), (0, 3))
figure, axes = new_figure(
    height=2.2,
    alt="Three tokens on the left, four experts on the right. From each token two arrows lead to experts: token 0 to "
    "experts 0 and 2, token 1 to 1 and 2, token 2 to 0 and 3. No token goes to all.",
)
for token, chosen in enumerate(ROUTES):
    axes.text(0, 2.5 - token, f"token {token}", ha="right", va="center")
    for number in chosen:
        colour, dashes, _ = LINE_STYLES[token]
        arrow = {"arrowstyle": "->", "color": colour, "linestyle": dashes, "linewidth": 1.6}
        axes.annotate("", xy=(0.96, 3 - number), xytext=(0.03, 2.5 - token), arrowprops=arrow)
for number in range(4):
    axes.text(1, 3 - number, f"expert {number}", va="center")
axes.set(xlim=(-0.3, 1.4), ylim=(-0.5, 3.5))
axes.axis("off")
figure

# %% [markdown]
# Two logits may be equal. On a GPU a sort leaves the order of equal numbers open unless one asks for more, so two ranks, or two
# runs, could choose different experts. Your gate follows a fixed rule.


# %% exercise="top_k_gate" points=6
def top_k_gate(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Which experts each token goes to, and how much each of them counts.

    logits: [N, E].

    Returns weights [N, k], of the logits' dtype, and experts [N, k], int64: for each token the k
    experts with the largest logits, the largest first; of equal ones the lower number comes first.
    A token's weights are in proportion to its softmax over all experts, and add up to 1. Gradients
    flow to the logits.
    """
    ### BEGIN SOLUTION
    largest, experts = logits.sort(descending=True, stable=True)
    return largest[:, :k].softmax(1), experts[:, :k]
    ### END SOLUTION


# %% demo=true
# %%needs top_k_gate
logits = torch.tensor([[2.0, 0.5, 1.0, -1.0], [0.0, 3.0, 3.0, 1.0]])
top_k_gate(logits, 2)

# %% demo=true jupyter={"source_hidden": true}
# %%holds top_k_gate
weights, experts = top_k_gate(logits, 2)
assert experts.tolist() == [[0, 2], [1, 2]]
torch.testing.assert_close(weights, torch.tensor([[0.7311, 0.2689], [0.5, 0.5]]), atol=1e-4, rtol=0)
assert top_k_gate(logits, 1)[0].tolist() == [[1.0], [1.0]]

# %% [markdown]
# Token 0 takes expert 0 with weight 0.73 and expert 2 with 0.27. Token 1 has two largest logits, and they count half each.
# (With k = 1 the weight would always be 1, and the gate would get no gradient from it. Switch Transformers, which take k = 1,
# multiply by the softmax over all experts instead.)
#
# Here is such a layer on one rank. Yours, on many ranks, will have to agree with it.


# %%
class Mixture(nn.Module):
    """A layer of experts on one rank: x [..., D] to [..., D].

    gate: nn.Linear without a bias, D to E. experts: E modules, each [n, D] to [n, D] for any n. k: how many of
    them a token goes to.
    """

    def __init__(self, gate: nn.Linear, experts: list[nn.Module], k: int) -> None:
        super().__init__()
        self.gate, self.experts, self.k = gate, nn.ModuleList(experts), k

    def forward(self, x: Tensor) -> Tensor:
        x_ND = x.reshape(-1, x.shape[-1])
        weights, experts = top_k_gate(self.gate(x_ND), self.k)
        y_ND = torch.zeros_like(x_ND)
        for number, expert in enumerate(self.experts):
            tokens, place = (experts == number).nonzero(as_tuple=True)
            y_ND = y_ND.index_add(0, tokens, weights[tokens, place, None] * expert(x_ND[tokens]))
        return y_ND.view(x.shape)


# %% [markdown]
# What does a token cost? The dense layer in the next cell is a transformer's MLP of width 64 with 256 hidden units. Each expert
# has half as many hidden units, so the two experts of a token together compute as much as the dense layer. PyTorch counts the
# operations.


# %% demo=true
# %%needs top_k_gate
def mixture(width: int, inner: int, count: int, k: int = 2) -> Mixture:
    """A layer of so many experts of the same kind, MLPs with `inner` hidden units each."""
    config = TransformerConfig(width=width, heads=1, mlp_width=inner)
    return Mixture(nn.Linear(width, count, bias=False), [MLP(config) for _ in range(count)], k)


def operations_a_token(layer: nn.Module, tokens: int = 128) -> float:
    """Floating-point operations of the forward pass, as PyTorch counts them, for each token."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(tokens, 64))
    return counter.get_total_flops() / tokens


dense = MLP(TransformerConfig(width=64, heads=1, mlp_width=256))
of_dense = operations_a_token(dense), parameter_count(dense)
counts = [2, 4, 8, 16, 32, 64]
of_mixture = {
    count: (operations_a_token(layer), parameter_count(layer))
    for count, layer in ((count, mixture(64, 128, count)) for count in counts)
}
print(f"dense       {of_dense[1]:9,} parameters {of_dense[0]:9,.0f} operations a token")
for count, (operations, parameters) in of_mixture.items():
    print(f"{count:2} experts  {parameters:9,} parameters {operations:9,.0f} operations a token")

# %% demo=true jupyter={"source_hidden": true}
# %%holds top_k_gate
assert of_dense == (4 * 64 * 256, 2 * 64 * 256 + 256 + 64)
for count, (operations, _) in of_mixture.items():
    assert operations == of_dense[0] + 2 * 64 * count
more = of_mixture[64][0] / of_mixture[8][0]
assert 1.1 < more < 1.11
assert of_mixture[64][1] / of_mixture[8][1] > 7.9
guesses.measured(times_the_operations_with_8_times_the_experts=more)

# %% [markdown]
# The experts' operations do not change at all. With the width D, and F hidden units in a token's k experts together, they are 4
# D F for each token. Only the gate's product grows, 2 D E, which is small as long as E is small beside F. So 64 experts instead
# of 8 have eight times the parameters, and a token takes 1.1 times the operations. That is the promise of mixtures of experts:
# **parameters without operations**. The price is memory for all experts, and a way for tokens to get to them.

# %% [markdown]
# ## 2 Who goes where
#
# A token that goes to k experts makes k **choices**. They are numbered token by token: choice j of token n, both counted from 0,
# has the number n k + j. With k = 2 the first token has choices 0 and 1, the next one 2 and 3. Before an expert computes, the
# choices are sorted by expert, since an expert is a product of matrices and needs its tokens side by side.
#
# The number of choices of each expert is not known before the gate has run. Some hardware needs fixed sizes, and one busy
# expert would hold up all others. So an expert often has a **capacity**: room for so many choices and no more. With N tokens an
# even load is N k / E choices for each expert. The capacity is that times a **capacity factor** $c$ a little above 1:
#
# $$\lceil c\, N k / E \rceil$$
#
# A choice beyond the capacity is **dropped**: the expert does nothing for this token. The layer's result is added to the token,
# as everywhere in a transformer, so a token whose choices are all dropped passes the layer unchanged. (With one of two dropped
# it gets the other's part, and the weights no longer add up to 1.) A token's first choice has the larger weight. So all first
# choices are let in before any second one: in an expert's **queue** stand all tokens' first choices of it, in the order of
# tokens, then all second ones, and so on. The expert keeps as many as it has room for, from the front.


# %% exercise="dispatch_plan" points=10
def dispatch_plan(experts: Tensor, count: int, capacity: int | None = None) -> tuple[Tensor, Tensor]:
    """Which choices travel, in which order, and how many go to each expert.

    experts: [N, k], from top_k_gate, each from 0 to count - 1.
    capacity: how many choices an expert has room for; None: all.

    Returns order [R] and counts [count], int64. order has the numbers of the choices that are kept:
    those of expert 0 in its queue's order, then those of expert 1, and so on. counts: how many each
    expert keeps.
    """
    ### BEGIN SOLUTION
    tokens, k = experts.shape
    # By place and token at first, so that a stable sort by expert leaves that order within each expert.
    chosen = experts.T.flatten()
    by_expert = chosen.argsort(stable=True)
    counts = chosen.bincount()
    place = torch.arange(len(chosen), device=experts.device) - (counts.cumsum(0) - counts)[chosen[by_expert]]
    kept = by_expert if capacity is None else by_expert[place < capacity]
    return kept % tokens * k + kept // tokens, chosen[kept].bincount(minlength=count)
    ### END SOLUTION


# %% [markdown]
# Three tokens make two choices each, and expert 2 is in demand. First every expert has room for all that come, then for one:

# %% demo=true
# %%needs dispatch_plan
chosen = torch.tensor([[2, 0], [2, 1], [0, 2]])
for room in (None, 1):
    order, counts = dispatch_plan(chosen, 4, room)
    print(f"room for {'all' if room is None else room}: order {order.tolist()}, counts {counts.tolist()}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds dispatch_plan
assert [each.tolist() for each in dispatch_plan(chosen, 4)] == [[4, 1, 3, 0, 2, 5], [2, 1, 3, 0]]
assert [each.tolist() for each in dispatch_plan(chosen, 4, 1)] == [[4, 3, 0], [1, 1, 1, 0]]

# %% [markdown]
# Without a limit expert 0 gets choice 4, the first one of token 2, before choice 1, a second one. With room for one each, half
# of the choices are dropped. Token 1 loses its first choice, expert 2, and still has its second, expert 1.

# %% [markdown]
# ## 3 Tokens travel
#
# Now put the E experts on $p$ ranks, E / p on each. This is **expert parallelism**. Every rank has tokens of its own too, as in
# data parallelism, and each of them may have to go to any rank. So every rank has something for every other rank, and the
# amounts differ from pair to pair. Exchanging them is an **all-to-all**:

# %% demo=true jupyter={"source_hidden": true}
SENT = [[2, 1], [0, 3]]  # rows of each rank for each rank
figure, axes = new_figure(
    height=2.3,
    alt="Two ranks, before and after. Rank 0 has two rows for itself and one for rank 1; rank 1 has three for itself. "
    "Afterwards rank 0 has its own two rows; rank 1 has the one of rank 0 and its own three.",
)
with look():
    for side, title in enumerate(("before: sorted by expert", "after: in the order of ranks")):
        for rank in range(2):
            if side == 0:
                cells = [(rank, target) for target in range(2) for _ in range(SENT[rank][target])]
            else:
                cells = [(source, rank) for source in range(2) for _ in range(SENT[source][rank])]
            for place, (source, target) in enumerate(cells):
                axes.barh(
                    1 - rank, 0.9, left=6 * side + place, height=0.5, edgecolor="white",
                    color=COLOURS["sky_blue" if source == 0 else "orange"], hatch=HATCHES[source],
                    label=f"rows of rank {source}" if side == place == 0 else None,
                )  # fmt: skip
                words = f"from {source}" if side else f"to {target}"
                axes.text(6 * side + place + 0.45, 1 - rank, words, ha="center", va="center", fontsize=9)
        axes.text(6 * side, 1.6, title)
    axes.legend(loc="center right")
axes.set(yticks=(0, 1), yticklabels=("rank 1", "rank 0"), xticks=(), ylim=(-0.5, 2), xlim=(-0.2, 13.5))
axes.spines[:].set_visible(False)
axes.grid(visible=False)
figure

# %% [markdown]
# `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes)` does it in one call. `input` is cut along
# dimension 0 into parts of `input_split_sizes` rows, and the r-th part goes to rank r. `output_split_sizes` says how many rows
# come from each rank. Without the two lists all parts are equal. Three ranks with three numbers each:


# %% demo=true
def exchange_of_equal_parts() -> list[int]:
    """Rank r has 10 r + 0, 10 r + 1, ... and sends one number to each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    numbers = 10 * rank + torch.arange(size)
    result = torch.empty_like(numbers)
    dist.all_to_all_single(result, numbers)
    return result.tolist()


for rank, numbers in enumerate(launch(exchange_of_equal_parts, ranks=3, on=on).results):
    print(f"rank {rank} has {numbers}")

# %% demo=true jupyter={"source_hidden": true}
assert launch(exchange_of_equal_parts, ranks=3).results == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]

# %% [markdown]
# That is a table transposed, with a row for each rank. With experts the parts are not equal, and no rank knows beforehand how
# much will come. So there are two calls: first of the counts, equally many numbers for everyone, and then of the rows
# themselves.
#
# In backward the gradient of a row arises where its expert is, and is needed where the row came from. It travels the same way
# back: an all-to-all with the two lists of sizes exchanged. `dist.all_to_all_single` knows nothing of autograd, so you write
# its backward in `Travel`, which `combine` can use too; the check of this cell looks at `dispatch` alone.
#
# For all that ranks do together from here on:
#
# - `group` has the p ranks that have experts, equally many each: rank r has the experts r E / p to (r + 1) E / p - 1. None
#   stands for all ranks.
# - Either all ranks need the gradient of an argument, or none does.
# - A rank may have no tokens, and an expert may get none.


# %% exercise="dispatch" points=12
def dispatch(x_RD: Tensor, counts: Tensor, group: dist.ProcessGroup | None = None) -> tuple[Tensor, Tensor]:
    """Send each row to the rank of its expert.

    x_RD: R rows of D numbers, sorted by expert. counts: [E], how many for each.

    Returns y_TD and received [p, E / p]. y_TD has the T rows that came here, rank by rank, and those of
    one rank sorted by expert. received: how many came from each rank for each expert here.

    Calls: two dist.all_to_all_single in forward, of counts and rows; one in backward.
    """
    ### BEGIN SOLUTION
    sent = counts.view(dist.get_world_size(group), -1)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return Travel.apply(x_RD, sent.sum(1).tolist(), received.sum(1).tolist(), group), received
    ### END SOLUTION


class Travel(torch.autograd.Function):
    """Rows to other ranks, and their gradients back."""

    @staticmethod
    def forward(ctx, x_RD: Tensor, sent: list[int], received: list[int], group) -> Tensor:
        """sent, received: how many rows go to each rank of the group, and come from it."""
        ### BEGIN SOLUTION
        ctx.sent, ctx.received, ctx.group = sent, received, group
        y_TD = x_RD.new_empty(sum(received), x_RD.shape[1])
        dist.all_to_all_single(y_TD, x_RD.contiguous(), received, sent, group=group)
        return y_TD
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient_TD: Tensor) -> tuple[Tensor, None, None, None]:
        ### BEGIN SOLUTION
        return Travel.apply(gradient_TD, ctx.received, ctx.sent, ctx.group), None, None, None
        ### END SOLUTION


# %% [markdown]
# The way back is the same journey in the other direction. In addition the rows are weighted when they are back, and each is
# added to its token. No counts are needed: every rank gets back as many rows as it sent.


# %% exercise="combine" points=8
def combine(
    y_TD: Tensor,
    plan: tuple[Tensor, Tensor],
    received: Tensor,
    weights: Tensor,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Send each row back to where it came from, and add up each token's.

    y_TD: what experts made of the rows from dispatch, in the same order.
    plan: from dispatch_plan. received: from dispatch. weights: [N, k], from top_k_gate.

    Returns [N, D]: for each token the sum of weight times row over its choices that travelled, or
    zeros. Gradients flow to y_TD and to weights.

    Calls: one dist.all_to_all_single of rows in forward, one in backward.
    """
    ### BEGIN SOLUTION
    order, counts = plan
    tokens, k = weights.shape
    sent = counts.view(received.shape).sum(1).tolist()
    rows = Travel.apply(y_TD, received.sum(1).tolist(), sent, group)
    weighted = rows * weights.flatten()[order].unsqueeze(1)
    return weighted.new_zeros(tokens, y_TD.shape[1]).index_add(0, order // k, weighted)
    ### END SOLUTION


# %% [markdown]
# There and back, with experts that only multiply by their number. Four tokens on each of two ranks choose among four experts:


# %% demo=true
# %%needs dispatch_plan dispatch combine
def there_and_back(chosen: Tensor) -> Tensor:
    """What tokens of ones get back from their experts, each choice with weight 1. chosen: [N, k]."""
    plan = order, counts = dispatch_plan(chosen, 4)
    rows, received = dispatch(torch.ones(len(order), 1), counts)
    first = received.shape[1] * dist.get_rank()
    numbers = (first + torch.arange(received.shape[1])).repeat(len(received))
    made = rows * numbers.repeat_interleave(received.flatten()).unsqueeze(1)
    return combine(made, plan, received, torch.ones(chosen.shape)).squeeze(1)


choices = [torch.tensor([[0], [3], [3], [1]]), torch.tensor([[2], [2], [0], [3]])]
run = launch(there_and_back, per_rank(choices), ranks=2, on=on)
for rank, numbers in enumerate(run.results):
    print(f"rank {rank}: chose {choices[rank].flatten().tolist()}, got {numbers.tolist()}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds dispatch_plan dispatch combine
assert [each.tolist() for each in run.results] == [[0, 3, 3, 1], [2, 2, 0, 3]]

# %% [markdown]
# ## 4 A layer of experts
#
# The layer puts all of it together: gate, plan, dispatch, the experts of this rank, combine. Between dispatch and combine the
# rows are sorted once more: they arrive rank by rank, and an expert needs all of its rows in one product. With a
# `capacity_factor` an expert has the capacity of section 2 for each rank's choices, where N are the tokens of that rank.
#
# Two mistakes are easy to make, and neither raises an error at once.
#
# - **A rank whose experts got no tokens** has no rows to compute with. It must still take part in every all-to-all, in backward
#   too. Autograd runs backward only through what is on the graph. If a rank leaves out its experts because there is nothing to
#   do, the others wait in backward for a call that never comes.
# - **Gradients that are not divided, or not sent.** Each rank has a loss of its own, the mean over its tokens. The loss of the
#   whole is the mean over ranks. The gate is on all ranks, an expert is on one. For each, ask: which tokens has it seen, and
#   which losses have sent a gradient to it? What must be sent, then, and what must be divided by p?


# %% exercise="ExpertParallelMLP" points=16
class ExpertParallelMLP(nn.Module):
    """A layer of experts, cut over ranks: each has some experts, and tokens of its own.

    whole: a Mixture. The layer keeps copies of its gate, `gate`, and of this rank's experts, `experts`,
        an nn.ModuleList; nothing else of it.
    layer(x): what `whole` would return, without what is dropped. x: [..., D]. Each expert is called
        once.
    layer.routing: of the last forward, probabilities [N, E], with gradient, and experts chosen.
    layer.average_gradients(): after backward, turns all gradients, in place, into those of the mean of
        all ranks' losses.

    Calls: those of dispatch and combine, and one all-reduce of the gate's gradient.
    """

    def __init__(
        self, whole: Mixture, capacity_factor: float | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.group, self.k, self.capacity_factor = group, whole.k, capacity_factor
        own = len(whole.experts) // dist.get_world_size(group)
        first = own * dist.get_rank(group)
        self.gate = copy.deepcopy(whole.gate)
        self.experts = nn.ModuleList(map(copy.deepcopy, whole.experts[first : first + own]))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        ### BEGIN SOLUTION
        x_ND = x.reshape(-1, x.shape[-1])
        logits = self.gate(x_ND)
        count = logits.shape[1]
        weights, experts = top_k_gate(logits, self.k)
        self.routing = logits.softmax(1), experts
        factor = self.capacity_factor
        capacity = None if factor is None else math.ceil(factor * experts.numel() / count)
        order, counts = dispatch_plan(experts, count, capacity)
        rows, received = dispatch(x_ND[order // self.k], counts, self.group)
        # They came rank by rank; an expert wants all of its own.
        own = torch.arange(len(self.experts), device=x.device)
        expert_of = own.repeat(len(received)).repeat_interleave(received.flatten())
        by_expert = expert_of.argsort()
        parts = rows[by_expert].split(received.sum(0).tolist())
        computed = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        y_TD = computed[by_expert.argsort()]
        return combine(y_TD, (order, counts), received, weights, self.group).view(x.shape)
        ### END SOLUTION

    @torch.no_grad()
    def average_gradients(self) -> None:
        ### BEGIN SOLUTION
        ranks, weight = dist.get_world_size(self.group), self.gate.weight
        for parameter in self.experts.parameters():
            if parameter.grad is not None:
                parameter.grad /= ranks
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(weight.grad, group=self.group)
            weight.grad /= ranks
        ### END SOLUTION


# %% [markdown]
# Eight experts on four ranks, beside the same layer on one rank, which has all ranks' tokens. The loss is the mean of the
# squares of the layer's result:


# %% demo=true
# %%needs top_k_gate dispatch_plan dispatch combine ExpertParallelMLP
def one_step(whole: Mixture, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the gradients of the gate and of this rank's first expert."""
    layer = ExpertParallelMLP(whole)
    y_ND = layer(x_ND.requires_grad_())  # as if a layer stood before it
    y_ND.square().mean().backward()
    layer.average_gradients()
    return y_ND.detach(), layer.gate.weight.grad, layer.experts[0].up.weight.grad


torch.manual_seed(0)
whole = mixture(64, 32, 8)
x_ND = torch.randn(4 * 24, 64)
run = launch(one_step, whole, per_rank(x_ND.chunk(4)), ranks=4, on=on)
y_ND = whole(x_ND)
y_ND.square().mean().backward()
for name, seen, expected in (
    ("result", torch.cat([result for result, _, _ in run.results]), y_ND),
    ("gate's gradient on rank 3", run.results[3][1], whole.gate.weight.grad),
    ("expert 6's gradient", run.results[3][2], whole.experts[6].up.weight.grad),
):
    print(f"{name}: off by at most {(seen - expected).abs().max():.0e} of {expected.abs().max():.0e}")
calls = run.traffic[0].calls
print(f"rank 0 calls {calls}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds top_k_gate dispatch_plan dispatch combine ExpertParallelMLP
assert calls == {"all_to_all_single": 5, "all_reduce": 1}
torch.testing.assert_close(torch.cat([result for result, _, _ in run.results]), y_ND.detach())
torch.testing.assert_close(run.results[3][1], whole.gate.weight.grad)
torch.testing.assert_close(run.results[3][2], whole.experts[6].up.weight.grad)

# %% [markdown]
# Five all-to-alls: one of counts, and two of rows in each pass. That is what expert parallelism costs in every such layer,
# whatever the size of the experts. No expert's gradient is ever sent.
#
# <details><summary>Answer: what is sent, and what is divided</summary>
#
# The gate has seen this rank's tokens only, so its gradient is averaged, as in data parallelism. An expert has seen the tokens
# of all ranks: its gradient is already the sum of what p losses sent, and is divided by p. If nobody divides, the experts learn
# with p times the gate's learning rate. Adam divides by the gradient's size, so with Adam one hardly notices.
#
# </details>

# %% [markdown]
# ## 5 A balanced load
#
# A gate that learns does not spread tokens evenly. An expert that happens to be a little better gets more tokens, so it learns
# more, and gets better still. Soon a few experts do all the work. The other parameters are hardly used, and all ranks wait for
# the ranks of the busy experts.
#
# The usual remedy is a second loss. Let $f_e$ be the part of all choices that go to expert $e$. Let $P_e$ be the mean over all
# tokens of its probability, the softmax over all $E$ experts. Then
#
# $$E \sum_e f_e P_e$$
#
# is 1 if either the $f_e$ or the $P_e$ are even, and nearly $E / k$ if k experts get everything. (A 1 does not prove an even
# load, and where the two differ it can be less.) Counting cannot be differentiated, so the gradient flows through $P_e$ alone.
# It lowers the probabilities of the experts that have too many choices. A small multiple of this is added to the loss (0.01 in
# Switch Transformers).
#
# With many ranks $f_e$ and $P_e$ are means over the tokens of all ranks. If each rank balanced its own tokens, it would ask for
# too much: a rank whose tokens are all alike should be free to send them to one expert, as long as the sum over ranks is even.
# Only one of the two factors has to be exchanged, if each rank takes the mean over its own tokens for the other: its loss is then
# $E \sum_e f_e P_e$ with the $f_e$ of all ranks and its own $P_e$. All ranks have as many tokens, so the mean of these losses
# over ranks is the loss of all.


# %% exercise="load_balancing_loss" points=8
def load_balancing_loss(
    probabilities: Tensor, experts: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """This rank's second loss: E times the sum of f_e P_e, with f_e of all ranks and P_e of this one.

    probabilities: [N, E], the softmax of the gate's logits of this rank's N tokens.
    experts: [N, k], what these tokens chose. N is the same on all ranks.

    Returns a scalar of the probabilities' dtype. Gradients flow through P_e only.

    Calls: one collective in forward, of E numbers.
    """
    ### BEGIN SOLUTION
    count = probabilities.shape[1]
    chosen = experts.flatten().bincount(minlength=count)
    dist.all_reduce(chosen, group=group)
    # Divided before it becomes half precision, which cannot hold so many.
    part = (chosen.double() / chosen.sum()).to(probabilities.dtype)
    return count * part @ probabilities.mean(0)
    ### END SOLUTION


# %% [markdown]
# Two ranks, each of which sends all its tokens to an expert of its own. Together they use both experts evenly:

# %% demo=true
# %%needs load_balancing_loss
certain = torch.tensor([[0.9, 0.1], [0.1, 0.9]])  # each rank's probabilities, for each of its tokens
rank_probabilities = [certain[rank].repeat(3, 1) for rank in range(2)]
rank_experts = [torch.full((3, 1), rank) for rank in range(2)]
together = launch(
    load_balancing_loss, per_rank(rank_probabilities), per_rank(rank_experts), ranks=2, on=on
).results
alone = [
    launch(load_balancing_loss, rank_probabilities[rank], rank_experts[rank], ranks=1).results[0]
    for rank in range(2)
]
print(f"over both ranks: mean {sum(together) / 2:.2f};  each rank by itself: mean {sum(alone) / 2:.2f}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds load_balancing_loss
assert abs(sum(together) / 2 - 1) < 1e-6
assert abs(sum(alone) / 2 - 1.8) < 1e-6

# %% [markdown]
# Over both ranks the load is even, and the loss is 1. A rank by itself would see 1.8, and push against a load that is even.

# %% [markdown]
# ## 6 Between nodes
#
# On m nodes with g GPUs each, an all-to-all makes every GPU send to m g - g GPUs of other nodes. The more GPUs there are, the
# smaller is each message, until nearly all of its time is latency. Fewer messages are possible in three stages. First bring
# together within the node, where links are fast, what is for the same place. Then cross. Then distribute within the node. (What
# is for the own node need not cross.) Tutel and DeepSpeed-MoE collect what a node's GPUs have for **one GPU** of another node,
# which makes messages g times fewer and g times larger. Here you go further: what a node has for another **node** crosses in
# one message, which makes them g² times fewer.

# %% demo=true jupyter={"source_hidden": true}
figure, axes = new_figure(
    height=2.6,
    alt="Three stages on two nodes of two GPUs. Within each node both GPUs give what they have for the other node to one of them; "
    "one message crosses each way; within each node what came is dealt out.",
)
with look():
    for column in range(4):
        for gpu in range(4):
            axes.text(3 * column, 3 - gpu, f"GPU {gpu}", ha="center", va="center")
    for column, title in enumerate(("within", "between", "within")):
        axes.text(3 * column + 1.5, 3.7, title, ha="center")
        for source, target in (((0, 1), (3, 2)), ((1, 2), (2, 1)), ((1, 0), (2, 3)))[column]:
            whose = source // 2 if column < 2 else 1 - source // 2  # the node that the rows come from
            colour, dashes, _ = LINE_STYLES[whose]
            arrow = {"arrowstyle": "->", "color": colour, "linestyle": dashes, "linewidth": 1.6}
            ends = (3 * column + 2.6, 3 - target), (3 * column + 0.4, 3 - source)
            axes.annotate("", xy=ends[0], xytext=ends[1], arrowprops=arrow)
    for node in range(2):
        axes.text(-1.8, 2.5 - 2 * node, f"node {node}", va="center")
axes.axhline(1.5, color=COLOURS["black"], linestyle=":", linewidth=1)
axes.set(xlim=(-2, 10), ylim=(-0.5, 4.2))
axes.axis("off")
figure

# %% [markdown]
# Here each node has two GPUs. GPU 1 carries what node 0 has for node 1, the solid line. GPU 2 carries what node 1 has for node
# 0, the dashed one. With more nodes all GPUs of a node share the carrying: on m nodes with g GPUs each, no GPU sends more than
# m / g, rounded up, of the messages between nodes.
#
# As in unit 07, a send may wait until its receive is called. And a rank cannot send to itself: Gloo does not carry that.


# %% exercise="hierarchical_all_to_all" points=13
def hierarchical_all_to_all(x: Tensor, gpus_per_node: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """An all-to-all of equal blocks, in which two nodes exchange one message each way.

    x: [p, ...], of any dtype, on the group's p ranks: x[r] is for rank r.
    gpus_per_node: g. Rank r of the group is on node r // g.

    Returns a new tensor of x's shape: at [r] what rank r had for this rank.

    Calls: point-to-point ones only. Each node sends each other node one message, of g^2 blocks, which
    ranks share as described above. Within a node any messages may go.
    """
    ### BEGIN SOLUTION
    g, rank = gpus_per_node, dist.get_rank(group)
    node, place = divmod(rank, g)
    blocks = x.contiguous().unflatten(0, (-1, g))
    # The rank at place j of each node sends and receives for the nodes j, j + g, j + 2 g ...
    carried = [list(range(j, len(blocks), g)) for j in range(g)]
    own = carried[place]

    def exchange(parts: dict[int, Tensor], arriving: dict[int, Tensor]) -> list[Tensor]:
        """Send a part to each of these ranks, and receive one from each."""
        calls = []
        for peer, part in parts.items():
            if peer == rank:
                arriving[peer].copy_(part)
                continue
            for call, tensor in ((dist.isend, part.contiguous()), (dist.irecv, arriving[peer])):
                if tensor.numel():
                    calls.append(dist.P2POp(call, tensor, group=group, group_peer=peer))
        for work in dist.batch_isend_irecv(calls) if calls else []:
            work.wait()
        return list(arriving.values())

    beside = range(node * g, node * g + g)
    collected = exchange(
        {peer: blocks[carried[j]] for j, peer in enumerate(beside)},
        {peer: torch.empty_like(blocks[own]) for peer in beside},
    )
    partners = [other * g + node % g for other in own]
    for_others = torch.stack(collected, 1)  # node, place it is from, place it is for
    arrived = exchange(
        dict(zip(partners, for_others, strict=True)),
        {peer: torch.empty_like(each) for peer, each in zip(partners, for_others, strict=True)},
    )
    from_others = torch.stack(arrived) if own else for_others
    dealt = exchange(
        {peer: from_others[:, :, j] for j, peer in enumerate(beside)},
        {peer: torch.empty_like(blocks[carried[j]]) for j, peer in enumerate(beside)},
    )
    result = torch.empty_like(blocks)
    for nodes, part in zip(carried, dealt, strict=True):
        result[nodes] = part
    return result.flatten(0, 1)
    ### END SOLUTION


# %% [markdown]
# The next cell compares your function, with its three stages, with the collective. There are 32 GPUs, on four nodes of LUMI-G
# or of an H100 pod, and blocks from 64 bytes to 4 MiB. The simulator counts the collective as 31 rounds; in each of them every
# rank exchanges a block with another one.


# %% demo=true
# %%needs hierarchical_all_to_all
def at_once(x: Tensor, gpus_per_node: int) -> Tensor:
    """The collective."""
    result = torch.empty_like(x)
    dist.all_to_all_single(result, x)
    return result


machines = {"LUMI-G": presets.lumi_g(4), "H100 pod": presets.h100_pod(4)}
ways = {"all at once": at_once, "by nodes": hierarchical_all_to_all}
block_bytes = [4**power for power in range(3, 12, 2)]
exchange_times = {
    (machine, way): [
        launch(function, torch.empty(32, size // 4, device="meta"), 8, cluster=cluster).seconds
        for size in block_bytes
    ]
    for machine, cluster in machines.items()
    for way, function in ways.items()
}
run = launch(hierarchical_all_to_all, torch.empty(32, 16, device="meta"), 8, cluster=machines["LUMI-G"])
across = [event for event in run.events if event.op == "send" and event.rank // 8 != event.peer // 8]
print(f"messages from node to node: {len(across)}")
for machine in machines:
    gains = [
        a / b for a, b in zip(exchange_times[machine, "all at once"], exchange_times[machine, "by nodes"])
    ]
    print(
        f"{machine:8} by nodes, times as fast, block by block: {', '.join(f'{gain:.1f}' for gain in gains)}"
    )
line_figure(
    {
        f"{machine}, {way}": (block_bytes, [1e6 * t for t in times])
        for (machine, way), times in exchange_times.items()
    },
    x="bytes of a block, from one GPU to another",
    y="virtual time (µs)",
    log_x=True,
    log_y=True,
    title="An all-to-all on 4 nodes with 8 GPUs each",
    alt="Virtual time over bytes of a block, both axes logarithmic. Up to some ten thousand bytes the collective stays near "
    "450 microseconds, and the way by nodes is faster with the smallest blocks; with the largest ones it is slower.",
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds hierarchical_all_to_all
assert len(across) == 12
guesses.measured(messages_between_4_nodes=len(across))
for machine in machines:
    flat, nodes = exchange_times[machine, "all at once"], exchange_times[machine, "by nodes"]
    assert flat[0] > nodes[0]
    assert nodes[-1] > 1.5 * flat[-1]

# %% [markdown]
# 12 messages in place of 768: each of the four nodes sends one to each of the other three. With the smallest blocks that is
# faster. By how much depends on your function, and is most if all messages of a stage start together. (On real machines the
# gain is smaller: NCCL also starts all messages of its all-to-all together, and does not wait for 31 latencies one after
# another.) With the largest blocks it is slower. Nearly every byte travels three times, once across and twice within, and of
# the eight GPUs of a node only three send across. So libraries choose by size.

# %% [markdown]
# ## 7 Experts on real text
#
# A small transformer reads Python's own documentation, byte by byte. Its MLP is replaced by eight experts on four ranks, of
# which each token goes to two. A dense model is trained beside it. Its MLP has as many hidden units as the two experts of a
# token together, so both take the same operations for each token, apart from the gate's. Every rank has four windows of text in
# each step.


# %% demo=true
# %%needs top_k_gate dispatch_plan dispatch combine ExpertParallelMLP load_balancing_loss
def language_model(count: int, seed: int) -> Transformer:
    """A transformer with one block, whose MLP is a layer of so many experts, cut over all ranks; 0: dense."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(layers=1, width=32, heads=2, context=16))
    if count:
        model.blocks[0].mlp = ExpertParallelMLP(mixture(32, 64, count))
    return model


def average_shared(model: Transformer) -> None:
    """Average the gradients of what is on all ranks; a layer of experts sees to its own."""
    layer = model.blocks[0].mlp
    own = set(layer.parameters()) if isinstance(layer, ExpertParallelMLP) else set()
    shared = [parameter for parameter in model.parameters() if parameter not in own]
    flat = torch.cat([parameter.grad.flatten() for parameter in shared])
    dist.all_reduce(flat)
    for parameter, mean in zip(shared, (flat / dist.get_world_size()).split([p.numel() for p in shared])):
        parameter.grad.copy_(mean.view_as(parameter))
    if own:
        layer.average_gradients()


def learn(count: int, balance: float, seed: int, steps: int = 50) -> tuple[list[float], list[list[int]]]:
    """This rank's losses, and in each step how many of its choices went to each expert."""
    model, text = language_model(count, seed), load_text(16)
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses, used = [], []
    for _ in range(steps):
        own = torch.randint(len(text.train), (dist.get_world_size(), 4), generator=order)[dist.get_rank()]
        tokens, following = text.train.batch(own)
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), following)
        losses.append(loss.item())
        if count:
            probabilities, experts = model.blocks[0].mlp.routing
            used.append(experts.flatten().bincount(minlength=count).tolist())
            loss = loss + balance * load_balancing_loss(probabilities, experts)
        loss.backward()
        average_shared(model)
        optimizer.step()
    return losses, used


SEEDS = (0, 1, 2)
trainings = {"dense": (0, 0.0), "experts, no second loss": (8, 0.0), "experts, balanced": (8, 0.3)}
learnt = {
    (name, seed): launch(learn, *settings, seed, ranks=4).results
    for name, settings in trainings.items()
    for seed in SEEDS
}
final = {
    name: [sum(sum(losses[-10:]) for losses, _ in learnt[name, seed]) / 40 for seed in SEEDS]
    for name in trainings
}
for name, losses in final.items():
    print(
        f"{name:24} loss of the last ten steps, seed by seed: {', '.join(f'{loss:.2f}' for loss in losses)}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds top_k_gate dispatch_plan dispatch combine ExpertParallelMLP load_balancing_loss
spread = [loss for losses in final.values() for loss in losses]
assert max(spread) - min(spread) < 0.5, final
assert max(spread) < 3.5, final
assert all(rank[0][0] > 4.8 for rank in learnt.values() for rank in rank)

# %% [markdown]
# All of them start above 4.8, and end within half a nat of each other. Fifty steps show no advantage of eight
# experts: they have four times the parameters in this layer, and each sees a quarter of the tokens. (With billions of
# tokens, models based on T5-Base and T5-Large were trained up to seven times as fast on the same resources: Fedus et
# al., abstract.) What fifty steps do show is where the tokens go:

# %% demo=true jupyter={"source_hidden": true}
# %%needs top_k_gate dispatch_plan dispatch combine ExpertParallelMLP load_balancing_loss
shares = {}
for (name, seed), ranks_learnt in learnt.items():
    if name != "dense":
        used = torch.tensor([each for _, each in ranks_learnt]).sum(0)  # [steps, experts]
        shares[name, seed] = 100 * used / used.sum(1, keepdim=True)
figure, panels = new_figure(
    rows=1, columns=2, height=3, sharey=True,
    alt="Percent of choices that each of eight experts gets, over 50 steps, as stacked bands. Without a second loss two bands soon fill nearly "
    "all; with it all eight are about as wide at the end.",
)  # fmt: skip
with look():
    for axes, name in zip(panels, list(trainings)[1:], strict=True):
        bands = shares[name, 0].T.tolist()
        colours = [rank_colour(expert) for expert in range(8)]
        axes.stackplot(range(50), bands, colors=colours, edgecolor="white", linewidth=0.8)
        axes.set(title=name, xlabel="step", xlim=(0, 49), ylim=(0, 100))
panels[0].set_ylabel("choices of each expert (%)")
figure

# %% demo=true
# %%needs top_k_gate dispatch_plan dispatch combine ExpertParallelMLP load_balancing_loss
busiest = {
    name: [shares[name, seed][-10:].mean(0).sort().values[-2:].sum().item() for seed in SEEDS]
    for name in list(trainings)[1:]
}
for name, percent in busiest.items():
    print(
        f"{name:24} the two busiest experts get, seed by seed: {', '.join(f'{each:.0f} %' for each in percent)}"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds top_k_gate dispatch_plan dispatch combine ExpertParallelMLP load_balancing_loss
alone, balanced = busiest.values()
assert min(alone) > 60, busiest
assert max(balanced) < 40, busiest
guesses.measured(percent_of_choices_that_two_of_eight_experts_get=sum(alone) / len(alone))

# %% [markdown]
# Without the second loss two experts get more than 60 % of all choices, with every seed; an even share would be 25 %. With it
# they get less than 40 %. (The second loss has a weight of 0.3 here, because it has
# only 50 steps to act.)
#
# The same on real processes, with Gloo between them. Ten steps on both engines, from the same seed:

# %% demo=true
# %%needs top_k_gate dispatch_plan dispatch combine ExpertParallelMLP load_balancing_loss
real = launch(learn, 8, 0.3, 0, 10, ranks=4, on="processes", timeout=120)
simulated = launch(learn, 8, 0.3, 0, 10, ranks=4)
off = max(
    abs(a - b)
    for (one, _), (other, _) in zip(real.results, simulated.results, strict=True)
    for a, b in zip(one, other, strict=True)
)
print(f"losses differ by at most {off:.0e}; calls of rank 0: {real.traffic[0].calls}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds top_k_gate dispatch_plan dispatch combine ExpertParallelMLP load_balancing_loss
assert off < 1e-3
assert real.traffic[0].calls == simulated.traffic[0].calls == {"all_to_all_single": 50, "all_reduce": 30}

# %% [markdown]
# ## 8 What imbalance costs
#
# A step is over when the fullest rank has done its work. The next cell runs the forward pass of a layer as large as in real
# models, on eight GPUs of a LUMI-G node. Each GPU has 4,096 tokens of 4,096 numbers, two choices each, and one expert with
# 16,384 hidden units. The tensors have shapes only; the counts are real. The cell sets how many choices go to rank 0, and
# shares out the rest evenly.


# %% demo=true
# %%needs dispatch
def forward_seconds(x_RD: Tensor, up: nn.Linear, down: nn.Linear, counts: Tensor) -> None:
    """There, through the rank's expert, and back."""
    rows, received = dispatch(x_RD, counts)
    made = down(nn.functional.gelu(up(rows)))
    sizes = counts.view(received.shape).sum(1).tolist(), received.sum(1).tolist()
    dist.all_to_all_single(torch.empty_like(x_RD), made, *sizes)


node = presets.lumi_g(1)
with torch.device("meta"):
    up, down = nn.Linear(4096, 16_384), nn.Linear(16_384, 4096)


def seconds_with(counts: list[Tensor]) -> float:
    """counts: of each rank, one number for each of the eight experts."""
    rows = [torch.empty(int(each.sum()), 4096, device="meta") for each in counts]
    return launch(forward_seconds, per_rank(rows), up, down, per_rank(counts), cluster=node).seconds


CHOICES = 8192
even = seconds_with([torch.full((8,), CHOICES // 8)] * 8)
percent = [12.5, 15, 20, 25, 30, 40, 50, 75, 100]
uneven = []
for part in percent:
    first = round(CHOICES * part / 100)
    others = torch.full((7,), (CHOICES - first) // 7)
    uneven.append(seconds_with([torch.cat([torch.tensor([first]), others])] * 8))
line_figure(
    {
        "measured": (percent, [each / even for each in uneven]),
        "the fullest rank's share": (percent, [8 * part / 100 for part in percent]),
    },
    x="choices that go to rank 0 (%)",
    y="time of the layer, even load = 1",
    title="The fullest rank decides",
    alt="Time of the layer over the percentage of choices that go to rank 0, from 12.5, which is even, to 100. It rises in a "
    "straight line from 1 to about 8, and lies on the line of the fullest rank's share.",
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds dispatch
for part, taken in zip(percent, uneven, strict=True):
    assert abs(taken / even - 8 * part / 100) < 0.05 * 8 * part / 100, (part, taken / even)

# %% [markdown]
# A straight line: if a quarter of all choices goes to one of eight ranks, twice its fair share, the layer takes twice as long.
# The other seven have less than a fair share each, and wait for more than half of the time.
#
# Capacities limit this, and the price is dropped choices. In the next cell each rank draws its choices with probabilities that
# fall like 1 / (e + 1), so expert 0 is wanted most. Your `dispatch_plan` cuts at the capacity:

# %% demo=true
# %%needs dispatch_plan dispatch
torch.manual_seed(0)
wanted = 1 / torch.arange(1, 9)
drawn = [torch.multinomial(wanted.expand(4096, 8), 2) for _ in range(8)]  # of each token two different ones
factors = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0]
limited, dropped = [], []
for factor in factors:
    counts = [dispatch_plan(each, 8, math.ceil(factor * CHOICES / 8))[1] for each in drawn]
    limited.append(seconds_with(counts) / even)
    dropped.append(100 * (1 - sum(int(each.sum()) for each in counts) / (8 * CHOICES)))
for factor, taken, lost in zip(factors, limited, dropped, strict=True):
    print(
        f"capacity factor {factor:4}: {taken:.2f} of the even load's time, {lost:4.1f} % of choices dropped"
    )

# %% demo=true jupyter={"source_hidden": true}
# %%holds dispatch_plan dispatch
assert all(abs(taken - min(factor, limited[-1])) < 0.06 * taken for factor, taken in zip(factors, limited))
assert dropped[-1] == 0
assert 18 < dropped[factors.index(1.25)] < 21
assert 2.4 < limited[-1] < 2.6

# %% [markdown]
# With a factor of 1.25 the layer takes a quarter longer than with an even load. Without a limit it would take about two and a
# half times as long. But a fifth of all choices are dropped, so a capacity does not replace a balanced gate. (Switch
# Transformers take 1 to 1.25 in most of their runs. Some libraries leave k out of the formula; with k = 2 their factor of 2
# is then a 1 of ours.)
#
# ### All-to-all beside all-reduce
#
# An all-reduce of as many bytes sends twice as much as an all-to-all. The next cell compares them for 64 MiB a GPU on one, two
# and four nodes. 64 MiB is 8,192 rows of 4,096 numbers of two bytes:


# %% demo=true
def exchanged(nbytes: int) -> None:
    """An all-to-all of so many bytes on each rank."""
    x = torch.empty(nbytes, dtype=torch.uint8, device="meta")
    dist.all_to_all_single(torch.empty_like(x), x)


def summed(nbytes: int) -> None:
    """An all-reduce of as many."""
    dist.all_reduce(torch.empty(nbytes, dtype=torch.uint8, device="meta"))


collective_ms = {
    (machine, nodes): [
        1e3 * launch(call, 2**26, cluster=preset(nodes)).seconds for call in (exchanged, summed)
    ]
    for machine, preset in (("LUMI-G", presets.lumi_g), ("H100 pod", presets.h100_pod))
    for nodes in (1, 2, 4)
}
for (machine, nodes), (apart, added) in collective_ms.items():
    print(f"{machine:8} nodes {nodes}: all-to-all {apart:5.2f} ms, all-reduce {added:5.2f} ms")

# %% demo=true jupyter={"source_hidden": true}
for (machine, nodes), (apart, added) in collective_ms.items():
    apart_within, _ = collective_ms[machine, 1]
    assert apart < added
    if nodes > 1 and machine == "LUMI-G":
        assert 3.5 < apart / apart_within < 4.5
    elif nodes > 1:
        assert 6 < apart / apart_within < 8

# %% [markdown]
# At 64 MiB the all-to-all is the faster of the two. But an all-reduce of gradients runs once in a step and hides behind
# backward. An all-to-all of rows runs four times in every layer of experts, with nothing to compute meanwhile.
#
# Leaving the node is expensive. On two or four nodes of LUMI-G an all-to-all takes about four times as long as on one, on the
# H100 pod six to eight times. So experts are spread over few nodes if possible. DeepSeek-V3 lets a token go to four nodes
# at most (DeepSeek-AI 2024, section 2.1.2).

# %% [markdown]
# ## 9 PyTorch's own
#
# PyTorch has an all-to-all with a backward, among its functional collectives, which return new tensors. Beside yours, on both
# engines:


# %% demo=true
# %%needs dispatch
def both_ways(x_RD: Tensor, counts: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rows that came and the gradient of x, from your dispatch and from PyTorch's own."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    def torchs_own(x_RD: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        sent = counts.view(dist.get_world_size(), -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sizes = received.sum(1).tolist(), sent.sum(1).tolist()
        return all_to_all_single_autograd(x_RD, *sizes, dist.group.WORLD), received

    found = []
    for way in (dispatch, torchs_own):
        leaf = x_RD.clone().requires_grad_()
        rows, _ = way(leaf, counts)
        ((dist.get_rank() + 1) * rows.square()).sum().backward()
        found.append((rows.detach(), leaf.grad))
    return found


torch.manual_seed(0)
drawn_counts = [torch.randint(0, 4, (4,)) for _ in range(2)]
drawn_rows = [torch.randn(int(counts.sum()), 3) for counts in drawn_counts]
on_both = {
    engine: launch(both_ways, per_rank(drawn_rows), per_rank(drawn_counts), ranks=2, on=engine).results
    for engine in ("simulated", "processes")
}
for engine, found in on_both.items():
    off = max((a - b).abs().max().item() for yours, own in found for a, b in zip(yours, own, strict=True))
    print(f"{engine}: yours and PyTorch's differ by {off}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds dispatch
for found in on_both.values():
    assert all(torch.equal(a, b) for yours, own in found for a, b in zip(yours, own, strict=True))

# %% [markdown]
# ### Megatron-core's layer
#
# Megatron-core, NVIDIA's library (unit 06), has such a layer too. The next cell runs it beside yours, with the same weights and
# tokens, on two real processes. It expects a GPU; within `on_cpu` it runs on a CPU. Megatron-core averages gradients over ranks
# only after backward, with those of the rest of the model. So the cell compares the gradients as backward leaves them.


# %% demo=true jupyter={"source_hidden": true}
# %%needs beside:megatron-core top_k_gate dispatch_plan dispatch combine ExpertParallelMLP
Layered = tuple[Tensor, Tensor, Tensor, list[Tensor]]


def both_passes(layer: nn.Module, gate: nn.Module, experts: list[nn.Module], x_ND: Tensor) -> Layered:
    """The result [N, D], and the gradients of x, of the gate and of this rank's experts, each end to end."""
    leaf = x_ND.clone().requires_grad_()
    y_ND = layer(leaf)
    y_ND.square().mean().backward()
    of_experts = [
        torch.cat([parameter.grad.flatten() for parameter in expert.parameters()]) for expert in experts
    ]
    return y_ND.detach(), leaf.grad, gate.weight.grad, of_experts


def with_yours(whole: Mixture, x_ND: Tensor) -> Layered:
    """By your layer."""
    layer = ExpertParallelMLP(whole)
    return both_passes(layer, layer.gate, list(layer.experts), x_ND)


def with_megatron(whole: Mixture, x_ND: Tensor) -> Layered:
    """By Megatron-core's layer, which wants [tokens, samples, D], and returns a bias that is None as well."""
    from course_lib.training.megatron_experts import megatron_layer, on_cpu

    with on_cpu():
        layer = megatron_layer(whole.gate.weight, whole.experts, whole.k)
        experts = list(layer.experts.local_experts)
        return both_passes(lambda x_ND: layer(x_ND[:, None])[0][:, 0], layer.router, experts, x_ND)


torch.manual_seed(0)
small = mixture(16, 32, 4)
few_ND = torch.randn(24, 16)
layer_runs = {
    "yours": launch(with_yours, small, per_rank(few_ND.chunk(2)), ranks=2, on="processes", timeout=120),
    "Megatron-core's": launch(
        with_megatron,
        small,
        per_rank(few_ND.chunk(2)),
        ranks=2,
        on="processes",
        beside="megatron-core",
        timeout=240,
        quiet=True,
    ),
}
for rank, (own, other) in enumerate(zip(*(run.results for run in layer_runs.values()))):
    off = [(a - b).abs().max().item() for a, b in zip(own[:3] + tuple(own[3]), other[:3] + tuple(other[3]))]
    print(
        f"rank {rank}: results differ by at most {off[0]:.0e}, gradients of x by {off[1]:.0e}, "
        f"of the gate by {off[2]:.0e}, of experts by {max(off[3:]):.0e}"
    )
for name, run in layer_runs.items():
    print(f"{name}: {run.traffic[0].calls}, {run.traffic[0].sent:,} bytes sent by rank 0")

# %% demo=true jupyter={"source_hidden": true}
# %%holds beside:megatron-core top_k_gate dispatch_plan dispatch combine ExpertParallelMLP
for own, other in zip(*(run.results for run in layer_runs.values())):
    for a, b in zip(own[:3] + tuple(own[3]), other[:3] + tuple(other[3]), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
of_yours, of_theirs = (run.traffic[0] for run in layer_runs.values())
assert of_yours.calls == {"all_to_all_single": 5}
assert of_theirs.calls == {"all_gather_into_tensor": 1, "all_to_all_single": 6}
# Choices that leave their rank: experts 0 and 1 are on rank 0, 2 and 3 on rank 1.
crossing = sum(
    int((top_k_gate(small.gate(part), 2)[1] // 2 != rank).sum()) for rank, part in enumerate(few_ND.chunk(2))
)
# In each pass rank 0 sends the rows of its own choices, and those of rank 1's that it computes with.
assert of_yours.sent == 2 * crossing * 16 * 4 + 2 * 8
assert of_theirs.sent == 2 * crossing * 16 * 4 + 4 * 8 + crossing * 4

# %% [markdown]
# The same numbers, and nearly the same bytes. What differs:
#
# - A choice's **weight travels** with its row, and the expert multiplies by it, so that at home rows only need to be added.
#   That makes two more all-to-alls: of weights in forward, and of their gradients in backward.
# - **Counts** go by an all-gather: every rank learns the counts of all ranks. So there are six all-to-alls to your five.
# - Experts' gradients are sums over the ranks' losses, as yours are before `average_gradients`. In training Megatron-core's
#   `finalize_model_grads` comes after backward.

# %% [markdown]
# ## 10 Now on nodes
#
# Often there are more ranks than an expert group should have. Then each expert is on several ranks, one in each group, and
# *those* ranks average its gradient among themselves, by data parallelism. A mesh with two axes makes both kinds of group:
#
# ```python
# mesh = init_device_mesh("cuda", (nodes, gpus_per_node), mesh_dim_names=("replicas", "experts"))
# layer = ExpertParallelMLP(whole, group=mesh.get_group("experts"))  # tokens travel within a node
# loss.backward()
# layer.average_gradients()  # the gate over its group, experts divided by its p
# for parameter in layer.parameters():  # and now all of it over the replicas
#     if parameter.grad is None:  # of an expert that nobody here chose
#         parameter.grad = torch.zeros_like(parameter)
#     dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=mesh.get_group("replicas"))
# ```
#
# Two groups of two on four ranks learn what one rank does:


# %% demo=true
# %%needs top_k_gate dispatch_plan dispatch combine ExpertParallelMLP
def with_replicas(whole: Mixture, x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the gate and of this rank's first expert, in groups of two neighbours."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    layer = ExpertParallelMLP(whole, group=groups[dist.get_rank() // 2])
    layer(x_ND).square().mean().backward()
    layer.average_gradients()
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(parameter.grad, group=replicas[dist.get_rank() % 2])
        parameter.grad /= 2
    return layer.gate.weight.grad, layer.experts[0].up.weight.grad


whole.zero_grad()
whole(x_ND).square().mean().backward()
two_and_two = launch(with_replicas, whole, per_rank(x_ND.chunk(4)), ranks=4, cluster=Cluster(2, 2)).results
off = max(
    max(
        (gate - whole.gate.weight.grad).abs().max(),
        (expert - whole.experts[4 * (rank % 2)].up.weight.grad).abs().max(),
    )
    for rank, (gate, expert) in enumerate(two_and_two)
)
print(f"off by at most {off:.0e}")

# %% demo=true jupyter={"source_hidden": true}
# %%holds top_k_gate dispatch_plan dispatch combine ExpertParallelMLP
assert off < 1e-6

# %% [markdown]
# The batch script is that of unit 03, a task for each GPU. Number the tasks node by node, which Slurm does unless told
# otherwise. Then the last axis of the mesh is a node, and tokens stay within it. To check that on an allocation, run
# `launch(learn, 8, 0.3, 0, on="slurm")` and look at its `traffic`.

# %% [markdown]
# ## 11 Open task: copies of the busiest experts
#
# A gate is trained on one mixture of texts, and used on another. If at some hour everybody asks for code, a few experts may get
# most of the work. When a model is served, nothing can be dropped or trained. But one can count how many tokens each expert
# gets, and place the experts anew: busy ones together with idle ones, and the busiest on several ranks, which share its tokens
# equally: of 90 tokens on three ranks each computes 30.
# DeepSeek-V3 is served with 32 such copies beside its 256 experts, chosen anew about every ten minutes (DeepSeek-AI 2024,
# section 3.4.1).


# %% exercise="place_experts" points=8
def place_experts(loads: list[int], ranks: int, slots: int) -> list[list[int]]:
    """Which experts each rank holds, so that the fullest rank has as little to do as possible.

    loads: how many tokens each expert gets.
    slots: how many experts a rank has room for. All ranks together have room for every expert.

    Returns for each rank the list of its experts, at most `slots` different ones. Every expert is on
    some rank. A placement takes less than half a second. The score is the tokens of the fullest rank.
    Full marks are for at most 1.02 times the best known; the rubric says what less is worth.
    """
    ### BEGIN SOLUTION
    copies = [1] * len(loads)

    def share(expert: int) -> float:
        return loads[expert] / copies[expert]

    def tokens(own: list[int]) -> float:
        return sum(map(share, own))

    def packed() -> list[list[int]]:
        """The largest share first, each onto the emptiest rank that has room, and does not have it yet."""
        held: list[list[int]] = [[] for _ in range(ranks)]
        for expert in sorted(range(len(loads)), key=share, reverse=True):
            for _ in range(copies[expert]):
                fits = [own for own in held if len(own) < slots and expert not in own]
                min(fits, key=tokens).append(expert)
        return held

    def swapped(held: list[list[int]]) -> bool:
        """Whether two experts, of the fullest rank and another, have been swapped that make both less
        full.
        """
        fullest = max(held, key=tokens)
        for other in held:
            for i, mine in enumerate(fullest):
                for j, theirs in enumerate(other):
                    gain = share(mine) - share(theirs)
                    if (
                        mine in other
                        or theirs in fullest
                        or not 1e-9 < gain < tokens(fullest) - tokens(other) - 1e-9
                    ):
                        continue
                    fullest[i], other[j] = theirs, mine
                    return True
        return False

    best: tuple[float, list[list[int]]] = math.inf, []
    while True:
        held = packed()
        while swapped(held):
            pass
        best = min(best, (max(map(tokens, held)), held))
        more = [expert for expert in range(len(loads)) if copies[expert] < ranks]
        if not more or sum(copies) == ranks * slots:
            return best[1]
        copies[max(more, key=share)] += 1
    ### END SOLUTION


# %% [markdown]
# Sixteen experts on four ranks with five slots each, so that four slots are left for copies:

# %% demo=true
# %%needs place_experts
loads = [106, 85, 67, 52, 51, 1037, 295, 123, 174, 133, 74, 108, 118, 79, 56, 461]
placed = place_experts(loads, 4, 5)
copies = [sum(expert in own for own in placed) for expert in range(16)]
tokens_of = [sum(loads[expert] / copies[expert] for expert in own) for own in placed]
plain = [sum(loads[first : first + 4]) for first in range(0, 16, 4)]
print(
    f"one after another: the fullest of four ranks has {max(plain):,} tokens; yours {max(tokens_of):,.1f}; the mean is {sum(loads) / 4:,.1f}"
)

# %% demo=true jupyter={"source_hidden": true}
# %%holds place_experts
assert max(plain) == 1506
assert sum(loads) / 4 == 754.75
assert 754 < max(tokens_of) < 780

# %% [markdown]
# ## Where it comes from
#
# - R. Jacobs, M. Jordan, S. Nowlan, G. Hinton, Adaptive mixtures of local experts, Neural Computation 3, 1991: experts and a
#   gate that learns which expert is good at what.
# - N. Shazeer et al., Outrageously large neural networks: the sparsely-gated mixture-of-experts layer, ICLR 2017
#   (arXiv:1701.06538): the k largest only, up to 137 billion parameters, a loss for balance, and experts spread over GPUs.
# - D. Lepikhin et al., GShard: scaling giant models with conditional computation and automatic sharding, ICLR 2021
#   (arXiv:2006.16668): 600 billion parameters on 2048 TPU v3 cores, k = 2, capacities, all-to-alls; groups of tokens that each
#   have their own share of an expert's capacity, as your ranks do.
# - W. Fedus, B. Zoph, N. Shazeer, Switch Transformers, JMLR 23, 2022 (arXiv:2101.03961): k = 1, the loss of section 5, 1.6
#   trillion parameters. Its equations 4 to 6 are the loss for k = 1.
# - S. Rajbhandari et al., DeepSpeed-MoE, ICML 2022 (arXiv:2201.05596), and C. Hwang et al., Tutel: adaptive mixture-of-experts
#   at scale, MLSys 2023 (arXiv:2206.03382): all-to-alls in two stages.
# - T. Gale et al., MegaBlocks: efficient sparse training with mixture-of-experts, MLSys 2023 (arXiv:2211.15841): products of
#   matrices for groups of any size, so that nothing has to be dropped. Megatron-core multiplies groups too.
# - DeepSeek-AI, DeepSeek-V3 technical report, arXiv:2412.19437, 2024: 671 billion parameters, of which 37 billion work for a
#   token; 256 experts and one that all tokens use, k = 8; balanced by a bias in the choice, and hardly by a loss.
#
# ## What goes wrong in practice
#
# - **A hang in backward**, hours after the start. On some rank no token came to any expert, its code returned early, and its
#   graph lacked the way back. Let an expert run on zero rows.
# - **Experts that learn p times too fast**, because their gradients are sums. Megatron-core divides them in
#   `finalize_model_grads` by the size of the whole data-parallel group. DistributedDataParallel averages every gradient, and
#   has to be told to leave experts alone.
# - **Clipping.** Each rank has the gate's gradient, but only its own experts' gradients. The norm of all gradients counts the
#   gate once and the experts of all ranks.
# - **Dropped choices that nobody counts.** With a low capacity factor a step is fast, and the loss still falls. Watch the share
#   of dropped choices.
# - **A balancing loss that wins.** With too large a weight the gate chooses evenly, and at random. Begin with 0.01.
# - **Checkpoints.** A rank saves its own experts only. On another number of ranks they have to be distributed anew. PyTorch's
#   distributed checkpoints do that if each expert has a name of its own.
# - **Router in bfloat16.** Logits that are close become equal, and choices jump. Switch Transformers compute the gate in
#   float32 for that reason.

# %% [markdown]
# What you predicted, beside what was measured:

# %% demo=true
guesses
