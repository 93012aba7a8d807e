"""The command that starts a container, read as Apptainer reads it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from graders.grading.kit import Finding
from graders.units.unit_03.replies import ShellReply


@dataclass
class Started:
    """A command that starts a program in an image, as Apptainer reads it. modules: what module commands purge
    and load before it.
    """

    modules: list[str]
    launcher: tuple[str, ...]
    options: list[str] = field(default_factory=list)
    binds: list[str] = field(default_factory=list)
    image: str = ""
    command: tuple[str, ...] = ()


def started(reply: ShellReply, runtime: str, names: Iterable[str]) -> Started | Finding:
    """The command that starts the container; a finding that says why there is none."""
    if not reply.text:
        return Finding(False, "it returned no text; expected that of the commands.")
    if reply.said or reply.status:
        said = f"the shell ends with status {reply.status} and says: {reply.said!r:.200}"
        return Finding(False, f"{said}. The text was {reply.text!r:.400}")
    if reply.changed:
        return Finding(False, "it has changed its arguments; the caller may need them again.")
    if not reply.commands:
        return Finding(False, f"{reply.text!r:.80} runs none of the commands {', '.join(names)}.")
    *before, words = reply.commands
    place = words.index(runtime) if runtime in words else len(words)
    start = Started([name for each in before for name in _changes(each)], tuple(words[:place]))
    verb, *rest = words[place + 1 :] or [""]
    said = f"the last command is {words}"
    if verb != "exec":
        return Finding(False, f"{said}; expected {runtime} exec, the image, and the program.")
    while rest and rest[0].startswith("-"):
        # A short option's value may follow at once; what begins after -- is no option.
        name, given, value = re.sub("^-B(?=.)", "--bind=", rest.pop(0)).partition("=")
        if name == "--":
            break
        if name in ("--nv", "--rocm"):
            start.options.append(name)
        elif name in ("--bind", "-B", "--mount") and (given or rest):
            value = value if given else rest.pop(0)
            start.binds += [_as_bind(value)] if name == "--mount" else value.split(",")
        else:
            return Finding(False, f"{said}; {name} is not asked for.")
    if not rest:
        return Finding(False, f"{said}: there is no image in it.")
    start.image, start.command = rest[0], tuple(rest[1:])
    return start


def _as_bind(mount: str) -> str:
    """What --bind is told for "type=bind,src=/a,dst=/b,ro"."""
    said = dict(part.partition("=")[::2] for part in mount.split(","))
    return f"{said.get('src')}:{said.get('dst')}{':ro' * ('ro' in said)}"


def _changes(words: Sequence[str]) -> list[str]:
    """What a module command does, one step each: "purge", or the name of what it loads."""
    match [word for word in words if not word.startswith("-")]:
        case ["module" | "ml", "purge"]:
            return ["purge"]
        case ["module", "load" | "add", *names] | ["ml", *names] if names:
            return names
        case _:
            return [" ".join(words)]
