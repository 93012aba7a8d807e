"""What unit 01's graders draw, expect, and find in what an answer did.

Shapes: B samples a batch, F features, H hidden units, K classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graders.grading import compare
from graders.grading.answer import Answer, AnswerFailed, PlainData
from graders.grading.exercise import Finding
from graders.grading.rng import Rng
from graders.units.unit_01.drivers import LOSSES, Batch, Watched

# ----------------------------------------------------------------------------------------- a small problem


@dataclass(frozen=True, slots=True)
class Problem:
    """A drawn classifier and the sizes of its problem."""

    features: int
    classes: int
    values: list[Tensor]

    @classmethod
    def draw(cls, rng: Rng) -> "Problem":
        features, hidden, classes = rng.integer(3, 6), rng.integer(4, 8), rng.integer(3, 6)
        shapes = ((hidden, features), (hidden,), (classes, hidden), (classes,))
        return cls(features, classes, [rng.normal(*shape) for shape in shapes])

    def model(self) -> Watched:
        return Watched(self.values)

    def draw_batch(self, rng: Rng, size: int) -> Batch:
        return rng.normal(size, self.features), rng.integers(0, self.classes - 1, size)

    def draw_batches(self, rng: Rng, sizes: Sequence[int]) -> list[Batch]:
        return [self.draw_batch(rng, size) for size in sizes]


def joined(batches: Sequence[Batch]) -> Batch:
    """All samples of the batches as one."""
    return torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])


def first_wrong(findings: Iterator[Finding] | Sequence[Finding]) -> Finding:
    """The first that did not pass, or else the first; those after a wrong one are not asked for."""
    right = []
    for finding in findings:
        if not finding.passed:
            return finding
        right.append(finding)
    return right[0]


# -------------------------------------------------------------------------------------------- train_step


@dataclass(frozen=True, slots=True)
class Training:
    """Some steps of gradient descent, and what they lead to."""

    problem: Problem
    batches: list[Batch]
    stale: list[Tensor] | None
    rates: dict[str, float]

    @classmethod
    def draw(cls, rng: Rng, steps: int, with_stale_gradients: bool) -> "Training":
        problem = Problem.draw(rng)
        batches = problem.draw_batches(rng, [rng.integer(4, 9) for _ in range(steps)])
        stale = [rng.normal(*value.shape) for value in problem.values] if with_stale_gradients else None
        return cls(problem, batches, stale, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})

    def seen(self, answer: Answer) -> list[dict[str, Any]]:
        """What the answer's steps returned and left; see the driver."""
        steps: list[dict[str, Any]] = answer.call(
            "unit_01.steps", self.problem.values, self.stale, self.batches, self.rates
        )
        return steps

    def expected(self) -> tuple[list[Tensor], list[list[Tensor]]]:
        """Each step's loss before its update, and the parameters after it."""
        model = self.problem.model()
        optimizer = torch.optim.SGD(model.parameters(), **self.rates)  # type: ignore[arg-type]
        losses, parameters = [], []
        for inputs, targets in self.batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
            parameters.append([parameter.detach().clone() for parameter in model.parameters()])
        return losses, parameters


def losses_as_expected(criterion: str, training: Training, seen: list[dict[str, Any]]) -> Finding:
    """Passes if every step returned its loss before the update, a scalar tensor."""
    losses, _ = training.expected()
    what = "the loss that step {} returned"
    return first_wrong(
        compare.close(criterion, step["loss"], loss, what.format(number), rtol=1e-4)
        for number, (step, loss) in enumerate(zip(seen, losses, strict=True), start=1)
    )


def parameters_as_expected(criterion: str, training: Training, seen: list[dict[str, Any]]) -> Finding:
    """Passes if the parameters after every step are those that torch's own SGD leads to."""
    _, expected = training.expected()
    names = [name for name, _ in training.problem.model().named_parameters()]
    return first_wrong(
        compare.close(criterion, got, wanted, f"{name} after step {number}", rtol=1e-4, atol=1e-5)
        for number, (step, parameters) in enumerate(zip(seen, expected, strict=True), start=1)
        for name, got, wanted in zip(names, step["parameters"], parameters, strict=True)
    )


def one_pass_each_way(training: Training, seen: list[dict[str, Any]]) -> Finding:
    """Passes if every step went forward once, in training mode, and backward once."""
    criterion = "one update"
    for number, (step, (inputs, _)) in enumerate(zip(seen, training.batches, strict=True), start=1):
        expected = [f"forward {len(inputs)}", f"backward {len(inputs)}"]
        if step["log"] != expected:
            text = f"step {number} made the passes {', '.join(step['log']) or '(none)'}"
            return Finding(criterion, False, f"{text} (with samples); expected {', '.join(expected)}.")
        if not all(step["modes"]):
            text = f"step {number} went forward in evaluation mode; the model came in training mode"
            return Finding(criterion, False, f"{text}.")
    return Finding(criterion, True, "Every step goes forward once and backward once, in training mode.")


def no_history(seen: list[dict[str, Any]]) -> Finding:
    """Passes if no loss that a step returned holds on to a graph."""
    kept = any(step["history"] for step in seen)
    text = "requires grad: it keeps its graph in memory" if kept else "has no graph behind it"
    return Finding("no history kept", not kept, f"The loss that was returned {text}.")


# ---------------------------------------------------------------------------------------------- evaluate


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Samples of which a known part is classified rightly, cut into batches."""

    problem: Problem
    samples: Batch
    batch_size: int

    @classmethod
    def draw(cls, rng: Rng, left_over: int) -> "Evaluation":
        """left_over: samples in the last batch, all of them classified rightly; 0: the last batch is full.

        Of the full batches every second sample is classified wrongly, so that the mean of the batches'
        accuracies is another number than the accuracy.
        """
        problem = Problem.draw(rng)
        batch_size, batches = rng.integer(6, 9), rng.integer(2, 4)
        full = batch_size * batches
        inputs = rng.normal(full + left_over, problem.features)
        predicted = problem.model()(inputs).argmax(1)
        wrong = (torch.arange(full + left_over) % 2 == 0) & (torch.arange(full + left_over) < full)
        shift = rng.integers(1, problem.classes - 1, full + left_over) * wrong
        return cls(problem, (inputs, (predicted + shift) % problem.classes), batch_size)

    def seen(self, answer: Answer, training: bool = True) -> dict[str, Any]:
        """What the answer returned and how it used the model; see the driver."""
        seen: dict[str, Any] = answer.call(
            "unit_01.evaluation", self.problem.values, self.samples, self.batch_size, training
        )
        return seen

    @property
    def size(self) -> str:
        """`26 samples in batches of 8`."""
        return f"{len(self.samples[0])} samples in batches of {self.batch_size}"

    def expected(self) -> tuple[float, float]:
        """Loss and accuracy over all samples."""
        inputs, targets = self.samples
        with torch.no_grad():
            logits = self.problem.model()(inputs)
        loss = functional.cross_entropy(logits, targets)
        return float(loss), float((logits.argmax(1) == targets).double().mean())


def accuracy_as_expected(criterion: str, evaluation: Evaluation, result: PlainData) -> Finding:
    """Passes if the second of the pair is the accuracy over all samples."""
    if not _is_pair(result):
        return Finding(criterion, False, _no_pair(result))
    what = f"the accuracy over {evaluation.size}"
    return compare.near(criterion, result[1], evaluation.expected()[1], what)


def loss_as_expected(criterion: str, evaluation: Evaluation, result: PlainData) -> Finding:
    """Passes if the first of the pair is the mean loss over all samples."""
    if not _is_pair(result):
        return Finding(criterion, False, _no_pair(result))
    what = f"the loss over {evaluation.size}"
    return compare.near(criterion, result[0], evaluation.expected()[0], what, rtol=1e-4)


def _is_pair(result: PlainData) -> bool:
    return type(result) is tuple and len(result) == 2


def _no_pair(result: PlainData) -> str:
    return f"evaluate returned {result!r:.80}; expected a pair (loss, accuracy), two floats in a tuple."


def evaluation_mode(seen: dict[str, Any]) -> Finding:
    """Passes if no forward pass found the model in training mode."""
    trained = sum(seen["modes"])
    text = f"of {len(seen['modes'])} forward passes {trained} ran in training mode"
    return Finding("evaluation mode", bool(seen["modes"]) and not trained, f"{text}.")


def mode_restored(answer: Answer, evaluation: Evaluation) -> Finding:
    """Passes if a model in training mode is left in it, and one in evaluation mode likewise."""
    names = {True: "training", False: "evaluation"}
    for found in (True, False):
        left = evaluation.seen(answer, found)["training"]
        if left is not found:
            text = f"The model came in {names[found]} mode and was left in {names[bool(left)]} mode."
            return Finding("mode restored", False, text)
    return Finding("mode restored", True, "The model is left in the mode in which it came, either one.")


def no_graph(seen: dict[str, Any]) -> Finding:
    """Passes if no forward pass could record a graph, and gradients are on again afterwards."""
    criterion = "no graph"
    if any(seen["graphs"]):
        text = f"{sum(seen['graphs'])} of {len(seen['graphs'])} forward passes recorded a graph for backward"
        return Finding(criterion, False, f"{text}.")
    if not seen["trainable"]:
        return Finding(criterion, False, "After evaluate some parameter does not require grad any more.")
    if not seen["grad_enabled"]:
        return Finding(criterion, False, "Gradients are still off after evaluate has returned.")
    return Finding(
        criterion, True, "No forward pass recorded a graph, and gradients are on again afterwards."
    )


# ------------------------------------------------------------------------------------ accumulate_gradients


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Micro-batches, and what the full batch that they make up would give."""

    problem: Problem
    micro_batches: list[Batch]
    loss: str

    @classmethod
    def draw(cls, rng: Rng, sizes: Sequence[int], loss: str) -> "Accumulation":
        """loss: one of the driver's `LOSSES`."""
        problem = Problem.draw(rng)
        return cls(problem, problem.draw_batches(rng, sizes), loss)

    @property
    def sizes(self) -> list[int]:
        return [len(inputs) for inputs, _ in self.micro_batches]

    def seen(self, answer: Answer) -> dict[str, Any]:
        """What the answer returned and left; see the driver."""
        seen: dict[str, Any] = answer.call(
            "unit_01.accumulation", self.problem.values, self.micro_batches, self.loss
        )
        return seen

    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """Loss and gradients of the full batch."""
        model: nn.Module = self.problem.model()
        inputs, targets = joined(self.micro_batches)
        loss = LOSSES[self.loss](model(inputs), targets)
        return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


def gradients_as_expected(criterion: str, accumulation: Accumulation, seen: dict[str, Any]) -> Finding:
    """Passes if every parameter's gradient is the full batch's."""
    _, expected = accumulation.expected()
    names = [name for name, _ in accumulation.problem.model().named_parameters()]
    sizes = f"micro-batches of {accumulation.sizes} samples, {accumulation.loss}"
    return first_wrong(
        compare.close(criterion, got, wanted, f"the gradient of {name} ({sizes})", rtol=1e-4, atol=1e-5)
        for name, got, wanted in zip(names, seen["gradients"], expected, strict=True)
    )


def full_batch_loss(accumulation: Accumulation, seen: dict[str, Any]) -> Finding:
    """Passes if the answer returned the mean over all samples, without a graph behind it."""
    criterion = "loss of the full batch"
    if seen["history"]:
        return Finding(
            criterion, False, "The loss that was returned requires grad: it keeps its graph in memory."
        )
    what = f"the loss over micro-batches of {accumulation.sizes} samples"
    return compare.close(criterion, seen["loss"], accumulation.expected()[0], what, rtol=1e-4)


def one_graph_at_a_time(accumulation: Accumulation, seen: dict[str, Any]) -> Finding:
    """Passes if each micro-batch goes forward and then backward before the next one goes forward, and if what
    its forward pass kept is gone by then. In which order the micro-batches come is no matter.
    """
    name = "one graph at a time"
    passes = ", ".join(seen["log"]) or "none"
    forwards = [text for text in seen["log"] if text.startswith("forward")]
    in_turn = [text for forward in forwards for text in (forward, forward.replace("forward", "backward"))]
    if seen["log"] != in_turn or sorted(forwards) != sorted(f"forward {size}" for size in accumulation.sizes):
        wanted = ", ".join(f"{way} {size}" for size in accumulation.sizes for way in ("forward", "backward"))
        return Finding(name, False, f"The passes, by their number of samples: {passes}; expected {wanted}.")
    if any(seen["kept"]):
        text = (
            f"{max(seen['kept'])} tensors of an earlier graph are still kept when the next pass goes forward"
        )
        return Finding(name, False, f"{text}; expected none.")
    return Finding(
        name, True, f"The passes, by their number of samples: {passes}; nothing is kept between them."
    )


# -------------------------------------------------------------------------------------- measure_throughput


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement that the answer made on a slow device, with every call it made in order."""

    batch_size: int
    warmup: int
    steps: int
    result: PlainData
    calls: list[tuple[str, float, float]]
    returned: float

    @classmethod
    def of(cls, answer: Answer, rng: Rng, warmup: int) -> "Measurement":
        batch_size, steps = rng.integer(3, 200), rng.integer(4, 7)
        seen = answer.call("unit_01.throughput", batch_size, warmup, steps)
        return cls(batch_size, warmup, steps, seen["result"], seen["calls"], seen["returned"])

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]

    @property
    def step_positions(self) -> list[int]:
        """Where, among all calls, the steps are. A step that was never made comes after everything."""
        made = [position for position, name in enumerate(self.names) if name == "step"]
        missing = self.warmup + self.steps - len(made)
        return made + [len(self.calls)] * missing

    @property
    def first_timed(self) -> int:
        """Position, among all calls, of the first step after the warm-up."""
        return self.step_positions[self.warmup]

    @property
    def last_timed(self) -> int:
        return self.step_positions[-1]

    def elapsed(self) -> tuple[float, float]:
        """The least and the most seconds that a clock read at the right two moments can have shown.

        The first moment is after the device has come to rest and before the first timed step, the second
        after it has come to rest again. However slow this machine is, the right answer lies between.
        """
        ready = self.calls[self.first_timed - 1][2]
        first_step = self.calls[self.first_timed][1]
        finished = self.calls[self.last_timed + 1][2]
        return finished - first_step, self.returned - ready


CLOCK_TOLERANCE = 0.001
"""Seconds by which two clocks may differ over a measurement; the mistakes make 40 times as much."""


def right_number_of_steps(measurement: Measurement) -> Finding:
    """Passes if there were as many steps as warm-up and measurement take together."""
    expected = measurement.warmup + measurement.steps
    seen = measurement.names.count("step")
    text = f"step() was called {seen} times; expected {measurement.warmup} + {measurement.steps} = {expected}"
    return Finding("warm-up and timed steps", seen == expected, f"{text}.")


def waits_before_start(measurement: Measurement) -> Finding:
    """Passes if the last call before the first timed step waited for the device."""
    before = measurement.names[: measurement.first_timed]
    waits = before[-1:] == ["synchronize"]
    text = "synchronize() was called" if waits else "Nothing waited for the device"
    return Finding(
        "waits before the clock starts", waits, f"{text} between warm-up and the first timed step."
    )


def waits_before_stop(measurement: Measurement) -> Finding:
    """Passes if something waited for the device after the last step."""
    waits = "synchronize" in measurement.names[measurement.last_timed :]
    text = "synchronize() was called" if waits else "Nothing waited for the device"
    return Finding("waits before the clock stops", waits, f"{text} after the last step.")


def waits_nowhere_else(measurement: Measurement) -> Finding:
    """Passes if nothing waited for the device between timed steps."""
    timed = measurement.names[measurement.first_timed : measurement.last_timed]
    extra = timed.count("synchronize")
    return Finding("waits nowhere else", not extra, f"{extra} calls of synchronize() between timed steps.")


def rate_as_measured(measurement: Measurement) -> Finding:
    """Passes if the rate follows from a time between the bounds that the calls themselves set."""
    criterion = "samples a second"
    if not (waits_before_start(measurement).passed and waits_before_stop(measurement).passed):
        return Finding(
            criterion, False, "While the device still works, no time that a clock shows is the right one."
        )
    least, most = measurement.elapsed()
    samples = measurement.batch_size * measurement.steps
    slowest, fastest = samples / (most + CLOCK_TOLERANCE), samples / max(least - CLOCK_TOLERANCE, 1e-9)
    result = measurement.result
    passed = type(result) in (int, float) and slowest <= result <= fastest
    shown = f"{result:,.1f} samples/s" if type(result) in (int, float) else f"{result!r:.80}"
    # No clock shows seconds that give a whole number of samples a second, but for one time in a billion.
    if passed and result == int(result):
        text = f"{shown}, a whole number: the rate has been rounded; expected what the division gives"
        return Finding(criterion, False, f"{text}.")
    text = (
        f"{shown} for {measurement.steps} steps of {measurement.batch_size} samples in {least:.4f} s; "
        f"expected {samples / least:,.1f}"
    )
    return Finding(criterion, passed, f"{text}.")


# ------------------------------------------------------------------------------------ training_memory_bytes

BYTES_PER_PARAMETER = {
    ("fp32", "sgd"): 4 + 4,
    ("fp32", "momentum"): 4 + 4 + 4,
    ("fp32", "adam"): 4 + 4 + 8,
    ("bf16", "sgd"): 2 + 2,
    ("bf16", "momentum"): 2 + 2 + 2,
    ("bf16", "adam"): 2 + 2 + 4,
    ("mixed", "sgd"): 2 + 2 + 4,
    ("mixed", "momentum"): 2 + 2 + 4 + 4,
    ("mixed", "adam"): 2 + 2 + 4 + 8,
}
"""Weights + gradients + optimizer states, as the exercise defines them (Rajbhandari et al. 2020, 3.1)."""


def memory_as_expected(criterion: str, answer: Answer, rng: Rng, precision: str) -> Finding:
    """Passes if all three optimizers need what they should in this precision."""
    parameters = rng.integer(10**6, 10**9)
    return first_wrong(
        compare.equal(
            criterion,
            answer.call("call", parameters, optimizer, precision),
            parameters * BYTES_PER_PARAMETER[precision, optimizer],
            f'bytes for {parameters:,} parameters, "{optimizer}", "{precision}"',
        )
        for optimizer in ("sgd", "momentum", "adam")
    )


def unknown_names_rejected(answer: Answer) -> Finding:
    """Passes if names that the exercise does not list raise ValueError."""
    criterion = "unknown names"
    for optimizer, precision in (("rmsprop", "fp32"), ("adam", "fp8")):
        try:
            seen = answer.call("call", 1000, optimizer, precision)
        except AnswerFailed as failure:
            if failure.kind == "ValueError":
                continue
            return Finding(
                criterion,
                False,
                f'("{optimizer}", "{precision}") raised {failure.kind}; expected ValueError.',
            )
        return Finding(
            criterion, False, f'("{optimizer}", "{precision}") gave {seen!r:.80}; expected ValueError.'
        )
    return Finding(criterion, True, "An unknown optimizer and an unknown precision raise ValueError.")
