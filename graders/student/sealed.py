"""Answers that a trainer's code opens: `answers.sealed` in the folder of a track.

A JSON file: for each session its title, until when it is handed in, a salt, and the answers, encrypted with a
key that comes of the code.
"""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from course_lib.home import course_home
from graders.grading.track import file_of_track

FILE = "answers.sealed"
OPENED = "opened.jsonl"
"""In `course_home()`: a line for each code that opened something, with the answers by name as JSON."""


class WrongCode(LookupError):
    """The code opens nothing here; the message is for the student."""


def sealed(
    title: str, answers: Mapping[str, str], code: str, hand_in: datetime | None = None
) -> dict[str, str]:
    """What is written into the file of a session: its answers by name, which only the code opens.

    hand_in: until then not even the code does, lest it be told too early; by the clock of whoever calls.
    """
    salt = os.urandom(16)
    token = _cipher(code, salt).encrypt(json.dumps(dict(answers)).encode())
    until = hand_in.isoformat() if hand_in else ""
    return {"title": title, "until": until, "salt": salt.hex(), "answers": token.decode("ascii")}


def open_with(code: str, folder: Path) -> list[str]:
    """Keep what a code opens for later; the names of the answers. Raises WrongCode and OSError."""
    opened: dict[str, str] = {}
    path = sealed_file(folder)
    for session in json.loads(path.read_text(encoding="utf-8")) if path else ():
        with suppress(InvalidToken):
            found = json.loads(_cipher(code, bytes.fromhex(session["salt"])).decrypt(session["answers"]))
            _refuse_before(session.get("until", ""), session["title"])
            opened |= found
    if not opened:
        raise WrongCode(
            f'The code "{code}" opens nothing in {folder}. Ask whoever teaches for the right one.'
        )
    with (course_home() / OPENED).open("a", encoding="utf-8") as file:
        file.write(json.dumps(opened) + "\n")
    return list(opened)


def opened_answer(name: str) -> str:
    """The source of an answer that a code has opened, the last if several have; empty where none has."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (course_home() / OPENED).read_text(encoding="utf-8").splitlines()
    found = [opened[name] for opened in map(json.loads, lines) if name in opened]
    return found[-1] if found else ""


def _refuse_before(until: str, title: str) -> None:
    """Raise WrongCode as long as the answers may still be handed in."""
    moment = datetime.fromisoformat(until).astimezone() if until else None
    if moment is not None and datetime.now(moment.tzinfo) <= moment:
        raise WrongCode(
            f'The answers of "{title}" open after they are handed in, on {moment:%d %B %Y, %H:%M}.'
        )


def sealed_file(folder: Path) -> Path | None:
    """The file of the track that the folder is or lies in, if it has one."""
    return file_of_track(FILE, folder)


def _cipher(code: str, salt: bytes) -> Fernet:
    key = hashlib.scrypt(code.strip().lower().encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)
    return Fernet(base64.urlsafe_b64encode(key))
