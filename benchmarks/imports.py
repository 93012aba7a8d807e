"""What `from course_lib import launch` costs a script, and its engines, beside `import torch`."""

import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator

from tqdm import tqdm

from benchmarks.measure import Row

_RUNS = 7
_LIMIT = 1.3
"""Times as long as `import torch`."""

_IMPORTS = {
    "import: from course_lib import launch": "from course_lib import launch",
    "import: the engine of simulated ranks": "import course_lib.launch.simulated",
    "import: the engine of ranks as processes": "import course_lib.launch.processes",
}


def rows() -> Iterator[Row]:
    """Every comparison of this module: in each run all of them, one after the other."""
    seconds: dict[str, list[float]] = {}
    for _ in tqdm(range(_RUNS), leave=False, disable=None, unit="run"):
        for name, code in {"torch": "import torch", **_IMPORTS}.items():
            seconds.setdefault(name, []).append(_interpreter_seconds(code))
    torch = seconds.pop("torch")
    for name, ours in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(ours, torch, strict=True))
        aim = f"at most {_LIMIT:g} times as long"
        yield Row(
            name, statistics.median(ours), statistics.median(torch), "import torch", aim, ratio <= _LIMIT
        )


def _interpreter_seconds(code: str) -> float:
    """Processor time of an interpreter that runs this: what else the machine does counts little."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
