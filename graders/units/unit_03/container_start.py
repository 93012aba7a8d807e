"""Machines with a container runtime, and the command that starts a container there, as a shell runs it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graders.grading.kit import Answer, AnswerFailed, Finding
from graders.units.raised import raised_in
from graders.units.unit_03.drivers import texts as drivers


@dataclass(frozen=True)
class Site:
    """A machine as the exercise describes it, and what is run there."""

    runtime: str
    launcher: tuple[str, ...]
    gpus: str | None = None
    modules: tuple[str, ...] = ()
    mounted: tuple[str, ...] = ("/home", "/tmp")
    folders: dict[str, str] = field(default_factory=dict)
    image: str = "pytorch.sif"
    command: tuple[str, ...] = ("python", "train.py")

    def __str__(self) -> str:
        site, image, command = self.arguments
        return f"container_command({site}, {image!r}, {command})"

    @property
    def arguments(self) -> tuple[dict[str, Any], str, list[str]]:
        """What container_command is called with."""
        site = {
            "runtime": self.runtime,
            "gpus": self.gpus,
            "modules": list(self.modules),
            "launcher": list(self.launcher),
            "mounted": list(self.mounted),
            "folders": dict(self.folders),
        }
        return site, self.image, list(self.command)


@dataclass(frozen=True)
class Started:
    """A command that starts a program in an image, as Apptainer reads it. modules: what module commands purge
    and load before it.
    """

    modules: tuple[str, ...]
    launcher: tuple[str, ...]
    options: tuple[str, ...]
    binds: tuple[str, ...]
    image: str
    command: tuple[str, ...]


def started(answer: Answer, site: Site) -> Started | Finding:
    """The command that starts the container; a finding that says why there is none."""
    names = sorted({"module", "ml", "apptainer", "singularity", site.launcher[0]})
    try:
        reply = answer.call(drivers.in_a_shell, names, *site.arguments)
    except AnswerFailed as failure:
        return raised_in(str(site), failure)
    if not reply.text:
        return Finding(False, "container_command returned no text; expected that of the commands.")
    if reply.said or reply.status:
        said = (
            f"The shell ends with status {reply.status} and says: {reply.said!r:.200}. This was with {site}"
        )
        return Finding(False, f"{said}. The text was {reply.text!r:.400}")
    if reply.changed:
        return Finding(False, "container_command has changed its arguments; the caller may need them again.")
    if not reply.commands:
        return Finding(False, f"{reply.text!r:.80} runs none of the commands {', '.join(names)}.")
    *before, words = reply.commands
    place = words.index(site.runtime) if site.runtime in words else len(words)
    launcher, (verb, *rest) = words[:place], words[place + 1 :] or [""]
    said = f"The last command is {words}"
    if verb != "exec":
        return Finding(False, f"{said}; expected {site.runtime} exec, the image, and the program.")
    options: list[str] = []
    binds: list[str] = []
    while rest and rest[0].startswith("-"):
        # A short option's value may follow at once; what begins after -- is no option.
        name, given, value = re.sub("^-B(?=.)", "--bind=", rest.pop(0)).partition("=")
        if name == "--":
            break
        if name in ("--nv", "--rocm"):
            options.append(name)
        elif name in ("--bind", "-B", "--mount") and (given or rest):
            value = value if given else rest.pop(0)
            binds += [_as_bind(value)] if name == "--mount" else value.split(",")
        else:
            return Finding(False, f"{said}; {name} is not asked for.")
    if not rest:
        return Finding(False, f"{said}: there is no image in it.")
    modules = tuple(change for words in before for change in _changes(words))
    return Started(modules, tuple(launcher), tuple(options), tuple(binds), rest[0], tuple(rest[1:]))


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
