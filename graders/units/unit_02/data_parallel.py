"""What unit 02's graders draw, expect, and find in what an answer did."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from course_lib.cluster.topology import Cluster, Link
from course_lib.runtime.communication.events import Event, Kind
from course_lib.runtime.request import per_rank
from graders.grading import compare
from graders.grading.answer import Answer, Observed, PlainData
from graders.grading.exercise import Finding
from graders.grading.rng import Rng
from graders.units.unit_02 import drivers as drivers

SLOW = Link(latency=1.0, bandwidth=1e6)
"""A link on which every collective outlasts the backward pass by far."""


def combined(answer: Answer, gradients: list[Tensor], counts: list[int]) -> PlainData:
    """What the answer makes of copies of the gradients."""
    return answer.call("unit_02.combine", [gradient.clone() for gradient in gradients], counts)


def draw_gradients(rng: Rng, workers: int, dims: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A gradient a worker, all of one shape with so many dimensions."""
    shape = [rng.integer(2, 4) for _ in range(dims)]
    return [rng.normal(*shape, dtype=dtype) for _ in range(workers)]


def weighted_mean(tensors: Sequence[Tensor], weights: Sequence[int]) -> Tensor:
    """The mean of the tensors, each counted as often as its weight says."""
    stacked = torch.stack(list(tensors))
    mean: Tensor = torch.tensordot(torch.tensor(weights, dtype=stacked.dtype), stacked, dims=1) / sum(weights)
    return mean


def nan_kept(seen: Any) -> Finding:
    """Passes if the NaN of a worker that had samples is in the combination: it must not be hidden."""
    hidden = isinstance(seen, Tensor) and not seen.isnan().any()
    text = "A worker with samples has NaN in its gradient, and the combination has none; expected NaN there."
    return Finding(
        "empty shards", not hidden, text if hidden else "Only what an empty shard holds is left out."
    )


def gradients_kept(seen: PlainData, given: Sequence[Tensor]) -> Finding:
    """Passes if the gradients that were given are as they were, and the result has memory of its own."""
    name = "gradients unchanged"
    for worker, (now, before) in enumerate(zip(seen["gradients"], given, strict=True)):
        what = f"the gradient given for worker {worker}"
        # As bits, since NaN equals nothing.
        finding = compare.equal(name, _bits(now), _bits(before), f"{what}, as bytes")
        if not finding.passed:
            return Finding(name, False, f"{what} has changed.")
    if seen["shared"]:
        return Finding(
            name, False, "The result shares memory with a gradient that was given; expected a new tensor."
        )
    return Finding(
        name, True, "The gradients that were given are as they were, and the result is a new tensor."
    )


def _bits(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy()) if isinstance(tensor, Tensor) else b""


@dataclass(frozen=True, slots=True)
class Deal:
    """What shard_indices dealt to every rank, for some pairs of epoch and seed.

    parts[i][r]: what rank r got for pair i; again[i][r]: what it got when it asked once more.
    changed[r]: the libraries whose random state changed on rank r.
    """

    length: int
    parts: list[list[Any]]
    again: list[list[Any]]
    changed: list[list[str]]
    calls: list[str]

    def indices(self, pair: int) -> list[Tensor]:
        """Each rank's part; empty where it is no list of indices, which `partition` reports."""
        return [part if _is_index_list(part) else _NOTHING for part in self.parts[pair]]


_NOTHING = torch.empty(0, dtype=torch.int64)


def _is_index_list(part: Any) -> bool:
    return type(part) is Tensor and part.dtype == torch.int64 and part.dim() == 1


def deal(answer: Answer, length: int, pairs: Sequence[tuple[int, int]], ranks: int) -> Deal:
    """Let every rank ask for its part for each (epoch, seed) of `pairs`."""
    epochs, seeds = (list(numbers) for numbers in zip(*pairs, strict=True))
    observed = answer.launch("unit_02.shards", length, epochs, seeds, ranks=ranks)
    return Deal(
        length,
        parts=[[rank["first"][pair] for rank in observed.results] for pair in range(len(pairs))],
        again=[[rank["again"][pair] for rank in observed.results] for pair in range(len(pairs))],
        changed=[rank["changed"] for rank in observed.results],
        calls=[call for rank in range(ranks) for call in observed.calls(rank)],
    )


def partition(*deals: Deal) -> Finding:
    """Passes if the ranks' indices are, together, each of 0 .. length - 1 once."""
    name = "disjoint and complete"
    for dealt in deals:
        for rank, part in enumerate(dealt.parts[0]):
            if not _is_index_list(part):
                kind = f"{part.dtype}, {part.dim()}-D" if isinstance(part, Tensor) else type(part).__name__
                what = f"{kind}: {part!r}"[:120]
                return Finding(name, False, f"rank {rank} returned {what}; expected a 1-D int64 tensor.")
        times = Counter(torch.cat(dealt.indices(0)).tolist())
        problems = {
            "dealt more than once": sorted(index for index, count in times.items() if count > 1),
            "missing": sorted(set(range(dealt.length)) - set(times)),
            "out of range": sorted(set(times) - set(range(dealt.length))),
        }
        text = "; ".join(f"{what}: {_some(which)}" for what, which in problems.items() if which)
        if text:
            return Finding(name, False, f"{dealt.length} samples on {len(dealt.parts[0])} ranks: {text}.")
    lengths = ", ".join(str(dealt.length) for dealt in deals)
    return Finding(name, True, f"Of {lengths} samples each is dealt to one rank.")


def balance(*deals: Deal) -> Finding:
    """Passes if the sizes of the ranks' parts differ by at most one."""
    texts = []
    for dealt in deals:
        sizes = [len(part) for part in dealt.indices(0)]
        texts.append(f"{dealt.length} samples are dealt as {sizes}")
        if max(sizes) - min(sizes) > 1:
            return Finding("balanced", False, f"{texts[-1]}; sizes may differ by one.")
    return Finding("balanced", True, "; ".join(texts) + ".")


def shuffling(parts: list[Tensor], other_seed: list[Tensor]) -> Finding:
    """Passes if another seed deals other samples, and the samples of no rank come in ascending order, also
    not in an order that begins in the middle and goes on at the start.
    """
    if not all(map(len, parts)):
        return Finding("shuffled", False, "Not every rank returned a list of indices to look at.")
    in_order = [rank for rank, part in enumerate(parts) if (part.diff() < 0).sum() <= 1]
    if in_order:
        text = f"rank {in_order[0]}'s indices come in ascending order: {parts[in_order[0]].tolist()!r:.60}"
        return Finding("shuffled", False, f"{text}.")
    same = _same_samples(parts, other_seed)
    if same:
        return Finding("shuffled", False, f"{same} with another seed.")
    return Finding("shuffled", True, "Another seed deals other samples to every rank.")


def reshuffling(parts: list[Tensor], next_epoch: list[Tensor], again: list[Any]) -> Finding:
    """Passes if the next epoch deals other samples, and the same epoch once more the same."""
    name = "reshuffled each epoch"
    if not all(map(len, parts)):
        return Finding(name, False, "Not every rank returned a list of indices to look at.")
    same = _same_samples(parts, next_epoch)
    if same:
        return Finding(name, False, f"{same} in the next epoch.")
    for rank, (part, repeated) in enumerate(zip(parts, again, strict=True)):
        if not compare.close(name, repeated, part, "the part").passed:
            return Finding(name, False, f"rank {rank} gets another part when it asks for the epoch again.")
    return Finding(name, True, "Each epoch deals anew, and the same epoch always alike.")


def random_state_kept(dealt: Deal) -> Finding:
    """Passes if no rank's own random state has changed, in whatever library."""
    for rank, libraries in enumerate(dealt.changed):
        if libraries:
            text = f"the random state of {' and '.join(libraries)} changes on rank {rank}"
            return Finding("random state kept", False, f"{text}; expected it to stay as it was.")
    return Finding("random state kept", True, "The rank's own random state stays as it was.")


def _same_samples(parts: list[Tensor], others: list[Tensor]) -> str:
    """Whose samples stay together, in words; empty if all are dealt anew."""
    owners = {frozenset(part.tolist()): rank for rank, part in enumerate(others)}
    for rank, part in enumerate(parts):
        owner = owners.get(frozenset(part.tolist()))
        if owner is not None:
            return f"the samples that rank {rank} gets all go to rank {owner}"
    return ""


def _some(indices: list[int]) -> str:
    """The first few of many, for a sentence."""
    shown = ", ".join(str(index) for index in indices[:5])
    return shown if len(indices) <= 5 else f"{shown} and {len(indices) - 5} more"


def draw_normed(rng: Rng) -> list[Tensor]:
    """Drawn values for the tensors of `Normed`: variances positive, counters whole."""
    values = []
    for tensor in drivers.state_of(drivers.Normed()):
        drawn = rng.normal(*tensor.shape).abs() if tensor.is_floating_point() else rng.integer(1, 99)
        values.append(torch.as_tensor(drawn, dtype=tensor.dtype))
    return values


def same_tensors(
    criterion: str, observed: Observed, key: str, expected: Sequence[Tensor], whose: str
) -> Finding:
    """Passes if every rank's tensors equal the expected ones bit by bit."""
    for rank, result in enumerate(observed.results):
        for position, (seen, wanted) in enumerate(zip(result[key], expected, strict=True)):
            what = f"of the {key} tensor {position} on rank {rank}"
            finding = compare.close(criterion, seen, wanted.detach(), what, rtol=0, atol=0)
            if not finding.passed:
                return finding
    return Finding(
        criterion, True, f"{key.capitalize()} on all {len(observed.results)} ranks: {whose}, bit by bit."
    )


def calls_and_payload(criterion: str, observed: Observed, op: str, nbytes: int) -> Finding:
    """Passes if every rank made only `op` calls, whose payloads add up to `nbytes`."""
    for rank in range(len(observed.results)):
        others = sorted(set(observed.calls(rank)) - {op})
        if others:
            return Finding(criterion, False, f"rank {rank} calls {', '.join(others)}; only {op} is needed.")
        payload = sum(event.nbytes for event in observed.communication(rank))
        if payload != nbytes:
            return Finding(
                criterion, False, f"rank {rank} gave {op} {payload:,} bytes in all; expected {nbytes:,}."
            )
    return Finding(criterion, True, f"Every rank gave {op} {nbytes:,} bytes in all: each tensor once.")


@dataclass(frozen=True, slots=True)
class ChainCase:
    """A chain of linear layers, the last one frozen, and gradients of the others.

    values: weights and biases, the same on every rank. gradients[r]: rank r's, None where it has none.
    """

    values: list[Tensor]
    gradients: list[list[Tensor | None]]

    @property
    def mean(self) -> list[Tensor | None]:
        """What every rank must end with; a missing gradient counts as zero, a frozen parameter has none."""
        trainable: list[Tensor | None] = []
        for position, value in enumerate(self.values[:-2]):
            total = torch.zeros_like(value)
            for gradients in self.gradients:
                gradient = gradients[position]
                total += 0 if gradient is None else gradient
            trainable.append(total / len(self.gradients))
        return [*trainable, None, None]


def draw_chain(rng: Rng, ranks: int, dtype: torch.dtype = torch.float32) -> ChainCase:
    """Four layers of drawn widths."""
    widths = [rng.integer(2, 6) for _ in range(5)]
    shapes = [shape for wide, narrow in pairwise(widths) for shape in ((narrow, wide), (narrow,))]
    values = [rng.normal(*shape, dtype=dtype) for shape in shapes]
    gradients: list[list[Tensor | None]] = [
        [rng.normal(*shape, dtype=dtype) for shape in shapes[:-2]] for _ in range(ranks)
    ]
    return ChainCase(values, gradients)


def with_gaps(case: ChainCase) -> ChainCase:
    """The case without parameter 0's gradient on any rank, 1's on the first, and 2's on the last."""
    gradients = [[None, *rank[1:]] for rank in case.gradients]
    gradients[0][1] = None
    gradients[-1][2] = None
    return ChainCase(case.values, gradients)


def averaged(answer: Answer, case: ChainCase) -> Observed:
    """Let the answer average the case's gradients."""
    gradients = per_rank(case.gradients)
    return answer.launch("unit_02.average", case.values, gradients, ranks=len(case.gradients))


def averages(answer: Answer, rng: Rng) -> Finding:
    """Right on one rank, on an even and on an odd number of ranks, in single and double precision."""
    name = "averages over ranks"
    sizes = (1, rng.choice((2, 4)), 5)
    for ranks, dtype in zip(sizes, (torch.float32, torch.float64, torch.float32), strict=True):
        case = draw_chain(rng, ranks, dtype)
        observed = averaged(answer, case)
        seen = [rank["gradients"] for rank in observed.results]
        # In double precision a detour through single precision shows.
        rtol, atol = (1e-12, 1e-13) if dtype is torch.float64 else (1e-5, 1e-6)
        finding = _gradients_as(name, seen, [case.mean] * ranks, rtol, atol)
        if not finding.passed:
            where = "on one rank" if ranks == 1 else f"on {ranks} ranks"
            text = f"{where}, in {str(dtype).removeprefix('torch.')}: {finding.seen}"
            return Finding(name, False, text)
    return Finding(name, True, f"On {sizes[0]}, {sizes[1]} and {sizes[2]} ranks each gradient is the mean.")


def missing_gradients(answer: Answer, case: ChainCase) -> Finding:
    """Passes if a gradient that a rank lacks counts as zero there."""
    observed = averaged(answer, case)
    expected = [case.mean] * len(case.gradients)
    return _gradients_as("missing gradients", [rank["gradients"] for rank in observed.results], expected)


def _gradients_as(
    criterion: str,
    seen: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Tensor | None]],
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> Finding:
    """Passes if each rank has the expected gradients, and none where None is expected.

    seen[r][i] is rank r's gradient of parameter i, in the order of model.parameters().
    """
    for rank, (own, wanted) in enumerate(zip(seen, expected, strict=True)):
        for position, (gradient, mean) in enumerate(zip(own, wanted, strict=True)):
            what = f"the gradient of parameter {position} on rank {rank}"
            if mean is None:
                finding = compare.equal(criterion, gradient, None, what)
            else:
                finding = compare.close(criterion, gradient, mean, what, rtol, atol)
            if not finding.passed:
                return finding
    return Finding(criterion, True, f"All gradients are as expected on all {len(seen)} ranks.")


def gradients_in_place(observed: Observed, values: list[Tensor]) -> Finding:
    """Passes if no gradient tensor was exchanged and no parameter changed."""
    for rank, result in enumerate(observed.results):
        if not result["in_place"]:
            return Finding("in place", False, f"on rank {rank} some p.grad is another tensor than before.")
        if not all(torch.equal(a, b) for a, b in zip(result["parameters"], values, strict=True)):
            return Finding("in place", False, f"on rank {rank} a parameter changed, not only gradients.")
    return Finding("in place", True, "Each p.grad is the tensor that it was; the parameters are unchanged.")


def starts_equal(answer: Answer, rng: Rng) -> Finding:
    """Passes if wrapping gives every rank rank 0's state, and the wrapper computes what the model does."""
    ranks = rng.integer(2, 4)
    values = [draw_normed(rng) for _ in range(ranks)]
    inputs = rng.normal(3, 5)
    observed = answer.launch("unit_02.constructed", per_rank(values), inputs, ranks=ranks)
    finding = same_tensors("starts equal", observed, "state", values[0], "rank 0's")
    if not finding.passed:
        return finding
    outputs = [rank["output"] for rank in observed.results]
    own = [rank["own_output"] for rank in observed.results]
    same = compare.close_on_all_ranks("starts equal", outputs, own, "the wrapper's output")
    return finding if same.passed else same


@dataclass(frozen=True, slots=True)
class Training:
    """Some steps of plain gradient descent on a chain of layers.

    values[r]: rank r's parameters before wrapping. batches[r]: its batches, one a step.
    """

    widths: list[int]
    values: list[list[Tensor]]
    batches: list[list[tuple[Tensor, Tensor]]]
    rate: float
    bucket_bytes: int

    def launch(self, answer: Answer) -> Observed:
        """Every collective outlasts backward, so that waiting for one shows."""
        ranks = len(self.values)
        cluster = Cluster(devices_per_node=ranks, intra_node=SLOW)
        return answer.launch(
            "unit_02.steps",
            self.widths,
            per_rank(self.values),
            per_rank(self.batches),
            self.rate,
            self.bucket_bytes,
            ranks=ranks,
            cluster=cluster,
        )

    def buckets(self) -> list[int]:
        """Bytes of each bucket."""
        sizes = [parameter.nbytes for parameter in drivers.Chain(self.widths).parameters()]
        return greedy_buckets(sizes[::-1], self.bucket_bytes)

    def deadlines(self) -> list[str]:
        """For each bucket the mark before which its gradients are complete and it must have been started.

        Backward computes a layer's gradients between its mark and that of the layer before.
        """
        layers = [number for number in range(len(self.widths) - 1) for _ in ("weight", "bias")][::-1]
        sizes = [parameter.nbytes for parameter in drivers.Chain(self.widths).parameters()][::-1]
        ends = list(accumulate(sizes))
        lowest = [layers[ends.index(end)] for end in accumulate(self.buckets())]
        return [drivers.reaches(layer - 1) if layer else "backward ends" for layer in lowest]

    def mean_gradients(self) -> list[list[Tensor]]:
        """For every step the mean over ranks of their gradients, from rank 0's parameters on."""
        model = drivers.Chain(self.widths)
        parameters = list(model.parameters())
        drivers.load_values(parameters, self.values[0])
        means = []
        for batches in zip(*self.batches, strict=True):
            losses = [functional.mse_loss(model(inputs), targets) for inputs, targets in batches]
            gradients = torch.autograd.grad(torch.stack(losses).mean(), parameters)
            means.append(list(gradients))
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=self.rate)
        return means


def draw_training(rng: Rng) -> Training:
    """Two to four ranks, three steps; the last layer fills a bucket to the byte, one weight is too large."""
    ranks = rng.integer(2, 4)
    widths = [rng.integer(5, 8), 9, 9, rng.integer(5, 8), rng.integer(5, 8)]
    shapes = [parameter.shape for parameter in drivers.Chain(widths).parameters()]
    values = [[rng.normal(*shape) for shape in shapes] for _ in range(ranks)]
    batches = [
        [(rng.normal(4, widths[0]), rng.normal(4, widths[-1])) for _ in range(3)] for _ in range(ranks)
    ]
    last_layer = 4 * (widths[-2] + 1) * widths[-1]
    return Training(widths, values, batches, rate=0.05, bucket_bytes=last_layer)


def step_as_expected(criterion: str, training: Training, observed: Observed, steps: range) -> Finding:
    """Passes if the gradients of these steps are the means over ranks."""
    means = training.mean_gradients()
    for step in steps:
        seen = [rank[step] for rank in observed.results]
        finding = _gradients_as(criterion, seen, [means[step]] * len(seen), rtol=1e-4)
        if not finding.passed:
            return Finding(criterion, False, f"step {step}: {finding.seen}")
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return Finding(criterion, True, f"{which}: the gradients are the means over all ranks.")


def greedy_buckets(sizes: Sequence[int], limit: int) -> list[int]:
    """Bytes of each bucket: filled in order, closed before the size that would take it above the limit."""
    buckets: list[int] = []
    for size in sizes:
        if buckets and buckets[-1] + size <= limit:
            buckets[-1] += size
        else:
            buckets.append(size)
    return buckets


def _marks(observed: Observed, rank: int, label: str) -> list[Event]:
    """A rank's marks of this label, in order."""
    return [e for e in observed.events if e.rank == rank and e.kind is Kind.SPAN and e.op == label]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, from the driver's mark "step begins" to its mark "finished"."""

    rank: int
    number: int
    calls: list[Event]
    marks: dict[str, Event]
    """The first mark of each label."""

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.number}"


def _steps(observed: Observed) -> Iterator[Step]:
    """Every step of every rank."""
    for rank in range(len(observed.results)):
        calls = observed.communication(rank)
        marks = [event for event in observed.events if event.rank == rank and event.kind is Kind.SPAN]
        begins = [position for position, mark in enumerate(marks) if mark.op == "step begins"]
        for number, (begin, end) in enumerate(pairwise([*begins, len(marks)])):
            # Reversed, so that of several marks with one label the first stays.
            inside = {mark.op: mark for mark in reversed(marks[begin:end])}
            span = range(marks[begin].sequence, inside["finished"].sequence)
            yield Step(rank, number, [call for call in calls if call.sequence in span], inside)


def buckets_as_specified(training: Training, observed: Observed) -> Finding:
    """Passes if every rank made one all_reduce a bucket, in order, and nothing else, in every step."""
    expected = [("all_reduce", nbytes) for nbytes in training.buckets()]
    wanted = _calls_in_words(expected)
    for step in _steps(observed):
        seen = [(call.op, call.nbytes) for call in step.calls]
        if seen != expected:
            return Finding("buckets", False, f"{step}: {_calls_in_words(seen)}; expected {wanted}.")
    return Finding("buckets", True, f"Every step makes {wanted}.")


def _calls_in_words(calls: Sequence[tuple[str, int]]) -> str:
    """ "2 all_reduce calls of 96, 40 bytes" """
    ops = ", ".join(sorted({op for op, _ in calls})) or "communication"
    sizes = ", ".join(str(nbytes) for _, nbytes in calls)
    return f"{len(calls)} {ops} calls of {sizes} bytes" if calls else "no communication"


def starts_during_backward(training: Training, observed: Observed) -> Finding:
    """Passes if on every rank, in every step, each bucket set off as soon as its gradients were complete."""
    name = "starts during backward"
    deadlines = training.deadlines()
    for step in _steps(observed):
        if drivers.reaches(0) not in step.marks:
            return Finding(name, False, f"{step}: backward did not go through the model that was wrapped.")
        for number, deadline in enumerate(deadlines, start=1):
            made = sum(call.sequence < step.marks[deadline].sequence for call in step.calls)
            if made < number:
                text = (
                    f"when {deadline}, {number} of {len(deadlines)} buckets are complete and {made} started"
                )
                return Finding(name, False, f"{step}: {text}.")
    return Finding(name, True, "Every bucket sets off as soon as its gradients are complete, on every rank.")


def never_waits_in_backward(observed: Observed) -> Finding:
    """Passes if backward ended before the first all_reduce of its step did, on a slow link."""
    name = "never waits in backward"
    for step in _steps(observed):
        first = min((call.end for call in step.calls), default=float("inf"))
        late = step.marks["backward ends"].end - first
        if late >= 0:
            text = f"backward ended {late:.1f} s after the first all_reduce, so it waited for it"
            return Finding(name, False, f"{step}: {text}.")
    return Finding(name, True, "Backward ends while the first all_reduce is still under way.")


def unused_parameters(answer: Answer, rng: Rng) -> Finding:
    """Passes if the averages are right where ranks use different branches, and one branch none uses."""
    ranks, width = rng.integer(2, 3), rng.integer(3, 5)
    model = drivers.Branches(width)
    parameters = list(model.parameters())
    values = [rng.normal(*parameter.shape) for parameter in parameters]
    inputs = [rng.normal(4, width) for _ in range(ranks)]
    used = [[rank % 2, (rank + 1) % 2] for rank in range(ranks)]
    # One branch a bucket, so that which bucket is complete first differs from rank to rank.
    bucket_bytes = 4 * (width * width + width)
    observed = answer.launch(
        "unit_02.branches", width, values, per_rank(inputs), per_rank(used), bucket_bytes, ranks=ranks
    )
    drivers.load_values(parameters, values)
    finding = Finding("unused parameters", False, "")
    for step in range(2):
        losses = [model(own, way[step]).square().mean() for own, way in zip(inputs, used, strict=True)]
        mean = torch.autograd.grad(torch.stack(losses).mean(), parameters, materialize_grads=True)
        seen = [rank[step] for rank in observed.results]
        finding = _gradients_as("unused parameters", seen, [mean] * ranks, rtol=1e-4)
        if not finding.passed:
            break
    return finding


def tied_and_frozen(answer: Answer, rng: Rng) -> Finding:
    """Passes if a parameter used twice is averaged and sent once, and frozen ones not at all."""
    name = "tied and frozen parameters"
    ranks, words, width = rng.integer(2, 3), rng.integer(5, 8), rng.integer(3, 5)
    model = drivers.Tied(words, width)
    values = [[rng.normal(*parameter.shape) for parameter in model.parameters()] for _ in range(ranks)]
    inputs = [rng.integers(0, words - 1, 6) for _ in range(ranks)]
    targets = [rng.integers(0, words - 1, 6) for _ in range(ranks)]
    observed = answer.launch(
        "unit_02.tied",
        (words, width),
        per_rank(values),
        per_rank(inputs),
        per_rank(targets),
        10**6,
        ranks=ranks,
    )
    drivers.load_values(list(model.parameters()), values[0])
    finding = _gradients_as(name, observed.results, [_tied_mean(model, inputs, targets)] * ranks, rtol=1e-4)
    if not finding.passed:
        return finding
    expected = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    payload = sum(call.nbytes for call in next(_steps(observed)).calls)
    if payload != expected:
        text = f"rank 0 gave all_reduce {payload:,} bytes; the trainable parameters have {expected:,}"
        return Finding(name, False, f"{text}, the tied one counted once.")
    return Finding(name, True, f"{expected:,} bytes: the tied parameter once, the frozen ones not at all.")


def _tied_mean(model: nn.Module, inputs: list[Tensor], targets: list[Tensor]) -> list[Tensor | None]:
    """The mean over ranks of the gradients, None for frozen parameters."""
    pairs = zip(inputs, targets, strict=True)
    losses = [functional.cross_entropy(model(words), wanted) for words, wanted in pairs]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = iter(torch.autograd.grad(torch.stack(losses).mean(), trainable))
    return [next(gradients) if parameter.requires_grad else None for parameter in model.parameters()]


def launched_accuracy(answer: Answer, correct: list[int], total: list[int]) -> Observed:
    """Let rank r call the answer with correct[r] and total[r]."""
    return answer.launch("unit_02.accuracy", per_rank(correct), per_rank(total), ranks=len(total))


def accuracy_as_expected(criterion: str, observed: Observed, correct: list[int], total: list[int]) -> Finding:
    """Passes if every rank returns all that is right over all there is."""
    expected = sum(correct) / sum(total)
    for rank, seen in enumerate(observed.results):
        finding = compare.near(criterion, seen, expected, f"the accuracy on rank {rank}")
        if not finding.passed:
            return finding
    counts = f"{sum(correct)} of {sum(total)}"
    return Finding(criterion, True, f"Every rank returns {expected:.6g}, {counts}.")


def loading_cluster(nodes: int, devices: int) -> Cluster:
    """Devices so slow that one `load` takes a virtual second."""
    flops = 2.0 * drivers.LOAD_SIDE**3
    return Cluster(nodes=nodes, devices_per_node=devices, flops=flops)


def all_loaded(observed: Observed, values: Sequence[Tensor | None]) -> Finding:
    """Passes if every rank called `load` once and returned what it gave, which may be None."""
    name = "every rank has the data"
    for rank, (result, value) in enumerate(zip(observed.results, values, strict=True)):
        if result["calls"] != 1:
            gave = " (it gives None here, as a mere download does)" if value is None else ""
            text = f"rank {rank} called load() {result['calls']} times{gave}; expected once"
            return Finding(name, False, f"{text}.")
        what = f"what rank {rank} returned"
        if value is None:
            finding = compare.equal(name, result["result"], None, what)
        else:
            finding = compare.close(name, result["result"], value, what)
        if not finding.passed:
            return finding
    return Finding(name, True, f"Each of the {len(values)} ranks called load() once and returned its value.")


def first_alone(criterion: str, observed: Observed, cluster: Cluster) -> Finding:
    """Passes if on every node local rank 0's load had ended before any other rank's began."""
    for node in range(cluster.nodes):
        members = [rank for rank in range(cluster.size) if cluster.node_of(rank) == node]
        loads = [_marks(observed, rank, "load") for rank in members]
        if not all(loads):
            return Finding(criterion, False, f"rank {members[loads.index([])]} never calls load().")
        first, *others = (marks[0] for marks in loads)
        early = [load for load in others if load.start < first.end]
        if early:
            text = (
                f"rank {early[0].rank} begins to load at {early[0].start:.1f} s; "
                f"rank {members[0]}, the first of its node, has loaded at {first.end:.1f} s"
            )
            return Finding(criterion, False, f"{text}.")
    nodes = "the node" if cluster.nodes == 1 else f"each of the {cluster.nodes} nodes"
    return Finding(criterion, True, f"One rank of {nodes} loads first, the others when it has loaded.")


def error_frees_the_others(observed: Observed, failing: int) -> Finding:
    """Passes if the rank whose load failed raised that error, and every other rank went on to load."""
    name = "an error frees the others"
    wanted = "OSError: no space left on this device"
    seen = observed.results[failing]["raised"]
    if seen != wanted:
        text = f"load() raised {wanted} on rank {failing}, and load_once there"
        return Finding(
            name, False, f"{text} {f'raised {seen}' if seen else 'raised nothing'}; expected the same error."
        )
    for rank, result in enumerate(observed.results):
        if result["calls"] != 1 and not result["raised"]:
            text = f"after the error on rank {failing}, rank {rank} called load() {result['calls']} times"
            return Finding(name, False, f"{text} and returned; expected one call, to find out for itself.")
    return Finding(
        name, True, f"load() raised on rank {failing}, load_once there too; nobody is left waiting."
    )
