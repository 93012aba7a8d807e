"""An answer is called with what the grader has drawn, or on every rank."""

from types import SimpleNamespace
from typing import Any

from course_lib import Link
from graders.grading.answer import AnswerFunction, PlainData
from graders.units.unit_04.replies import WarmupReply


def warmup(answer: AnswerFunction, learning_rate: float, size: int, steps_per_epoch: int) -> WarmupReply:
    """How the answer makes its optimizer and its callback."""
    optimizers: list[Any] = []
    made: list[PlainData] = []

    def new_optimizer(lr: float) -> Any:
        made.append(lr)
        optimizers.append(SimpleNamespace(param_groups=[{"lr": lr}]))
        return optimizers[-1]

    callback = answer(new_optimizer, learning_rate, size, steps_per_epoch)
    own = any(getattr(callback, "optimizer", None) is optimizer for optimizer in optimizers)
    rate, steps, workers = (getattr(callback, name, None) for name in ("initial_lr", "warmup_steps", "size"))
    return WarmupReply(callback is not None, rate, steps, workers, made, own)


def tuned(
    answer: AnswerFunction, sizes: list[int], ready: list[float], ranks: int, latency: float, bandwidth: float
) -> PlainData:
    """What the answer chooses for this model and this link."""
    return answer(sizes, ready, ranks, Link(latency, bandwidth))
