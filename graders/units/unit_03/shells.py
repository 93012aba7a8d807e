"""What a shell makes of a student's text: the words that it hands to commands."""

import os
import subprocess
import tempfile
from collections.abc import Sequence

_SECONDS = 5.0


def commands_of_bash(text: str, names: Sequence[str]) -> tuple[list[list[str]], str, int]:
    """Which words bash hands to the commands called `names` when it runs the text, in the order of the calls.

    The commands do nothing but note their words, and no program is found. Returns them as lists that begin
    with the command's name, what bash complains of, and the status of the last command.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as notes,
        open(os.devnull, "wb") as nowhere,
    ):
        # After each word a zero byte, which no word can hold; before a command's words their number.
        note = f"note() {{ printf '%s\\0' $# \"$@\" >&{notes.fileno()}; }}; "
        noted = "".join(f'{name}() {{ note {name} "$@"; }}; ' for name in names)
        # The builtin finds no functions. All in the text's first line, so that its lines keep their numbers.
        replaced = 'exec() { if (($#)); then "$@"; exit; fi; }; '
        # What `set -x` tells is no complaint.
        traced = f"BASH_XTRACEFD={nowhere.fileno()}; "
        done = subprocess.run(
            ["/bin/bash", "-c", f"{note}{noted}{replaced}{traced}{text}"],
            # Nor is what `time` tells.
            env={"PATH": "", "LC_ALL": "C", "TIMEFORMAT": ""},
            cwd=folder,
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
