"""The grader of `with_recomputation`."""

from course_lib.training.pipeline.actions import Action, Backward, BackwardInput, Forward, Recompute
from graders.grading.cases import vary
from graders.grading.expected import Expected
from graders.grading.kit import Criterion
from graders.units.functions.stage import Arguments, kept, of_function
from graders.units.unit_05.actions import OfActions, Order, drawn_order


@of_function(
    base=Order(),
    minutes=20,
    difficulty=2,
    rubric=(
        Criterion(
            "before its backward",
            4,
            "All actions as they were, and one Recompute directly before each Backward. Any earlier, and "
            "more is kept at once than must be.",
            vary=vary(micro_batches=(2, 9)),
        ),
        Criterion(
            "in halves, in chunks",
            2,
            "BackwardInput needs the activations already. A chunk's Recompute is of that chunk.",
            vary=vary(halves=(True,), chunks=(2, 3)),
        ),
        Criterion("a new list", 1, "The list that came in stays as it is.", how=kept),
        Criterion(
            "where it saves something",
            1,
            "A Forward whose backward comes directly after it need keep nothing for long.",
            vary=vary(direct=(True,)),
        ),
    ),
    hints=(
        "When is the latest moment for a Recompute, in terms of the action that needs it?",
        "Whether there is anything between a forward and its backward you can see from the action before.",
    ),
    arguments=drawn_order,
    kind=OfActions,
)
def with_recomputation(order: Order, given: Arguments) -> Expected:
    """Each forward that waits is done again directly before its backward."""
    actions: list[Action] = []
    for action in given[0]:
        where = (action.micro_batch, action.chunk)
        if isinstance(action, Backward | BackwardInput) and actions[-1] != Forward(*where):
            actions.append(Recompute(*where))
        actions.append(action)
    return Expected(actions, {"actions": given[0]}, returned=None)
