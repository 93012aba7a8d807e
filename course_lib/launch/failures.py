"""What can go wrong with a run, each as a sentence that says what was seen and what to do."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from course_lib.runtime.communication.errors import PendingCall, RankTraceback, WaitGraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course_lib.launch.run import Run


class LaunchError(RuntimeError):
    """A run that did not end well. `report` is the whole story; `run` holds events and output until then."""

    def __init__(self, report: str, run: "Run | None" = None) -> None:
        super().__init__(report)
        self.report = report
        self.run = run

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the report alone, without the frames of this library."""
        return [f"{type(self).__name__}: {self.report}"]


class RankFailed(LaunchError):
    """A rank raised. `failures` has every rank's traceback, the root cause first."""

    def __init__(self, report: str, failures: Sequence[RankTraceback], run: "Run | None" = None) -> None:
        super().__init__(report, run)
        self.failures = tuple(failures)

    @property
    def root(self) -> RankTraceback:
        return self.failures[0]


class Deadlock(LaunchError):
    """No rank can go on. `waiting` says in which call each waits, `cycle` who waits for whom in a circle.

    `finished` are the ranks that had already returned; `lost` says since when, in virtual seconds, ranks
    answer nothing any more (`RankLost`).
    """

    def __init__(
        self,
        report: str,
        waiting: Sequence[PendingCall],
        cycle: Sequence[int] = (),
        finished: Sequence[int] = (),
        run: "Run | None" = None,
    ) -> None:
        super().__init__(report, run)
        self.waiting = tuple(waiting)
        self.cycle = tuple(cycle)
        self.finished = tuple(finished)
        self.lost: dict[int, float] = {}
        self._figure_shown = False

    @property
    def wait_graph(self) -> WaitGraph:
        """Who waits for whom."""
        ranks = self.run.ranks if self.run is not None else 0
        return WaitGraph(self.waiting, self.cycle, self.finished, self.lost, ranks)

    def figure(self) -> "Figure":
        """The ranks as a circle, an arrow from each to those that it waits for, the cycle in colour."""
        from course_lib.figures.deadlock import deadlock_figure

        return deadlock_figure(self.wait_graph)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the report, and in a notebook the figure before it.

        IPython renders an error twice, once of these to keep it with the session's history.
        """
        if not self._figure_shown:
            self._figure_shown = True
            _show_in_notebook(self.figure)
        return super()._render_traceback_()


class RankLost(Deadlock):
    """A rank answers nothing any more: the cluster of the simulator lost it.

    lost: rank -> since when, in virtual seconds.
    """

    def __init__(
        self,
        report: str,
        waiting: Sequence[PendingCall],
        cycle: Sequence[int] = (),
        finished: Sequence[int] = (),
        run: "Run | None" = None,
        *,
        lost: Mapping[int, float],
    ) -> None:
        super().__init__(report, waiting, cycle, finished, run)
        self.lost = dict(lost)


class CollectiveMismatch(LaunchError):
    """Ranks of one group made different collective calls, or the same with different shapes, dtypes, ops."""

    def __init__(self, report: str, calls: Sequence[PendingCall], run: "Run | None" = None) -> None:
        super().__init__(report, run)
        self.calls = tuple(calls)


class TimedOut(LaunchError):
    """The deadline passed while some rank still computed; the report says where each rank was."""


class LeftOpen(LaunchError):
    """All ranks returned, and some call was never answered or never waited for: `run.unmatched`.

    On this engine all may have gone well; on another one it hangs, or numbers differ from run to run.
    """


def _show_in_notebook(draw: "Callable[[], Figure]") -> None:
    """Show a figure beside a report, if this is a notebook's kernel.

    The report is what matters: whatever goes wrong with the picture must not hide it.
    """
    with suppress(Exception):
        from IPython.core.getipython import get_ipython

        from course_lib.figures.style import show

        if hasattr(get_ipython(), "kernel"):
            show(draw())
