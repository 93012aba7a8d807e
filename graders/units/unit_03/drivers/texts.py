"""Drivers of unit 03: scripts that an answer writes, and what a shell makes of them."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from graders.grading.answer import AnswerFunction, PlainData
from graders.units.unit_03.replies import FormReply, ShellReply

_SECONDS = 5.0


def in_a_shell(answer: AnswerFunction, names: list[str], *arguments: PlainData) -> ShellReply:
    """What bash makes of the text that the answer returns, see `commands_of_bash`."""
    before = deepcopy(arguments)
    text = answer(*arguments)
    changed = arguments != before
    if type(text) is not str:
        return ShellReply("", [], "", 0, changed)
    return ShellReply(text, *commands_of_bash(text, names), changed)


def commands_of_bash(text: str, names: Sequence[str]) -> tuple[list[list[str]], str, int]:
    """Which words bash hands to the commands called `names` when it runs the text, in the order of the calls.

    The commands do nothing but note their words, and no program is found. Returns them as lists that begin
    with the command's name, what bash complains of, and the status of the last command.
    """
    with tempfile.TemporaryFile() as notes, open(os.devnull, "wb") as nowhere:
        # After each word a zero byte, which no word can hold; before a command's words their number.
        note = f"note() {{ printf '%s\\0' $# \"$@\" >&{notes.fileno()}; }}; "
        noted = "".join(f'{name}() {{ note {name} "$@"; }}; ' for name in names)
        # The builtin finds no functions. All in the text's first line, so that its lines keep their numbers.
        replaced = 'exec() { if (($#)); then "$@"; exit; fi; }; '
        done = subprocess.run(
            ["/bin/bash", "-c", f"{note}{noted}{replaced}BASH_XTRACEFD={nowhere.fileno()}; {text}"],
            # What `set -x` and `time` tell is no complaint.
            env={"PATH": "", "LC_ALL": "C", "TIMEFORMAT": ""},
            pass_fds=[notes.fileno(), nowhere.fileno()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        notes.seek(0)
        words = notes.read().decode(errors="replace").split("\0")[:-1]
    commands = []
    while words:
        count = int(words.pop(0))
        commands.append(words[:count])
        del words[:count]
    return commands, done.stderr.decode(errors="replace")[:300], done.returncode


def fill_in(answer: AnswerFunction, form: dict[str, str], queues: dict[str, Any]) -> FormReply:
    """The script that the answer writes for a form, or how it refuses the form."""
    try:
        script = answer(form, queues)
    except NotImplementedError:  # the stub
        raise
    except Exception as error:  # which ones are right is the grader's affair
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        said = "\n".join([str(error) or kind, *getattr(error, "__notes__", ())])
        return FormReply("", kind, said)
    return FormReply(script if type(script) is str else "", "", "")
