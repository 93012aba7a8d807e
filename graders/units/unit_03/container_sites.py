"""Machines with a container runtime: what a program finds there, and what it needs."""

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Site:
    """A machine as the exercise describes it, what is run there, and what the answer should make of it."""

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


def with_odd_words(site: Site, number: int) -> Site:
    """The site with words that a shell would take apart or replace."""
    code = f"print('{number} * 2', \"a  b\")"
    odd = ("python", "-c", code, "--note", f"\\$5 & *{number}", "", f"a;b&{number}", f"`c`{number}")
    more = ("~", f"#{number}", f"<(a|b)>{number}", f"{{a,b}}[{number}]?!", f"a\tb\nc{number}")
    return replace(
        site,
        command=(*odd, *more),
        image="/images/it's my $5 image.sif",
        launcher=("srun", f"--comment=it isn't a $ {number}"),
        folders={f"{place}/that's my $5 sets": mode for place, mode in _PLACES.items()},
    )


_PLACES = {"/data": "read", "/runs": "write", "/tmp": "write"}
"""Where folders lie, of which one is mounted."""


def with_folders(site: Site, number: int, bare: bool) -> list[Site]:
    """The site with folders that are mounted, that are not, and that only look as if they were.

    bare: some are of a machine without GPUs, where nothing is mounted. In the last one nothing is missing.
    """
    there = {f"/home/student{number}/code": "write", "/tmp": "write", "/scratch/shared/a/sets": "read"}
    data = {"/data/sets": "read", "/data2": "write", f"/home/student{number}/code": "read"}
    missing = {f"/scratch/{number}/digits": "read", "/scratch/home/runs": "write", "/homes": "read"}
    return [
        replace(site, mounted=("/home", "/tmp", "/scratch/shared"), folders=missing | there),
        replace(site, mounted=("/data2/in",), folders=data),
        *[replace(site, gpus=None, mounted=(), folders=there)] * bare,
        replace(site, folders={"/tmp": "write"}),
    ]


def within_each_other(site: Site, number: int) -> list[Site]:
    """The site with folders that lie in one another, with other rights, the inner ones first, or neither."""
    project = f"/scratch/project_{number}"
    mixed = {project: "write", f"{project}/a/b": "write", f"{project}/a": "read"}
    return [
        replace(site, folders={f"{project}/runs": "write", project: "read"}),
        replace(site, folders={f"{project}/a/b": "write", f"{project}/a": "read", project: "write"}),
        replace(site, folders=mixed),
    ]
