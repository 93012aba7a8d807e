"""Unit 06, the two halves of a transformer's block, cut: the MLP by hidden units, attention by heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graders.grading.kit import (
    Answer,
    Criterion,
    Finding,
    Findings,
    Observed,
    Rng,
    compare,
    exercise,
)
from graders.units.models import load_values, sent
from graders.units.passes import bytes_in_passes, calls_by_pass, calls_in_passes
from graders.units.unit_06 import drivers
from graders.units.unit_06.module_findings import memory, results
from graders.units.unit_06.modules import whole_half
from graders.units.unit_06.passes import OF_A_MODULE
from graders.units.unit_06.replies import HalfReply

# No way to tell a rank's place in its group from its rank alone is right in both.
GROUPS = ([[0, 1], [2, 3]], [[1, 2], [0, 3]])
Replies = Observed[HalfReply]
GRADIENT = "the gradient of {}, summed over two steps,"
PASSES = (*OF_A_MODULE, "the one given")
RIGHT = ("outputs", "gradients")


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "outputs",
            2,
            "What does a rank with some of the hidden units lack at the end, and only there? Is down's bias "
            "in it once?",
            needs=("parts",),
        ),
        Criterion("parts", 2, "A hidden unit is a row of up, a number of its bias and a column of down."),
        Criterion("gradients", 2, "In backward the same two places ask the other ranks as in forward."),
        Criterion(
            "calls and bytes",
            2,
            "GELU works on each hidden unit alone: nobody needs the others'.",
            needs=RIGHT,
        ),
        Criterion(
            "uneven parts",
            1,
            "The first ranks may have one hidden unit more.",
            needs=(*RIGHT, "calls and bytes"),
        ),
        Criterion("memory", 1, "What is returned has this rank's part alone."),
        Criterion("arguments unchanged", 1, "The MLP given is somebody's model: change a copy."),
        Criterion("group", 1, "Rank and size are those of the group, and so is every call.", needs=RIGHT),
    ),
    hints=(
        "If each rank had its own hidden units, which of them would have to know the others'?",
        "Which of your layers leaves its output cut, and which takes one that is?",
        "Your layers draw their own numbers. Where do the given ones come in?",
    ),
)
def parallel_mlp(answer: Answer, rng: Rng) -> Findings:
    """Drawn MLPs, cut by hidden units."""
    yield from _judged(answer, rng, "mlp", "uneven parts")


@exercise(
    minutes=30,
    difficulty=4,
    rubric=(
        Criterion(
            "outputs", 2, "Heads work side by side; only the output layer mixes them.", needs=("parts",)
        ),
        Criterion(
            "parts", 2, "Head h has the rows h K to (h + 1) K of query, key and value. And of the output?"
        ),
        Criterion("gradients", 2, "Query, key and value are three branches of one x, on each rank."),
        Criterion(
            "calls and bytes",
            3,
            "How many sums does the gradient of x need, and where does x become one branch?",
            needs=RIGHT,
        ),
        Criterion(
            "heads that cannot be shared out evenly", 2, "Cut between heads: a head has K rows.", needs=RIGHT
        ),
        Criterion("memory", 1, "What is returned has this rank's part alone."),
        Criterion("arguments unchanged", 1, "The attention given is somebody's model: change a copy."),
        Criterion("group", 1, "Rank and size are those of the group, and so is every call.", needs=RIGHT),
    ),
    hints=(
        "Which numbers does a head need from another one?",
        "Three column-parallel layers have three f. How many all-reduces is that in backward?",
        "What can do something to x before the module's own forward sees it? Look for forward_pre_hook.",
        "Where does tensor_split cut the 12 rows of 3 heads for 2 ranks, and where do you want it to?",
    ),
)
def parallel_attention(answer: Answer, rng: Rng) -> Findings:
    """Drawn attentions, cut by heads."""
    yield from _judged(answer, rng, "attention", "heads that cannot be shared out evenly")


def _judged(answer: Answer, rng: Rng, kind: str, name: str) -> Findings:
    """name: of the criterion of uneven parts."""
    plain, uneven = (Case.drawn(rng, kind, uneven=uneven) for uneven in (False, True))
    grouped = [Case.drawn(rng, kind, groups=groups) for groups in GROUPS]
    in_training = Case.drawn(rng, kind, training=True)
    run = plain.launch(answer)
    runs = (run, in_training.launch(answer))
    yield "outputs", compare.first_failure(map(Case.outputs, (plain, in_training), runs))
    yield "parts", plain.parts(run)
    yield "gradients", plain.gradients(run)
    yield "calls and bytes", plain.communication(run)
    yield name, uneven.all_right(uneven.launch(answer))
    yield "memory", plain.memory(run)
    yield "arguments unchanged", compare.first_failure(map(Case.unchanged, (plain, in_training), runs))
    yield "group", compare.first_failure(each.all_right(each.launch(answer)) for each in grouped)


@dataclass(frozen=True, slots=True)
class Case:
    """A module with drawn parameters, and what passes through it: x and arriving [B, T, D].

    sizes: D, heads, F. training: see `whole_half`.
    """

    kind: str
    sizes: tuple[int, int, int]
    whole: nn.Module
    x: Tensor
    arriving: Tensor
    groups: list[list[int]]
    ranks: int
    training: bool

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        kind: str,
        *,
        uneven: bool = False,
        groups: list[list[int]] | None = None,
        training: bool = False,
    ) -> "Case":
        """uneven: heads and hidden units cannot be shared out evenly over the ranks. training: in float64."""
        ranks = 4 if groups or uneven else 3
        size = 2 if groups else ranks
        heads = inner = 2 * size + 2 * uneven
        sizes = (heads * rng.integer(2, 3), heads, inner)
        dtype = torch.float64 if training else torch.float32
        whole = whole_half(kind, sizes).to(dtype).train(training)
        load_values(
            whole.parameters(), [0.3 * rng.normal(*each.shape, dtype=dtype) for each in whole.parameters()]
        )
        shape = (rng.integer(1, 2), rng.integer(4, 5), sizes[0])
        x, arriving = (rng.normal(*shape, dtype=dtype) for _ in range(2))
        return cls(kind, sizes, whole, x, arriving, groups or [], ranks, training)

    def launch(self, answer: Answer) -> Replies:
        given = {name: each.detach() for name, each in self.whole.named_parameters()}
        return answer.launch(
            drivers.half,
            self.kind,
            self.sizes,
            given,
            self.x,
            self.arriving,
            self.groups,
            self.training,
            ranks=self.ranks,
        )

    def cut(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Every rank's part of the parameters, or of their gradients, by name."""
        width, heads, inner = self.sizes
        units, rows = (inner, 1) if self.kind == "mlp" else (heads, width // heads)
        parts = []
        for rank in range(self.ranks):
            group = next((each for each in self.groups if rank in each), list(range(self.ranks)))
            owned = torch.arange(units * rows).view(units, rows).tensor_split(len(group))
            own = owned[group.index(rank)].flatten()
            parts.append({name: _part(name, tensor, own) for name, tensor in tensors.items()})
        return parts

    def outputs(self, run: Replies) -> Finding:
        """Passes if every rank has what the whole module returns."""
        return results(run, [self.whole(self.x).detach()] * self.ranks, whole=True)

    def parts(self, run: Replies) -> Finding:
        """Passes if every rank has its part of every parameter."""
        named = {name: each.detach() for name, each in self.whole.named_parameters()}
        return _all_close([reply.parameters for reply in run.results], self.cut(named), "the part of {}", 0)

    def gradients(self, run: Replies) -> Finding:
        """Passes if x has the whole gradient of two steps on every rank, and every parameter its part."""
        named = self.whole_gradients()
        # Each step has them once, and by its other way x gets a one.
        expected = [
            {**{name: 2 * each for name, each in part.items()}, "x": 2 * (named["x"] + 1)}
            for part in self.cut({name: each for name, each in named.items() if name != "x"})
        ]
        return _all_close([reply.gradients for reply in run.results], expected, GRADIENT, 1e-4)

    def whole_gradients(self) -> dict[str, Tensor]:
        """Of one step of the whole module, by name; of x it is "x"."""
        named = {"x": self.x.clone().requires_grad_(), **dict(self.whole.named_parameters())}
        found = torch.autograd.grad(sent(self.whole(named["x"]), self.arriving), list(named.values()))
        return dict(zip(named, found, strict=True))

    def all_right(self, run: Replies) -> Finding:
        """Passes if parts, outputs and gradients are right."""
        return compare.first_failure((self.parts(run), self.outputs(run), self.gradients(run)))

    def communication(self, run: Replies) -> Finding:
        """Passes if there is one all_reduce in each pass, of a tensor as large as x."""
        once = [[], *[["all_reduce"]] * (len(OF_A_MODULE) - 1)]
        nbytes = [[self.x.nbytes * len(calls) for calls in once]] * self.ranks
        return compare.first_failure(
            (calls_in_passes(run, PASSES, once), bytes_in_passes(run, PASSES, nbytes))
        )

    def memory(self, run: Replies) -> Finding:
        """Passes if what is returned keeps no more memory than its own numbers take."""
        named = {name: each.detach() for name, each in self.whole.named_parameters()}
        return memory([reply.kept for reply in run.results], self.cut(named))

    def unchanged(self, run: Replies) -> Finding:
        """Passes if the module given, x and the gradient that arrives are what they were, and the module
        still does by itself what it did.
        """
        given = {name: each.detach() for name, each in self.whole.named_parameters()}
        expected = [{**given, "x": self.x, "the gradient that arrived": self.arriving}] * self.ranks
        seen = [{**r.given, "x": r.x, "the gradient that arrived": r.arriving} for r in run.results]
        changed = [reply.changed for reply in run.results]
        alone = [self.whole(self.x).detach(), self.whole_gradients()["x"]]
        asked = [call.op for rank in range(self.ranks) for call in calls_by_pass(run, rank, PASSES)[-1]]
        return compare.first_failure(
            (
                _all_close(seen, expected, "{}, given,", 0),
                compare.equal(
                    changed, [[]] * self.ranks, "What has changed of the module given, rank by rank"
                ),
                compare.equal(asked, [], "Calls of the module given, afterwards"),
                *(
                    compare.close(
                        got, wanted, f"{what} of the module given, afterwards on rank {rank},", 1e-4, 1e-4
                    )
                    for rank, reply in enumerate(run.results)
                    for got, wanted, what in zip(
                        reply.alone, alone, ("the result", "x's gradient"), strict=True
                    )
                ),
            )
        )


def _part(name: str, tensor: Tensor, own: Tensor) -> Tensor:
    """What of a parameter belongs to a rank with these hidden units or rows of query."""
    if name in ("down.bias", "output.bias"):
        return tensor
    return tensor[:, own] if name in ("down.weight", "output.weight") else tensor[own]


def _all_close(
    seen: Sequence[Mapping[str, Tensor | None]], expected: list[dict[str, Tensor]], what: str, rtol: float
) -> Finding:
    """Passes if every rank has every tensor that is expected of it, by name, and no other."""
    for rank, (got, wanted) in enumerate(compare.side_by_side(seen, expected)):
        if set(got) != set(wanted):
            return compare.equal(sorted(got), sorted(wanted), f"the names of parameters on rank {rank}")
    return compare.first_failure(
        compare.close_on_all_ranks(
            [each[name] for each in seen],
            [each[name] for each in expected],
            what.format(name),
            rtol,
            rtol,
        )
        for name in expected[0]
    )
