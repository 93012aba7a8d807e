"""The error that every room of the library may raise."""


class BadLaunch(ValueError):
    """The launch itself makes no sense: the message says what was seen, what was expected, what to do."""

    def _render_traceback_(self) -> list[str]:
        return [f"BadLaunch: {self}"]
