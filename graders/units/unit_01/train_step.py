"""The grader of `train_step`."""

from graders.grading.cases import both, vary
from graders.grading.kit import Criterion, Finding, compare
from graders.units.unit_01.cases import each, watched
from graders.units.unit_01.drawn_steps import Steps, Training, mistake_in, some_steps
from graders.units.unit_01.losses import asks_for_no_number, close_to_all, nan_in_all, no_history, scalar_near
from graders.units.unit_01.replies import StepReply
from graders.units.unit_01.watched import NOT_CALLED, in_words


def losses_returned(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if every step returned its loss before the update."""
    losses, _ = training.right
    return compare.first_failure(
        scalar_near(step.loss, loss, f"the loss that step {number} returned")
        for number, (step, loss) in enumerate(compare.side_by_side(seen, losses), start=1)
    )


def no_graph_kept(_: Training, seen: list[StepReply]) -> Finding:
    """Passes if no loss that a step returned holds on to a graph."""
    return no_history(any(step.history for step in seen))


def waits_for_nothing(_: Training, seen: list[StepReply]) -> Finding:
    """Passes if no step needed a number of the device's."""
    return asks_for_no_number("The step", [wait for step in seen for wait in step.waits])


def mode_kept(training: Training, seen: list[StepReply]) -> Finding:
    """Passes if every step went forward in the mode in which the model came, and left it in this mode.

    It may come in evaluation mode, as with frozen batch norms.
    """
    came = training.how.training
    for number, step in enumerate(seen, start=1):
        ways = [("went forward", mode) for mode in step.modes] + [("left the model", step.left)]
        for did, mode in ways:
            if mode is not came:
                text = f"step {number} {did} {in_words(mode)}; the model came {in_words(came)}."
                return Finding(False, text)
    return Finding(True, "Every step goes forward in the mode in which the model comes, and leaves it.")


@watched(
    base=Steps(),
    minutes=8,
    difficulty=2,
    rubric=(
        Criterion(
            "one update",
            1,
            "One forward, one backward, one optimizer.step(), and nothing between backward and step. "
            "functional.cross_entropy takes logits (no softmax before it) and gives the mean.",
            vary=both(sizes=(3, 8, 1), steep=False) + vary(nan=(True,)),
        ),
        Criterion(
            "gradients start at zero",
            1,
            "backward() adds to the gradients that are there. Clear them before it, in every step.",
            vary=both(sizes=(5, 7, 4), steep=False, stale=True),
        ),
        Criterion(
            "loss",
            1,
            "Return the loss before the update as a tensor, by loss.detach(): with its history it would keep "
            "its whole graph in memory. `.item()`, `print` and `if` would wait for the device.",
            vary=vary(gpu=(True,)),
            how=each(losses_returned, no_graph_kept, waits_for_nothing),
        ),
        Criterion(
            "the model's mode",
            1,
            "The caller chooses training or evaluation mode: no model.train() and no model.eval() here, and "
            "an update in both.",
            vary=vary(training=(False,)),
            how=each(mode_kept),
        ),
    ),
    hints=(
        "What is in .grad when your function is called, and in which of the steps 6 to 10 does that do "
        "harm? Write one line for each of the five.",
        "The model's call gives logits [B, classes]; functional.cross_entropy(logits, targets) the loss.",
        "optimizer.zero_grad() clears; optimizer.step() updates.",
    ),
    draw=some_steps,
    # The simulated GPU takes the processor long: it meets nothing else.
    possible=lambda how: not how.gpu or how == Steps(gpu=True),
)
def train_step(training: Training, seen: list[StepReply]) -> Finding:
    """One pass each way a step, and the parameters after it are those that torch's own SGD leads to."""
    _, expected = training.right
    if training.how.nan:
        updates = [nan_in_all(training.problem, step.parameters, "afterwards") for step in seen]
    else:
        updates = [
            close_to_all(training.problem, step.parameters, parameters, f"{{}} after step {number}")
            for number, (step, parameters) in enumerate(compare.side_by_side(seen, expected), start=1)
        ]
    updated = compare.first_failure(updates)
    mistake = (
        "" if updated.passed or training.how.nan else mistake_in(training, seen[0].parameters, expected[0])
    )
    if mistake:
        updated = Finding(False, f"in the first step {mistake}.", updated.kind)
    return compare.first_failure([updated, _one_pass_each_way(training, seen)])


def _one_pass_each_way(training: Training, seen: list[StepReply]) -> Finding:
    for number, (step, (inputs, _)) in enumerate(compare.side_by_side(seen, training.batches), start=1):
        expected = [f"forward {len(inputs)}", f"backward {len(inputs)}"]
        if step.log != expected:
            made = f"made the passes {', '.join(step.log)} (with samples)" if step.log else NOT_CALLED
            return Finding(False, f"step {number} {made}; expected {', '.join(expected)}.")
    return Finding(True, "Every step goes forward once and backward once.")
