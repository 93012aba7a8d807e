"""`hint("average_gradients")`: an exercise's hints, on demand; first the one on what went wrong."""

from contextlib import suppress

from graders.grading.kinds import HINTS, Kind
from graders.student.display import Notice, shown
from graders.student.lookup import NoSuchExercise, named_exercise
from graders.student.progress_log import hints_seen, kind_to_explain, record_hint, record_hint_on


def hint(exercise: object = None, number: int | None = None) -> Notice:
    """Show the next hint of an exercise, or hint `number`: `hint("average_gradients")`.

    If the last check failed in a way that has a hint of its own, such as a deadlock, that one comes first.

    Which hints you have seen is recorded with your progress.
    """
    try:
        return shown(Notice(hint_text(exercise, number)))
    except NoSuchExercise as error:
        return shown(Notice(str(error)))


def hint_text(
    exercise: object,
    number: int | None = None,
    following: str = 'hint("{}").',
    again: str = 'hint("{}", 1).',
) -> str:
    """The sentence that `hint` shows. Raises NoSuchExercise.

    following, again: how to ask for the next hint and for the first, with {} for the exercise.
    """
    found = named_exercise(exercise, "hint")
    name = found.name
    count = len(found.hints)
    kind = kind_to_explain(found.unit, name) if number is None else ""
    if kind in set(Kind) - {Kind.OTHER}:
        with suppress(OSError):
            record_hint_on(found, kind)
        more = f"\nThe next one: {following.format(name)}" if count else ""
        return f"Your last check saw {kind}. {HINTS[Kind(kind)]}{more}"
    if not count:
        return f"{name} has no hints, but a criterion that fails has one: see the table of check({name})."
    if number is not None and (type(number) is not int or not 1 <= number <= count):
        which = "one hint" if count == 1 else f"the hints 1 to {count}"
        return f"{name} has {which}; there is no hint {number!r}. The first: {again.format(name)}"
    seen = hints_seen(found.unit, name)
    if number is None and seen >= count:
        which = "the only hint" if count == 1 else f"all {count} hints"
        return f"You have seen {which} for {name}. To read one again: {again.format(name)}"
    given = number or seen + 1
    with suppress(OSError):  # a hint is worth more than the note that it was given
        record_hint(found, given)
    more = f"\nThe next one: {following.format(name)}" if given < count else ""
    return f"Hint {given} of {count} for {name}: {found.hints[given - 1]}{more}"
