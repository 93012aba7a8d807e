"""How a command of the workbook says that it could not do its work."""

from collections.abc import Sequence


class CommandFailed(Exception):
    """A command did not do all of what it was asked for. `complaints` are sentences for the terminal."""

    def __init__(self, complaints: Sequence[str]) -> None:
        super().__init__("\n".join(complaints))
        self.complaints = tuple(complaints)
