"""What is wrong with a batch script, as far as it can be told without Slurm.

`sbatch --test-only` finds what no node can run. It says nothing of lines that sbatch ignores silently, such
as an #SBATCH line after the first command, and nothing of a site's own rules.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from course_lib.slurm.sites import Site

_SHORT = {
    "-A": "--account",
    "-C": "--constraint",
    "-G": "--gpus",
    "-J": "--job-name",
    "-N": "--nodes",
    "-a": "--array",
    "-c": "--cpus-per-task",
    "-d": "--dependency",
    "-e": "--error",
    "-F": "--nodefile",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-t": "--time",
    "-w": "--nodelist",
    "-x": "--exclude",
}

_NEARLY = re.compile(r"^\s*#+\s*SBATCH\b", re.IGNORECASE)
_EXACT = re.compile(r"^#SBATCH\s")
_LAUNCHERS = ("srun", "sbatch", "salloc", "mpirun", "mpiexec", "ibrun")


@dataclass(frozen=True, slots=True)
class Option:
    """An option as it stands on line `line`, by its long name."""

    line: int
    name: str
    value: str


@dataclass(frozen=True)
class Script:
    """The text of a batch script."""

    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @cached_property
    def first_command(self) -> int:
        """The number of the first line that is neither empty nor a comment; past the end if there is none."""
        numbered = enumerate(self.lines, 1)
        found = (n for n, line in numbered if line.strip() and not line.lstrip().startswith("#"))
        return next(found, len(self.lines) + 1)

    @cached_property
    def options(self) -> list[Option]:
        """The options that sbatch reads."""
        return [
            option
            for number, line in enumerate(self.lines[: self.first_command - 1], 1)
            if _EXACT.match(line)
            for option in _options(number, line.removeprefix("#SBATCH").split(" #")[0])
        ]

    def option(self, name: str) -> str | None:
        """The value that counts: the last one."""
        return next((option.value for option in reversed(self.options) if option.name == name), None)


def complaints_about(script: Script, site: Site) -> list[str]:
    """Every reason against a script, a sentence each; empty if there is none."""
    return [
        *_ignored(script),
        *_forbidden_options(script, site),
        *_programs(script, site),
        *_size(script, site),
    ]


def _ignored(script: Script) -> Iterator[str]:
    """What sbatch would not read, or not as it is meant."""
    if "\r" in script.text:
        yield "The lines end with CR LF, as on Windows: convert the file, for instance with dos2unix."
    if not script.lines[0].startswith("#!"):
        yield "Line 1 names no interpreter: begin with #!/bin/bash."
    for number, line in enumerate(script.lines, 1):
        if _EXACT.match(line):
            if number > script.first_command:
                yield (
                    f"Line {number}, {line.strip()!r}, stands after the first command (line "
                    f"{script.first_command}): sbatch ignores it silently. Move it up."
                )
            elif "$" in line:
                yield f"Line {number}: sbatch expands no variables; {line.strip()!r} has one."
        elif _NEARLY.match(line):
            yield (
                f"Line {number}, {line.strip()!r}, is a plain comment for sbatch: write #SBATCH, in "
                f"capitals, at the beginning of the line, without a blank after #."
            )


def _forbidden_options(script: Script, site: Site) -> Iterator[str]:
    for option in script.options:
        if option.name in site.refused:
            yield f"Line {option.line}: {site.refused[option.name]}"
    if script.lines[0].strip() == "#!/bin/sh" and not site.submit_from_compute_nodes:
        yield f"Line 1: {site.title} advises against #!/bin/sh; write #!/bin/bash."


def _programs(script: Script, site: Site) -> Iterator[str]:
    for number, words in _commands(script):
        program = words[0].rsplit("/", 1)[-1]
        if program in site.refused_programs:
            yield f"Line {number}: {site.refused_programs[program]}"
        elif program in _LAUNCHERS:
            for option in _options(number, shlex.join(words[1:])):
                if option.name in site.refused and option.name != "--export":
                    yield f"Line {number}: {site.refused[option.name]}"


def _commands(script: Script) -> Iterator[tuple[int, list[str]]]:
    """Line and words of the commands of the body, as far as a shell's text can be read without running it."""
    joined = re.sub(r"\\\n", lambda _: " \0", script.text)
    number = 1
    for line in joined.split("\n"):
        body = line.split(" #")[0].replace("\0", "")
        if body.strip() and not body.lstrip().startswith("#"):
            for part in re.split(r"&&|\|\||[;|&]|\bdo\b|\bthen\b", body):
                words = [w for w in _words(part) if not re.fullmatch(r"\w+=.*|time|exec|!", w)]
                if words:
                    yield number, words
        number += 1 + line.count("\0")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _options(line: int, text: str) -> Iterator[Option]:
    """The options in a command line, by their long names."""
    words = _words(text)
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            yield Option(line, name, value if equals else "" if following.startswith("-") else following)
        elif word[:2] in _SHORT:
            yield Option(line, _SHORT[word[:2]], word[2:] or following)


def _size(script: Script, site: Site) -> Iterator[str]:
    """What is asked for, against the limits of the partition."""
    if script.option("--time") is None:
        yield "There is no --time: jobs without a time limit wait longest, and some sites refuse them."
    nodes = script.option("--nodes")
    if nodes is None:
        yield "There is no --nodes: say how many, with --ntasks-per-node."
    hours = hours_of(script.option("--time") or "")
    asked = script.option("--partition") or site.partition
    # Slurm takes the first of several that is free, so each must take the job.
    for name in asked.split(",") if site.partitions else ():
        if name not in site.partitions:
            yield (
                f"{site.title} has no partition {name!r}, as far as its guide says. It has "
                f"{', '.join(site.partitions)}. If it is new, add it to the sites of slurm/sites.toml."
            )
        else:
            yield from _beyond(site, name, int(nodes) if nodes and nodes.isdigit() else None, hours)


def _beyond(site: Site, name: str, nodes: int | None, hours: float | None) -> Iterator[str]:
    """What a partition does not take. None: the script does not say."""
    limits = site.partitions[name]
    jobs = f"Jobs in {name} on {site.title}"
    if limits.nodes is not None and nodes is not None and nodes > limits.nodes:
        yield f"{jobs} have at most {limits.nodes} node{'s' * (limits.nodes != 1)}, not {nodes}."
    if nodes is not None and nodes < limits.least_nodes:
        yield f"{jobs} have at least {limits.least_nodes} nodes, not {nodes}."
    if limits.hours is not None and hours is not None and hours > limits.hours:
        yield f"{jobs} last at most {limits.hours:g} h, not {hours:g} h."


def hours_of(text: str) -> float | None:
    """Slurm's forms of a time limit, in hours: minutes, minutes:seconds, h:m:s, days-hours[:m[:s]]."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, first, second, third = (int(part) if part else None for part in match.groups())
    assert first is not None
    if days is not None:
        return days * 24 + first + (second or 0) / 60 + (third or 0) / 3600
    if third is not None:
        return first + (second or 0) / 60 + third / 3600
    return first / 60 + (second or 0) / 3600
