"""Unit 06, layers that are cut: by their outputs, and by their inputs."""

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
    per_rank,
)
from graders.units.models import sent
from graders.units.passes import bytes_in_passes, calls_in_passes
from graders.units.unit_06 import drivers
from graders.units.unit_06.module_findings import memory, results
from graders.units.unit_06.passes import OF_A_MODULE
from graders.units.unit_06.replies import LayerReply

# No way to tell a rank's place in its group from its rank alone is right in both.
GROUPS = ([[0, 1], [2, 3]], [[1, 2], [0, 3]])
Replies = Observed[LayerReply]


def _rubric(outputs: str, gradients: str, calls: str) -> tuple[Criterion, ...]:
    """The criteria of a layer, with the hints in which the two differ."""
    return (
        Criterion("outputs", 2, outputs),
        Criterion("gradients", 3, gradients),
        Criterion(
            "initial values",
            2,
            "Together the parts are what nn.Linear draws from the same random state, and what is drawn after "
            "that is the same too. A part's own nn.Linear draws other numbers.",
        ),
        Criterion(
            "memory",
            1,
            "A slice of a tensor keeps the whole tensor's memory alive: p.untyped_storage().nbytes(). So "
            "does whatever attribute still has the whole.",
        ),
        Criterion("calls and bytes", 2, calls, needs=("outputs", "gradients")),
        Criterion("arguments unchanged", 1, "What comes in may be somebody else's, in both passes."),
        Criterion(
            "other widths and shapes",
            2,
            "Dimensions in front of the last are kept, however many, and in whatever order they stand in "
            "memory; the first ranks' parts are one longer where a width cannot be shared out evenly.",
            needs=("outputs", "gradients", "initial values"),
        ),
        Criterion(
            "group",
            1,
            "Rank and size are those of the group, and so is every call.",
            needs=("outputs", "gradients"),
        ),
    )


@exercise(
    name="ColumnParallelLinear",
    minutes=30,
    difficulty=3,
    rubric=_rubric(
        "nn.Linear computes x W^T + b: which part of W and of b makes this rank's outputs?",
        "All ranks' outputs come from the same x: its gradient has something from each of them.",
        "Forward needs nobody; backward needs one sum, of a tensor as large as x.",
    ),
    hints=(
        "Of a weight [outputs, inputs], does a rank get rows or columns?",
        "On which ranks is x, and what does that say about its gradient?",
        "How does a layer of 6 of 24 outputs get the numbers that nn.Linear would have drawn there?",
    ),
)
def column_parallel_linear(answer: Answer, rng: Rng) -> Findings:
    """Drawn layers, cut by their outputs."""
    yield from _judged(answer, rng, by_outputs=True)


@exercise(
    name="RowParallelLinear",
    minutes=25,
    difficulty=3,
    rubric=_rubric(
        "Each rank has a part of each product, and the whole is their sum. Is the bias in it once?",
        "Nobody else adds to the gradient of a rank's own part of x. Every rank keeps the whole bias, and "
        "all of them have to give it the same whole gradient.",
        "Forward needs one sum, of a tensor as large as the result; backward needs nobody.",
    ),
    hints=(
        "With x cut along its last dimension, which part of the weight meets which part of x?",
        "How often is the bias in the sum over ranks, if each rank adds it before?",
        "If only rank 0 adds the bias, which ranks' copies of it get a gradient?",
    ),
)
def row_parallel_linear(answer: Answer, rng: Rng) -> Findings:
    """Drawn layers, cut by their inputs."""
    yield from _judged(answer, rng, by_outputs=False)


def _judged(answer: Answer, rng: Rng, *, by_outputs: bool) -> Findings:
    plain = Case.drawn(rng, by_outputs)
    run = plain.launch(answer)
    yield "outputs", plain.outputs(run)
    yield "gradients", plain.gradients(run)
    yield "initial values", plain.initial(run)
    yield "memory", plain.memory(run)
    yield "calls and bytes", compare.first_failure(plain.communication(run))
    yield "arguments unchanged", plain.unchanged(run)
    odd = [Case.drawn(rng, by_outputs, odd=True, dimensions=dimensions) for dimensions in (0, 2)]
    yield (
        "other widths and shapes",
        compare.first_failure(each.all_right(each.launch(answer)) for each in odd),
    )
    grouped = [Case.drawn(rng, by_outputs, groups=groups) for groups in GROUPS]
    yield "group", compare.first_failure(each.both_passes(each.launch(answer)) for each in grouped)


@dataclass(frozen=True, slots=True)
class Case:
    """A layer with drawn parameters, and what passes through it.

    x [..., inputs] and arriving [..., outputs]: whole. groups: in which the ranks work; none: one of all.
    """

    whole: nn.Linear
    x: Tensor
    arriving: Tensor
    seed: int
    by_outputs: bool
    groups: list[list[int]]
    ranks: int

    @classmethod
    def drawn(
        cls,
        rng: Rng,
        by_outputs: bool,
        *,
        odd: bool = False,
        dimensions: int = 1,
        groups: list[list[int]] | None = None,
    ) -> "Case":
        """odd: widths with 1 or 2 more than 4 ranks can share; and, where x has one dimension, no bias.
        dimensions: of x in front of its last.
        """
        ranks = 4 if groups or odd else rng.integer(3, 4)
        rest = (1 if dimensions else 2) if odd else 0
        size = 2 if groups else ranks
        inputs, outputs = (size * rng.integer(2, 3) + rest for _ in range(2))
        whole = nn.Linear(inputs, outputs, bias=not (odd and dimensions == 0))
        with torch.no_grad():
            for parameter in whole.parameters():
                parameter.copy_(rng.normal(*parameter.shape))
        # Few sums, or sums of two parts, might by chance be rounded alike on all ranks.
        front = [rng.integer(2, 3)] * 2 if dimensions == 2 else [rng.integer(8, 9)] * dimensions
        seed = rng.integer(0, 2**31)
        x, arriving = rng.normal(*front, inputs), rng.normal(*front, outputs)
        return cls(whole, x, arriving, seed, by_outputs, groups or [], ranks)

    def launch(self, answer: Answer) -> Replies:
        inputs, outputs = self.whole.in_features, self.whole.out_features
        made = (inputs, outputs, self.whole.bias is not None, self.seed, self.groups)
        return answer.launch(
            drivers.layer,
            made,
            per_rank(self._parts(dict(self.whole.named_parameters()))),
            per_rank([self._of_inputs(self.x, rank) for rank in range(self.ranks)]),
            per_rank([self._of_outputs(self.arriving, rank) for rank in range(self.ranks)]),
            self.x.dim() > 2,
            ranks=self.ranks,
        )

    def _parts(self, parameters: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Every rank's parts of a weight [outputs, inputs] and, perhaps, a bias [outputs]."""
        return [
            {
                name: self._of_inputs(self._of_outputs(tensor, rank, 0), rank)
                if name == "weight"
                else self._of_outputs(tensor, rank)
                for name, tensor in parameters.items()
            }
            for rank in range(self.ranks)
        ]

    def _of_outputs(self, tensor: Tensor, rank: int, dimension: int = -1) -> Tensor:
        return self._part(tensor, rank, dimension) if self.by_outputs else tensor.detach()

    def _of_inputs(self, tensor: Tensor, rank: int) -> Tensor:
        return tensor.detach() if self.by_outputs else self._part(tensor, rank, -1)

    def _part(self, tensor: Tensor, rank: int, dimension: int) -> Tensor:
        group = next((each for each in self.groups if rank in each), list(range(self.ranks)))
        return tensor.detach().tensor_split(len(group), dimension)[group.index(rank)].clone()

    def both_passes(self, run: Replies) -> Finding:
        """Passes if outputs and gradients are right."""
        return compare.first_failure((self.outputs(run), self.gradients(run)))

    def all_right(self, run: Replies) -> Finding:
        """Passes if what it is made with is right, too."""
        made = [self.initial(run), *([self.without_bias(run)] if self.whole.bias is None else [])]
        return compare.first_failure((self.both_passes(run), *made))

    def outputs(self, run: Replies) -> Finding:
        """Passes if every rank has its part of what the whole layer returns."""
        expected = self.whole(self.x).detach()
        parts = [self._of_outputs(expected, rank) for rank in range(self.ranks)]
        return results(run, parts, whole=not self.by_outputs)

    def gradients(self, run: Replies) -> Finding:
        """Passes if x and every parameter have their part of the whole layer's gradients in two steps; x has
        those of its other way too.
        """
        leaf = self.x.clone().requires_grad_()
        named = dict(self.whole.named_parameters())
        found = torch.autograd.grad(sent(self.whole(leaf), 2 * self.arriving), [leaf, *named.values()])
        parts = self._parts(dict(zip(named, found[1:], strict=True)))
        expected = [{"x": self._of_inputs(found[0] + 2, rank), **part} for rank, part in enumerate(parts)]
        return compare.first_failure(
            compare.close_on_all_ranks(
                [reply.gradients.get(name) for reply in run.results],
                [part[name] for part in expected],
                f"the gradient of {name}, summed over two steps,",
                1e-4,
                1e-5,
            )
            for name in expected[0]
        )

    def initial(self, run: Replies) -> Finding:
        """Passes if the parts, and what is drawn after them, are as with nn.Linear from the same state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            torch.rand(1)
            bias = self.whole.bias is not None
            drawn = nn.Linear(self.whole.in_features, self.whole.out_features, bias)
            after = torch.rand(3)
        parts = self._parts(dict(drawn.named_parameters()))
        seen = [{**reply.initial, "random": reply.random} for reply in run.results]
        return compare.first_failure(
            compare.close_on_all_ranks([each.get(name) for each in seen], wanted, what, 0, 0)
            for name, wanted, what in (
                *((name, [part[name] for part in parts], f"the initial {name}") for name in parts[0]),
                ("random", [after] * self.ranks, "what torch.rand(3) draws afterwards"),
            )
        )

    def without_bias(self, run: Replies) -> Finding:
        """Passes if `bias` is there, and None."""
        seen = [reply.without_bias for reply in run.results]
        return compare.equal(seen, [True] * self.ranks, "bias is None with bias=False, rank by rank")

    def memory(self, run: Replies) -> Finding:
        """Passes if no layer keeps more memory than its own numbers take."""
        return memory([reply.kept for reply in run.results], self._parts(dict(self.whole.named_parameters())))

    def communication(self, run: Replies) -> list[Finding]:
        """The one call that is needed, and how many bytes it is given."""
        asks, nbytes = ("backward", self.x.nbytes) if self.by_outputs else ("forward", self.arriving.nbytes)
        calls = [["all_reduce"] if asks in label else [] for label in OF_A_MODULE]
        return [
            calls_in_passes(run, OF_A_MODULE, calls),
            bytes_in_passes(run, OF_A_MODULE, [[nbytes * len(each) for each in calls]] * self.ranks),
        ]

    def unchanged(self, run: Replies) -> Finding:
        """Passes if x and the gradient that arrives are what they were."""
        ranks = range(self.ranks)
        return compare.first_failure(
            compare.close_on_all_ranks(seen, given, f"{what} afterwards", 0, 0)
            for seen, given, what in (
                ([reply.x for reply in run.results], [self._of_inputs(self.x, r) for r in ranks], "x"),
                (
                    [reply.arriving for reply in run.results],
                    [self._of_outputs(self.arriving, r) for r in ranks],
                    "the gradient that arrived,",
                ),
            )
        )
