"""How a judge begins: as `graders.forked_server` says, with PyTorch imported once for it and its submissions.

The first line on its standard input is the environment that it is to have, as JSON; orders follow.
"""

import json
import os
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from graders.forked_server import forked_server, share

NAME = "course-judge"
"""What `ps` and `top` call it."""


def main() -> None:
    """Make the fork, then judge until there are no orders."""
    with ExitStack() as stack:
        server = forked_server(stack, for_many=True)
        variables = json.loads(sys.stdin.readline() or "null")
        if variables is None:
            return
        os.environ.clear()
        os.environ.update(variables)
        # An import may have asked for the folder already.
        tempfile.tempdir = None
        with suppress(OSError):  # only Linux has it: the fork keeps the command line, but not this name
            Path("/proc/self/comm").write_text(NAME)
        if server is not None:
            share(server)
        from graders.classroom import judge_process

        judge_process.main()
