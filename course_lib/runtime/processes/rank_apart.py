"""A rank in the Python of another environment, such as TensorFlow's.

The agent forks it like all, and it becomes that Python. Only modules without PyTorch are loaded there, and of
the workbook's packages none. What crosses is a `Start`, in a file of the launch's folder; a function comes as
cloudpickle has written it, so both environments need the same Python.
"""

import os
import pickle
from functools import partial
from pathlib import Path
from typing import NoReturn

from course_lib.runtime.processes.by_value import by_value
from course_lib.runtime.processes.call_log import CallLog
from course_lib.runtime.processes.horovod_group import BACKEND as HOROVOD
from course_lib.runtime.processes.horovod_group import join_horovod, leave_horovod
from course_lib.runtime.processes.launch_folder import LaunchFolder
from course_lib.runtime.processes.protocol import Start
from course_lib.runtime.processes.rank_life import Ending, call_function, live, resemble_launcher

_COURSE = Path(__file__).parents[2]

_START_CODE = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("course_lib", sys.argv[1] + "/__init__.py")
sys.modules["course_lib"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["course_lib"])
from course_lib.runtime.processes.rank_apart import main
main(*sys.argv[2:])
"""
"""Finds course_lib and nothing that may lie beside it."""


def become_rank(folder: LaunchFolder, start: Start, rank: int, wake: int) -> NoReturn:
    """In a process that the agent has forked: be the rank in the interpreter of the plan."""
    folder.write(folder.start(rank), pickle.dumps(start))
    os.set_inheritable(wake, True)
    words = ["-P", "-c", _START_CODE, str(_COURSE), str(folder.path), str(rank), str(wake)]
    os.execve(start.plan.interpreter, [start.plan.interpreter, *words], start.plan.environment)


def main(path: str, rank: str, wake: str) -> NoReturn:
    """Be the rank."""
    folder = LaunchFolder(Path(path))
    start: Start = pickle.loads(folder.start(int(rank)).read_bytes())
    os.set_inheritable(int(wake), False)
    if start.plan.backend != HOROVOD:
        from course_lib.runtime.processes.rank import rank_main

        rank_main(folder, start, int(rank), int(wake))
    live(folder, int(rank), int(wake), partial(_work, folder, start, int(rank)))


def _work(folder: LaunchFolder, start: Start, rank: int, call_log: CallLog) -> None:
    resemble_launcher(start.plan)
    join_horovod(folder, rank)
    call_function(folder, start, rank, call_log, Ending(leave_horovod, by_value))
