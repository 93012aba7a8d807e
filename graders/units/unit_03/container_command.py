"""The grader of `container_command`: a shell runs the text, whose commands note their words."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from graders.grading.cases import both, vary
from graders.grading.explanation import Tried
from graders.grading.judging import feature
from graders.grading.kit import Answer, Criterion, Finding, Rng, compare
from graders.units.one_by_one import one_by_one
from graders.units.unit_03.container_start import Started, started
from graders.units.unit_03.drivers import texts as drivers


@dataclass(frozen=True, slots=True)
class Site:
    """A machine as the exercise describes it, and what is run there."""

    runtime: str = feature("apptainer", "{}")
    launcher: tuple[str, ...] = feature(("srun", "--ntasks-per-node=4"), lambda words: f"by {words[0]}")
    gpus: str | None = feature("NVIDIA", "GPUs {}")
    modules: tuple[str, ...] = feature((), lambda names: f"modules {[*names]}" if names else "")
    mounted: tuple[str, ...] = feature(("/home", "/tmp"), lambda paths: f"mounted {[*paths]}")
    folders: dict[str, str] | tuple[()] = feature((), lambda paths: f"folders {paths}" if paths else "")
    image: str = feature("/images/pytorch-23.06.sif", "image {!r}")
    command: tuple[str, ...] = feature(("python", "train.py", "--epochs", "3"), lambda words: f"{[*words]}")


ELSEWHERE = both(runtime="singularity", launcher=("ibrun",), command=("/opt/run",))
CODE = "/home/student7/code"
FOLDERS = (
    *both(
        mounted=("/home", "/scratch/shared"),
        folders={CODE: "write", "/scratch/7/digits": "read", "/scratch/home/runs": "write", "/homes": "read"},
    ),
    *both(mounted=("/data2/in",), folders={"/data/sets": "read", "/data2": "write", CODE: "read"}),
    *both(mounted=("/home", "/tmp"), folders={"/tmp": "write"}),
)
OUTER = "/scratch/project_7"
WITHIN = (
    *both(mounted=("/home",), folders={f"{OUTER}/runs": "write", OUTER: "read"}),
    *both(mounted=("/home",), folders={OUTER: "write", f"{OUTER}/a": "read", f"{OUTER}/a/b": "write"}),
)
SCRIPT = "print('2 * 3', \"a  b\")"
ODD = both(
    command=("python", "-c", SCRIPT, "--note", "\\$5 & *", "", "a;b", "`c`", "~", "#1", "<(a|b)", "a\nb"),
    image="/images/it's my $5 image.sif",
    folders={"/data/that's my $5 set": "read", "/tmp/my runs": "write"},
)


def right_program(start: Started, site: Site) -> Finding:
    """Passes if the program runs in the image. A launcher in the image is another row's affair."""
    image = compare.equal(start.image, site.image, "the image")
    in_the_image = () if start.launcher else site.launcher
    if not image.passed or start.command == in_the_image + site.command:
        return image
    return compare.equal(list(start.command), list(site.command), "the program with its words")


def right_folders(start: Started, site: Site) -> Finding:
    """Passes if the program finds each folder under its path, may write where it has to, and nowhere else."""
    folders = dict(site.folders)
    missing = {path: mode for path, mode in folders.items() if not _lies_in(path, site.mounted)}
    bound: list[tuple[str, str]] = []
    for bind in start.binds:
        source, _, rest = bind.partition(":")
        target, _, mode = rest.partition(":") if rest else (source, "", "")
        if source not in missing or target != source or mode not in ("", "ro", "rw"):
            why = "it is mounted" if source in folders and source not in missing else "not asked for"
            return Finding(False, f"{bind!r} should not be bound ({why}).")
        bound.append((source, "read" if mode == "ro" else "write"))
    for path, wanted in missing.items():
        modes = ["absent", *(mode for source, mode in bound if _lies_in(path, [source]))]
        if modes[-1] != wanted:
            text = f"bound are {start.binds}, and so {path} is for {modes[-1]!r}"
            return Finding(False, f"{text}; expected {wanted!r}.")
    return Finding(True, "each folder is there.")


def _lies_in(path: str, folders: Iterable[str]) -> bool:
    return any(PurePath(path).is_relative_to(folder) for folder in folders)


def one_a_task(tried: Tried[Site]) -> Finding:
    """Passes if the launcher starts the containers, and not the other way round."""
    site = tried.case.features
    return compare.equal(tried.seen.launcher, site.launcher, f"what stands before {site.runtime}")


def gpus(tried: Tried[Site]) -> Finding:
    """Passes if the container sees the machine's GPUs, if there are any."""
    wanted = {"NVIDIA": ["--nv"], "AMD": ["--rocm"]}.get(tried.case.features.gpus or "", [])
    return compare.equal(tried.seen.options, wanted, "what is given for GPUs")


def modules(tried: Tried[Site]) -> Finding:
    """Passes if exactly the site's modules are loaded when the container starts."""
    names = tried.case.features.modules
    return compare.equal(tried.seen.modules, ["purge", *names] if names else [], "what is purged or loaded")


@one_by_one(
    base=Site(),
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "the program in the image",
            2,
            "`RUNTIME exec OPTIONS IMAGE PROGRAM ARGUMENTS`: what stands behind the image is the program's.",
            vary=ELSEWHERE,
        ),
        Criterion(
            "one container per task",
            1,
            "The launcher, such as srun, is a program of the machine: it starts the containers, one per "
            "task, not the other way round.",
            how=one_a_task,
        ),
        Criterion(
            "GPUs",
            1,
            "The driver's libraries are the machine's: --nv takes NVIDIA's along, --rocm AMD's.",
            vary=vary(gpus=("AMD", None)),
            how=gpus,
        ),
        Criterion(
            "modules",
            1,
            "What was loaded before is not yours to know: purge, then load, in the order of the list, "
            "before the container starts. Without modules, write no such line.",
            vary=vary(modules=(("gcc/12", "WebProxy", "cuda/12.4"),)),
            how=modules,
        ),
        Criterion(
            "folders",
            2,
            "A folder that lies in a mounted one is there already; /homes does not lie in /home. Of the "
            "others each is bound; one that is only read cannot be spoilt if it is bound with :ro.",
            vary=FOLDERS,
        ),
        Criterion(
            "a folder within a folder",
            1,
            "Folders are bound in the order of the options, and what is bound later covers what was there.",
            vary=WITHIN,
            needs=("folders",),
        ),
        Criterion(
            "words stay whole",
            1,
            "A shell splits at blanks, and replaces $5 and *: shlex.quote makes one word of any text.",
            vary=ODD,
            needs=("the program in the image", "one container per task", "folders"),
        ),
    ),
    hints=(
        "Which of these are programs of the machine, and which one is in the image? Their order follows.",
        "When does one path lie within another? pathlib.PurePath has a method for it.",
        "What turns a list of words into a text that a shell splits into the same list? See shlex.",
    ),
)
def container_command(answer: Answer, site: Site, rng: Rng) -> tuple[Finding, Started | None]:
    """The program runs in the image, with all folders that it needs."""
    names = sorted({"module", "ml", "apptainer", "singularity", site.launcher[0]})
    told = {
        "runtime": site.runtime,
        "gpus": site.gpus,
        "modules": list(site.modules),
        "launcher": list(site.launcher),
        "mounted": list(site.mounted),
        "folders": dict(site.folders),
    }
    reply = answer.call(drivers.in_a_shell, names, told, site.image, list(site.command))
    start = started(reply, site.runtime, names)
    if isinstance(start, Finding):
        return start, None
    return compare.first_failure([right_program(start, site), right_folders(start, site)]), start
