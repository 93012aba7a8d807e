"""A cell on four ranks that stay, beside ipyparallel's engines where they are installed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import Row, at_most, median_seconds, times_faster
from course_lib.notebook.staying import ranks

RANKS, RUNS = 4, 40
BEGIN = "import torch, torch.distributed as dist\nx = torch.ones(1024)"
CELL = "y = x * 2\nfloat(y.sum())"
LIMITS = {"simulated": 0.005, "processes": 0.020}
"""Engine -> seconds that a cell may take."""


def rows() -> Iterator[Row]:
    """Time a cell that computes and sends back a number, on every engine in turn."""
    with ExitStack() as open_:
        there = {on: open_.enter_context(ranks(RANKS, on=on)) for on in LIMITS}
        for each in there.values():
            each.run(BEGIN)
        cells: dict[str, Callable[[], Any]] = {
            on: (lambda each=each: each.run(CELL)) for on, each in there.items()
        }
        other = _ipyparallel(open_) if find_spec("ipyparallel") else None
        for on, limit in LIMITS.items():
            what = f"a cell on {RANKS} ranks that stay, {on}"
            seconds = median_seconds(cells[on], RUNS)
            yield at_most(what, seconds, limit)
            if other:
                yield times_faster(what, seconds, median_seconds(other, RUNS), "ipyparallel", 1)


def _ipyparallel(open_: ExitStack) -> Callable[[], Any]:
    import ipyparallel

    cluster = ipyparallel.Cluster(n=RANKS, log_level=40)
    client = cluster.start_and_connect_sync()
    open_.callback(cluster.stop_cluster_sync)
    view = client[:]
    view.execute(BEGIN, block=True)
    return lambda: (view.execute("y = x * 2", block=True), view["float(y.sum())"])[0]
