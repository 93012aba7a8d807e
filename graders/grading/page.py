"""Pages that need no network and run nothing: the frame that they all have, and templates that extend it."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page_templates(folder: Path) -> Environment:
    """The templates of a folder, which may extend `page.html.j2`."""
    frame = Path(__file__).parent / "templates"
    return Environment(
        loader=FileSystemLoader([folder, frame]), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
