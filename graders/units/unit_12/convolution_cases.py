"""Unit 12, cases for convolutions on several ranks: how they are cut, and what should come."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from graders.grading.kit import Answer, Finding, Observed, PlainData, Rng, compare, per_rank
from graders.units.groups import members_of
from graders.units.unit_12.drivers import space
from graders.units.unit_12.several import Call
from graders.units.unit_12.space_replies import PassesReply

PASSES = ("forward", "backward", "forward under no_grad")
Replies = Observed[PassesReply]
Cut = Callable[[Tensor, "Case"], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Way:
    """How the image, the weight and the result are cut: for each place of a group a part."""

    x: Cut
    weight: Cut
    y: Cut


def whole(tensor: Tensor, case: "Case") -> list[Tensor]:
    """All of it everywhere."""
    return [tensor] * case.size


def along(dim: int) -> Cut:
    """Equal parts along a dimension."""
    return lambda tensor, case: list(tensor.chunk(case.size, dim))


def strips(tensor: Tensor, case: "Case") -> list[Tensor]:
    """Strips of the heights drawn."""
    return list(torch.split(tensor, case.heights, 2))


def strips_of_result(tensor: Tensor, case: "Case") -> list[Tensor]:
    """What becomes of them where each `stride`-th row is kept."""
    return list(torch.split(tensor, [-(-height // case.steps) for height in case.heights], 2))


SPATIAL = Way(strips, whole, strips_of_result)
BY_FILTERS = Way(along(1), along(0), along(1))
BY_CHANNELS = Way(along(1), along(1), along(1))


@dataclass(frozen=True, slots=True)
class Case:
    """A convolution for each group of `size` ranks: images and weights, whole. stride: None for the default.

    frozen: see the driver. heights: of each rank's strip, where images are cut in space.
    """

    way: Way
    x: list[Tensor]
    weight: list[Tensor]
    size: int
    stride: int | None = None
    heights: list[int] = field(default_factory=list)
    frozen: list[int] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)

    @classmethod
    def in_space(
        cls,
        rng: Rng,
        heights: list[int],
        kernel: tuple[int, int],
        *,
        stride: int | None = None,
        frozen: list[int] | None = None,
        groups: list[list[int]] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "Case":
        """Strips of these heights of drawn images."""
        samples, channels, filters = rng.integer(2, 3), rng.integer(2, 3), rng.integer(2, 4)
        columns, many = rng.integer(4, 6), len(groups or [[]])
        x = [rng.normal(samples, channels, sum(heights), columns, dtype=dtype) for _ in range(many)]
        weight = [rng.normal(filters, channels, *kernel, dtype=dtype) for _ in range(many)]
        return cls(SPATIAL, x, weight, len(heights), stride, heights, frozen or [], groups or [])

    @classmethod
    def in_channels(
        cls,
        rng: Rng,
        way: Way,
        ranks: int,
        kernel: tuple[int, int],
        *,
        samples: int = 2,
        each: int | None = None,
        frozen: list[int] | None = None,
        groups: list[list[int]] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "Case":
        """Each rank has one channel or two, by default either, and one, two or three filters; in groups two
        of each at least, for then a cut among all ranks, of other groups too, is another.
        """
        least = 2 if groups else 1
        channels, filters = ranks * (each or rng.integer(least, 2)), ranks * rng.integer(least, 3)
        rows, columns, many = rng.integer(3, 5), rng.integer(3, 5), len(groups or [[]])
        x = [rng.normal(samples, channels, rows, columns, dtype=dtype) for _ in range(many)]
        weight = [rng.normal(filters, channels, *kernel, dtype=dtype) for _ in range(many)]
        return cls(way, x, weight, ranks, frozen=frozen or [], groups=groups or [])

    @property
    def steps(self) -> int:
        """The stride itself."""
        return self.stride or 1

    @property
    def members(self) -> list[list[int]]:
        """The ranks of each group."""
        return self.groups or [members_of(0, self.size, [])]

    def dealt(self, tensors: list[Tensor], cut: Cut) -> list[Tensor]:
        """Each rank's part of tensors, one a group."""
        parts = {
            rank: part
            for members, tensor in zip(self.members, tensors, strict=True)
            for rank, part in zip(members, cut(tensor, self), strict=True)
        }
        return [parts[rank] for rank in range(len(parts))]

    def launch(self, answer: Answer) -> Replies:
        given = per_rank(self.dealt(self.x, self.way.x)), per_rank(self.dealt(self.weight, self.way.weight))
        ranks = self.size * len(self.members)
        return answer.launch(space.convolved, *given, self.stride, self.frozen, self.groups, ranks=ranks)

    def computed(self, x: Tensor, weight: Tensor) -> Tensor:
        """The convolution on one rank."""
        padding = weight.shape[2] // 2, weight.shape[3] // 2
        return functional.conv2d(x, weight, stride=self.steps, padding=padding)

    def expected(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """What each rank should return, and the gradients of its x and of its weight."""
        results, of_x, of_weight = [], [], []
        for members, x, weight in zip(self.members, self.x, self.weight, strict=True):
            leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            result = self.computed(*leaves)
            loss = sum(
                (part * space.arriving(part, rank)).sum()
                for part, rank in zip(self.way.y(result, self), members, strict=True)
            )
            gradients = torch.autograd.grad(loss, leaves)  # type: ignore[arg-type]
            results.append(result.detach())
            of_x.append(gradients[0])
            of_weight.append(gradients[1])
        return (
            self.dealt(results, self.way.y),
            self.dealt(of_x, self.way.x),
            self.dealt(of_weight, self.way.weight),
        )

    def call(self) -> Call:
        """As one of several calls."""
        given = [self.dealt(self.x, self.way.x), self.dealt(self.weight, self.way.weight)]
        results, *gradients = self.expected()
        options: dict[str, PlainData] = {} if self.stride is None else {"stride": self.stride}
        return Call(given, options, results, gradients, self.groups)

    @property
    def near(self) -> float:
        """How far apart two sums in different order may be."""
        return 1e-10 if self.x[0].dtype is torch.float64 else 1e-4

    def results(self, run: Replies) -> Finding:
        """Passes if each rank returned its part, with a gradient and without, and left its arguments."""
        expected = self.expected()[0]
        x, weight = self.dealt(self.x, self.way.x), self.dealt(self.weight, self.way.weight)
        given = [reply.given for reply in run.results]
        found = [
            compare.close_on_all_ranks(seen, wanted, what, near, near)
            for what, seen, wanted, near in (
                ("the result", [reply.result for reply in run.results], expected, self.near),
                ("the result under no_grad", [reply.without for reply in run.results], expected, self.near),
                ("x_shard afterwards", compare.column(given, 0, 2), x, 0),
                ("the weight afterwards", compare.column(given, 1, 2), weight, 0),
            )
        ]
        learn = [number not in self.frozen for number in range(2)]
        found += [
            compare.equal(
                reply.learning, learn, f"whether image and weight on rank {rank} need a gradient then"
            )
            for rank, reply in enumerate(run.results)
        ]
        return compare.first_failure(found)

    def gradient_of_x(self, run: Replies) -> Finding:
        return self._gradient(run, 0, "the gradient of x_shard")

    def gradient_of_weight(self, run: Replies) -> Finding:
        return self._gradient(run, 1, "the gradient of the weight")

    def _gradient(self, run: Replies, number: int, what: str) -> Finding:
        seen = compare.column([reply.gradients for reply in run.results], number, 2)
        return compare.close_on_all_ranks(seen, self.expected()[1 + number], what, self.near, 10 * self.near)

    def all_right(self, run: Replies) -> Finding:
        """Results, and gradients of what is not frozen."""
        gradients = (self.gradient_of_x, self.gradient_of_weight)
        looked_at = [each(run) for number, each in enumerate(gradients) if number not in self.frozen]
        return compare.first_failure((self.results(run), *looked_at))
