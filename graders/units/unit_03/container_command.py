"""The grader of `container_command`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_03.binds import lies_in
from graders.units.unit_03.container_sites import Site, with_folders, with_odd_words, within_each_other
from graders.units.unit_03.container_start import Commands, commands, place_of_start, start_of


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

    def each(judge: Callable[[Commands, Site], Finding], sites: Sequence[Site]) -> Finding:
        return compare.first_failure(judge(commands(answer, site), site) for site in sites)

    # The same elsewhere: nothing of it may be taken for granted.
    runtime = {"apptainer": "singularity", "singularity": "apptainer"}[plain.runtime]
    launcher, command = ("srun", f"--ntasks={number}"), (f"/opt/run{number}",)
    elsewhere = replace(plain, runtime=runtime, launcher=launcher, command=command)
    alone, there = commands(answer, plain), commands(answer, elsewhere)
    both = ((alone, plain), (there, elsewhere))
    program = compare.first_failure(right_program(*each) for each in both)
    yield "the program in the image", program
    yield "one container per task", (one := compare.first_failure(one_a_task(*each) for each in both))
    amd = replace(with_modules, gpus="AMD", folders={f"/scratch/{number}": "read"})
    none = replace(plain, gpus=None)
    seen = compare.first_failure(
        [gpus(alone, plain), each(gpus, [amd, none]), *[each(still_starts, [amd, none])] * program.passed]
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
    start = place_of_start(ran)
    changes = [change for words in ran[:start] for change in _changes(words)]
    changes += [f"{' '.join(words)}, behind the container" for words in ran[start + 1 :]]
    wanted = ["purge", *site.modules] if site.modules else []
    in_vain = [" ".join(words) for words in ran if words[0] in ("module", "ml")]
    if in_vain and not wanted:
        text = f"{in_vain[0]!r:.80} is run"
        return Finding(False, f"modules is empty, so this machine has no command `module`; but {text}.")
    what = f"Before the container, for modules {list(site.modules)}, what is purged or loaded"
    return compare.equal(changes, wanted, what)


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
