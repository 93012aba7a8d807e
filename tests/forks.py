"""What is started for submissions, for tests that count it."""

import pytest

from graders import workers
from graders.usage import Bounds


def counted_forks(monkeypatch: pytest.MonkeyPatch) -> list[Bounds]:
    """An entry for every process that a worker starts from now on: the bounds that it has to keep."""
    started: list[Bounds] = []
    fork = workers.Worker.fork

    def counted(worker: workers.Worker, bounds: Bounds) -> workers.Process:
        started.append(bounds)
        return fork(worker, bounds)

    monkeypatch.setattr(workers.Worker, "fork", counted)
    return started
