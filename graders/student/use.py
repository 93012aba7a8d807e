"""`use("shard_indices")`: our answer in the place of one's own, to go on with what is built on it."""

import sys
from pathlib import Path
from typing import Any

from graders.student.display import Notice, shown
from graders.student.lookup import NoSuchExercise, find_exercise


def use(*names: str, code: str = "") -> Notice:
    """Put our answers in the place of yours: `use("shard_indices")`, so that you can go on with the others.

    code: whoever teaches tells it once a part is over, where answers are closed until then. What is given
    earns no points; yours comes back as soon as you run its cell again.
    """
    from graders.student.given import NotGiven, put_reference
    from graders.student.sealed import WrongCode, open_with

    namespace = _namespace()
    try:
        if code:
            open_with(code, Path.cwd())
        for name in names:
            put_reference(find_exercise(name).unit, name, namespace)
    except (NotGiven, NoSuchExercise, WrongCode) as error:
        return shown(Notice(str(error)))
    if not names:
        return shown(Notice('Say which, for example use("shard_indices").'))
    told, its = " and ".join(names), "their" if len(names) > 1 else "its"
    return shown(
        Notice(
            f"Our {told}, for this kernel. What is given earns no points; run {its} cell again to have yours "
            "back."
        )
    )


def _namespace() -> dict[str, Any]:
    """Where a notebook's cells define their names; in a script, the main module's."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return shell.user_ns if shell is not None else vars(sys.modules["__main__"])
