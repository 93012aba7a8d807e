"""Drivers of unit 03: scripts that an answer writes."""

from copy import deepcopy
from typing import Any

from graders.grading.answer import AnswerFunction, PlainData
from graders.units.unit_03.replies import FormReply, ShellReply
from graders.units.unit_03.shells import commands_of_bash


def in_a_shell(answer: AnswerFunction, names: list[str], *arguments: PlainData) -> ShellReply:
    """What bash makes of the text that the answer returns, see `commands_of_bash`."""
    before = deepcopy(arguments)
    text = answer(*arguments)
    changed = arguments != before
    if type(text) is not str:
        return ShellReply("", [], "", 0, changed)
    return ShellReply(text, *commands_of_bash(text, names), changed)


def fill_in(answer: AnswerFunction, form: dict[str, str], queues: dict[str, Any]) -> FormReply:
    """The script that the answer writes for a form, or how it refuses the form."""
    before = dict(form)
    try:
        script = answer(form, queues)
    except NotImplementedError:  # the stub
        raise
    except Exception as error:  # which ones are right is the grader's affair
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        said = "\n".join([str(error) or kind, *getattr(error, "__notes__", ())])
        return FormReply("", kind, said, form != before)
    return FormReply(script if type(script) is str else "", "", "", form != before)
