"""The grader of `container_command`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from graders.grading.kit import Answer, AnswerFailed, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.raised import raised_in
from graders.units.unit_03.binds import as_bind, lies_in
from graders.units.unit_03.container_sites import Site, with_folders, with_odd_words, within_each_other
from graders.units.unit_03.drivers import texts as drivers


@dataclass(frozen=True)
class Started:
    """A command that starts a program in an image, as Apptainer reads it."""

    launcher: tuple[str, ...]
    options: tuple[str, ...]
    binds: tuple[str, ...]
    image: str
    command: tuple[str, ...]


@exercise(
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the program in the image",
            2,
            "`RUNTIME exec OPTIONS IMAGE PROGRAM ARGUMENTS`: what stands behind the image is the program's.",
        ),
        Criterion(
            "one container per task",
            1,
            "The launcher, such as srun, is a program of the machine: it starts the containers, one per "
            "task, not the other way round.",
        ),
        Criterion(
            "GPUs", 1, "The driver's libraries are the machine's: --nv takes NVIDIA's along, --rocm AMD's."
        ),
        Criterion(
            "modules",
            1,
            "What was loaded before is not yours to know: purge, then load, in the order of the list, "
            "before the container starts. Without modules, write no such line.",
        ),
        Criterion(
            "folders",
            2,
            "A folder that lies in a mounted one is there already; /homes does not lie in /home. Of the "
            "others each is bound; one that is only read cannot be spoilt if it is bound with :ro.",
        ),
        Criterion(
            "a folder within a folder",
            1,
            "Folders are bound in the order of the options, and what is bound later covers what was there.",
            needs=("folders",),
        ),
        Criterion(
            "words stay whole",
            1,
            "A shell splits at blanks, and replaces $5 and *: shlex.quote makes one word of any text.",
        ),
    ),
    hints=(
        "Which of these are programs of the machine, and which one is in the image? Their order follows.",
        "When does one path lie within another? pathlib.PurePath has a method for it.",
        "What turns a list of words into a text that a shell splits into the same list? See shlex.",
    ),
)
def container_command(answer: Answer, rng: Rng) -> Findings:
    """The text is run by a shell, in which the site's commands note the words that they were given."""
    plain = Site(
        rng.choice(("apptainer", "singularity")),
        rng.choice((("srun", "--ntasks-per-node=4"), ("ibrun",), ("mpirun", "-n", "8"))),
        gpus="NVIDIA",
        image=f"/images/pytorch-{rng.integer(21, 26)}.06.sif",
        command=("python", "train.py", "--epochs", str(rng.integer(2, 99))),
    )
    number = rng.integer(10, 99)
    with_modules = replace(plain, modules=(f"gcc/{number}", "WebProxy", f"cuda/12.{number}"))

    def each(judge: Judge, sites: Sequence[Site]) -> Finding:
        return compare.first_failure(judge(commands(answer, site), site) for site in sites)

    # The same elsewhere: nothing of it may be taken for granted.
    runtime = {"apptainer": "singularity", "singularity": "apptainer"}[plain.runtime]
    program = (f"/opt/run{number}",)
    elsewhere = replace(plain, runtime=runtime, launcher=("srun", f"--ntasks={number}"), command=program)
    alone, there = commands(answer, plain), commands(answer, elsewhere)
    both = ((alone, plain), (there, elsewhere))
    yield "the program in the image", compare.first_failure(right_program(*each) for each in both)
    yield "one container per task", (one := compare.first_failure(one_a_task(*each) for each in both))
    amd = replace(with_modules, gpus="AMD", folders={f"/scratch/{number}": "read"})
    none = replace(plain, gpus=None)
    right = compare.first_failure(right_program(*each) for each in both).passed
    seen = compare.first_failure(
        [gpus(alone, plain), each(gpus, [amd, none]), *[each(still_starts, [amd, none])] * right]
    )
    yield "GPUs", seen
    loading = [with_modules, amd, *[replace(none, modules=(f"gcc/{number}",))] * seen.passed]
    yield "modules", compare.first_failure([modules(alone, plain), each(modules, loading)])
    yield "folders", (bound := each(folders, [*with_folders(plain, number, seen.passed), amd]))
    yield "a folder within a folder", each(folders, within_each_other(plain, number))
    quoted = with_odd_words(plain, number)
    ran = commands(answer, quoted)
    judges = [right_program, *[one_a_task] * one.passed, *[folders] * bound.passed]
    yield "words stay whole", compare.first_failure(judge(ran, quoted) for judge in judges)


Commands = Sequence[Sequence[str]] | Finding
"""The words of each command that a shell runs, at least one; or why there are none."""

Judge = Callable[[Commands, Site], Finding]


def right_program(ran: Commands, site: Site) -> Finding:
    """Passes if the text starts the program, with its words as they are, in the image."""
    started = start_of(ran, site)
    if isinstance(started, Finding):
        return started
    image = compare.equal(started.image, site.image, "The image")
    # A launcher in the image is another row's affair.
    in_the_image = () if started.launcher else site.launcher
    if not image.passed or started.command in (site.command, in_the_image + site.command):
        return image
    pairs = enumerate(zip_longest(started.command, site.command), 1)
    number, (seen, wanted) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    return Finding(False, f"Word {number} of the program is {seen!r:.200}; expected {wanted!r}.")


def one_a_task(ran: Commands, site: Site) -> Finding:
    """Passes if the launcher starts the containers, and not the other way round."""
    started = start_of(ran, site)
    if isinstance(started, Finding):
        return started
    return compare.equal(started.launcher, site.launcher, f"What stands before {site.runtime}")


def gpus(ran: Commands, site: Site) -> Finding:
    """Passes if the container sees the machine's GPUs, if there are any."""
    started = start_of(ran, site)
    if isinstance(started, Finding):
        return started
    wanted = {"NVIDIA": ("--nv",), "AMD": ("--rocm",)}.get(site.gpus or "", ())
    return compare.equal(started.options, wanted, f"Options for GPUs, where they are {site.gpus}")


def still_starts(ran: Commands, site: Site) -> Finding:
    """Passes if the program is right on other GPUs, and on none."""
    finding = right_program(ran, site)
    where = f"With {site.gpus or 'no'} GPUs: {finding.seen}"
    return finding if finding.passed else Finding(False, where, hint=_NO_WORD)


_NO_WORD = "Where there are no GPUs the option is left out: an empty word is a word, and may be the image."


def modules(ran: Commands, site: Site) -> Finding:
    """Passes if exactly the site's modules are loaded when the container starts."""
    if isinstance(ran, Finding):
        return ran
    start = _place_of_start(ran)
    changes = [change for words in ran[:start] for change in _changes(words)]
    changes += [f"{' '.join(words)}, behind the container" for words in ran[start + 1 :]]
    wanted = ["purge", *site.modules] if site.modules else []
    in_vain = [" ".join(words) for words in ran if words[0] in ("module", "ml")]
    if in_vain and not wanted:
        text = f"{in_vain[0]!r:.80} is run"
        return Finding(False, f"modules is empty, so this machine has no command `module`; but {text}.")
    what = f"Before the container, for modules {list(site.modules)}, what is purged or loaded"
    return compare.equal(changes, wanted, what)


def _place_of_start(ran: Sequence[Sequence[str]]) -> int:
    """Where among the commands the last one stands that is no module's, if there is one."""
    places = [place for place, words in enumerate(ran) if words[0] not in ("module", "ml")]
    return places[-1] if places else len(ran) - 1


def _changes(words: Sequence[str]) -> list[str]:
    """What a module command does, one step each: "purge", or the name of what it loads. Options, such as
    --force, are of no account.
    """
    match [word for word in words if not word.startswith("-")]:
        case ["module" | "ml", "purge"]:
            return ["purge"]
        case ["module" | "ml", "load" | "add", *names]:
            return list(names)
        case ["ml", *names]:
            return list(names)
        case _:
            return [" ".join(words)]


def folders(ran: Commands, site: Site) -> Finding:
    """Passes if the program finds each folder under its path, may write where it has to, and nowhere else."""
    started = start_of(ran, site)
    if isinstance(started, Finding):
        return started
    told = f"Folders {site.folders}, mounted {list(site.mounted)}, bound {list(started.binds)}"
    missing = {path: mode for path, mode in site.folders.items() if not lies_in(path, site.mounted)}
    bound: list[tuple[str, str]] = []
    for bind in started.binds:
        source, _, rest = bind.partition(":")
        target, _, mode = rest.partition(":") if rest else (source, "", "")
        if source in site.folders and source not in missing:
            there = next(parent for parent in site.mounted if lies_in(source, [parent]))
            text = f"{source} is bound, but is in the container already: {there} is mounted"
            return Finding(False, f"{text}. {told}.")
        if source not in missing or target != source or mode not in ("", "ro", "rw"):
            return Finding(False, f"{told}: {bind!r} is not asked for.")
        bound.append((source, "read" if mode == "ro" else "write"))
    for path, wanted in missing.items():
        modes = [mode for source, mode in bound if lies_in(path, [source])]
        seen = modes[-1] if modes else "absent"
        if seen != wanted:
            words = {"read": "can only be read", "write": "can be written", "absent": "is not there"}
            return Finding(False, f"In the container {path} {words[seen]}; expected {wanted!r}. {told}.")
    return Finding(True, f"{told}.")


def start_of(ran: Commands, site: Site) -> Started | Finding:
    """The command that starts the container; a finding that says why there is none."""
    if isinstance(ran, Finding):
        return ran
    words = list(ran[_place_of_start(ran)])
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
