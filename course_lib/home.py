"""Where the workbook keeps what must outlive a notebook: progress, hints used, histories of training."""

import os
from pathlib import Path

from platformdirs import user_data_path

VARIABLE = "COURSE_HOME"
"""Environment variable that names another folder, such as one on a shared file system."""


def course_home() -> Path:
    """The folder for a user's own results, outside of every notebook; it is made if it is not there.

    `$COURSE_HOME` if that is set, else the platform's place for a user's data (on Linux
    `~/.local/share/distributed-training-workbook`). Raises OSError if it cannot be made.
    """
    named = os.environ.get(VARIABLE)
    home = Path(named).expanduser() if named else user_data_path("distributed-training-workbook", False)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"The folder for your results, {home}, cannot be made ({error.strerror}). "
            f"Set the environment variable {VARIABLE} to a folder that you may write to."
        ) from error
    return home.resolve()
