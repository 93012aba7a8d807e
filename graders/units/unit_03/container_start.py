"""The command that starts a container, as it is found in what a shell runs for an answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from graders.grading.kit import Answer, AnswerFailed, Finding
from graders.units.raised import raised_in
from graders.units.unit_03.binds import as_bind
from graders.units.unit_03.container_sites import Site
from graders.units.unit_03.drivers import texts as drivers


@dataclass(frozen=True)
class Started:
    """A command that starts a program in an image, as Apptainer reads it."""

    launcher: tuple[str, ...]
    options: tuple[str, ...]
    binds: tuple[str, ...]
    image: str
    command: tuple[str, ...]


Commands = Sequence[Sequence[str]] | Finding
"""The words of each command that a shell runs, at least one; or why there are none."""


def place_of_start(ran: Sequence[Sequence[str]]) -> int:
    """Where among the commands the last one stands that is no module's, if there is one."""
    places = [place for place, words in enumerate(ran) if words[0] not in ("module", "ml")]
    return places[-1] if places else len(ran) - 1


def start_of(ran: Commands, site: Site) -> Started | Finding:
    """The command that starts the container; a finding that says why there is none."""
    if isinstance(ran, Finding):
        return ran
    words = list(ran[place_of_start(ran)])
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
        if name == "--" and not value:
            break
        if name in ("--nv", "--rocm"):
            options.append(name)
        elif name in ("--bind", "-B") and (given or rest):
            binds += (value if given else rest.pop(0)).split(",")
        elif name == "--mount" and (given or rest):
            binds.append(as_bind(value if given else rest.pop(0)))
        else:
            return Finding(False, f"{said}; {name} is not asked for.")
    if not rest:
        return Finding(False, f"{said}: there is no image in it.")
    return Started(tuple(launcher), tuple(options), tuple(binds), rest[0], tuple(rest[1:]))


def commands(answer: Answer, site: Site) -> Commands:
    """Which commands a shell runs for the site."""
    names = sorted({"module", "ml", "apptainer", "singularity", site.launcher[0]})
    try:
        reply = answer.call(drivers.in_a_shell, names, *site.arguments)
    except AnswerFailed as failure:
        return raised_in(str(site), failure)
    if not reply.text:
        return Finding(False, "container_command returned no text; expected that of the commands.")
    if reply.said or reply.status:
        text = (
            f"The shell ends with status {reply.status} and says: {reply.said!r:.200}. This was with {site}"
        )
        return Finding(False, f"{text}. The text was {reply.text!r:.400}")
    if reply.changed:
        return Finding(False, "container_command has changed its arguments; the caller may need them again.")
    if reply.text.rstrip().endswith("&"):
        return Finding(False, "The last command is in the background (&): the job would end at once.")
    if not reply.commands:
        return Finding(False, f"{reply.text!r:.80} runs none of the commands {', '.join(names)}.")
    return reply.commands
