"""Answers that a trainer's code opens: `answers.sealed` in the folder of a track.

A JSON file: for each session its title, a salt, and the answers, encrypted with a key that comes of the code.
"""

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from course_lib.home import course_home

FILE = "answers.sealed"
CODES = "codes.txt"
"""In `course_home()`: the codes that have opened something, one a line."""


class WrongCode(LookupError):
    """The code opens nothing here; the message is for the student."""


def sealed(title: str, answers: Mapping[str, str], code: str) -> dict[str, str]:
    """What is written into the file of a session: its answers by name, which only the code opens."""
    salt = os.urandom(16)
    token = _cipher(code, salt).encrypt(json.dumps(dict(answers)).encode())
    return {"title": title, "salt": salt.hex(), "answers": token.decode("ascii")}


def open_with(code: str, folder: Path) -> list[str]:
    """Keep a code for later; the names of the answers that it opens. Raises WrongCode and OSError."""
    opened = [*_opened(folder, [code])]
    if not opened:
        raise WrongCode(
            f'The code "{code}" opens nothing in {folder}. Ask whoever teaches for the right one.'
        )
    with (course_home() / CODES).open("a", encoding="utf-8") as file:
        file.write(f"{code}\n")
    return [name for answers in opened for name in answers]


def opened_answer(name: str, folder: Path) -> str:
    """The source of an answer that a code has opened; empty where none has."""
    codes: list[str] = []
    with suppress(OSError):
        codes = (course_home() / CODES).read_text(encoding="utf-8").split()
    return next((answers[name] for answers in _opened(folder, codes) if name in answers), "")


def sealed_file(folder: Path) -> Path | None:
    """The file of the track that the folder is or lies in, if it has one."""
    folders = (folder.resolve(), *folder.resolve().parents)
    return next((each / FILE for each in folders if (each / FILE).is_file()), None)


def _opened(folder: Path, codes: list[str]) -> Iterator[dict[str, str]]:
    """The answers of each session that one of the codes opens."""
    path = sealed_file(folder)
    for session in json.loads(path.read_text(encoding="utf-8")) if path else ():
        for code in codes:
            with suppress(InvalidToken):
                plain = _cipher(code, bytes.fromhex(session["salt"])).decrypt(session["answers"])
                answers: dict[str, str] = json.loads(plain)
                yield answers
                break


def _cipher(code: str, salt: bytes) -> Fernet:
    key = hashlib.scrypt(code.strip().lower().encode(), salt=salt, n=2**14, r=8, p=1, dklen=32)
    return Fernet(base64.urlsafe_b64encode(key))
