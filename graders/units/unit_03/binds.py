"""What is bound into a container, as Apptainer reads it."""

from collections.abc import Sequence


def lies_in(path: str, parents: Sequence[str]) -> bool:
    """Whether a path is one of the parents, or lies in one."""
    return any(path == parent or path.startswith(f"{parent}/") for parent in parents)


def as_bind(mount: str) -> str:
    """What --bind is told for "type=bind,source=/a,destination=/b,ro"; the text itself if it says more."""
    names = {"src": "source", "dst": "destination", "target": "destination"}
    parts = (part.partition("=") for part in mount.split(","))
    said = {names.get(name, name): value for name, _, value in parts}
    if said.keys() - {"type", "source", "destination", "ro"} or said.get("type") != "bind":
        return mount
    read_only = said.get("ro") in ("", "true")
    return f"{said.get('source')}:{said.get('destination')}{':ro' * read_only}"
