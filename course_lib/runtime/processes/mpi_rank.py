"""`python -m mpi4py mpi_rank.py FOLDER`: one rank of `course_lib.launch.mpi.mpirun`.

It is run as a file and imports nothing of the course, so that a rank does not wait for PyTorch, which an MPI
program need not use.
"""

import pickle
import sys
import time
import traceback
from pathlib import Path

import cloudpickle
from mpi4py import MPI


def main(folder: Path) -> None:
    """Call the function, leave its result or its failure in the folder; a failure aborts all ranks."""
    rank = MPI.COMM_WORLD.Get_rank()
    try:
        function, arguments = pickle.loads((folder / "call").read_bytes())
        result = cloudpickle.dumps(function(MPI.COMM_WORLD, *arguments))
    except BaseException as error:
        _write(folder / f"failed.{rank}", pickle.dumps(_told(error)))
        raise
    _write(folder / f"result.{rank}", result)


def _told(error: BaseException) -> dict[str, object]:
    """An exception as plain data, its frames as (file, line, function); `time` orders those of all ranks."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "time": time.time(),
        "type": type(error).__name__,
        "message": str(error),
        "frames": [(frame.filename, frame.lineno, frame.name) for frame in frames],
        "ending": "".join(traceback.format_exception_only(error)),
    }


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: another rank's abort may come at any moment."""
    draft = path.with_name("draft." + path.name)
    draft.write_bytes(content)
    draft.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
