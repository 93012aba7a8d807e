"""The grader of `container_command`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import zip_longest
from pathlib import PurePath

from graders.grading.kit import Answer, Criterion, Finding, Findings, Rng, compare, exercise
from graders.units.unit_03.container_start import Site, Started, started


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
            needs=("the program in the image", "one container per task", "folders"),
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
    number = rng.integer(10, 99)
    plain = Site(
        rng.choice(("apptainer", "singularity")),
        rng.choice((("srun", "--ntasks-per-node=4"), ("ibrun",), ("mpirun", "-n", "8"))),
        gpus="NVIDIA",
        image=f"/images/pytorch-{rng.integer(21, 26)}.06.sif",
        command=("python", "train.py", "--epochs", str(rng.integer(2, 99))),
    )
    runtime = {"apptainer": "singularity", "singularity": "apptainer"}[plain.runtime]
    elsewhere = replace(
        plain, runtime=runtime, launcher=("srun", f"--ntasks={number}"), command=("/opt/run",)
    )
    amd, none = replace(plain, gpus="AMD"), replace(plain, gpus=None)
    with_modules = replace(plain, modules=(f"gcc/{number}", "WebProxy", f"cuda/12.{number}"))

    def each(judge: Callable[[Started, Site], Finding], *sites: Site) -> Finding:
        starts = ((started(answer, site), site) for site in sites)
        return compare.first_failure(
            seen if isinstance(seen, Finding) else judge(seen, site) for seen, site in starts
        )

    yield "the program in the image", each(right_program, plain, elsewhere)
    yield "one container per task", each(one_a_task, plain, elsewhere)
    yield "GPUs", each(gpus, plain, amd, none)
    yield "modules", each(modules, plain, with_modules)
    yield "folders", each(folders, *with_folders(plain, number))
    yield "a folder within a folder", each(folders, *within_each_other(plain, number))
    quoted = with_odd_words(plain)
    judges = right_program, one_a_task, folders
    yield "words stay whole", compare.first_failure(each(judge, quoted) for judge in judges)


def with_folders(site: Site, number: int) -> list[Site]:
    """The site with folders that are mounted, that are not, and that only look as if they were."""
    home = f"/home/student{number}/code"
    missing = {f"/scratch/{number}/digits": "read", "/scratch/home/runs": "write", "/homes": "read"}
    return [
        replace(site, mounted=("/home", "/scratch/shared"), folders={home: "write", **missing}),
        replace(
            site, mounted=("/data2/in",), folders={"/data/sets": "read", "/data2": "write", home: "read"}
        ),
        replace(site, folders={"/tmp": "write"}),
    ]


def within_each_other(site: Site, number: int) -> list[Site]:
    """The site with folders that lie in one another, with other rights; the outer one last, or first."""
    project = f"/scratch/project_{number}"
    return [
        replace(site, folders={f"{project}/runs": "write", project: "read"}),
        replace(site, folders={project: "write", f"{project}/a": "read", f"{project}/a/b": "write"}),
    ]


def with_odd_words(site: Site) -> Site:
    """The site with words that a shell would take apart or replace."""
    code = "print('2 * 3', \"a  b\")"
    return replace(
        site,
        command=("python", "-c", code, "--note", "\\$5 & *", "", "a;b", "`c`", "~", "#1", "<(a|b)", "a\nb"),
        image="/images/it's my $5 image.sif",
        folders={"/data/that's my $5 set": "read", "/tmp/my runs": "write"},
    )


def right_program(start: Started, site: Site) -> Finding:
    """Passes if the text starts the program, with its words as they are, in the image."""
    image = compare.equal(start.image, site.image, "The image")
    # A launcher in the image is another row's affair.
    in_the_image = () if start.launcher else site.launcher
    if not image.passed or start.command in (site.command, in_the_image + site.command):
        return image
    pairs = enumerate(zip_longest(start.command, site.command), 1)
    number, (seen, wanted) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    return Finding(False, f"Word {number} of the program is {seen!r:.200}; expected {wanted!r}.")


def one_a_task(start: Started, site: Site) -> Finding:
    """Passes if the launcher starts the containers, and not the other way round."""
    return compare.equal(start.launcher, site.launcher, f"What stands before {site.runtime}")


def gpus(start: Started, site: Site) -> Finding:
    """Passes if the container sees the machine's GPUs, if there are any, and still runs the program."""
    wanted = {"NVIDIA": ("--nv",), "AMD": ("--rocm",)}.get(site.gpus or "", ())
    seen = compare.equal(start.options, wanted, f"Options for GPUs, where they are {site.gpus}")
    program = right_program(start, site)
    return program if seen.passed and not program.passed else seen


def modules(start: Started, site: Site) -> Finding:
    """Passes if exactly the site's modules are loaded when the container starts."""
    wanted = ("purge", *site.modules) if site.modules else ()
    what = f"Before the container, for modules {list(site.modules)}, what is purged or loaded"
    return compare.equal(start.modules, wanted, what)


def folders(start: Started, site: Site) -> Finding:
    """Passes if the program finds each folder under its path, may write where it has to, and nowhere else."""
    told = f"Folders {site.folders}, mounted {list(site.mounted)}, bound {list(start.binds)}"
    missing = {path: mode for path, mode in site.folders.items() if not _lies_in(path, site.mounted)}
    bound: list[tuple[str, str]] = []
    for bind in start.binds:
        source, _, rest = bind.partition(":")
        target, _, mode = rest.partition(":") if rest else (source, "", "")
        if source not in missing or target != source or mode not in ("", "ro", "rw"):
            why = "it is mounted" if source in site.folders and source not in missing else "not asked for"
            return Finding(False, f"{told}: {bind!r} should not be bound ({why}).")
        bound.append((source, "read" if mode == "ro" else "write"))
    for path, wanted in missing.items():
        modes = [mode for source, mode in bound if _lies_in(path, [source])]
        seen = modes[-1] if modes else "absent"
        if seen != wanted:
            words = {"read": "can only be read", "write": "can be written", "absent": "is not there"}
            return Finding(False, f"In the container {path} {words[seen]}; expected {wanted!r}. {told}.")
    return Finding(True, f"{told}.")


def _lies_in(path: str, folders: Iterable[str]) -> bool:
    return any(PurePath(path).is_relative_to(folder) for folder in folders)
