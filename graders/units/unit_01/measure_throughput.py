"""Unit 01, how fast."""

from dataclasses import dataclass

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_01 import drivers
from graders.units.unit_01.replies import ThroughputReply


@exercise(
    minutes=12,
    difficulty=3,
    rubric=(
        Criterion(
            "warm-up and timed steps", 1, "Call step() `warmup` times, then `steps` times, and no more."
        ),
        Criterion(
            "waits before the clock starts",
            1,
            "When step() returns, the device may still be at work on the warm-up, or on what the caller has "
            "queued: call synchronize() first, even if warmup is 0.",
        ),
        Criterion(
            "waits before the clock stops",
            1,
            "The last steps have only been queued when step() returns: call synchronize() before you read "
            "the clock again.",
        ),
        Criterion(
            "waits nowhere else",
            1,
            "Waiting after every step keeps the device idle while the next is prepared, which is not what "
            "training does. Two calls of synchronize() are enough.",
            needs=("waits before the clock starts", "waits before the clock stops"),
        ),
        Criterion(
            "samples a second",
            2,
            "Read the clock after the first synchronize(), and after the second: batch_size * steps samples, "
            "divided by the seconds between. time.perf_counter() is the clock for it: time.time() and "
            "datetime.now() may be set while they run.",
            needs=("waits before the clock starts", "waits before the clock stops"),
        ),
    ),
    hints=(
        "What is in the device's queue at the moment when you read the clock first? Draw it, for a warm-up "
        "of two steps. And what is in it when you read the clock again?",
        "There are two loops over step(), and each is followed by synchronize().",
        "Read time.perf_counter() directly after each of the two calls of synchronize().",
    ),
)
def measure_throughput(answer: Answer, rng: Rng) -> Findings:
    """A device that is slow at first and works off a queue; once with a warm-up, once without."""
    measurements = [Measurement.of(answer, rng, warmup) for warmup in (rng.integer(2, 3), 0)]
    for name, check in (
        ("warm-up and timed steps", right_number_of_steps),
        ("waits before the clock starts", waits_before_start),
        ("waits before the clock stops", waits_before_stop),
        ("waits nowhere else", waits_nowhere_else),
        ("samples a second", rate_as_measured),
    ):
        yield name, compare.first_failure(map(check, measurements))


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement that the answer made on a slow device, with every call it made in order."""

    batch_size: int
    warmup: int
    steps: int
    reply: ThroughputReply

    @classmethod
    def of(cls, answer: Answer, rng: Rng, warmup: int) -> "Measurement":
        batch_size, steps = rng.integer(3, 200), rng.integer(4, 7)
        return cls(batch_size, warmup, steps, answer.call(drivers.throughput, batch_size, warmup, steps))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.reply.calls]

    @property
    def first_timed(self) -> int:
        """Position, among all calls, of the first step after the warm-up."""
        return [place for place, name in enumerate(self.names) if name == "step"][self.warmup]

    @property
    def last_timed(self) -> int:
        return max(place for place, name in enumerate(self.names) if name == "step")

    def elapsed(self) -> tuple[float, float]:
        """The least and the most seconds that a clock read at the right two moments can have shown.

        The first moment is after the device has come to rest and before the first timed step, the second
        after it has come to rest again. However slow this machine is, the right answer lies between.
        """
        calls = self.reply.calls
        ready, first_step = calls[self.first_timed - 1][2], calls[self.first_timed][1]
        finished = calls[self.last_timed + 1][2]
        return finished - first_step, self.reply.returned - ready


CLOCK_TOLERANCE = 0.001
"""Seconds by which two clocks may differ over a measurement; the mistakes make 40 times as much."""


def right_number_of_steps(measurement: Measurement) -> Finding:
    """Passes if there were as many steps as warm-up and measurement take together."""
    expected = measurement.warmup + measurement.steps
    seen = measurement.names.count("step")
    text = f"step() was called {seen} times; expected {measurement.warmup} + {measurement.steps} = {expected}"
    return Finding(seen == expected, f"{text}.")


def waits_before_start(measurement: Measurement) -> Finding:
    """Passes if the last call before the first timed step waited for the device."""
    waits = measurement.names[: measurement.first_timed][-1:] == ["synchronize"]
    text = "synchronize() was called" if waits else "nothing waited for the device"
    return Finding(waits, f"With warmup={measurement.warmup} {text} right before the first timed step.")


def waits_before_stop(measurement: Measurement) -> Finding:
    """Passes if something waited for the device after the last step."""
    waits = "synchronize" in measurement.names[measurement.last_timed :]
    text = "synchronize() was called" if waits else "Nothing waited for the device"
    return Finding(waits, f"{text} after the last step.")


def waits_nowhere_else(measurement: Measurement) -> Finding:
    """Passes if nothing waited for the device between timed steps, and twice altogether."""
    within = measurement.names[measurement.first_timed : measurement.last_timed].count("synchronize")
    calls = measurement.names.count("synchronize")
    text = f"{calls} calls of synchronize(), {within} of them between timed steps; expected 2, none there"
    return Finding(calls <= 2 and not within, f"{text}.")


def rate_as_measured(measurement: Measurement) -> Finding:
    """Passes if the rate follows from a time between the bounds that the calls themselves set."""
    if not (waits_before_start(measurement).passed and waits_before_stop(measurement).passed):
        return Finding(False, "While the device still works, no time that a clock shows is the right one.")
    least, most = measurement.elapsed()
    samples = measurement.batch_size * measurement.steps
    slowest, fastest = (
        samples / max(seconds, 1e-9) for seconds in (most + CLOCK_TOLERANCE, least - CLOCK_TOLERANCE)
    )
    rate = compare.as_float(measurement.reply.result)
    seen = compare.shown(measurement.reply.result, 80)
    if rate == round(rate, 6):
        return Finding(False, f"{seen} has been rounded; expected what the division gives.")
    text = f"{seen} samples/s; the device needed {least:.4f} s for {samples} samples"
    return Finding(slowest <= rate <= fastest, f"{text}; expected {samples / max(least, 1e-9):.4g}.")
